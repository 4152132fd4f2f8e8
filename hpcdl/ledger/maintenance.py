"""Care of a ledger by its owner: made anew from its events, made smaller, copied. Whoever calls holds its lease.

A crash at any line loses nothing: each step is one transaction, or a file that is whole before it is named.
"""

import csv
import io
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.notice import redacted
from hpcdl.core.model.transitions import IllegalEvent
from hpcdl.core.model.world import validate
from hpcdl.ledger import backup_stamp, integrity, projections, schema, snapshots
from hpcdl.ledger.database import journal_error, refuse_foreign_log
from hpcdl.ledger.high_water_mark import Mark
from hpcdl.ledger.journal import SqliteJournal
from hpcdl.ledger.migrations import copy_database
from hpcdl.ledger.offline import LEDGER_FILE, Reader
from hpcdl.ledger.records import EVENT_SCHEMA, EventRow, checked, dumps

Tell = Callable[[str], None]
"""Is called now and then with what is being done."""

_OFTEN = 20_000


@dataclass(frozen=True, slots=True)
class Counts:
    """What a ledger holds. `snapshot`: the seq of the newest one."""

    events: int
    jobs: int
    incarnations: int
    nodes: int
    snapshot: int


def check(path: Path, mark: Mark | None) -> None:
    """Raises LedgerShrank where a ledger that no daemon has open does not hold what its home says that it held."""
    if missing := integrity.missing_before(path.parent, path):
        raise integrity.LedgerShrank(missing)
    refuse_foreign_log(path)
    with SqliteJournal(path) as journal:
        integrity.check(journal, mark)


def verify(path: Path, tell: Tell, mark: Mark | None = None) -> Counts:
    """Fold every event, archived ones too, and compare with snapshot and tables. JournalError names a difference.

    `mark`: the home's, read before a copy was made; what it says has to be there.
    """
    tell(f"opening {path}")
    check(path, mark)
    with SqliteJournal(path) as journal:
        tell(f"folding {journal.last_seq} events")
        events = journal.verify()
        snapshot, world = journal.snapshot_seq, journal.load()
    return Counts(events, _rows(path, "job"), _rows(path, "incarnation"), len(world.nodes), snapshot)


def _rows(path: Path, table: str) -> int:
    """How many rows the table has: jobs that have left the world, and incarnations that ended, too."""
    with Reader(path) as reader, reader.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(schema.metadata.tables[table])).scalar_one())


def rebuild(path: Path, tell: Tell) -> Counts:
    """Make tables and snapshot anew from the events alone, in one transaction. Raises JournalError."""
    with Reader(path) as reader:
        try:
            world, rows = projections.built(_counted(reader.records(), tell))
            validate(world)
        except IllegalEvent as error:
            raise JournalError(f"{path}: the events do not follow from each other: {error}") from error
        except ValueError as error:
            raise JournalError(f"{path}: the events contradict themselves: {error}") from error
        tell("writing tables and snapshot")
        with _writing(path, reader) as connection:
            projections.replace_all(connection, rows)
            connection.exec_driver_sql("DELETE FROM snapshot")
            if world.seq:
                snapshots.put(connection, world)
    with SqliteJournal(path) as journal:  # as the next daemon will open it
        if journal.last_seq != world.seq:
            raise JournalError(f"{path}: {journal.last_seq} events were found after {world.seq} were folded")
    incarnations = len({row[:2] for row in rows["incarnation"]})
    return Counts(world.seq, len({row[0] for row in rows["job"]}), incarnations, len(world.nodes), world.seq)


def shrink(path: Path, keep_events: int, tell: Tell) -> tuple[int, int, int]:
    """Move all but the newest events to archive files, and give the file's free pages back.

    Returns how many events were moved, and the bytes of the file before and after. Raises JournalError.
    """
    before = path.stat().st_size
    with SqliteJournal(path) as journal:
        last = journal.last_seq
        if last and journal.snapshot_seq < last:
            tell("writing a snapshot")
            journal.snapshot(journal.load())
        tell("moving older events to archive files")
        moved = journal.archive(last - keep_events + 1)
    tell("vacuuming")
    with Reader(path) as reader, _writing(path, reader) as connection:
        connection.exec_driver_sql("DELETE FROM snapshot WHERE seq < (SELECT max(seq) FROM snapshot)")
    with Reader(path) as reader, _direct(path, reader) as connection:
        connection.exec_driver_sql("VACUUM")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return moved, before, path.stat().st_size


def back_up(path: Path, folder: Path, tell: Tell) -> list[Path]:
    """Copy the ledger and its archive files into the folder, which is there; the copies.

    `path` is open in no other process. Files of the same name are replaced, each as a whole. Raises JournalError.
    """
    tell(f"copying {path}")
    target = folder / LEDGER_FILE
    with Reader(path) as reader, reader.reading() as connection:
        names = [str(name) for (name,) in connection.exec_driver_sql("SELECT name FROM archive ORDER BY first").all()]
        try:
            copy_database(connection, target, backup_stamp.of_ledger(connection))
        except sqlite3.Error as error:
            full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            raise journal_error(target if full else path, error) from error
    copies = [target]
    for name in names:
        tell(f"copying {name}")
        unfinished = folder / f".{name}.tmp"
        try:
            shutil.copyfile(path.with_name(name), unfinished)
            unfinished.chmod(0o600)
            copies.append(unfinished.rename(folder / name))
        except FileNotFoundError:
            raise JournalError(f"{path.with_name(name)} is missing: put it back, then back up again") from None
        finally:
            unfinished.unlink(missing_ok=True)
    return copies


def _counted(records: Iterator[Recorded], tell: Tell) -> Iterator[Recorded]:
    for record in records:
        yield record
        if record.seq % _OFTEN == 0:
            tell(f"{record.seq} events folded")


@contextmanager
def _direct(path: Path, reader: Reader) -> Iterator[Connection]:
    """The connection outside of any transaction. Raises JournalError."""
    with reader.reading() as connection:
        try:
            connection.rollback()
            yield connection
        except (DBAPIError, OSError) as error:
            raise journal_error(path, error) from error


@contextmanager
def _writing(path: Path, reader: Reader) -> Iterator[Connection]:
    """One transaction, committed at the end, or nothing of it. Raises JournalError."""
    with _direct(path, reader) as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
        connection.commit()


# --- exports: the events as lines of JSON, the jobs as CSV ------------------------------------------------------------

FORMAT = "hpcdl-events"

_MARKS = ('"env"', '"notify"', '"destination')
"""What stands in bodies that may hold secrets."""


def lines(reader: Reader, version: str, *, with_environment: bool) -> Iterator[str]:
    """JSON objects, one a line: the first says what this is, then each event as `GET /v1/events` has it, and `cause`.

    Without environments, of the jobs' variables only the names, and of destinations of notices nothing secret. Raises
    JournalError.
    """
    head = {"schema": 1, "format": FORMAT, "hpcdl": version, "events": reader.last_seq, "environment": with_environment}
    yield json.dumps(head) + "\n"
    for piece in reader.rows():
        for row in piece:
            yield _line(row, with_environment)


def _line(row: EventRow, with_environment: bool) -> str:
    seq, at, stream, version, kind, written, body, cause = checked(row)
    if written > EVENT_SCHEMA:
        raise JournalError(f"event {seq} ({kind}) was written by a newer hpcdl: update hpcdl")
    if not with_environment and any(mark in body for mark in _MARKS):
        body = dumps(without_secrets(json.loads(body)))
    head = dumps({"seq": seq, "at": at, "stream": stream, "version": version, "kind": kind})[:-1]
    tail = "" if cause is None else f',"cause":{cause}'
    return f'{head},"body":{body}{tail}}}\n'


def without_secrets(body: dict[str, Any]) -> dict[str, Any]:
    """An event's body, which is changed: of the environment the names alone, of destinations nothing secret."""
    spec = body.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("env"), list):
        spec["env"] = [pair[0] if isinstance(pair, list) and pair else "" for pair in spec["env"]]
    for holder, key in ((spec, "notify"), (body, "destinations")):
        if isinstance(holder, dict) and isinstance(holder.get(key), list):
            holder[key] = [redacted(str(each)) for each in holder[key]]
    if isinstance(body.get("destination"), str):
        body["destination"] = redacted(body["destination"])
    return body


def jobs_csv(reader: Reader) -> Iterator[str]:
    """The table of jobs, with a line of titles. Texts that a spreadsheet would take for a formula begin with '."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([column.name for column in schema.job.columns])
    with reader.reading() as connection:
        rows = connection.execute(schema.job.select().order_by(schema.job.c.id)).all()
    for row in rows:
        out.writerow([_plain(value) for value in row])
    yield text.getvalue()


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
