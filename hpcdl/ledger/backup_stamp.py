"""What a backup of a ledger carries so that it is known as one: the event that it ends with, in a table of its own.

It counts only while the ledger still ends with that event. The daemon that goes on from a backup removes the table
before anything else is recorded, from the file itself and not only in its write-ahead log: what is left of a ledger
that lost that log is no backup again.
"""

import sqlite3
from dataclasses import dataclass

from sqlalchemy import Connection

from hpcdl.ledger.records import checked, digest_of

TABLE = "backup"


@dataclass(frozen=True, slots=True)
class Stamp:
    """The last event of a backup. `digest`: "" where it was in an archive file. `at`: seconds since the epoch, or 0."""

    seq: int
    digest: str
    at: float


def put(copy: sqlite3.Connection, stamp: Stamp) -> None:
    """Make the copy a backup; it is committed."""
    copy.execute(f"DROP TABLE IF EXISTS {TABLE}")
    copy.execute(f"CREATE TABLE {TABLE} (seq INTEGER NOT NULL, digest TEXT NOT NULL, at FLOAT NOT NULL)")
    copy.execute(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", (stamp.seq, stamp.digest, stamp.at))  # noqa: S608
    copy.commit()


def read(connection: Connection) -> Stamp | None:
    """The stamp, whatever the ledger ends with; None where there is none."""
    query = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?"
    if not connection.exec_driver_sql(query, (TABLE,)).scalar_one():
        return None
    row = connection.exec_driver_sql(f"SELECT seq, digest, at FROM {TABLE} LIMIT 1").first()  # noqa: S608
    if row is None or list(map(type, row)) not in ([int, str, float], [int, str, int]):
        return None
    return Stamp(*row)


def remove(connection: Connection) -> None:
    """Make a ledger of a backup, within the caller's transaction."""
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {TABLE}")


def of_ledger(connection: Connection) -> Stamp:
    """That of a backup which is made of this ledger now, whatever its version."""
    query = "SELECT seq, at, stream, version, kind, schema, body, cause FROM event ORDER BY seq DESC LIMIT 1"
    row = connection.exec_driver_sql(query).first()
    if row is not None:
        return Stamp(int(row[0]), digest_of(checked(tuple(row))), float(row[1]))
    last = connection.exec_driver_sql("SELECT max(last) FROM archive").scalar()
    return Stamp(int(last or 0), "", 0.0)
