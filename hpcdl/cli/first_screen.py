"""What `hpcdl` alone prints: what runs, what waits, and the next commands that make sense now.

It always ends with 0, in a few lines of at most 80 columns; where no daemon answers it says so at once.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from hpcdl.cli.job_row import duration_text, short_eta_text
from hpcdl.cli.output import Row, cut, escape
from hpcdl.client import Client, ClientError, DaemonAway, path_with
from hpcdl.core.model.units import count
from hpcdl.wire.last_start import start_command

WIDTH = 80
_ANSWER_S = 3.0
_SHOWN = 3
"""Jobs of each kind that have a line."""
_RUNNING, _WAITING = "STARTING,RUNNING,RESCALING,SUSPENDING", "QUEUED,SUSPENDED"
FIELDS = "id,name,state,gpus,step,total,eta_s,eta_low_s,eta_high_s,reason,queue_position,held"

Next = tuple[str, str]
"""A command, and what it is for."""


def print_first_screen(home: Path) -> None:
    """Print it; a daemon that does not answer is no error."""
    with Client(home, patience_s=0.0, answer_s=_ANSWER_S) as client:
        try:
            lines = list(_with_daemon(client))
        except ClientError as error:
            lines = list(_without(home, error))
    click.echo("\n".join(cut(escape(line), WIDTH) for line in [*lines, "", "hpcdl --help lists all commands"]))


def _without(home: Path, error: ClientError) -> Iterator[str]:
    yield (f"no daemon runs for {home}" if isinstance(error, DaemonAway) else str(error))
    if (home / "ledger.sqlite").exists():
        yield from _next(
            (start_command(home), "start it: jobs go on where they were"),
            ("hpcdl ls --all", "what there was"),
            ("hpcdl doctor", "check what hpcdl needs here"),
        )
    else:
        yield from _next(
            ("hpcdl doctor", "check what hpcdl needs here"),
            (start_command(home), "start the daemon"),
            ("hpcdl submit -- python train.py", "queue a job"),
        )


def _with_daemon(client: Client) -> Iterator[str]:
    status = client.get("/v1/status")
    states, daemon = status.get("jobs") or {}, status.get("daemon") or {}
    runs, waits = _sum(states, _RUNNING), _sum(states, _WAITING)
    up = f", up {duration_text(daemon['since_s'])}" if daemon.get("since_s") is not None else ""
    yield f"{count(runs, 'job')} running, {waits} waiting (daemon on {daemon.get('host', '?')}{up})"
    running = _rows(client, _RUNNING, _SHOWN) if runs else []
    waiting = sorted(_rows(client, _WAITING, 200) if waits else [], key=lambda row: row.get("queue_position") or 1e9)
    for row in running:
        left = f", {eta} left" if (eta := short_eta_text(row)) else ""
        gpus = count(row.get("gpus") or 0, "GPU")
        yield f"  {row['id']:>5} {row['name']}: {row['state']} on {gpus}{_done(row)}{left}"
    yield from _more(runs - len(running), "running")
    for row in waiting[:_SHOWN]:
        yield f"  {row['id']:>5} {row['name']}: {row['state']}" + (f": {row['reason']}" if row.get("reason") else "")
    yield from _more(waits - len(waiting[:_SHOWN]), "waiting")
    failed = _rows(client, "FAILED", 1) if states.get("FAILED") else []
    yield from _next(*list(_steps(running, waiting, failed))[:3])


def _steps(running: Sequence[Row], waiting: Sequence[Row], failed: Sequence[Row]) -> Iterator[Next]:
    if running:
        yield "hpcdl top", "watch jobs and GPUs"
    held = next((row["id"] for row in waiting if row.get("held")), None)
    if held is not None and not running:
        yield f"hpcdl resume {held}", f"let job {held} go on"
    elif waiting:
        yield f"hpcdl why {waiting[0]['id']}", f"say why job {waiting[0]['id']} waits"
    if failed:
        yield f"hpcdl logs {failed[-1]['id']}", f"read what job {failed[-1]['id']} printed, which FAILED"
    if running:
        yield f"hpcdl logs -f {running[0]['id']}", f"follow what job {running[0]['id']} prints"
    yield "hpcdl submit -- python train.py", "queue a job"
    yield "hpcdl ls --all", "list jobs, finished ones too"
    yield "hpcdl ls gpus", "list the GPUs"


def _rows(client: Client, states: str, last: int) -> list[Row]:
    rows: list[Row] = client.get(path_with("/v1/jobs", state=states, last=last, fields=FIELDS))["jobs"]
    return rows


def _sum(states: Row, names: str) -> int:
    return sum(states.get(name, 0) for name in names.split(","))


def _done(row: Row) -> str:
    step, total = row.get("step"), row.get("total")
    return f", {100 * min(step, total) // total} % done" if step is not None and total else ""


def _more(number: int, what: str) -> Iterator[str]:
    if number > 0:
        yield f"        and {number} more {what}"


def _next(*commands: Next) -> Iterator[str]:
    width = max(len(command) for command, _ in commands)
    yield ""
    for command, purpose in commands:
        yield f"  {command:<{width}}   {purpose}"
