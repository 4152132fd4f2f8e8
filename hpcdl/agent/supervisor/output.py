"""The trainer's output: from a pipe into the log, with progress read from its lines on the way.

Whatever happens to the log (disk full, too long, not a file), the pipe is read on, so the trainer never waits for it.
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
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]")

_PLACE = ("step", "total", "samples")
"""Groups of an expression that are no metrics."""

Note = Callable[[str], None]


class Log:
    """The log of one incarnation, at most `limit` bytes of it. What cannot be written is dropped, with one note.

    Beside it, in `.times` for `.log`, stands at what time it had how many bytes, for `hpcdl logs --since`: pairs of
    seconds since the machine's boot (the newest is as old as that file) and bytes, at most one a second, and fewer of a
    long run.
    """

    def __init__(self, path: str, limit: int, note: Note) -> None:
        self._note = note
        self._left = limit
        self._limit = limit
        self._dropped = 0
        self._noted = False
        self._file = self._times = -1
        self._times_path = f"{path.removesuffix('.log')}.times"
        self._size = 0
        self._began = self._time_due = 0.0
        try:
            self._file = os.open(path, _LOG_FLAGS, 0o600)
            self._size = os.fstat(self._file).st_size
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                self.close()
                raise OSError(0, "it is not a regular file")
        except OSError as error:
            note(f"the log {path} cannot be written, the output is dropped: {error.strerror}")

    def write(self, data: bytes) -> None:
        """Append to the log; never raises, never waits."""
        if self._file < 0:
            return
        self._note_time()
        if self._dropped:
            marker = f"\n[hpcdl: {self._dropped} bytes of output were dropped]\n".encode()
            if self._unwritten(marker):
                self._dropped += len(data)
                return
            self._dropped = 0
        kept = data[: self._left]
        self._dropped = self._unwritten(kept)
        self._left -= len(kept) - self._dropped
        if self._left <= 0:
            self._note(f"the log has reached its limit of {self._limit} bytes, the rest of the output is dropped")
            self._unwritten(f"\n[hpcdl: the log ends here, at its limit of {self._limit} bytes]\n".encode())
            self.close()

    def _unwritten(self, data: bytes) -> int:
        """Write the data; how many bytes of it could not be written."""
        left = memoryview(data)
        try:
            while left:
                written = os.write(self._file, left)
                self._size += written
                left = left[written:]
        except OSError as error:
            if not self._noted:
                self._noted = True
                self._note(f"output is dropped, the log cannot be written: {error.strerror}")
        return len(left)

    def _note_time(self) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if now < self._time_due:
            return
        try:
            if not self._began:
                self._began = now
                self._times = os.open(self._times_path, _LOG_FLAGS, 0o600)
            self._time_due = now + max(1.0, (now - self._began) / 1000)
            os.write(self._times, struct.pack("<dq", now, self._size))
        except OSError:  # a full disk, say: a part of a pair would put all that follow out of place
            self._time_due = math.inf

    def close(self) -> None:
        for file in (self._file, self._times):
            if file >= 0:
                os.close(file)
        self._file = self._times = -1


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


class TrainerOutput:
    """The reading end of the pipe that is the trainer's stdout and stderr."""

    def __init__(
        self,
        log: Log,
        reader: ProgressReader,
        on_progress: Callable[[ProgressPacket], None],
        mark: bytes = b"",
        on_mark: Callable[[bytes], None] | None = None,
    ) -> None:
        """`on_mark`: is given the last output up to each line that has `mark` in it."""
        self._log = log
        self._reader = reader
        self._on_progress = on_progress
        self._mark = mark
        self._on_mark = on_mark
        self._line = b""  # that has not ended yet
        self.tail = b""
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        try:
            fcntl.fcntl(self._read_end, _F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # the system's limit for pipes is smaller

    def fileno(self) -> int:
        return self._read_end

    def started(self) -> None:
        """The trainer has its end now; ours is closed, so that the end of the output is seen."""
        os.close(self.write_end)
        self.write_end = -1

    def read(self) -> bool:
        """Copy what is there; False once the output has ended."""
        for _ in range(READS_AT_ONCE):
            try:
                data = os.read(self._read_end, READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._take(data)
        return True

    def finish(self) -> None:
        """Every process of the incarnation is gone: copy what is left and close."""
        for _ in range(DRAIN_BYTES // READ_BYTES):
            try:
                data = os.read(self._read_end, READ_BYTES)
            except OSError:
                break
            if not data:
                break
            self._take(data)
        self._say(self._reader.finish())
        self.close()

    def close(self) -> None:
        self._log.close()
        os.close(self._read_end)
        if self.write_end >= 0:
            os.close(self.write_end)

    def _take(self, data: bytes) -> None:
        self._log.write(data)
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
