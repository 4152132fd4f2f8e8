"""Verbs on jobs: `cancel`, `suspend`, `resume`, `hold`, `release`, `annotate`, `priority`, `retry` and `wait`.

A verb is one request for all of its jobs (`POST /v1/jobs/verb`). What could not be done is printed, a line for each
job, and makes the exit code 1.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from hpcdl.cli import completion
from hpcdl.cli.job_row import FINISHED, connect, end_text
from hpcdl.cli.job_selection import METAVAR, Selection, asks, check_named, concerned_by, confirm, selects, words_of
from hpcdl.cli.output import AS_OF, Output, Row, escape, outputs, say
from hpcdl.cli.params import Moment, Seconds
from hpcdl.client import FOLLOW_S, path_with
from hpcdl.core.model.job import PRIORITY
from hpcdl.core.model.units import count, ranges, runs

TIMED_OUT = 124  # as timeout(1) says it
_ROUND_S = 30.0  # one question; the daemon holds the answer back for as long


def _act(ctx: click.Context, verb: str, chosen: Selection, output: Output, **more: Any) -> None:
    """One request for all of them; what was not done is printed, a line each, and the exit code is then 1.

    Who names one job by its id means that one; of others those that are finished are left out, with a note.
    """
    failed = bool(more.get("failed"))
    if not failed:
        check_named(ctx, chosen, f"{verb} 3-7 12{', --failed' if verb == 'retry' else ''}")
    elif chosen.states and "FAILED" not in chosen.states:
        raise click.UsageError("--failed is of jobs that FAILED: leave it out, or --state", ctx)
    elif not chosen.plain:
        chosen, failed, more = replace(chosen, states=frozenset({"FAILED"})), False, more | {"failed": False}
    client = connect(ctx)
    concerns, reaches = concerned_by(verb), verb in ("annotate", "retry")
    ids, array = chosen.ids, chosen.array
    if not chosen.plain:
        ids, array = chosen.look_up(client, concerns, reaches), None
    if asks(chosen) and more.get("since") is None:
        meant = replace(chosen, states=frozenset({"FAILED"})) if failed else chosen
        confirm(ctx, verb, ids if array is None and not failed else meant.look_up(client, concerns, reaches))
    answer: dict[str, Any] = {"jobs": [], "errors": [], "cancelled": []}
    if ids or array is not None or failed:
        said = {key: each for key, each in more.items() if each is not None and each is not False}
        body: dict[str, Any] = {"verb": verb, "ids": ids, **said}
        answer = client.request("POST", "/v1/jobs/verb", body if array is None else body | {"array": array})
    rows: list[Row] = answer["jobs"]
    errors: list[Row] = answer["errors"]
    skipped: list[Row] = []
    if not chosen.single:
        skipped = [error for error in errors if _finished(verb, error)]
        errors = [error for error in errors if error not in skipped]
    for line in (*_skips(verb, skipped), *_refusals(errors)):
        say(line)
    for row in rows if verb == "suspend" else ():
        _warn(row)
    more_keys = {"cancelled": answer["cancelled"]} if verb == "retry" else {}
    if not output.print_data(
        {"jobs": rows, "errors": errors, "skipped": skipped, **more_keys}, [row["id"] for row in rows]
    ):
        unfinished, unheld = (set(answer.get(key, ())) for key in ("unfinished", "unheld"))
        for row in rows:
            told = _no_retry(row) if row["id"] in unfinished else _promise(verb, row)
            if row["id"] in unheld:
                told = f"is {row['state']}, and was not held"
            print(escape(f"job {row['id']} {told}: {row.get('name', '')}"))
        if not rows and not errors and not skipped:
            say(_nothing(verb, chosen, more))
    _tell_cancelled(answer.get("cancelled") or [], more)
    if errors:
        ctx.exit(1)


def _nothing(verb: str, chosen: Selection, more: dict[str, Any]) -> str:
    """What is said where no job was meant."""
    if not chosen.plain:
        return f"there is no such job to {verb}: hpcdl ls --all lists them"
    if verb == "retry":
        what = "FAILED" if more.get("failed") else "FAILED or was CANCELLED"
        which = "of these " if chosen.words else "of that array " if chosen.array else ""
        return f"no job {which}{what}{' since then' if more.get('since') else ''}"
    return "all jobs of that array are finished: hpcdl ls --all --no-fold lists them"


def _finished(verb: str, error: Row) -> bool:
    """Whether a refusal is no error: of several jobs, one that has nothing left to do."""
    state = error.get("state")  # None: it is kept as history only
    nothing_left = state == "DONE" if verb == "retry" else state is None or state in FINISHED
    return error["code"] == "finished" and nothing_left


def _skips(verb: str, skipped: list[Row]) -> Iterator[str]:
    if skipped:
        ids = ranges(int(each["job"]) for each in skipped)
        what = "DONE" if verb == "retry" else "finished"
        told = f"job {ids} is" if len(skipped) == 1 else f"jobs {ids} are"
        yield f"{told} {what} already, and left as {'it is' if len(skipped) == 1 else 'they are'}"


def _refusals(errors: list[Row]) -> Iterator[str]:
    """A line for each refusal, but one for all unknown jobs: a range may name thousands."""
    absent = [int(error["job"]) for error in errors if error["code"] == "unknown-job"]
    if len(absent) > 1:
        yield f"there are no jobs {ranges(absent)}: hpcdl ls --all lists those that are"
    for error in errors:
        if error["code"] != "unknown-job" or len(absent) == 1:
            yield str(error["error"])


def _tell_cancelled(left: list[int], more: dict[str, Any]) -> None:
    """Name the jobs that stay cancelled, though the job that they waited for is retried."""
    if left:
        shown = ", ".join(map(str, left[:10])) + (" and others" if len(left) > 10 else "")
        hint = "" if more.get("with_dependents") else ": --with-dependents retries them too"
        stay = "stays" if len(left) == 1 else "stay"
        say(f"{count(len(left), 'job')} that waited for what is retried {stay} cancelled ({shown}){hint}")


def _warn(row: Row) -> None:
    """Warn where a suspend loses what a running job has done."""
    if row.get("end_since") is not None:
        say(
            f"job {row['id']} is at its script's end, after its last step: if that is over within its grace period, it "
            "is DONE; else its end starts over when it is resumed"
        )
    if row.get("gpus") and row.get("can_suspend") is False and row.get("saved_step") is None:
        say(
            f"job {row['id']} has shown no way to checkpoint (neither hpcdl.attach() nor --signal): it is ended within "
            "its grace period, and starts over when it is resumed"
        )


def _promise(verb: str, row: Row) -> str:
    """What was recorded of a job; or its state, where it has happened already."""
    if verb == "suspend" and row["state"] == "QUEUED":
        verb = "hold"  # it never started: there is nothing to save
    promised, state = PROMISES[verb]
    promised = promised.format_map(row)
    return state if row["state"] == state else f"{promised} ({row['state']} now)"


def _no_retry(row: Row) -> str:
    """What is said of a job that is not finished, so that a retry did nothing."""
    state = row["state"]
    if not row.get("held"):
        return f"is {state}, and there is nothing to retry"
    verb = "release" if state == "QUEUED" else "resume"
    return f"is held ({state}), and was not retried; hpcdl {verb} {row['id']} lets it run"


PROMISES = {
    "cancel": ("is being cancelled", "CANCELLED"),
    "suspend": ("is being suspended", "SUSPENDED"),
    "resume": ("may run again", "RUNNING"),
    "hold": ("is held", "HELD"),
    "release": ("may start", "RUNNING"),
    "retry": ("is tried again", "RUNNING"),
    "annotate": ("is annotated", "ANNOTATED"),
    "priority": ("has priority {priority}", "PRIORITY"),
}
"""Of each verb of the API: what is said of a job, with keys of its row, and the state in which there is no need to say
what it is in."""


def _verb(function: Callable[[], None]) -> click.Command:
    """A command that applies the verb of the function's name to jobs; its docstring is the help."""
    name = function.__name__

    @click.command(name, help=function.__doc__)
    @selects(acts=True)
    @outputs
    def command(ctx: click.Context, chosen: Selection, output: Output) -> None:
        _act(ctx, name, chosen, output)

    return command


@_verb
def cancel() -> None:
    """End jobs for good; a running one is asked to end first (SIGTERM), within its grace period.

    hpcdl cancel 12 of the first member of an array cancels that one; hpcdl cancel --array 12 all of them.
    """


@_verb
def suspend() -> None:
    """Checkpoint jobs, free their GPUs, and hold them until `hpcdl resume`.

    A job that has no checkpoint and cannot make one is ended within its grace period, and starts over when it
    is resumed.
    """


@_verb
def resume() -> None:
    """Let held jobs run again, from their last checkpoint, as soon as they have a turn."""


@_verb
def hold() -> None:
    """Keep waiting jobs from starting until `hpcdl release`. One that runs is for `hpcdl suspend`."""


@_verb
def release() -> None:
    """Let held jobs start, as soon as they have a turn."""


@click.command()
@click.argument("words", nargs=-1, metavar=f"{METAVAR} KEY=VALUE...", shell_complete=completion.job_ids)
@selects(acts=True, argument=False)
@outputs
def annotate(ctx: click.Context, words: tuple[str, ...], chosen: Selection, output: Output) -> None:
    """Write KEY=VALUE about jobs, for people and scripts; KEY= removes it. Nothing is decided by it.

    hpcdl annotate 3-7 dataset=imagenet; hpcdl ls --columns id,annotations shows it.
    """
    written = [word for word in words if "=" in word and not set("[*?") & set(word.partition("=")[0])]
    named = words_of(ctx, ctx.command.params[0], [word for word in words if word not in written])
    changes = dict(word.split("=", 1) for word in written)
    if not changes:
        raise click.UsageError("say what to write: hpcdl annotate 3 KEY=VALUE (KEY= removes it)", ctx)
    _act(ctx, "annotate", replace(chosen, words=named), output, annotations=changes)


class PriorityCommand(click.Command):
    """Takes `-10` for a number, wherever it stands: no option is called so."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        negative = [word for word in args if re.fullmatch(r"-\d+", word)]
        if negative and "--" not in args:
            args = [*(word for word in args if word not in negative), "--", *negative]
        return super().parse_args(ctx, args)


@click.command(cls=PriorityCommand)
@click.argument("words", nargs=-1, metavar=f"{METAVAR} N", shell_complete=completion.job_ids)
@selects(acts=True, argument=False)
@outputs
def priority(ctx: click.Context, words: tuple[str, ...], chosen: Selection, output: Output) -> None:
    """Give jobs that wait or run the priority N, from -1000 to 1000: those of a higher one come first.

    hpcdl priority 3-7 100; hpcdl ls --columns id,name,priority,queue shows it.
    """
    *named, last = words or ("",)
    chosen = replace(chosen, words=words_of(ctx, ctx.command.params[0], named))
    if not chosen or not re.fullmatch(r"[+-]?\d{1,9}", last, re.ASCII):
        raise click.UsageError("say which jobs, and behind them the priority: hpcdl priority 3-7 12 100", ctx)
    if not -PRIORITY <= int(last) <= PRIORITY:
        raise click.UsageError(f"the priority must be from {-PRIORITY} to {PRIORITY}, got {last}", ctx)
    _act(ctx, "priority", chosen, output, priority=int(last))


@click.command()
@selects(acts=True)
@click.option("--failed", is_flag=True, help="All that FAILED; of jobs that are named those of them.")
@click.option("--since", type=Moment(past=True), metavar="TIME", help="Of --failed and --array: what ended since then.")
@click.option("--with-dependents", is_flag=True, help="Also those that were cancelled because they waited for these.")
@click.option(
    "--from-start", is_flag=True,
    help="From step 0: checkpoints stay where they are, and do not count; new ones go into a folder beside them.",
)  # fmt: skip
@outputs
def retry(ctx: click.Context, /, chosen: Selection, output: Output, **options: Any) -> None:
    """Queue jobs again that FAILED or were CANCELLED, under the same ids; they resume from their last checkpoints.

    Their retries, and what the poison guard has counted, begin anew; how often they failed is still shown.
    """
    if options["since"] is not None and not (chosen.plain and (options["failed"] or chosen.array)):
        raise click.UsageError("--since goes with --failed or --array", ctx)
    _act(ctx, "retry", chosen, output, **options)
    if options["from_start"]:
        say(
            "nothing is removed: new checkpoints go into a folder from-start-N in the checkpoint folder (hpcdl show); "
            "a program that keeps its own elsewhere goes on from those"
        )


@click.command()
@selects(acts=False)
@click.option("--timeout", type=Seconds(min=0), metavar="SECONDS", help="Give up after this long (exit 124).")
@outputs
def wait(ctx: click.Context, chosen: Selection, timeout: float | None, output: Output) -> None:
    """Wait until all of the jobs are finished.

    The exit code is the job's: 0 if DONE, the trainer's own if FAILED (1 if it has none), 130 if CANCELLED; of several
    jobs the first that is not 0. 124: the timeout. A daemon that is restarted is waited for, up to a minute; jobs that
    are finished need none.
    """
    check_named(ctx, chosen, "wait 3-7 12")
    client = connect(ctx, FOLLOW_S, reading=True)
    jobs, array = (chosen.ids, chosen.array) if chosen.plain else (chosen.look_up(client), None)
    if not chosen.plain and not jobs:
        raise click.ClickException(_nothing("wait for", chosen, {}))
    asked = {"ids": ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(jobs)) or None, "array": array}
    begun = time.monotonic()
    held: set[int] = set()  # those of which it was said that they wait for their user
    while True:
        left = None if timeout is None else max(0.0, begun + timeout - time.monotonic())
        if left is not None:
            client.patience_s = min(FOLLOW_S, left)
        hold = _ROUND_S if left is None else min(_ROUND_S, left)
        answer = client.get(path_with("/v1/wait", **asked, timeout=round(hold, 3)), wait_s=hold)
        for row in answer["jobs"]:
            if row.get("held_after") and row["id"] not in held:
                held.add(row["id"])
                say(f"job {row['id']} is {row['reason']}")
        if AS_OF in ctx.meta and not answer["done"]:
            first = next(row for row in answer["jobs"] if row["state"] not in FINISHED)
            raise click.ClickException(f"job {first['id']} is {first['state']}, and goes on once a daemon runs")
        if answer["done"] or (left is not None and time.monotonic() - begun >= (timeout or 0.0)):
            break
    rows: list[Row] = answer["jobs"]
    if not output.print_data(answer, [row["id"] for row in rows]):
        for row in rows:
            print(escape(end_text(row)))
    if not answer["done"]:
        first = next((row["id"] for row in rows if row.get("state") not in FINISHED), rows[0]["id"])
        say(f"not finished after {timeout:g} s: hpcdl why {first} says what is missing")
        ctx.exit(TIMED_OUT)
    ctx.exit(next((code for code in map(exit_code, rows) if code), 0))


def exit_code(row: Row) -> int:
    """The exit code of `wait` for a finished job."""
    if row["state"] == "DONE":
        return 0
    if row["state"] == "CANCELLED":
        return 130
    code = row.get("exit_code")
    return code if isinstance(code, int) and 1 <= code <= 255 else 1
