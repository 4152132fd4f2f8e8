"""`hpcdl run`: a job in the foreground. Submits it, prints its output, passes Ctrl-C on, returns its exit code.

The daemon is asked how the job stands, the output is read from the job's log files: while the daemon is away it goes
on. Only Ctrl-C ends the job; where this command is ended otherwise the job goes on, and that is said.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hpcdl.cli import completion
from hpcdl.cli.events import pages
from hpcdl.cli.job_row import FINISHED, connect
from hpcdl.cli.jobs import exit_code
from hpcdl.cli.logs import log_files
from hpcdl.cli.output import Row, say
from hpcdl.cli.submit.command import JobCommand, SubmitCall, add_git, say_misplaced
from hpcdl.cli.submit.options import job_options
from hpcdl.client import Client, DaemonAway, path_with
from hpcdl.core.model.world import UNDECIDED

_READ_S = 0.1
"""Between two looks at the job's log files."""
_ASK_S = 0.5
"""Between two questions how the job stands."""
_MISSED_S = 0.5
"""For so long a question is repeated; meanwhile nothing is printed."""
_PIECE = 1 << 20


@click.command(cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options
@click.option("-q", "--quiet", is_flag=True, help="Print the job's output only.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...", shell_complete=completion.files)
@click.pass_context
def run(ctx: click.Context, /, command: tuple[str, ...], quiet: bool, **given: Any) -> None:
    """Run COMMAND as a job and wait for it: hpcdl run --gpus 2 -- python train.py --lr 0.1

    Its output is printed here, byte for byte, and its exit code is the one here (128 and the number of a signal). The
    first Ctrl-C cancels the job, which has its grace period to end; the second one does not wait for that. Where this
    command is ended otherwise (SIGTERM, a terminal that is closed) the job goes on. The job reads no input.
    """
    if not command:
        raise click.UsageError("say what to run: hpcdl run -- COMMAND", ctx)
    if given["array"] or given["sweep"]:
        raise click.UsageError("an array is many jobs, and one runs here: hpcdl submit takes --array and --sweep", ctx)
    client = connect(ctx)
    call = SubmitCall(ctx, client, command, None, None)
    job, _ = call.job(given, ping=True)
    for doubt in job.doubts():
        say(doubt)
    if not quiet:
        say_misplaced(ctx, command)
    call.refuse_folders([job])
    entry = job.entry()
    add_git([job], [entry])
    with _Signals() as signals:
        row = client.request("POST", "/v1/jobs", {"request_id": os.urandom(16).hex(), "jobs": [entry]})["jobs"][0]
        ctx.exit(_Foreground(client, row, signals, quiet=quiet).until_end())


class _Signals:
    """Ctrl-C is counted, and the second one ends the command at once, as SIGTERM and SIGHUP do."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.job = 0  # the job that runs; 0 before it was submitted
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def goes_on(self) -> str:
        """What becomes of the job, in words."""
        return f"job {self.job} goes on: hpcdl logs -f {self.job} follows it, hpcdl cancel {self.job} ends it"

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.interrupts += 1
            if self.interrupts == 1:
                return
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)  # the end has begun, and nothing changes it
        self._before.clear()
        if self.job and number == signal.SIGINT:
            say(f"job {self.job} is being cancelled, and not waited for: hpcdl show {self.job}")
        elif self.job:
            say(self.goes_on())
        raise click.exceptions.Exit(128 + number)


class _Foreground:
    """A job that is followed to its end."""

    def __init__(self, client: Client, row: Row, signals: _Signals, *, quiet: bool) -> None:
        self._client, self._row, self._signals, self._quiet = client, row, signals, quiet
        self._job: int = row["id"]
        self._places: dict[Path, int] = {}
        self._away = self._cancelled = self._undecided = False
        client.patience_s = _MISSED_S
        signals.job = self._job
        self._tell_state()

    def until_end(self) -> int:
        """Prints the job's output until it is finished; its exit code."""
        asked_at = -_ASK_S
        while True:
            if self._signals.interrupts and not self._cancelled:
                self._cancel()
            if time.monotonic() - asked_at >= _ASK_S:
                asked_at = time.monotonic()
                self._look()
            over = self._row["state"] in FINISHED
            try:
                self._print()  # the question came before: of a job that is over nothing is missing
            except BrokenPipeError:
                self._say(self._signals.goes_on())
                raise
            if over:
                return self._code()
            time.sleep(_READ_S)

    def _tell_state(self) -> None:
        """Says how it stands; a reason only once there was a decision."""
        why = self._row.get("reason") or ""
        self._undecided = why == UNDECIDED
        self._say(f"job {self._job} is {self._row['state']}" + (f": {why}" if why and not self._undecided else ""))

    def _say(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def _look(self) -> None:
        before = self._row
        try:
            self._row = self._client.get(path_with("/v1/wait", ids=self._job, timeout=0))["jobs"][0]
        except DaemonAway as error:
            if not self._away:
                self._say(f"{str(error).partition(' (waited')[0]}; job {self._job} goes on")
            self._away = True
            return
        if self._away:
            self._say("the daemon is back")
        self._away = False
        state = self._row["state"]
        if self._row.get("held_after") and not before.get("held_after"):
            self._say(f"job {self._job} is {self._row['reason']}")
        elif state != before["state"] and (state in FINISHED or state.startswith("SUSPEND")):
            why = self._row.get("detail") if state in FINISHED else self._row.get("reason")
            self._say(f"job {self._job} is {state}" + (f": {why}" if why else ""))
        elif self._undecided and state == "QUEUED" and self._row["reason"] != UNDECIDED:
            self._tell_state()
        elif self._row["failures"] > before["failures"]:
            self._say(
                f"job {self._job} has failed and is tried again: {self._row.get('detail') or self._row['reason']}"
            )

    def _cancel(self) -> None:
        """Asked again until the daemon has taken it."""
        try:
            self._client.request("POST", "/v1/jobs/verb", {"verb": "cancel", "ids": [self._job]})
        except DaemonAway:
            return
        self._cancelled = True
        self._say(f"job {self._job} is being cancelled: Ctrl-C again does not wait for its end")

    def _print(self) -> None:
        out = sys.stdout.buffer
        for file in log_files(self._client.home, self._job):
            with open(file.path, "rb") as content:
                content.seek(self._places.get(file.path, 0))
                while piece := content.read(_PIECE):
                    out.write(piece)
                self._places[file.path] = content.tell()
        out.flush()

    def _code(self) -> int:
        """The job's exit code; 128 and the signal's number where one ended it."""
        row = self._row
        if row["state"] == "FAILED" and row.get("exit_code") is None:
            self._client.patience_s = 15.0
            exits = [
                e["body"] for page in pages(self._client, 0, self._job, None) for e in page if e["kind"] == "Exited"
            ]
            name = str(exits[-1].get("signal")) if exits else ""
            if name in signal.Signals.__members__:
                return 128 + signal.Signals[name]
        return exit_code(row)
