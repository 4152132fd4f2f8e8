"""`hpcdl logs`: a job's output, attempt after attempt, read from the files in the daemon's folder.

Needs a daemon only to say why there is nothing, and to know when `--follow` is over. Output is printed byte for byte.
"""

import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from hpcdl.cli.job_row import FINISHED, connect
from hpcdl.cli.job_selection import JOB_ID
from hpcdl.cli.output import Output, outputs_as, print_ids, print_json, say
from hpcdl.client import FOLLOW_S, ClientError

_POLL_S = 0.2
_ASK_S = 1.0  # between two questions whether the job is finished
_PIECE = 1 << 20
_BACK = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """The output of one attempt on one node; ordered as it is printed."""

    incarnation: int
    node: str
    path: Path


def log_files(home: Path, job: int, incarnation: int | None = None, node: str | None = None) -> list[LogFile]:
    """The log files of a job that are there, in order of attempts; only those of `incarnation` and `node`."""
    found = []
    try:
        names = os.listdir(home / "logs" / str(job))
    except FileNotFoundError:
        names = []
    for name in names:
        match = re.fullmatch(r"(\d+)\.(.+)\.log", name)
        if match and incarnation in (None, int(match[1])) and node in (None, match[2]):
            found.append(LogFile(int(match[1]), match[2], home / "logs" / str(job) / name))
    return sorted(found)


@click.command()
@click.argument("job", type=JOB_ID)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is finished.")
@click.option(
    "--attempt", "--incarnation", "incarnation", type=click.IntRange(min=1), metavar="N",
    help="Only this attempt of the job.",
)  # fmt: skip
@click.option("--node", metavar="NAME", help="Only what was printed on this node.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each log.")
@outputs_as("The names of the log files only.")
def logs(
    ctx: click.Context,
    job: int,
    follow: bool,
    incarnation: int | None,
    node: str | None,
    lines: int | None,
    output: Output,
) -> None:
    """Print a job's output, attempt after attempt; where there are several, a line names each.

    The output is printed as it is, byte for byte. --quiet prints the files' names instead.
    """
    home: Path = ctx.find_root().obj
    if follow and output is not Output.TABLE:
        raise click.UsageError("--follow goes on, so it has no --json and no --quiet", ctx)
    if follow:
        _follow(ctx, home, job, incarnation, node, lines)
        return
    files = log_files(home, job, incarnation, node)
    chosen = incarnation is not None or node is not None
    if not files:
        _explain(ctx, job, chosen)
    if output is Output.JSON:
        print_json({"job": job, "logs": [_content(file, lines) for file in files]})
    elif output is Output.QUIET:
        print_ids([file.path for file in files])
    else:
        shown = _Printer()
        for file in files:
            for piece in _pieces(file, _begin(file.path, lines)):
                shown.write(file, piece, headed=len(files) > 1)
        if files and not any(file.path.stat().st_size for file in files):
            say(f"job {job} has printed nothing{' there' if chosen else ''}: hpcdl why {job} says how it stands")


def _explain(ctx: click.Context, job: int, chosen: bool) -> None:
    """Say why there is nothing to print; an unknown job is an error."""
    try:
        row = connect(ctx, reading=True).get(f"/v1/jobs/{job}")["job"]
    except ClientError as error:
        if type(error) is ClientError or hasattr(error, "code"):
            raise
        raise ClientError(f"job {job} has no log here, and {error}") from None
    where = f" there: hpcdl show {job} lists its attempts" if chosen else f": hpcdl why {job} says why"
    say(f"job {job} is {row['state']} and has printed nothing{where}")


def _begin(path: Path, lines: int | None) -> int:
    """The offset of the last `lines` lines of a file, which is read from its end: a long log costs no more."""
    if lines is None:
        return 0
    with open(path, "rb") as content:
        place = size = content.seek(0, os.SEEK_END)
        found = 0
        while place > 0:
            length = min(_BACK, place)
            content.seek(place - length)
            piece = content.read(length)
            end = len(piece)
            while (end := piece.rfind(b"\n", 0, end)) >= 0:
                at = place - length + end + 1
                found += at < size  # the newline at the very end ends the last line, and begins none
                if found > 0 and found >= lines:
                    return at if lines else size
            place -= length
    return 0 if lines else size


def _content(file: LogFile, lines: int | None) -> dict[str, object]:
    text = b"".join(_pieces(file, _begin(file.path, lines))).decode("utf-8", "backslashreplace")
    return {"incarnation": file.incarnation, "node": file.node, "path": str(file.path), "text": text}


def _pieces(file: LogFile, offset: int) -> Iterator[bytes]:
    with open(file.path, "rb") as content:
        content.seek(offset)
        while piece := content.read(_PIECE):
            yield piece


def _follow(
    ctx: click.Context, home: Path, job: int, incarnation: int | None, node: str | None, lines: int | None
) -> None:
    client = connect(ctx, FOLLOW_S)
    offsets = {file.path: _begin(file.path, lines) for file in log_files(home, job, incarnation, node)}
    shown = _Printer()
    asked_at = 0.0
    finished = False
    while True:
        if time.monotonic() - asked_at >= _ASK_S:
            finished = client.get(f"/v1/jobs/{job}")["job"]["state"] in FINISHED
            asked_at = time.monotonic()
        files = log_files(home, job, incarnation, node)
        for file in files:
            for piece in _pieces(file, offsets.get(file.path, 0)):
                offsets[file.path] = offsets.get(file.path, 0) + len(piece)
                shown.write(file, piece, headed=len(files) > 1)
        sys.stdout.buffer.flush()
        if finished:  # the question came before the reading: nothing is missing
            return
        time.sleep(_POLL_S)


class _Printer:
    """Writes logs to stdout, with a line that names the file wherever it changes."""

    def __init__(self) -> None:
        self._last: LogFile | None = None
        self._ended = True  # with a newline

    def write(self, file: LogFile, piece: bytes, *, headed: bool) -> None:
        out = sys.stdout.buffer
        if headed and file != self._last:
            head = f"==> attempt {file.incarnation} on {file.node} <==\n"
            out.write((b"" if self._ended else b"\n") + os.fsencode(head))
        self._last = file
        out.write(piece)
        self._ended = piece.endswith(b"\n")
