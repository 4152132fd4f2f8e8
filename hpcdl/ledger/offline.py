"""The ledger while no daemon runs: for changes under the lease, so that none can start meanwhile; to be read, a copy.

A copy keeps nobody from starting a daemon, and is only of a ledger that none had open meanwhile. SQLAlchemy is imported
only by what reads events. `maintenance` has what changes the ledger.
"""

import errno
import fcntl
import os
import shutil
import signal
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.events import Recorded
from hpcdl.ledger.lease import Lease, free_fence

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from hpcdl.ledger.high_water_mark import Mark, MarkDamaged
    from hpcdl.ledger.integrity import Traces
    from hpcdl.ledger.journal import SqliteJournal
    from hpcdl.ledger.records import EventRow

LEDGER_FILE = "ledger.sqlite"


@contextmanager
def leased(
    home: Path,
    now: float,
    *,
    batch_job: str | None = None,
    batch_ended: Callable[[str], bool] | None = None,
) -> Iterator[Path]:
    """The path of the ledger of `home`, whose lease is held until the end. `now`: seconds since the epoch.

    Raises LeaseHeld where a daemon has it (the arguments are those of `Lease.acquire`), JournalError where there is no
    ledger, NotPrivate, and OSError.
    """
    path = _path_of(home)
    lease = Lease.acquire(home, now=now, batch_job=batch_job, batch_ended=batch_ended)
    try:
        yield path
    finally:
        lease.release()


def _path_of(home: Path) -> Path:
    """Raises JournalError where there is no ledger in the home."""
    path = home / LEDGER_FILE
    if not path.exists():
        from hpcdl.ledger.integrity import LedgerShrank, missing_before  # they read it, too

        if missing := missing_before(home, path):
            raise LedgerShrank(missing)
        raise JournalError(f"there is no ledger in {home}: name the daemon's folder with --home")
    return path


ATTEMPTS = 20
"""So often a copy is made anew where a daemon came and went meanwhile."""


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """A copy of a ledger, and what its home said of it at that time: a daemon may go on there meanwhile."""

    path: Path
    mark: "Mark | MarkDamaged | None"
    traces: "Traces"

    def check(self, journal: "SqliteJournal") -> None:
        """Raises JournalError where the copy, opened, does not hold what its home says that it held."""
        from hpcdl.ledger import integrity

        if isinstance(self.mark, JournalError):
            raise self.mark
        integrity.check(journal, self.mark, self.traces)


@contextmanager
def copy_at_rest(home: Path, *, batch_ended: Callable[[str], bool] | None = None) -> Iterator[LedgerCopy]:
    """A copy of the ledger of `home`, which nobody has open, in a folder of its own with links to its archive files.

    Whoever reads it may bring it to this version. Nothing in `home` is written, and no daemon that starts waits for it.
    Raises LeaseHeld where a daemon has the ledger, or may (`batch_ended` is that of `Lease.acquire`), or took it
    meanwhile; JournalError where there is no ledger, or not all of it; NotPrivate, and OSError.
    """
    from hpcdl.ledger.database import refuse_foreign_log
    from hpcdl.ledger.high_water_mark import MarkDamaged, read_mark
    from hpcdl.ledger.integrity import traces_of

    path = _path_of(home)
    with _folder_of_copy() as folder:
        for _ in range(ATTEMPTS):
            fence = free_fence(home, batch_ended=batch_ended)
            copy, traces = _copied(home, folder), traces_of(home)
            mark: Mark | MarkDamaged | None
            try:
                mark = read_mark(home)
            except MarkDamaged as error:
                mark = error
            # A daemon takes the lease, with a fence of its own, before it opens the ledger.
            if free_fence(home, batch_ended=batch_ended) == fence:
                break
        else:
            raise JournalError(f"daemons of {home} come and go: try again in a moment")
        if not copy.exists():
            raise JournalError(f"{path} went away: try again in a moment")
        refuse_foreign_log(copy)
        yield LedgerCopy(copy, mark, traces)


def _copied(home: Path, folder: Path) -> Path:
    """The ledger's files as they are now, in the folder; what was there is replaced.

    Raises OSError, which names where the folder is if there is no room in it.
    """
    for name in (LEDGER_FILE, f"{LEDGER_FILE}-wal"):
        (folder / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError), (home / name).open("rb") as source:
            try:
                with open(folder / name, "xb", opener=_open_private) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                what = f"{error.strerror} for a copy of {home / name} (TMPDIR names another folder)"
                raise OSError(error.errno, what, str(folder.parent)) from None
    for archive in home.glob("ledger-archive-*.gz"):
        with suppress(FileExistsError):
            (folder / archive.name).symlink_to(archive.absolute())
    return folder / LEDGER_FILE


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


_PREFIX = "hpcdl-ledger-"
_YOUNG_S = 60.0
"""A folder younger than this may not be locked yet."""


@contextmanager
def _folder_of_copy() -> Iterator[Path]:
    """A folder of ours alone, removed at the end, also where SIGTERM or SIGHUP is that.

    It is locked meanwhile: those that a killed process left go here, too.
    """
    with (
        _signals_exit(),
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        _directory(Path(folder)) as descriptor,
    ):
        with suppress(OSError):  # not every file system has locks, and then nothing is removed there
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_left(Path(folder))
        yield Path(folder)


def _remove_left(new: Path) -> None:
    """Remove older folders of copies beside this one, of this user, that no process has locked."""
    now = new.stat().st_mtime
    for folder in new.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if ours and now - status.st_mtime > _YOUNG_S:
                with _directory(folder) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _signals_exit() -> Iterator[None]:
    """SIGTERM and SIGHUP, where they would kill the process, raise SystemExit with 128 + the signal."""
    numbers: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in numbers:
        signal.signal(each, _exit)
    try:
        yield
    finally:
        for each in numbers:
            if signal.getsignal(each) is _exit:
                signal.signal(each, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@dataclass(frozen=True, slots=True)
class JobsAtRest:
    """What a ledger says of its jobs while no daemon answers. `names`: of all; `live`: of the unfinished ones."""

    ids: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()


def jobs_at_rest(home: Path) -> JobsAtRest:
    """As they were when the ledger was last written, which is left alone: a daemon may start meanwhile.

    Raises OSError, and ValueError where it cannot be read, or is gone.
    """
    from hpcdl.ledger.integrity import missing_before

    path = home / LEDGER_FILE
    try:
        missing = missing_before(home, path)
    except JournalError as error:
        raise ValueError(str(error)) from None
    if missing:
        raise ValueError(missing)
    if not path.exists():
        return JobsAtRest()
    with _folder_of_copy() as folder:
        try:
            with closing(sqlite3.connect(_copied(home, folder))) as ledger:
                rows = ledger.execute("SELECT id, name, state FROM job").fetchall()
                retired = ledger.execute("SELECT job FROM retired").fetchall()
        except sqlite3.Error as error:
            raise ValueError(f"{path}: {error}") from None
    live = frozenset(name for _, name, state in rows if state not in ("DONE", "FAILED", "CANCELLED"))
    ids = frozenset(row[0] for row in (*rows, *retired))
    return JobsAtRest(ids, frozenset(name for _, name, _ in rows), live)


class Reader:
    """The events of a ledger, archived ones too, without folding them."""

    def __init__(self, path: Path) -> None:
        """Opens it as a daemon does: alone, and brought to this version. Raises JournalError."""
        from hpcdl.ledger.database import open_database

        self.path = path
        self._connection, _ = open_database(path)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *args: object) -> None:
        from hpcdl.ledger.database import close_database

        close_database(self._connection)

    def rows(self, after: int = 0) -> "Iterator[Sequence[EventRow]]":
        """The event table's rows with seq > after, oldest first, in pieces. Raises JournalError."""
        from hpcdl.ledger.records import PAGE, event_rows, read_archive

        def archived(name: str, first: int, last: int) -> "Sequence[EventRow]":
            return read_archive(self.path.with_name(name), first, last)

        return event_rows(self.reading, archived, after, PAGE, None)

    def records(self, after: int = 0) -> Iterator[Recorded]:
        """The events. Raises JournalError that names the seq of one that cannot be read."""
        from hpcdl.ledger.records import records_of

        for piece in self.rows(after):
            yield from records_of(piece)

    @property
    def last_seq(self) -> int:
        """The seq of the newest event, 0 without events. Raises JournalError."""
        query = "SELECT max(last) FROM (SELECT max(seq) AS last FROM event UNION SELECT max(last) FROM archive)"
        with self.reading() as connection:
            return int(connection.exec_driver_sql(query).scalar() or 0)

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """The connection, for a query; what goes wrong is a JournalError."""
        from sqlalchemy.exc import DBAPIError

        from hpcdl.ledger.database import journal_error

        try:
            yield self._connection
        except DBAPIError as error:
            raise journal_error(self.path, error) from error
        finally:
            self._connection.rollback()
