"""`hpcdl events` and `timeline`: what happened."""

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.bodies import body_text
from hpcdl.cli.files import OutputFile, replace_file
from hpcdl.cli.output import Column, Output, escape, outputs_as, print_ids, print_json, print_table, say
from hpcdl.cli.rows import JOB_ID, connect, moment_text
from hpcdl.client import FOLLOW_S, Client, ClientError, path_with

_PAGE = 1000  # events in one question
_WAIT_S = 30.0  # so long the daemon holds back an answer without events

COLUMNS = (
    Column("SEQ", lambda row: f"{row['seq']:>6}", right=True),
    Column("AT", lambda row: f"{moment_text(row['at']):<19}"),
    Column("STREAM", lambda row: f"{row['stream']:<10}"),
    Column("KIND", lambda row: f"{row['kind']:<16}"),
    Column("BODY", body_text, shrinks=True),
)
JOB = click.option("--job", type=JOB_ID, metavar="ID", help="Only this job.")


def pages(client: Client, after: int, job: int | None, limit: int | None) -> Iterator[list[dict[str, Any]]]:
    """The events after the sequence number `after`, in lists of at most 1000, up to `limit` in all."""
    left = limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        answer = client.get(path_with("/v1/events", after=after, limit=size, job=job))
        found: list[dict[str, Any]] = answer["events"]
        if not found:
            return
        yield found
        after = found[-1]["seq"]
        left = None if left is None else left - len(found)
        if after >= answer["last"]:
            return


@click.command()
@JOB
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only those after this number.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many, the oldest.  [default: all]")
@click.option("-n", "--last", type=click.IntRange(min=1), metavar="N", help="Only the last N.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@outputs_as("Numbers only, one a line.")
@click.pass_context
def events(
    ctx: click.Context,
    job: int | None,
    after: int,
    limit: int | None,
    last: int | None,
    follow: bool,
    output: Output,
) -> None:
    """List what the daemon recorded, in order. An event's number is what --after takes to go on from there.

    BODY is the gist of an event, cut to the width of a terminal; --json has everything.
    """
    if follow and output is Output.JSON:
        raise click.UsageError("--follow goes on, so it cannot be one JSON value", ctx)
    if last is not None and limit is not None:
        raise click.UsageError("--last and --limit exclude each other", ctx)
    client = connect(ctx, FOLLOW_S)
    if last is not None:
        after = _before_last(client, after, job, last)
    if output is Output.JSON:
        found = [event for page in pages(client, after, job, limit) for event in page]
        print_json({"events": found, "last": found[-1]["seq"] if found else after})
        return
    titled = False
    for page in _followed(client, after, job, limit) if follow else pages(client, after, job, limit):
        if output is Output.QUIET:
            print_ids([event["seq"] for event in page])
        else:
            print_table(COLUMNS, page, titles=not titled)
        titled = True
        if follow:
            sys.stdout.flush()
    if not titled and output is Output.TABLE:
        of = "" if job is None else f" of job {job}"
        say(
            f"no events{of} after {after}"
            if after
            else f"no events{of}" + (": hpcdl ls --all lists the jobs" if job else "")
        )


def _before_last(client: Client, after: int, job: int | None, number: int) -> int:
    """The sequence number after which there are `number` events, or all, if there are fewer after `after`."""
    if job is None:
        newest: int = client.get(path_with("/v1/events", after=after, limit=1))["last"]
        return max(after, newest - number)
    recent = deque((event["seq"] for page in pages(client, after, job, None) for event in page), number)
    return max(after, recent[0] - 1) if recent else after


def _followed(client: Client, after: int, job: int | None, limit: int | None) -> Iterator[list[dict[str, Any]]]:
    left = limit
    for page in client.follow_events(after, job, limit=_PAGE, wait_s=lambda: _WAIT_S):
        if found := page[:left]:
            yield found
        left = None if left is None else left - len(found)
        if left == 0:
            return


@click.command()
@click.option(
    "-o", "--output", "target", required=True, type=OutputFile(), metavar="FILE",
    help="The HTML file to write.",
)  # fmt: skip
@JOB
@outputs_as("The name of the file only.")
@click.pass_context
def timeline(ctx: click.Context, target: Path, job: int | None, output: Output) -> None:
    """Draw which job held which GPU when, as one self-contained HTML file."""
    from hpcdl.profiles import conf_folder, load_profiles
    from hpcdl.report import timeline_page

    found = [event for page in pages(connect(ctx, FOLLOW_S), 0, None, None) for event in page]
    if job is not None:
        found = [event for event in found if event["body"].get("job", job) == job]
        if not any(event["body"].get("job") == job for event in found):
            raise ClientError(f"there is no job {job}: hpcdl ls --all lists them")
    home: Path = ctx.find_root().obj
    title = f"hpcdl on {home}" if job is None else f"hpcdl on {home}: job {job}"
    replace_file(target, timeline_page(found, title, load_profiles([conf_folder() / "profiles", home / "profiles"])))
    if not output.print_data({"file": str(target.absolute()), "events": len(found)}, [target]):
        print(f"wrote {escape(str(target))}")
