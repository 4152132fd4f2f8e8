"""The high-water mark of a home: how far its ledger came, and which ids were given, kept outside of the ledger.

Two files beside it, both the owner's alone. `mark.json` is replaced as a whole and forced to the disk: it has ids that
are reserved in blocks before any of them is given. `mark.now`, one line that is overwritten in place after each commit,
has what is exact; it is forced to the disk now and then only. So after a SIGKILL the two are exact; after a power
failure the event may be an earlier one, and of ids the block's end counts. Neither is ever ahead of what was committed,
but for the reserved ids, which are used only where the ledger is known to have lost something.

A mark follows one line of history: where a backup is restored, or a loss accepted, a new `line` begins at an event that
may be an earlier one. What an earlier line left in `mark.now` counts for nothing.
"""

import errno
import json
import logging
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from typing import NamedTuple

from hpcdl.core.controller.journal import JournalError, Stamped
from hpcdl.core.model.events import JobRetried, StartRequested
from hpcdl.core.model.world import World
from hpcdl.ledger.database import journal_error
from hpcdl.ledger.records import EventRow, digest_of
from hpcdl.wire.private_files import NotPrivate, atomic_write, open_private, read_private

log = logging.getLogger("hpcdl.daemon")

NAME, NOW = "mark.json", "mark.now"
_LIMIT = 64 * 1024
_MOST = 10**15
_SIZE = 512  # bytes of the line: one sector, so that it is there as a whole or not


class Ids(NamedTuple):
    """The next id of each kind, and the highest incarnation and new beginning of any job, request and fence."""

    job: int = 1
    pilot: int = 1
    notice: int = 1
    incarnation: int = 0
    beginning: int = 0
    request: int = 0
    fence: int = 0

    def up_to(self, other: "Ids") -> "Ids":
        """The higher one of each."""
        return Ids(*map(max, self, other))

    def within(self, other: "Ids") -> bool:
        """Whether none is above that of `other`."""
        return self.up_to(other) == other


NO_IDS = Ids()
_BLOCK = Ids(job=100, pilot=20, notice=100, incarnation=10, beginning=1, request=1000, fence=1)
"""So many ids are reserved at once: a disk is waited for that much more rarely."""


def ids_of(world: World, request: int) -> Ids:
    """Those of a world; `request`: the last one's id. Goes through all jobs."""
    floor = world.floor
    reached = [(floor.incarnation, floor.beginning), *world.folders.values()]
    reached += [(job.last_incarnation, job.beginning) for job in world.jobs.values()]
    incarnation, beginning = max(each for each, _ in reached), max(each for _, each in reached)
    return Ids(world.next_job, world.next_pilot, world.next_notice, incarnation, beginning, request, world.fence)


@dataclass(frozen=True, slots=True)
class Mark:
    """What the two files say. `seq`, `digest`: the last event that was committed, as far as they know.

    `given`: ids as they stand, or where that may be too low, the end of their block. `resumed`: why a
    new line began here, and that in words, while the ledger has not recorded it; None once it has.
    """

    line: int = 1
    seq: int = 0
    digest: str = ""
    given: Ids = NO_IDS
    resumed: tuple[str, str] | None = None


def read_mark(home: Path) -> Mark | None:
    """The mark of a home, None where there is none. Raises JournalError for one that cannot be read.

    Where `mark.json` was lost, `mark.now` alone still says how far the ledger came.
    """
    path = home / NAME
    try:
        body = json.loads(read_private(path, _LIMIT))
        reserved, clean = _ids(body["reserved"]), _switch(body["clean"])
        mark = Mark(
            _number(body["line"]),
            _number(body["seq"]),
            _digest(body["digest"]),
            _ids(body["given"]),
            _why(body["resumed"]),
        )
    except FileNotFoundError:
        return _mark_of_now(home)
    except (OSError, NotPrivate) as error:
        raise journal_error(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise MarkDamaged(f"{path} is damaged, so whether the ledger lost anything cannot be said") from None
    now = _now(home)
    if now is None or now.line != mark.line:
        return mark if clean else replace(mark, given=mark.given.up_to(reserved))
    given = now.given if now.boot == _boot() else now.given.up_to(reserved)
    if now.seq > mark.seq:
        mark = replace(mark, seq=now.seq, digest=now.digest, resumed=None)
    return replace(mark, given=mark.given.up_to(given))


def _mark_of_now(home: Path) -> Mark | None:
    """By the second file alone; ids of an earlier boot count as if all of their blocks had been given."""
    now = _now(home)
    if now is None:
        return None
    given = now.given if now.boot == _boot() else Ids(*map(add, now.given, _BLOCK))
    return Mark(now.line, now.seq, now.digest, given)


class MarkDamaged(JournalError):
    """The mark is there and cannot be read: nobody knows what the ledger should hold."""


class _Now(NamedTuple):
    """What the line that is overwritten says."""

    line: int
    seq: int
    digest: str
    given: Ids
    boot: str


def _now(home: Path) -> _Now | None:
    """None where the line is torn or missing."""
    with suppress(OSError, NotPrivate, ValueError, KeyError, TypeError, RecursionError):
        text = read_private(home / NOW, _SIZE).decode("ascii")
        content, _, check = text.strip().rpartition(" ")
        if int(check, 16) == zlib.crc32(content.encode("ascii")):
            body = json.loads(content)
            given = _ids(body["given"])
            return _Now(_number(body["line"]), _number(body["seq"]), str(body["digest"]), given, str(body["boot"]))
    return None


def _ids(body: object) -> Ids:
    if not isinstance(body, dict):
        raise ValueError("no ids of ours")
    return Ids(**{name: _number(body[name]) for name in Ids._fields if name in body})


def _number(value: object) -> int:
    """Raises ValueError for what nobody counted to: whatever JSON has as a number is not enough."""
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError("no number of ours")
    return value


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _digest(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no digest of ours")
    return value


def _why(value: object) -> tuple[str, str] | None:
    match value:
        case None:
            return None
        case [str(why), str(text)]:
            return why, text
    raise ValueError("no reason of ours")


def _boot() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


class MarkFile:
    """The mark of a home whose lease is held, as it is raised. One thread at a time, but for `sync`."""

    def __init__(self, home: Path, mark: Mark) -> None:
        """Writes the mark durably, as the begin of what follows. Raises JournalError."""
        self._home = home
        self._boot = _boot()
        self._reserved = self._next = mark.given
        self._silent = False
        self._mark = mark
        self._put(mark, clean=True)
        try:
            self._fd = open_private(home / NOW, os.O_RDWR | os.O_CREAT)
        except (OSError, NotPrivate) as error:
            raise journal_error(home / NOW, error) from error
        self._write_now()

    def reserve(self, world: World, request: int, events: Sequence[Stamped]) -> None:
        """To be called before these events are committed, which lead to that world; `request`: the id of the last one.

        Raises JournalError: none of the ids may be given then.
        """
        ids = self._next = self._given_with(world, request, events)
        if not ids.within(self._reserved):
            reserved = self._reserved.up_to(Ids(*map(add, ids, _BLOCK)))
            self._put(self._mark, clean=False, reserved=reserved)
            self._reserved = reserved

    def _given_with(self, world: World, request: int, events: Sequence[Stamped]) -> Ids:
        given = self._mark.given
        incarnation, beginning = given.incarnation, given.beginning
        for _, event in events:
            if isinstance(event, StartRequested):
                incarnation = max(incarnation, event.incarnation)
            elif isinstance(event, JobRetried):
                beginning = max(beginning, event.beginning)
        now = Ids(world.next_job, world.next_pilot, world.next_notice, incarnation, beginning, request, world.fence)
        return given.up_to(now)

    def advance(self, row: EventRow | None) -> None:
        """What was reserved is committed, and ends with this event, if with any. Never raises: a mark may lag."""
        self._mark = replace(self._mark, given=self._next)
        if row is not None:
            self._mark = replace(self._mark, seq=int(row[0]), digest=digest_of(row), resumed=None)
        self._write_now()

    def _write_now(self) -> None:
        body = {"line": self._mark.line, "seq": self._mark.seq, "digest": self._mark.digest}
        content = json.dumps(body | {"given": self._mark.given._asdict(), "boot": self._boot}, separators=(",", ":"))
        text = f"{content} {zlib.crc32(content.encode('ascii')):08x}"
        try:
            os.pwrite(self._fd, text.ljust(_SIZE - 1).encode("ascii") + b"\n", 0)
        except OSError as error:
            if not self._silent:
                log.warning("%s cannot be written, it lags: %s", self._home / NOW, error)
            self._silent = True
        else:
            self._silent = False

    def sync(self) -> None:
        """Forces what `advance` wrote to the disk. Any thread. Raises OSError."""
        os.fdatasync(self._fd)

    def close(self, *, ours: bool) -> None:
        """Writes what is exact durably, where the home is still `ours`. Raises JournalError."""
        try:
            if ours:
                self._put(self._mark, clean=True)
        finally:
            os.close(self._fd)

    def _put(self, mark: Mark, *, clean: bool, reserved: Ids | None = None) -> None:
        body = {"v": 1, "line": mark.line, "seq": mark.seq, "digest": mark.digest, "given": mark.given._asdict()}
        body |= {"reserved": (reserved or mark.given)._asdict(), "clean": clean, "resumed": mark.resumed}
        try:
            atomic_write(self._home / NAME, json.dumps(body, indent=1).encode("ascii") + b"\n")
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            step = "its disk is full: make room" if full else "correct that"
            raise JournalError(f"{self._home / NAME}: {error.strerror}: {step}") from error
