"""The ledger on disk: SQLite with one writer, and beside it the lease and the high-water mark.

`journal` is what the Controller writes to; `maintenance` and `offline` are for when no daemon runs. Nothing outside of
this package knows the tables.
"""

from typing import TYPE_CHECKING, Any

from hpcdl.ledger.lease import Lease

if TYPE_CHECKING:
    from hpcdl.ledger.journal import SqliteJournal

__all__ = ["Lease", "SqliteJournal"]


def __getattr__(name: str) -> Any:
    # Who only asks about the lease does not wait for SQLAlchemy.
    if name == "SqliteJournal":
        from hpcdl.ledger.journal import SqliteJournal

        return SqliteJournal
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
