"""A job's output as `hpcdl web` follows it: what came of its log files since a browser asked last.

A browser shows one attempt on all nodes or on one, or follows the newest; it keeps a cursor, which says how far each of
the files was read that are read on. It comes with the request's line, of which servers take some KiB: so files stand in
it by digests of their names, and there are FILES at most. Where another file than before speaks, a line names it, as in
`hpcdl logs`.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from hpcdl.cli.logs import STDERR, STDOUT, STREAMS, LogFile, StreamBytes, log_files
from hpcdl.daemon.clock import WallClock

FIRST, PIECE = 64 << 10, 256 << 10
"""Bytes of logs: of their ends, when a page is opened, and of what came since."""

LEAST = 4 << 10
"""Of each file so much at least, however many there are."""

NODES = 100
"""Files of one attempt that are followed together."""

FILES = 2 * NODES
"""Files that are followed together, of an attempt that is over and those after it; later ones come in their turn."""

LINE_S = 2.0
"""So long the end of a line is waited for."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_ENTRY = re.compile("([0-9a-f]{12})-([0-9]{1,18})", re.ASCII)
"""Of a cursor: how far a file was read. All of it stands in a URL as it is."""
_UNSEEN = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class LogChoice:
    """What of a job's output is shown: of one attempt or, by None, of the newest and those that follow; on one node
    or, by None, on all; of one stream or, by None, of both, as far as they were kept apart."""

    attempt: int | None = None
    node: str | None = None
    stream: int | None = None

    @classmethod
    def of(cls, files: str, stream: str) -> "LogChoice":
        """By `ATTEMPT` or `ATTEMPT.NODE`, and the number of a stream; "" and what is neither choose nothing."""
        attempt, _, node = files.partition(".")
        number = int(attempt) if re.fullmatch("[0-9]{1,9}", attempt) else None
        return cls(number, node or None, {str(each): each for each in (STDOUT, STDERR)}.get(stream))


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What came, and the cursor after it."""

    text: str
    after: str


@dataclass(frozen=True, slots=True)
class _Read:
    text: str
    offset: int  # behind it
    whole: bool  # nothing is left


def read_log(home: Path, job: int, after: str, choice: LogChoice) -> LogPiece:
    """What came after a cursor; "": the ends of the files."""
    files = log_files(home, job, choice.attempt, choice.node)
    if not files:
        return LogPiece("", "")
    offsets, spoke = _parse(after)
    newest = max(file.incarnation for file in files)
    # What the attempt before said last, and a short attempt between two questions, are not passed over.
    oldest = min((file.incarnation for file in files if _digest(file) in offsets), default=newest)
    read = _chosen(files, oldest)
    parts: list[str] = []
    cursor: dict[str, int] = {}
    unfinished = read[-1].incarnation
    for file in read:
        name = _digest(file)
        got = _read(file, offsets.get(name), choice.stream, len(read))
        if got.text:
            if len(files) > 1 and spoke != name:
                head = f"==> attempt {file.incarnation} on {plain(os.fsencode(file.node))} <==\n"
                parts.append(f"\n{head}" if spoke else head)
            parts.append(got.text)
            spoke = name
        cursor[name] = got.offset
        if not got.whole:
            unfinished = min(unfinished, file.incarnation)
    kept = {_digest(file): cursor[_digest(file)] for file in read if file.incarnation >= unfinished}
    return LogPiece("".join(parts), _cursor(kept, spoke))


def _chosen(files: Sequence[LogFile], oldest: int) -> list[LogFile]:
    by_attempt: dict[int, list[LogFile]] = {}
    for file in files:
        if file.incarnation >= oldest:
            by_attempt.setdefault(file.incarnation, []).append(file)
    found: list[LogFile] = []
    for number, each in enumerate(by_attempt.values()):
        if number > 1 and len(found) + len(each[:NODES]) > FILES:
            break
        found += each[:NODES]
    return found


def _parse(after: str) -> tuple[dict[str, int], str]:
    """The offsets of a cursor, by digests of files' names, and whose text came last; of what is no cursor nothing."""
    last, *rest = after.split(".")
    offsets = {each[1]: int(each[2]) for entry in rest if (each := _ENTRY.fullmatch(entry))}
    return offsets, last


def _cursor(offsets: Mapping[str, int], spoke: str) -> str:
    return ".".join([spoke, *(f"{name}-{offset}" for name, offset in offsets.items())])


def _digest(file: LogFile) -> str:
    return blake2b(os.fsencode(file.path.name), digest_size=6).hexdigest()


def _read(file: LogFile, offset: int | None, stream: int | None, of: int) -> _Read:
    """From `offset`, or of its end where that is None; `of`: so many files share what is read at once."""
    nothing = _Read("", offset or 0, whole=True)
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO blocks nobody
    except OSError:
        return nothing
    first, piece = max(LEAST, FIRST // of), max(LEAST, PIECE // of)
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return nothing
        size = status.st_size
        if offset is not None and offset > size:
            offset = 0  # it was written anew
        cut = offset is None and size > first
        begin = max(0, size - first) if offset is None else offset
        opened.seek(begin)
        content = opened.read(piece)
    if cut:
        skipped = content.find(b"\n") + 1
        begin, content = begin + skipped, content[skipped:]
    # A line that is not whole yet waits, unless it is old, or so long that it never will be.
    lines = content.rfind(b"\n") + 1
    if (lines or len(content) < piece) and WallClock(0.0).now() - status.st_mtime < LINE_S:
        content = content[:lines]
    end = begin + len(content)
    if stream is not None and file.path.with_suffix(STREAMS).is_file():
        content = StreamBytes(file.path, stream, begin).take(content)
    return _Read(plain(content), end, whole=end >= size)


def streams_apart(files: Sequence[LogFile]) -> bool:
    """Whether stdout and stderr of any of these were kept apart."""
    return any(file.path.with_suffix(STREAMS).exists() for file in files)


def plain(content: bytes) -> str:
    """Output as text: of a line that was written over and over its last state, and no colours or control characters."""
    text = _ANSI.sub("", content.decode("utf-8", "replace").replace("\r\n", "\n"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _UNSEEN.sub("\ufffd", "\n".join(lines))
