"""`hpcdl events` and `timeline`: what the daemon recorded, as a table or as a drawing of the GPUs over time.

Only reads. A new event needs nothing here: the gist of its body is printed by the kind of its values.
"""

import json
import shlex
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.job_row import connect, moment_text
from hpcdl.cli.job_selection import ONE_JOB, Word, one_job
from hpcdl.cli.output import Column, Output, Row, escape, outputs_as, print_ids, print_json, print_table, say
from hpcdl.cli.params import OutputFile, local_time, replace_file
from hpcdl.client import FOLLOW_S, Client, ClientError, path_with
from hpcdl.core.model.arrays import indices_text
from hpcdl.core.model.units import count, fold_nodes, seconds_text

_LEFT_OUT = ("age_s", "membership", "request_id", "boot_id", "log_id")
"""For programs; --json has them."""

_SWITCHES = ("held", "max_parallel")
"""Told only where they are set."""


def body_text(row: Row) -> str:
    """An event's body in a line, `node=n1 step=120 total=900`, without what is empty or in the event's stream."""
    body = row.get("body")
    if not isinstance(body, Mapping):
        return ""
    stream = row.get("stream")
    told = [
        f"{key}={_text(key, value)}"
        for key, value in body.items()
        if key not in _LEFT_OUT and value not in (None, "", [], {}) and f"{key}/{value}" != stream
        if not (key in _SWITCHES and value in (False, 0))
    ]
    return " ".join(told)


def _text(key: str, value: Any) -> str:
    match key, value:
        case "spec", {"walltime_s": _}:
            return _pilot(value)
        case "spec", Mapping():
            return json.dumps(shlex.join(map(str, value.get("command") or ())), ensure_ascii=False)
        case "job", Mapping():
            return _batch_job(value)
        case "indices", list():
            return indices_text(value)
        case "sweep", list():
            swept = " ".join(f"{name}={','.join(map(str, values))}" for name, values in value)
            return json.dumps(swept, ensure_ascii=False)
        case "placement", Mapping():
            return _placement(value)
        case "targets", list():
            return "; ".join(_target(each) for each in value if isinstance(each, Mapping))
        case "gpus", list():
            return str(len(value))
    if isinstance(value, str) and value and not any(c.isspace() or c in "\"'=" for c in value):
        return value
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    return json.dumps(value, ensure_ascii=False)


def _pilot(value: Mapping[str, Any]) -> str:
    """The request of a pilot: `"2 nodes for 1 h 00 min in killable: 2 idle nodes"`."""
    where = f" in {value['queue']}" if value.get("queue") else ""
    asked = f"{count(value.get('nodes', 1), 'node')} for {seconds_text(value['walltime_s'])}{where}"
    return json.dumps(f"{asked}: {value['why']}" if value.get("why") else asked, ensure_ascii=False)


def _batch_job(value: Mapping[str, Any]) -> str:
    """A batch job as the batch system has it: `"RUNNING on n[1-2], preempted: TERM_PREEMPT"`."""
    where = f" on {fold_nodes(map(str, value['nodes']))}" if value.get("nodes") else ""
    preempted = ", preempted" if value.get("preempted") else ""
    reason = f": {value['reason']}" if value.get("reason") else ""
    return json.dumps(f"{value.get('state')}{where}{preempted}{reason}", ensure_ascii=False)


def _placement(value: Mapping[str, Any]) -> str:
    shares = [each for each in value.get("shares") or () if isinstance(each, Mapping)]
    where = " ".join(f"{each.get('node')}:{','.join(map(str, each.get('gpus') or ()))}" for each in shares)
    return f"{where} ({value.get('role')})"


def _target(value: Mapping[str, Any]) -> str:
    placement = value.get("placement")
    where = _placement(placement) if isinstance(placement, Mapping) else "no GPUs"
    return f"job {value.get('job')} {where}: {value.get('reason')}"


_PAGE = 1000  # events in one question

_WAIT_S = 30.0  # so long the daemon holds back an answer without events

COLUMNS = (
    Column("SEQ", lambda row: f"{row['seq']:>6}", right=True),
    Column("AT", lambda row: f"{moment_text(row['at']):<19}"),
    Column("STREAM", lambda row: f"{row['stream']:<10}"),
    Column("KIND", lambda row: f"{row['kind']:<16}"),
    Column("BODY", body_text, shrinks=True),
)

JOB = click.option("--job", "word", type=ONE_JOB, metavar="JOB", help="Only this job, by id or name.")


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


def _refuse_words(ctx: click.Context) -> None:
    """Raises UsageError, with the option that names a job, where a word stands without one."""
    if ctx.args:
        word = ctx.args[0][:100]
        raise click.UsageError(
            f"{word!r}: one job is named by --job: hpcdl {ctx.info_name} --job {shlex.quote(word)}", ctx
        )


@click.command(context_settings={"allow_extra_args": True})
@JOB
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only those after this number.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many, the oldest.  [default: all]")
@click.option("-n", "--last", type=click.IntRange(min=1), metavar="N", help="Only the last N.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@outputs_as("Numbers only, one a line.")
def events(
    ctx: click.Context,
    word: Word | None,
    after: int,
    limit: int | None,
    last: int | None,
    follow: bool,
    output: Output,
) -> None:
    """List what the daemon recorded, in order. An event's number is what --after takes to go on from there.

    BODY is the gist of an event, cut to the width of a terminal; --json has everything.
    """
    _refuse_words(ctx)
    if follow and output is Output.JSON:
        raise click.UsageError("--follow goes on, so it cannot be one JSON value", ctx)
    if last is not None and limit is not None:
        raise click.UsageError("--last and --limit exclude each other", ctx)
    client = connect(ctx, FOLLOW_S, reading=not follow)
    job = None if word is None else one_job(client, word)
    if job is not None:
        client.get(f"/v1/jobs/{job}")  # one that there is not is an error
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
        say(f"no events{of} after {after}" if after else f"no events{of}")


def _before_last(client: Client, after: int, job: int | None, number: int) -> int:
    """The sequence number after which `number` events come, or all, if there are fewer after `after`."""
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


@click.command(context_settings={"allow_extra_args": True})
@click.option(
    "-o", "--output", "target", required=True, type=OutputFile(), metavar="FILE",
    help="The HTML file to write.",
)  # fmt: skip
@JOB
@outputs_as("The name of the file only.")
def timeline(ctx: click.Context, target: Path, word: Word | None, output: Output) -> None:
    """Draw which job held which GPU when, as one self-contained HTML file."""
    from hpcdl.report import timeline_page

    _refuse_words(ctx)
    client = connect(ctx, FOLLOW_S, reading=True)
    job = None if word is None else one_job(client, word)
    found = [event for page in pages(client, 0, None, None) for event in page]
    if job is not None:
        found = [event for event in found if event["body"].get("job", job) == job]
        if not any(event["body"].get("job") == job for event in found):
            raise ClientError(f"there is no job {job}: hpcdl ls --all lists them")
    home: Path = ctx.find_root().obj
    title = f"hpcdl on {home}" if job is None else f"hpcdl on {home}: job {job}"
    replace_file(target, timeline_page(found, title, local_time))
    if not output.print_data({"file": str(target.absolute()), "events": len(found)}, [target]):
        print(f"wrote {escape(str(target))}")
