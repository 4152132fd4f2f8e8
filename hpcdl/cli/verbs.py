"""`hpcdl cancel`, `suspend`, `resume` and `wait`: what a user does with jobs."""

import time

import click

from hpcdl.cli.output import Output, Row, escape, outputs, print_ids, print_json, say
from hpcdl.cli.rows import FINISHED, JOB_ID, connect, end_text
from hpcdl.client import FOLLOW_S, ApiError, path_with

JOBS = click.argument("jobs", nargs=-1, required=True, type=JOB_ID, metavar="JOB...")
TIMED_OUT = 124  # as timeout(1) says it
_ROUND_S = 30.0  # one question; the daemon holds the answer back for as long


def _act(ctx: click.Context, verb: str, jobs: tuple[int, ...], output: Output) -> None:
    client = connect(ctx)
    rows: list[Row] = []
    errors: list[Row] = []
    for job in dict.fromkeys(jobs):
        try:
            changed = client.request("POST", f"/v1/jobs/{job}/{verb}", {})["jobs"]
        except ApiError as error:
            errors.append({"job": job, "error": str(error), "code": error.code})
            say(str(error))
        else:
            rows += changed
            for row in changed if verb == "suspend" else ():
                _warn(row)
    if output is Output.JSON:
        print_json({"jobs": rows, "errors": errors})
    elif output is Output.QUIET:
        print_ids([row["id"] for row in rows])
    else:
        for row in rows:
            print(escape(f"job {row['id']} {_promise(verb, row)}: {row.get('name', '')}"))
    if errors:
        ctx.exit(1)


def _warn(row: Row) -> None:
    """Say so where a suspend loses what a running job has done."""
    if row.get("gpus") and row.get("can_suspend") is False and row.get("saved_step") is None:
        say(
            f"job {row['id']} has shown no way to checkpoint (neither hpcdl.attach() nor --signal): it is ended within "
            "its grace, and starts over when it is resumed"
        )


def _promise(verb: str, row: Row) -> str:
    """What was recorded; it has happened where the state says so already."""
    promised, state = _PROMISES[verb]
    return state if row["state"] == state else f"{promised} ({row['state']} now)"


_PROMISES = {
    "cancel": ("is being cancelled", "CANCELLED"),
    "suspend": ("is being suspended", "SUSPENDED"),
    "resume": ("may run again", "RUNNING"),
}


@click.command()
@JOBS
@outputs
@click.pass_context
def cancel(ctx: click.Context, jobs: tuple[int, ...], output: Output) -> None:
    """End jobs for good; a running one is asked to end first (SIGTERM), within its grace."""
    _act(ctx, "cancel", jobs, output)


@click.command()
@JOBS
@outputs
@click.pass_context
def suspend(ctx: click.Context, jobs: tuple[int, ...], output: Output) -> None:
    """Checkpoint jobs, free their GPUs, and hold them until `hpcdl resume`.

    A job that has no checkpoint and cannot make one is ended within its grace, and starts over when it is resumed.
    """
    _act(ctx, "suspend", jobs, output)


@click.command()
@JOBS
@outputs
@click.pass_context
def resume(ctx: click.Context, jobs: tuple[int, ...], output: Output) -> None:
    """Let held jobs run again, from their last checkpoint, as soon as they have a turn."""
    _act(ctx, "resume", jobs, output)


def _seconds(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not value >= 0:  # nan too
        raise click.BadParameter(f"{value} is not a number of seconds", ctx, param)
    return value


@click.command()
@JOBS
@click.option("--timeout", type=float, callback=_seconds, metavar="SECONDS", help="Give up after this long (exit 124).")
@outputs
@click.pass_context
def wait(ctx: click.Context, jobs: tuple[int, ...], timeout: float | None, output: Output) -> None:
    """Wait until all of the jobs are finished.

    The exit code is the job's: 0 if DONE, the trainer's own if FAILED (1 if it has none), 130 if CANCELLED; of several
    jobs the first that is not 0. 124: the timeout. A daemon that is restarted is waited for, up to a minute.
    """
    client = connect(ctx, FOLLOW_S)
    ids = tuple(dict.fromkeys(jobs))
    begun = time.monotonic()
    while True:
        left = None if timeout is None else max(0.0, begun + timeout - time.monotonic())
        if left is not None:
            client.patience_s = min(FOLLOW_S, left)
        hold = _ROUND_S if left is None else min(_ROUND_S, left)
        answer = client.get(path_with("/v1/wait", ids=",".join(map(str, ids)), timeout=round(hold, 3)), wait_s=hold)
        if answer["done"] or (left is not None and time.monotonic() - begun >= (timeout or 0.0)):
            break
    given = {row["id"]: row for row in answer["jobs"]}
    rows = [given[job] for job in ids if job in given]
    if output is Output.JSON:
        print_json({**answer, "jobs": rows})
    elif output is Output.QUIET:
        print_ids([row["id"] for row in rows])
    else:
        for row in rows:
            print(escape(end_text(row)))
    if not answer["done"]:
        first = next((row["id"] for row in rows if row.get("state") not in FINISHED), ids[0])
        say(f"not finished after {timeout:g} s: hpcdl why {first} says what is missing")
        ctx.exit(TIMED_OUT)
    ctx.exit(next((code for code in map(exit_code, rows) if code), 0))


def exit_code(row: Row) -> int:
    """What `wait` exits with for a finished job."""
    if row["state"] == "DONE":
        return 0
    if row["state"] == "CANCELLED":
        return 130
    code = row.get("exit_code")
    return code if isinstance(code, int) and 1 <= code <= 255 else 1
