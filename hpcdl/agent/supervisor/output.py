"""The trainer's output: from a pipe into the log, with progress read from its lines on the way.

Whatever happens to the log (disk full, too long, not a file), the pipe is read on, so the trainer never waits for it.
Where stdout and stderr are apart there are two pipes into one log, in the order in which they are read.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from hpcdl.agent.supervisor.packets import NUMBER_LIMIT, ProgressPacket
from hpcdl.agent.supervisor.progress_bars import PRESETS, Bars
from hpcdl.core.model.series import MOST_NAMES, NAME

PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18
READS_AT_ONCE = 8  # then the others get their turn
DRAIN_BYTES = 8 << 20  # at the end; more can only come from a process that is not ours
LINE_BYTES = 4096
TAIL_BYTES = 1 << 16  # eight ranks' last words, and their launcher's
DETAIL_LENGTH = 300
REGEX_BUDGET_S = 1.0
_F_SETPIPE_SZ = 1031
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LOG_FLAGS = _FLAGS | os.O_NOFOLLOW
STDOUT, STDERR = 1, 2
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]")

_PLACE = ("step", "total", "samples")
"""Groups of an expression that are no metrics."""

Note = Callable[[str], None]


class AppendedFile:
    """A file that output is appended to. What cannot be written is dropped, with one note."""

    def __init__(self, descriptor: int, name: str, note: Note) -> None:
        self._file = descriptor
        self._name = name
        self._note = note
        self._noted = False
        self.size = os.fstat(descriptor).st_size

    def append(self, data: bytes) -> int:
        """How many bytes of it could not be written; never raises, never waits."""
        left = memoryview(data)
        try:
            while left:
                written = os.write(self._file, left)
                self.size += written
                left = left[written:]
        except OSError as error:
            if not self._noted:
                self._noted = True
                self._note(f"output is dropped, {self._name} cannot be written: {error.strerror}")
        return len(left)

    def close(self) -> None:
        os.close(self._file)


class Log:
    """The log of one incarnation, at most `limit` bytes of it. What cannot be written is dropped, with one note.

    Beside it, in `.times` for `.log`, stands at what time it had how many bytes, for `hpcdl logs --since`: pairs of
    seconds since the machine's boot (the newest is as old as that file) and bytes, at most one a second, and fewer of a
    long run. In `.streams`, where stdout and stderr are `apart`, stands where the one follows the other (`CHANGE`).
    """

    def __init__(self, path: str, limit: int, note: Note, *, apart: bool = False) -> None:
        self._note = note
        self._left = limit
        self._limit = limit
        self._dropped = 0
        self._file: AppendedFile | None = None
        self._times = -1
        self._times_path = f"{path.removesuffix('.log')}.times"
        self._began = self._time_due = 0.0
        self._streams: _Changes | None = None
        try:
            if apart:  # before the log: where that is, this is
                self._streams = _Changes(f"{path.removesuffix('.log')}.streams")
            file = os.open(path, _LOG_FLAGS, 0o600)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise OSError(0, "it is not a regular file")
            self._file = AppendedFile(file, "the log", note)
        except OSError as error:
            self.close()
            note(f"the log {path} cannot be written, the output is dropped: {error.strerror}")

    def write(self, data: bytes, stream: int = STDOUT) -> None:
        """Append to the log; never raises, never waits."""
        if self._file is None:
            return
        self._note_time(self._file)
        if self._dropped:
            marker = f"\n[hpcdl: {self._dropped} bytes of output were dropped]\n".encode()
            if self._file.append(marker):
                self._dropped += len(data)
                return
            self._dropped = 0
        if self._streams is not None and stream != self._streams.last:
            if not self._streams.change(self._file.size, stream):
                self._dropped = len(data)  # it would be taken for the other's
                return
            self._left -= CHANGE.size
        kept = data[: max(0, self._left)]
        self._dropped = self._file.append(kept)
        self._left -= len(kept) - self._dropped
        if self._left <= 0:
            self._note(f"the log has reached its limit of {self._limit} bytes, the rest of the output is dropped")
            self._file.append(f"\n[hpcdl: the log ends here, at its limit of {self._limit} bytes]\n".encode())
            self.close()

    def _note_time(self, file: AppendedFile) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if now < self._time_due:
            return
        try:
            if not self._began:
                self._began = now
                self._times = os.open(self._times_path, _LOG_FLAGS, 0o600)
            self._time_due = now + max(1.0, (now - self._began) / 1000)
            os.write(self._times, struct.pack("<dq", now, file.size))
        except OSError:  # a full disk, say: a part of a pair would put all that follow out of place
            self._time_due = math.inf

    def close(self) -> None:
        for each in (self._file, self._streams):
            if each is not None:
                each.close()
        self._file = self._streams = None
        if self._times >= 0:
            os.close(self._times)
            self._times = -1


CHANGE = struct.Struct("<qB")
"""In the file `.streams`: from this byte of the log on it is of this stream, STDOUT or STDERR."""


class _Changes:
    """The file that says where in a log one stream follows the other. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, _LOG_FLAGS & ~os.O_APPEND, 0o600)
        self._end = os.fstat(self._file).st_size // CHANGE.size * CHANGE.size
        self.last = 0  # the stream, 0 for none

    def change(self, at: int, stream: int) -> bool:
        """From here on it is that stream's; False where this could not be written."""
        try:
            if os.pwrite(self._file, CHANGE.pack(at, stream), self._end) < CHANGE.size:
                return False  # the next one is written over it
        except OSError:
            return False
        self._end += CHANGE.size
        self.last = stream
        return True

    def close(self) -> None:
        os.close(self._file)


class ProgressReader:
    """Finds the last step in a stream of output. Lines end with LF or CR and are cut at LINE_BYTES.

    The first group of the expression is the step; groups named step, total, samples and metric say so themselves, and
    those of other names are metrics, too. A metric may stand in a line of its own.
    """

    def __init__(self, expression: str | None, total: int | None, note: Note, preset: str | None = None) -> None:
        """`total`: steps in all, where its user said so. `preset`: one of progressbars.PRESETS, then no expression."""
        self._note = note
        self._total = total
        self._bars = PRESETS[preset](total) if preset else None
        self._rest = b""
        self._step: int | None = None
        self._regex: re.Pattern[str] | None = None
        if expression:
            try:
                self._regex = re.compile(expression)
                if not self._regex.groups:
                    raise re.error("it has no group for the step")
            except (re.error, RecursionError, OverflowError) as error:
                self._regex = None
                note(f"the progress expression is not used: {error}")

    def feed(self, data: bytes) -> ProgressPacket | None:
        """What the last line with a step in it says, if any is complete now."""
        if self._regex is None and self._bars is None:
            return None
        head, end, rest = (self._rest + data.replace(b"\r", b"\n")).rpartition(b"\n")
        self._rest = rest[:LINE_BYTES]
        if not end:
            return None
        return self._limited(head.split(b"\n"))

    @property
    def complete(self) -> bool:
        """All steps are done: as many as its user said, or its framework says so. A bar that is full says nothing."""
        if self._bars is not None and self._bars.complete:
            return True
        return self._total is not None and self._step is not None and self._step >= self._total

    def finish(self) -> ProgressPacket | None:
        """What the last line says, if it has no end."""
        return self.feed(b"\n")

    def _limited(self, lines: list[bytes]) -> ProgressPacket | None:
        try:
            with cpu_limit(REGEX_BUDGET_S):
                if self._regex is not None:
                    return self._newest(self._regex, lines)
                return None if self._bars is None else self._of_bars(self._bars, lines)
        except TooSlowError:
            self._regex = self._bars = None
            self._note(f"the progress expression is not used any more: it took more than {REGEX_BUDGET_S:g} s")
            return None

    def _of_bars(self, bars: Bars, lines: list[bytes]) -> ProgressPacket | None:
        found = None
        for line in lines:
            found = bars.take(line[:LINE_BYTES].decode("utf-8", "replace")) or found
        if found is None or found[0] > NUMBER_LIMIT:
            return None
        self._step, total = found
        return ProgressPacket(self._step, total, None)

    def _newest(self, regex: re.Pattern[str], lines: list[bytes]) -> ProgressPacket | None:
        found: ProgressPacket | None = None
        names = [name for name in regex.groupindex if name not in _PLACE and NAME.fullmatch(name)]
        numbers: dict[str, float] = {}
        for line in reversed(lines):
            match = regex.search(line[:LINE_BYTES].decode("utf-8", "replace"))
            if match is None:
                continue
            for name in names[:MOST_NAMES]:
                if name not in numbers and (value := _float(match[name])) is not None:
                    numbers[name] = value
            if found is None:
                found = self._progress(match)
            if found is not None and len(numbers) == len(names):
                break
        if found is not None:
            self._step = found.step
        elif numbers and self._step is not None:
            found = ProgressPacket(self._step, self._total, None)
        if found is None or not numbers:
            return found
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        metric = finite.get("metric")
        if metric is not None:
            del finite["metric"]
        return replace(found, metric=metric, metrics=finite or None)

    def _progress(self, match: re.Match[str]) -> ProgressPacket | None:
        names = match.re.groupindex
        step = _number(match["step"] if "step" in names else match[1])
        total = _number(match["total"]) if "total" in names else None
        if step is None or (self._total is not None and (step > self._total or total not in (None, self._total))):
            return None  # of several bars, one that is not of the training's steps
        samples = _number(match["samples"]) if "samples" in names else None
        return ProgressPacket(step, self._total if total is None else total, samples)


class OutputPipe:
    """A pipe that is the trainer's stdout, its stderr, or both."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.file: AppendedFile | None = None  # that has what comes, besides the log
        self._rest = b""  # a line that has not ended yet
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        try:
            fcntl.fcntl(self._read_end, _F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # the system's limit for pipes is smaller

    def fileno(self) -> int:
        return self._read_end

    def pieces(self, most: int) -> Iterator[bytes]:
        """What is there now, in so many pieces at most; the last one is empty where the output has ended."""
        for _ in range(most):
            try:
                data = os.read(self._read_end, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            yield data
            if not data:
                return

    def lines(self, data: bytes) -> bytes:
        """Whole lines of what has come; the rest waits for its end, and where it is long it has one here."""
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > LINE_BYTES:
            self._rest = b""
            return data + b"\n"
        self._rest = data[end:]
        return data[:end]

    def remainder(self) -> bytes:
        """The line that never ended, as one that has; b"" for none."""
        return self._rest and self._rest + b"\n"

    def started(self) -> None:
        """The trainer has its end now; ours is closed, so that the end of the output is seen."""
        os.close(self.write_end)
        self.write_end = -1

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        os.close(self._read_end)
        if self.write_end >= 0:
            os.close(self.write_end)


class TrainerOutput:
    """The reading ends of the pipes that are the trainer's stdout and stderr: one for both, or one each."""

    def __init__(
        self,
        log: Log,
        reader: ProgressReader,
        on_progress: Callable[[ProgressPacket], None],
        mark: bytes = b"",
        on_mark: Callable[[bytes], None] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """`on_mark`: is given the last output up to each line that has `mark` in it. `apart`: stderr has a pipe of its
        own; the order of what comes by the two at once is not known."""
        self._log = log
        self._reader = reader
        self._on_progress = on_progress
        self._mark = mark
        self._on_mark = on_mark
        self._line = b""  # that has not ended yet
        self.tail = b""
        self.pipes = [OutputPipe(stream) for stream in ((STDOUT, STDERR) if apart else (STDOUT,))]

    @property
    def write_ends(self) -> tuple[int, int]:
        """Of stdout and stderr."""
        return self.pipes[0].write_end, self.pipes[-1].write_end

    def copy_to(self, output: str, error: str, note: Note) -> None:
        """What comes is appended to these files, too; "": to none. `error`: of stderr alone. Raises OSError."""
        for pipe, path in zip(self.pipes, (output, error), strict=False):
            if path:
                pipe.file = AppendedFile(os.open(path, _FLAGS, 0o666), path, note)

    def started(self) -> None:
        """The trainer has its ends now."""
        for pipe in self.pipes:
            pipe.started()

    def read(self, pipe: OutputPipe) -> bool:
        """Copy what is there; False once the output has ended."""
        for data in pipe.pieces(READS_AT_ONCE):
            if not data:
                return False
            self._take(pipe, data)
        return True

    def finish(self) -> None:
        """Every process of the incarnation is gone: copy what is left and close."""
        for pipe in self.pipes:
            for data in filter(None, pipe.pieces(DRAIN_BYTES // READ_BYTES)):
                self._take(pipe, data)
            self._read_lines(pipe.remainder())
        self._say(self._reader.finish())
        self.close()

    def close(self) -> None:
        self._log.close()
        for pipe in self.pipes:
            pipe.close()

    def _take(self, pipe: OutputPipe, data: bytes) -> None:
        self._log.write(data, pipe.stream)
        if pipe.file is not None:
            pipe.file.append(data)
        self._read_lines(data if len(self.pipes) == 1 else pipe.lines(data))  # no line is made of two streams' pieces

    def _read_lines(self, data: bytes) -> None:
        if not data:
            return
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        self._say(self._reader.feed(data))
        if self._on_mark is not None:
            self._look_for_marks(data)

    def _look_for_marks(self, data: bytes) -> None:
        ended, newline, self._line = (self._line + data).rpartition(b"\n")
        self._line = self._line[-LINE_BYTES:]
        if not newline or self._mark not in ended or self._on_mark is None:
            return
        after = len(self._line)  # what has come since, from the end of the tail
        marks = []
        for line in reversed(ended.split(b"\n")):
            after += 1
            if self._mark in line:
                marks.append(self.tail[: len(self.tail) - after + 1])
            after += len(line)
        for said in reversed(marks):
            self._on_mark(said)

    def _say(self, progress: ProgressPacket | None) -> None:
        if progress is not None:
            self._on_progress(progress)


class TooSlowError(Exception):
    """What `cpu_limit` raises."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises TooSlowError in what takes more CPU time: an expression like (a+)+b may take years for a single line.

    For the main thread. The engine looks for signals now and then, so a timer ends it: of CPU time, for who is stopped,
    or waits for a busy machine, is not slow.
    """
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # it may end just here
    finally:
        signal.signal(signal.SIGVTALRM, before)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


def _number(text: str | None) -> int | None:
    try:
        value = int(float((text or "").replace(",", "")))
    except (ValueError, OverflowError):
        return None
    return value if 0 <= value <= NUMBER_LIMIT else None


def _float(text: str | None) -> float | None:
    """A number, NaN and infinities too; None where it is none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def last_line(tail: bytes, containing: tuple[bytes, ...] = ()) -> str:
    """The last line that is not blank (and has one of these in it), without control characters, cut for people."""
    for line in reversed(tail.replace(b"\r", b"\n").split(b"\n")):
        if containing and not any(each in line for each in containing):
            continue
        if text := printable(line.decode("utf-8", "replace")):
            return text
    return ""


def printable(text: str) -> str:
    """Without escape sequences and control characters, at most DETAIL_LENGTH characters."""
    plain = _ESCAPES.sub("", text).replace("\t", " ")
    return "".join(each for each in plain if each.isprintable()).strip()[:DETAIL_LENGTH]
