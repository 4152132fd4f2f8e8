"""`hpcdl logs`: the output of jobs, attempt after attempt, read from the files in the daemon's folder.

Needs a daemon only to look up names, to say why there is nothing, and to know when `--follow` is over. The output of
one job is printed byte for byte; that of several, or chosen lines, line by line.
"""

import os
import re
import struct
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import click

from hpcdl.cli.job_row import FINISHED, connect
from hpcdl.cli.job_selection import Selection, check_named, selects
from hpcdl.cli.output import Output, outputs_as, print_ids, print_json, say, use_colour
from hpcdl.cli.params import Moment
from hpcdl.client import FOLLOW_S, Client, ClientError, DaemonAway, path_with
from hpcdl.core.model.units import count

_POLL_S = 0.2
_FILES_A_SECOND = 2000.0  # that a follow looks at
_ASK_S = 1.0  # between two questions whether the jobs are finished
_NAMED_IDS = 1000  # in one question; of more jobs all are asked for
_PIECE = 1 << 20
_BACK = 1 << 16
_LINE = 1 << 16  # bytes of a line that an expression is tried on
_GREP_S = 2.0  # of CPU that the lines of one piece may take
STREAMS = ".streams"
STDOUT, STDERR = 1, 2
CHANGE = struct.Struct("<qB")  # as agent/supervisor/output.py writes them there
_COLOURS = (36, 32, 33, 35, 34, 31)  # of a job's lines on a terminal


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """The output of one attempt on one node; ordered as it is printed."""

    incarnation: int
    node: str
    path: Path
    job: int


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
            found.append(LogFile(int(match[1]), match[2], home / "logs" / str(job) / name, job))
    return sorted(found)


@click.command()
@selects(acts=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the jobs are finished.")
@click.option(
    "--attempt", "--incarnation", "incarnation", type=click.IntRange(min=1), metavar="N",
    help="Only this attempt of each job.",
)  # fmt: skip
@click.option("--node", metavar="NAME", help="Only what was printed on this node.")
@click.option("--stdout", "stream", flag_value=STDOUT, type=int, help="Only stdout, of a job with --error.")
@click.option("--stderr", "stream", flag_value=STDERR, type=int, help="Only stderr, of a job with --error.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only lines that say that they are rank N's.")
@click.option("--grep", metavar="REGEX", help="Only lines in which this is found.")
@click.option("--since", type=Moment(past=True), metavar="TIME", help="What was printed since then: 10m, 14:02.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each log.")
@outputs_as("The names of the log files only.")
def logs(
    ctx: click.Context,
    chosen: Selection,
    follow: bool,
    incarnation: int | None,
    node: str | None,
    stream: int | None,
    rank: int | None,
    grep: str | None,
    since: float | None,
    lines: int | None,
    output: Output,
) -> None:
    """Print the output of jobs, attempt after attempt; where there are several, a line names each.

    The output of one job is printed as it is, byte for byte; lines of several begin with their job. --quiet prints the
    files' names instead.
    """
    if follow and output is not Output.TABLE:
        raise click.UsageError("--follow goes on, so it has no --json and no --quiet", ctx)
    check_named(ctx, chosen, "logs 3-7 12")
    client = connect(ctx, FOLLOW_S) if follow else connect(ctx, reading=True)
    jobs = chosen.look_up(client)
    choice = _LogChoice(client.home, jobs, incarnation, node, since, lines, stream, _LineFilter(grep, rank))
    if follow:
        _follow(client, choice)
        return
    files = {job: choice.files(job) for job in jobs}
    _explain(client, choice, files, quiet=output is not Output.TABLE)
    if output is Output.JSON:
        found = [{"job": job, "logs": [_content(file, choice) for file in files[job]]} for job in jobs]
        print_json(found[0] if len(found) == 1 else {"jobs": found})
    elif output is Output.QUIET:
        print_ids([file.path for each in files.values() for file in each])
    else:
        shown = _Printer(len(jobs) > 1)
        for each in files.values():
            for file in each:
                for piece in choice.pieces(file):
                    shown.write(file, piece, of=len(each))
                shown.end()


@dataclass(frozen=True, slots=True)
class _LogChoice:
    """What of the output of jobs is to be printed."""

    home: Path
    jobs: Sequence[int]
    incarnation: int | None
    node: str | None
    since: float | None  # seconds since the epoch
    lines: int | None  # the last of them
    stream: int | None  # STDOUT or STDERR; None: both
    filter: "_LineFilter"

    @property
    def by_line(self) -> bool:
        """Whether not all that stands in a row is chosen."""
        return bool(self.filter) or self.stream is not None

    @property
    def partial(self) -> bool:
        """Whether there may be more output than this."""
        return self.by_line or (self.incarnation, self.node, self.since) != (None, None, None)

    def files(self, job: int) -> list[LogFile]:
        """The log files of a job, as far as they are chosen. Raises ClickException where its streams are one."""
        files = log_files(self.home, job, self.incarnation, self.node)
        if self.stream is not None and not all(file.path.with_suffix(STREAMS).exists() for file in files):
            step = "hpcdl submit --error FILE keeps them apart"
            raise click.ClickException(f"stdout and stderr of job {job} came as one: {step}")
        return files

    def begin(self, path: Path) -> int:
        """Where in a file the chosen lines may begin."""
        begin = 0 if self.since is None else begin_since(path, self.since)
        return begin if self.by_line else max(begin, _begin(path, self.lines))

    def pieces(self, file: LogFile) -> Iterator[bytes]:
        """What is chosen of a file, in pieces of bytes."""
        begin = self.begin(file.path)
        if not self.by_line:
            yield from _pieces(file, begin)
            return
        chosen, lines = StreamBytes(file.path, self.stream, begin), LineStream()
        last = deque[bytes](maxlen=self.lines)
        for piece in chain(_pieces(file, begin), (b"",)):
            kept = self.filter.keep(lines.take(chosen.take(piece), last=not piece))
            if self.lines is None:
                yield b"".join(kept)
            last.extend(kept)
        if self.lines is not None:
            yield b"".join(last)


class LineStream:
    """Makes whole lines of pieces of bytes. A line that does not end is one after so many bytes."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, piece: bytes, *, last: bool = False) -> list[bytes]:
        """The lines that are whole now, each with its newline; with the `last` piece the rest is one, too."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if self._rest and (last or len(self._rest) > _PIECE):
            lines.append(self._rest)
            self._rest = b""
        return [line + b"\n" for line in lines]


class StreamBytes:
    """Chooses the bytes of one stream of a log, from the byte `at` on: beside it stands where one stream follows the
    other (`Log` of agent/supervisor/output.py). `stream` None: all of them."""

    def __init__(self, log: Path, stream: int | None, at: int) -> None:
        self._path = log.with_suffix(STREAMS)
        self._stream = stream
        self._at = at
        self._read = 0  # bytes of that file
        self._changes: list[tuple[int, int]] = []  # from which byte on, which stream

    def take(self, piece: bytes) -> bytes:
        """Of the next bytes those of the stream."""
        if self._stream is None:
            return piece
        self._look()
        first = self._at
        self._at += len(piece)
        place = bisect_right(self._changes, first, key=lambda change: change[0])
        stream = self._changes[place - 1][1] if place else 0
        kept, begin = [], 0
        for at, following in (*islice(self._changes, place, None), (self._at, 0)):
            end = min(at, self._at) - first
            if stream == self._stream:
                kept.append(piece[begin:end])
            begin, stream = end, following
            if at >= self._at:
                break
        return b"".join(kept)

    def _look(self) -> None:
        """After the bytes are read: what is said of them stands there before they do."""
        with open(self._path, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: len(content) // CHANGE.size * CHANGE.size]
        self._read += len(whole)
        self._changes += CHANGE.iter_unpack(whole)


class _LineFilter:
    """Chooses lines: those in which an expression is found, and those that say that they are of a rank."""

    def __init__(self, grep: str | None, rank: int | None) -> None:
        self._rank = None if rank is None else re.compile(_RANK.replace("N", str(rank)).encode(), re.IGNORECASE)
        try:
            self._grep = None if grep is None else re.compile(os.fsencode(grep))
        except (re.error, RecursionError, OverflowError) as error:
            raise click.BadParameter(f"{grep!r}: {error}", param_hint="'--grep'") from None

    def __bool__(self) -> bool:
        return self._grep is not None or self._rank is not None

    def keep(self, lines: Iterable[bytes]) -> list[bytes]:
        """Those of the lines that are chosen. Raises ClickException where the expression takes too long."""
        found = [line for line in lines if self._rank is None or self._rank.match(line)]
        if self._grep is None or not found:
            return found
        from hpcdl.agent.supervisor.output import TooSlowError, cpu_limit

        try:
            with cpu_limit(_GREP_S):
                return [line for line in found if self._grep.search(line, 0, _LINE)]
        except TooSlowError:
            over = f"took more than {_GREP_S:g} s on {count(len(found), 'line')}"
            step = "write it so that it need not try so much, without a + or * within another"
            raise click.ClickException(f"--grep {os.fsdecode(self._grep.pattern)!r} {over}: {step}") from None


_RANK = r"\s*(?:\[(?:rank:? ?|default|1,)?N\]|(?:rank )?N: )"
"""How launchers and frameworks mark lines of rank N: [rank0]: (PyTorch), [default0]: (torchrun --tee), [rank: 0]
(Lightning), 0: (srun --label), [1,0]<stdout>: (mpirun --tag-output), [0]<stdout>: (horovodrun)."""


def _explain(client: Client, choice: _LogChoice, files: dict[int, list[LogFile]], *, quiet: bool) -> None:
    """Say why there is nothing to print; an unknown job is an error."""
    without = [job for job, each in files.items() if not each]
    there = " there" if choice.partial else ""
    several = f"these {len(files)} jobs have"
    if len(without) < len(files):
        with suppress(DaemonAway):
            _states(client, without)
        if not quiet and not any(file.path.stat().st_size for each in files.values() for file in each):
            job = choice.jobs[0]
            step = f"hpcdl why {job} says how it stands"
            say(
                f"job {job} has printed nothing{there}: {step}"
                if len(files) == 1
                else f"{several} printed nothing{there}"
            )
        return
    try:
        states = _states(client, without)
    except ClientError as error:
        if type(error) is ClientError or hasattr(error, "code"):
            raise
        whose = f"job {without[0]} has" if len(files) == 1 else several
        raise ClientError(f"{whose} no log here, and {error}") from None
    for job, state in states.items() if len(files) == 1 else ():
        where = f"{there}: hpcdl show {job} lists its attempts" if there else f": hpcdl why {job} says why"
        say(f"job {job} is {state} and has printed nothing{where}")
    if len(files) > 1:
        say(f"{several} printed nothing{there}")


def _states(client: Client, jobs: Sequence[int]) -> dict[int, str]:
    """The jobs' states. Raises ClientError, also for a job that there is not."""
    if not jobs:
        return {}
    if len(jobs) == 1:
        return {jobs[0]: client.get(f"/v1/jobs/{jobs[0]}")["job"]["state"]}
    ids = ",".join(map(str, jobs)) if len(jobs) <= _NAMED_IDS else None
    rows = client.get(path_with("/v1/jobs", all=1, ids=ids, fields="id,state"))["jobs"]
    found = {row["id"]: row["state"] for row in rows}
    for job in jobs:
        if job not in found:
            raise ClientError(f"there is no job {job}: hpcdl ls --all lists them")
    return {job: found[job] for job in jobs}


def begin_since(path: Path, since: float) -> int:
    """Where in a log begins what was printed since then (seconds since the epoch), to about a second.

    The supervisor notes beside it at what time it had how many bytes (`Log`): seconds since the machine's boot, of
    which the newest is as old as that file. Where there are no notes, it is the whole file or nothing of it.
    """
    log = path.stat()
    if log.st_mtime < since:
        return log.st_size
    try:
        notes = path.with_suffix(".times")
        content, noted_at = notes.read_bytes(), notes.stat().st_mtime
    except FileNotFoundError:
        return 0
    known = list(struct.iter_unpack("<dq", content[: len(content) // 16 * 16]))
    begin = 0
    for place, (at, size) in enumerate(known):
        if noted_at - known[-1][0] + at >= since:
            break
        # Up to the next note or for its span, whichever is shorter, the output went on behind this one.
        over = noted_at - known[-1][0] + at + max(1.0, (at - known[0][0]) / 1000) < since
        begin = size if not over else known[place + 1][1] if place + 1 < len(known) else log.st_size
    return begin


def _begin(path: Path, lines: int | None) -> int:
    """Where in the file the last `lines` lines begin; only as much as that is read. 0 for all of it."""
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


def _content(file: LogFile, choice: _LogChoice) -> dict[str, object]:
    text = b"".join(choice.pieces(file)).decode("utf-8", "backslashreplace")
    return {"incarnation": file.incarnation, "node": file.node, "path": str(file.path), "text": text}


def _pieces(file: LogFile, offset: int) -> Iterator[bytes]:
    with open(file.path, "rb") as content:
        content.seek(offset)
        while piece := content.read(_PIECE):
            yield piece


class _FollowedLog:
    """A log that is followed: how far it was read, and the line that has not ended."""

    def __init__(self, file: LogFile, choice: _LogChoice, *, new: bool) -> None:
        self.file = file
        self._filter = choice.filter
        self._by_line = choice.by_line
        self._offset = 0 if new else choice.begin(file.path)
        self._tail = choice.lines if choice.by_line and not new else None
        self._chosen = StreamBytes(file.path, choice.stream, self._offset)
        self._stream = LineStream()

    def read(self, *, last: bool) -> Iterator[bytes]:
        """What has come since; with the `last` reading also a line without an end."""
        grown = self.file.path.stat().st_size > self._offset
        if not self._by_line:
            for piece in _pieces(self.file, self._offset) if grown else ():
                self._offset += len(piece)
                yield piece
            return
        kept = deque[bytes](maxlen=self._tail)
        for piece in _pieces(self.file, self._offset) if grown else ():
            self._offset += len(piece)
            kept.extend(self._filter.keep(self._stream.take(self._chosen.take(piece))))
        if last:
            kept.extend(self._filter.keep(self._stream.take(b"", last=True)))
        self._tail = None
        yield b"".join(kept)


def _follow(client: Client, choice: _LogChoice) -> None:
    followed: dict[Path, _FollowedLog] = {}
    of: dict[int, int] = {}
    shown = _Printer(len(choice.jobs) > 1)
    asked_at: float | None = None
    finished = False
    while True:
        if asked_at is None or time.monotonic() - asked_at >= _ASK_S:
            finished = all(state in FINISHED for state in _states(client, choice.jobs).values())
            for job in choice.jobs:
                files = choice.files(job)
                of[job] = len(files)
                for file in files:
                    if file.path not in followed:
                        followed[file.path] = _FollowedLog(file, choice, new=asked_at is not None)
            asked_at = time.monotonic()
        for each in followed.values():
            for piece in each.read(last=finished):
                shown.write(each.file, piece, of=of[each.file.job])
        if finished:  # the question came before the reading: nothing is missing
            shown.end()
        sys.stdout.buffer.flush()
        if finished:
            _explain(client, choice, {job: choice.files(job) for job in choice.jobs}, quiet=False)
            return
        time.sleep(max(_POLL_S, len(followed) / _FILES_A_SECOND))


class _Printer:
    """Writes logs to stdout. Of one job as they are, with a line that names the file wherever it changes; of several
    jobs line by line, each line behind the name of its job, with attempt and node where it has several files.
    """

    def __init__(self, several: bool) -> None:
        self._several = several
        self._colour = use_colour()
        self._last: LogFile | None = None
        self._ended = True  # with a newline
        self._streams: dict[Path, tuple[bytes, LineStream]] = {}

    def write(self, file: LogFile, piece: bytes, *, of: int) -> None:
        """`of`: so many files there are of the job."""
        out = sys.stdout.buffer
        if self._several:
            label, stream = self._streams.setdefault(file.path, (self._label(file, of), LineStream()))
            out.write(b"".join(label + line for line in stream.take(piece)))
            return
        if not piece:
            return
        if of > 1 and file != self._last:
            head = f"==> attempt {file.incarnation} on {file.node} <==\n"
            out.write((b"" if self._ended else b"\n") + os.fsencode(head))
        self._last = file
        out.write(piece)
        self._ended = piece.endswith(b"\n")

    def end(self) -> None:
        """Writes the lines of several jobs that have not ended."""
        for label, stream in self._streams.values():
            sys.stdout.buffer.write(b"".join(label + line for line in stream.take(b"", last=True)))
        self._streams.clear()

    def _label(self, file: LogFile, of: int) -> bytes:
        name = f"{file.job}.{file.incarnation}.{file.node}" if of > 1 else str(file.job)
        colour = _COLOURS[file.job % len(_COLOURS)]
        return os.fsencode(f"\x1b[{colour}m{name} |\x1b[0m " if self._colour else f"{name} | ")
