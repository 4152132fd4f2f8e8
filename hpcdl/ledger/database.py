"""Opening the ledger's file: ours alone, whole, durable at every commit, and open in one process at a time.

Every error becomes one line with the next step. The lease keeps daemons apart; the locks here only keep off what else
might open the file.
"""

import os
import sqlite3
import stat
from pathlib import Path

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from hpcdl.core.controller.journal import JournalError
from hpcdl.ledger import migrations
from hpcdl.wire.private_files import FILE_MODE, NotPrivate, check_private, make_private_folder

_WAIT_S = 1.0
"""How long a predecessor that is just closing is waited for."""

_HEADER, _WRITES_LOG = 20, 18
"""Bytes of SQLite's header, and the one that says how the file is written: 2 with a write-ahead log, 1 without."""

_ADVICE = {
    "SQLITE_FULL": "its disk is full: make room",
    "SQLITE_IOERR": "its disk cannot be read or written: check disk and quota",
    "SQLITE_BUSY": "it is open in another process: end that daemon, or leave sqlite3 there",
    "SQLITE_LOCKED": "it is open in another process: end that daemon, or leave sqlite3 there",
    "SQLITE_CORRUPT": "it is damaged: restore a copy of it, or save what is left with: sqlite3 FILE .recover",
    "SQLITE_NOTADB": "it is damaged, or no ledger: restore a copy of it, or move it away",
    "SQLITE_READONLY": "it cannot be written: check its mode and its file system",
    "SQLITE_CANTOPEN": "it cannot be opened: check its folder",
    "SQLITE_PERM": "it cannot be opened: check its mode",
}


def open_database(path: Path) -> tuple[Connection, bool]:
    """The file's only connection, and whether the projections are to be made anew: they are of an earlier version.

    The file is made where there is none (0600, in a 0700 folder). The caller begins transactions with
    `BEGIN IMMEDIATE`. Raises JournalError, one line with the next step.
    """
    try:
        _make_private(path)
        driver = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
    except (NotPrivate, OSError, sqlite3.Error) as error:
        raise journal_error(path, error) from error
    connection: Connection | None = None
    try:
        engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool)
        connection = engine.connect()
        # Exclusive, and set before the first access: the write-ahead log then needs no shared memory.
        connection.exec_driver_sql("PRAGMA locking_mode = EXCLUSIVE")
        version = migrations.check(connection, path)
        mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        if mode != "wal":
            raise JournalError(f"{path}: this file system takes no write-ahead log: set HPCDL_HOME elsewhere")
        connection.exec_driver_sql("PRAGMA synchronous = FULL")
        connection.exec_driver_sql(f"PRAGMA journal_size_limit = {64 << 20}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.commit()
        damage = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if damage != "ok":
            raise JournalError(f"{path}: {' '.join(str(damage).split())}: {_ADVICE['SQLITE_CORRUPT']}")
        migrations.migrate(connection, path)
        _check_types(connection, path)
        connection.rollback()
    except BaseException as error:
        if connection is not None:
            close_database(connection)
        driver.close()
        if isinstance(error, DBAPIError | OSError | sqlite3.Error):
            raise journal_error(path, error) from error
        raise
    return connection, version > 0 and not migrations.ROWS_STAY.issuperset(migrations.STEPS[version:])


_RESTORE = "it is damaged: restore a copy of it"
_STORED = {"INTEGER": "'integer'", "FLOAT": "'real', 'integer'", "TEXT": "'text'"}
_OR_NULL = ", 'null'"


def _check_types(connection: Connection, path: Path) -> None:
    """Raises JournalError for a row with a value of another type than its column, which SQLite keeps. Events are
    looked at where they are read, and what `hpcdl ledger rebuild` makes anew is compared with them."""
    for table in ("outbox", "archive", "stream", "sample", "series"):
        columns = connection.exec_driver_sql(f"PRAGMA table_info({table})").all()
        wrong = " OR ".join(
            f"typeof({name}) NOT IN ({_STORED[kind]}{'' if needed else _OR_NULL})"
            for _, name, kind, needed, _, _ in columns
        )
        if wrong and connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1").first():  # noqa: S608
            raise JournalError(f"{path}: a value in its table {table} has another type: {_RESTORE}")
    used = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE typeof(seq) != 'integer'").first()
    if used is not None:
        raise JournalError(f"{path}: a value in its table sqlite_sequence has another type: {_RESTORE}")


def close_database(connection: Connection) -> None:
    """Close the file; what is not committed is lost."""
    connection.invalidate()
    connection.close()
    connection.engine.dispose()


def journal_error(path: Path, error: BaseException) -> JournalError:
    """What went wrong with the file, as one line with the next step."""
    if isinstance(error, JournalError):
        return error
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    name = str(getattr(cause, "sqlite_errorname", ""))
    advice = next((text for code, text in _ADVICE.items() if name == code or name.startswith(f"{code}_")), "")
    what = " ".join(str(cause).split())
    if isinstance(cause, NotPrivate):
        return JournalError(what)
    return JournalError(f"{path}: {what}" + (f": {advice}" if advice else ""))


def refuse_foreign_log(path: Path) -> None:
    """Raises JournalError where a copy was put beside the log of the ledger before it, whose pages it would take over.

    A copy says in its header that it has no such log. A process that has the file open would lose its locks by this.
    """
    log = path.with_name(f"{path.name}-wal")
    if not path.exists() or not log.exists() or not log.stat().st_size:
        return
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if len(header) == _HEADER and header[_WRITES_LOG] == 1:
        raise JournalError(
            f"{path} is a copy, and {log.name} beside it is of the ledger that was here before: remove {log}, then "
            "try again"
        )


def _make_private(path: Path) -> None:
    """Make the file or check the one that is there.

    It is looked at without being opened: closing a second descriptor would drop the locks of one that this process
    has open. Its folder is ours alone, so nobody exchanges it meanwhile.
    """
    make_private_folder(path.parent)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        pass
    for each in (path, path.with_name(f"{path.name}-wal")):
        try:
            info = os.lstat(each)
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(info.st_mode):
            raise NotPrivate(f"{each} is a symbolic link: move it away")
        check_private(info, each, folder=False)
