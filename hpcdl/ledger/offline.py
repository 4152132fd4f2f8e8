"""The ledger while no daemon runs: the lease is taken, so that none can start meanwhile, and given back at the end.

SQLAlchemy is imported only by what reads events: `hpcdl ls` without a daemon does not wait for it. `maintenance` has
what changes the ledger.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.events import Recorded
from hpcdl.ledger.lease import Lease

if TYPE_CHECKING:
    from sqlalchemy import Connection

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
    path = home / LEDGER_FILE
    if not path.exists():
        from hpcdl.ledger.integrity import LedgerShrank, missing_before  # they read it, too

        if missing := missing_before(home, path):
            raise LedgerShrank(missing)
        raise JournalError(f"there is no ledger in {home}: name the daemon's folder with --home")
    lease = Lease.acquire(home, now=now, batch_job=batch_job, batch_ended=batch_ended)
    try:
        yield path
    finally:
        lease.release()


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
    with tempfile.TemporaryDirectory(prefix="hpcdl-") as folder:
        for name in (LEDGER_FILE, f"{LEDGER_FILE}-wal"):
            if (home / name).exists():
                shutil.copyfile(home / name, Path(folder) / name)
        try:
            with closing(sqlite3.connect(Path(folder) / LEDGER_FILE)) as ledger:
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
