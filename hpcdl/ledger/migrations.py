"""The ledger's version, PRAGMA user_version, and the numbered steps from one to the next.

A step is one transaction: it is done, its number included, or it is not. Its text is never changed once released, so
it does not use `schema`, which says what the tables are now; a test compares the two.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import Connection

from hpcdl.core.controller.journal import JournalError
from hpcdl.ledger import backup_stamp

Step = Callable[[Connection], None]


def _first_tables(connection: Connection) -> None:
    for statement in _FIRST_TABLES.split(";"):
        connection.exec_driver_sql(statement)


_FIRST_TABLES = """
CREATE TABLE event (seq INTEGER NOT NULL PRIMARY KEY, at FLOAT NOT NULL, stream TEXT NOT NULL, version INTEGER
    NOT NULL, kind TEXT NOT NULL, schema INTEGER NOT NULL, body TEXT NOT NULL, cause INTEGER, UNIQUE (stream,
    version));
CREATE TABLE outbox (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, seq INTEGER NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, state TEXT DEFAULT 'pending' NOT NULL);
CREATE INDEX outbox_pending ON outbox (id) WHERE state = 'pending';
CREATE TABLE job (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL, state TEXT NOT
    NULL, held INTEGER NOT NULL, step INTEGER, total INTEGER, saved_step INTEGER, suspends INTEGER NOT NULL,
    failures INTEGER NOT NULL, submitted_at FLOAT NOT NULL, first_start_at FLOAT, finished_at FLOAT, last_cause
    TEXT, last_detail TEXT NOT NULL, exit_code INTEGER);
CREATE TABLE incarnation (job INTEGER NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL, nodes TEXT NOT
    NULL, gpus TEXT NOT NULL, role TEXT, warm INTEGER NOT NULL, requested_at FLOAT NOT NULL, granted_at FLOAT,
    started_at FLOAT, ready_at FLOAT, ended_at FLOAT, cause TEXT, detail TEXT NOT NULL, PRIMARY KEY (job, number));
CREATE TABLE node (name TEXT NOT NULL PRIMARY KEY, state TEXT NOT NULL, reason TEXT NOT NULL, since FLOAT NOT
    NULL, gpus INTEGER NOT NULL, usable INTEGER NOT NULL, cpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL,
    agent_pid INTEGER NOT NULL, emulated INTEGER NOT NULL);
CREATE TABLE snapshot (seq INTEGER NOT NULL PRIMARY KEY, format INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE archive (first INTEGER NOT NULL PRIMARY KEY, last INTEGER NOT NULL, name TEXT NOT NULL);
CREATE TABLE stream (name TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE sample (id INTEGER NOT NULL PRIMARY KEY, at FLOAT NOT NULL, node TEXT NOT NULL, gpu INTEGER NOT
    NULL, util FLOAT, mem FLOAT, power FLOAT)
"""


def _retired_jobs(connection: Connection) -> None:
    for statement in _RETIRED_JOBS.split(";"):
        connection.exec_driver_sql(statement)


_RETIRED_JOBS = """
CREATE TABLE retired (job INTEGER NOT NULL PRIMARY KEY, environment TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE environment (name TEXT NOT NULL PRIMARY KEY, body TEXT NOT NULL);
ALTER TABLE archive ADD COLUMN lowest INTEGER;
ALTER TABLE archive ADD COLUMN highest INTEGER
"""


def _curves(connection: Connection) -> None:
    connection.exec_driver_sql(_CURVES)


_CURVES = """
CREATE TABLE series (job INTEGER NOT NULL, name TEXT NOT NULL, place INTEGER NOT NULL, at FLOAT NOT NULL, step
    INTEGER, last FLOAT, mean FLOAT, low FLOAT, high FLOAT, samples INTEGER NOT NULL, not_finite INTEGER NOT NULL,
    PRIMARY KEY (job, name, place)) WITHOUT ROWID
"""

STEPS: tuple[Step, ...] = (_first_tables, _retired_jobs, _curves)
"""STEPS[n] leads from version n to n + 1."""
ROWS_STAY: frozenset[Step] = frozenset({_retired_jobs, _curves})
"""Steps after which all rows are as the events say: these are not read for them, archive files and all."""


def version_of(connection: Connection) -> int:
    """The version of the ledger; 0 where it is empty."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def check(connection: Connection, path: Path, steps: Sequence[Step] = STEPS) -> int:
    """The version. Raises JournalError where it is newer than this program, or the file is another program's."""
    version = version_of(connection)
    if version > len(steps):
        raise JournalError(
            f"{path} was written by a newer hpcdl (version {version}, known up to {len(steps)}): update hpcdl"
        )
    if version == 0 and connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar_one():
        raise JournalError(f"{path} is a database of another program: move it away")
    connection.rollback()
    return version


def migrate(connection: Connection, path: Path, steps: Sequence[Step] = STEPS) -> None:
    """Bring the ledger to the newest version; one that holds anything is copied first, to `backup_of` it.

    Raises as `check`; what the database raises, passes through, and the ledger is then at a version in between, whole.
    """
    version = check(connection, path, steps)
    if 0 < version < len(steps):
        copy_database(connection, backup_of(path, version), backup_stamp.of_ledger(connection))
    for number in range(version, len(steps)):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            steps[number](connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {number + 1}")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise


def backup_of(path: Path, version: int) -> Path:
    """Where the ledger is copied to before it leaves `version`."""
    return path.with_name(f"{path.name}.version-{version}")


def copy_database(connection: Connection, target: Path, backup: backup_stamp.Stamp | None = None) -> None:
    """A whole, durable copy (0600), one file; the one of an earlier try is replaced. `backup`: what makes it one."""
    source = connection.connection.driver_connection
    assert isinstance(source, sqlite3.Connection)
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    copy = sqlite3.connect(temporary)
    try:
        source.backup(copy)
        if backup is not None:
            backup_stamp.put(copy, backup)
        # The copy is to be one file, which can be put in the ledger's place.
        copy.execute("PRAGMA journal_mode = DELETE")
    except (OSError, sqlite3.Error):
        temporary.unlink()  # on a full disk its room is wanted
        raise
    finally:
        copy.close()
    for path, flags in ((temporary, os.O_RDONLY), (target.parent, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        if path == temporary:
            os.replace(temporary, target)
