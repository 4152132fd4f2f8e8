"""The files of a record: segments of lines, of which full ones are packed and the oldest are given up at a limit.

    idle-000001.jsonl.gz ... idle-000007.jsonl     one line a change; the last one is written
    last-poll.json                                 when the batch system answered last
    lock                                           one recorder at a time

A line is one write, after which the mark of its poll follows: whoever is killed at any moment loses one poll at most. A
segment is packed into a file of another name before it is removed. Who reads needs no lock. A link is never written
through: in a folder that others may write, it would lead to any file of ours.
"""

import errno
import fcntl
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcdl.batch.record.lines import PollMark, RecordError, RecordLine, StartLine, line_of, mark_of, mark_text, text_of

SEGMENT_BYTES = 1 << 20
"""A segment is full from here on."""
LIMIT_BYTES = 95_000_000
"""Segments together: above it the oldest go, so that a folder stays under 100 MB."""

_SEGMENT = re.compile(r"idle-(\d{6,})\.jsonl(\.gz)?")
_MARK, _LOCK = "last-poll.json", "lock"
_UNFINISHED = re.compile(r"(idle-\d{6,}\.jsonl\.gz|last-poll\.json)\.tmp")
_STEP = "put a whole copy there, or record into another folder"


def segments(folder: Path) -> dict[int, Path]:
    """The segments by number, in order; of one that is there twice, as while it is packed, the packed one."""
    found: dict[int, Path] = {}
    for name in sorted(os.listdir(folder)):
        path = folder / name
        # One that is gone was packed just now, and is not left out: that would be a gap in the numbers.
        if (match := _SEGMENT.fullmatch(name)) and (path.is_file() or not path.exists()):
            found[int(match[1])] = path  # idle-1.jsonl sorts before idle-1.jsonl.gz
    return dict(sorted(found.items()))


def read_lines(folder: Path) -> Iterator[tuple[RecordLine, str]]:
    """All lines, each with its place, `FILE:LINE`. What is cut at the end of the last segment is passed over.

    Raises RecordError where the folder holds no record or a damaged one, OSError where it cannot be read.
    """
    listed = segments(folder) if folder.is_dir() else {}
    if not listed:
        raise RecordError(f"{folder} holds no record of idle nodes: hpcdl holes --record {folder} makes one")
    numbers = list(listed)
    for number, path in listed.items():
        if number - 1 not in listed and number != numbers[0]:
            raise RecordError(f"{folder}: segment {number - 1} is missing: put it back, or move the older ones away")
        for line, place, _ in _read_segment(path, cut=number == numbers[-1]):
            yield line, place


def last_mark(folder: Path) -> PollMark | None:
    """The last answered poll by its own file; None where that is not there or not whole."""
    try:
        return mark_of((folder / _MARK).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecordError):
        return None


def _read_segment(path: Path, *, cut: bool) -> Iterator[tuple[RecordLine, str, int]]:
    """Lines with their places and where they end in the file, in bytes. `cut`: the last one may be damaged."""
    try:
        data = _data(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: damaged ({error}): {_STEP}") from None
    at = 0
    lines = data.split(b"\n")
    last = len(lines) - (2 if lines[-1] == b"" else 1)
    for number, raw in enumerate(lines[: last + 1]):
        end = at + len(raw) + 1
        try:
            if end > len(data):
                raise RecordError("the line is cut")
            line = line_of(raw.decode("utf-8", "replace"))
        except RecordError as error:
            if cut and number == last:
                return
            raise RecordError(f"{path}:{number + 1}: {error}: {_STEP}") from None
        yield line, f"{path}:{number + 1}", end
        at = end


def _last_poll(path: Path, *, cut: bool) -> tuple[PollMark | None, int]:
    """The last poll that has a line in a segment, None where none has, and where that line ends in the file."""
    last, every_s, size = None, 0.0, 0
    for line, _, end in _read_segment(path, cut=cut):
        if isinstance(line, StartLine):
            last, every_s = line.mark, line.mark.every_s
        else:
            last = PollMark(line.at, line.number, every_s)
        size = end
    return last, size


def _data(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # the recorder has packed it since the folder was listed
        if path.suffix == ".gz":
            raise
        path = path.with_name(f"{path.name}.gz")
        data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _opened(path: Path, flags: int) -> int:
    """A file to write. Raises RecordError for a link, OSError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RecordError(f"{path} is a link, and is not written through: put the file itself there") from None


class RecordFolder:
    """Writes a record, alone. `last`: the last answered poll of what is there already, None of a new one.

    `sync`: each line is on the disk before the next one; not needed for what can be made anew.

    Raises RecordError where another recorder writes there, or other files are there; OSError.
    """

    def __init__(
        self, folder: Path, segment_bytes: int = SEGMENT_BYTES, limit_bytes: int = LIMIT_BYTES, *, sync: bool = True
    ) -> None:
        self._made = not folder.exists()
        if self._made and folder.is_symlink():
            raise RecordError(f"{folder} is a link that leads nowhere: make the folder first, or name another one")
        folder.mkdir(exist_ok=True)
        if not segments(folder) and (others := set(os.listdir(folder)) - {_MARK, _LOCK}):
            raise RecordError(f"{folder} holds other files ({min(others)[:40]}): name a folder for the record alone")
        self._folder, self._segment_bytes, self._limit_bytes = folder, segment_bytes, limit_bytes
        self._sync = sync
        self._lock: int | None = self._locked()
        self._file: int | None = None
        self._number = self._size = 0
        self.last: PollMark | None = None
        try:
            self._resume()
        except BaseException:
            self.close()
            raise

    @property
    def full(self) -> bool:
        """Whether the next line is to be a start line, which begins a segment."""
        return self._file is None or not 0 < self._size < self._segment_bytes

    def append(self, line: RecordLine) -> None:
        """Writes a line, to the disk. Raises OSError, and then it is as if it had not been tried."""
        if isinstance(line, StartLine) and (self._file is None or self._size >= self._segment_bytes):
            self._next_segment()
        assert self._file is not None
        data = text_of(line).encode()
        os.ftruncate(self._file, self._size)  # what a line that failed has left
        written = 0
        while written < len(data):
            written += os.write(self._file, data[written:])
        if self._sync:
            os.fsync(self._file)
        self._size += len(data)

    def mark(self, mark: PollMark) -> None:
        """Notes an answered poll, after its line where it has one. Raises OSError."""
        self.last = mark
        self._replace(_MARK, mark_text(mark).encode())

    def close(self) -> None:
        """Gives the folder up for another recorder. Of one without any line nothing is left."""
        if self._number == 0 and self._lock is not None:
            with suppress(OSError):
                (self._folder / _LOCK).unlink()
                if self._made:
                    self._folder.rmdir()
        for file in (self._file, self._lock):
            if file is not None:
                os.close(file)
        self._file = self._lock = None

    def _locked(self) -> int:
        file = _opened(self._folder / _LOCK, os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise RecordError(f"another recorder writes {self._folder}: end that one, or name another folder") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # file systems without locks
                os.close(file)
                raise
        return file

    def _resume(self) -> None:
        """Clears what a recorder that was killed has left, finds the last poll, and opens the last segment."""
        listed = segments(self._folder)
        for name in os.listdir(self._folder):
            twice = _SEGMENT.fullmatch(name) and self._folder / name not in listed.values()
            if twice or _UNFINISHED.fullmatch(name):
                (self._folder / name).unlink()
        if not listed:
            return
        self._number = max(listed)
        if listed[self._number].suffix != ".gz":
            self._file = _opened(listed[self._number], os.O_APPEND)
        for number, path in reversed(listed.items()):  # the last one may be without a line
            self.last, size = _last_poll(path, cut=number == self._number)
            self._size = size if number == self._number else self._size
            if self.last is not None:
                break
        mark = last_mark(self._folder)
        if mark is not None and (self.last is None or mark.number >= self.last.number):
            self.last = mark
        if self._file is not None:
            os.ftruncate(self._file, self._size)

    def _next_segment(self) -> None:
        """Packs the full segment, begins the next one, and gives up the oldest ones above the limit."""
        if self._file is not None:
            path = self._path(self._number)
            self._replace(f"{path.name}.gz", gzip.compress(path.read_bytes(), 6, mtime=0))
            path.unlink()
            os.close(self._file)
            self._file = None
        self._file = _opened(self._path(self._number + 1), os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        self._number += 1
        self._size = 0
        listed = segments(self._folder)
        bytes_ = {number: path.stat().st_size for number, path in listed.items()}
        while len(listed) > 1 and sum(bytes_.values()) + self._segment_bytes > self._limit_bytes:
            oldest = min(listed)
            listed.pop(oldest).unlink()
            del bytes_[oldest]

    def _path(self, number: int) -> Path:
        return self._folder / f"idle-{number:06d}.jsonl"

    def _replace(self, name: str, data: bytes) -> None:
        unfinished = self._folder / f"{name}.tmp"
        with os.fdopen(_opened(unfinished, os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(data)
            if name != _MARK:  # a mark that a crash of the machine takes costs the polls since the last change
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, self._folder / name)
