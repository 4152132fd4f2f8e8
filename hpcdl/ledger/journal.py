"""`Journal` in SQLite: what was appended is on the disk when `append` returns, or nothing of it ever is."""

import gc
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import structs
from sqlalchemy import Connection, delete, func, select
from sqlalchemy.exc import DBAPIError

from hpcdl.core.controller.journal import JournalError, LeaseLost, Stamped
from hpcdl.core.fold.fold import Draft, copied, fold
from hpcdl.core.model.commands import Request
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.frozen import CodecError, from_json, to_json
from hpcdl.core.model.series import Divergence, Point
from hpcdl.core.model.transitions import IllegalEvent
from hpcdl.core.model.world import Job, World, validate
from hpcdl.ledger import backup_stamp, projections, records, schema, snapshots
from hpcdl.ledger.database import close_database, journal_error, open_database
from hpcdl.ledger.high_water_mark import MarkFile
from hpcdl.ledger.migrations import copy_database
from hpcdl.ledger.records import (
    PAGE,
    EventRow,
    checked,
    digest_of,
    dumps,
    event_rows,
    forget_unnamed,
    jobs_in,
    loads,
    pieces,
    read_archive,
    records_of,
    row_of,
    write_archive,
)
from hpcdl.ledger.samples import GpuTelemetry, Ring
from hpcdl.ledger.series import SeriesChange, SeriesTable, read_divergences


def begin_above(connection: Connection, last: int) -> None:
    """Have ids go on above that one, within the caller's transaction."""
    known = connection.exec_driver_sql("SELECT max(seq) FROM sqlite_sequence WHERE name = 'outbox'").scalar() or 0
    if last > known:
        connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = 'outbox'")
        connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox', ?)", (last,))


def event_bodies(requests: Iterable[Request]) -> Iterator[str]:
    """Requests as JSON. Those to all nodes of a job name the same nodes and GPUs, which are written down once."""
    known: dict[int, str] = {}
    for request in requests:
        plain = to_json(structs.replace(request, nodes=(), placement=None))
        shared = []
        for name in ("nodes", "placement"):
            value = getattr(request, name)
            if id(value) not in known:  # they live as long as the requests do
                known[id(value)] = dumps(to_json(value))
            del plain[name]
            shared.append(f'"{name}":{known[id(value)]}')
        yield f"{dumps(plain)[:-1]},{','.join(shared)}}}"


@dataclass(slots=True)
class Tip:
    """Where a journal stands: the world after its last event, and what is counted beside it, so that an append reads
    nothing. Thrown away when a commit fails, and read again.

    `last`: the seq of the last event, as the tables had it when they were read.
    """

    draft: Draft
    versions: dict[str, int]
    last_request: int
    snapshot_seq: int
    last: int = 0


def read_tip(connection: Connection, path: Path, archived: int) -> tuple[Tip, World]:
    """All but the world after the last event; and that of the newest snapshot. Raises JournalError.

    `archived`: the seq of the newest event that is in an archive file, 0 without any.
    """
    table = schema.event
    count, first, last = connection.execute(
        select(func.count(), func.min(table.c.seq), func.max(table.c.seq)).select_from(table)
    ).one()
    if count and (first != archived + 1 or last - first + 1 != count):
        raise JournalError(f"{path}: events are missing after seq {archived}: restore a copy of it")
    versions = {row.name: int(row.version) for row in connection.execute(select(schema.stream))}
    newest = select(table.c.stream, func.max(table.c.version).label("version")).group_by(table.c.stream)
    versions.update((row.stream, row.version) for row in connection.execute(newest))
    used = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = 'outbox'").scalar()
    world = snapshots.newest(connection)
    return Tip(Draft(World()), versions, used or 0, world.seq, last or archived), world


@contextmanager
def folding(path: Path) -> Iterator[None]:
    """While events are folded; raises JournalError where they cannot be."""
    # What is made stays or is dropped at once: to look through all of it for cycles is a good part of a restart.
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    except IllegalEvent as error:
        raise JournalError(f"{path}: the events do not follow from each other: {error}") from error
    finally:
        if collecting:
            gc.enable()


SAMPLES = 100_000

READ_STRIDE = 2_000
"""Events between two reports of how far the reading is."""

_ARCHIVED_AT_ONCE = 20_000

_ALL_COLUMNS = select(schema.event)


def _recorded(world: World) -> World:
    """The world without the rates that were learnt, which follow from the events by this version's rules: a snapshot of
    an earlier one has others, and they are forgotten in time."""
    own = copied(world)
    own.observed = {}
    return own


class SqliteJournal:
    """See `hpcdl.core.controller.journal.Journal`. Any thread may call; calls wait for each other.

    The events must be legal one after the other (IllegalEvent, and nothing is recorded): a ledger that cannot be
    folded would never start again.
    """

    def __init__(
        self,
        path: Path,
        *,
        lease_check: Callable[[], bool] | None = None,
        samples: int = SAMPLES,
        on_read: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        """Open the ledger, or make it. `lease_check` is asked right before each commit; `samples`: the ring's size;
        `on_read` is called now and then with how many events were read, and of how many.

        Raises JournalError: another process has it open, it is damaged, not private, or from a newer hpcdl.
        """
        self.path = path
        self._lease_check = lease_check
        self._on_read = on_read
        self._lock = threading.RLock()
        self._ring = Ring(samples)
        self._series = SeriesTable()
        self._tip: Tip | None = None
        self.mark: MarkFile | None = None  # raised with each append, closed with us; set by whoever resumes the ledger
        self._archived = lru_cache(maxsize=1)(self._read_archive)
        self._connection, migrated = open_database(path)
        try:
            with self._reading() as connection:
                self._ring.load(connection)
                self._series.load(connection)
                self._known()
            if migrated:
                self.rebuild()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "SqliteJournal":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, with the samples that still wait. A closed journal must not be used."""
        with self._lock:
            if self._connection.closed:
                return
            try:
                self.flush()
            except JournalError:
                pass  # samples only
            close_database(self._connection)
            if self.mark is not None:
                self.mark.close(ours=self._lease_check is None or self._lease_check())

    # --- the protocol ----------------------------------------------------------------------------------------------

    def append(
        self, events: Sequence[Stamped], requests: Sequence[Request] = (), settled: Sequence[int] = ()
    ) -> tuple[list[Recorded], list[Request]]:
        """See `Journal.append`. LeaseLost: write nothing more; after any other JournalError it may be called again."""
        if not events and not requests and not settled:
            return [], []
        with self._lock:
            tip = self._known()
            self._tip = None
            draft, touched = tip.draft, projections.ChangedRows()
            added: list[Recorded] = []
            event_rows: list[EventRow] = []
            for at, event in events:
                touched.add(draft.world, event, at)
                draft.add(event, at)
                stream = schema.plain(event.stream)
                version = tip.versions[stream] = tip.versions.get(stream, 0) + 1
                record = Recorded(draft.world.seq, at, version, event)
                added.append(record)
                event_rows.append(row_of(record, stream))
            draft.events.clear()
            numbered = [structs.replace(request, id=tip.last_request + n) for n, request in enumerate(requests, 1)]
            tip.last_request += len(numbered)
            seq = draft.world.seq
            if self.mark is not None:
                self.mark.reserve(draft.world, tip.last_request, events)
            with self._transaction() as connection:
                if event_rows:
                    connection.exec_driver_sql(schema.ADD_EVENT, event_rows)
                    projections.write(connection, touched.rows(draft.world))
                    records.forget_streams(connection, events, tip.versions)
                if numbered:
                    bodies = event_bodies(numbered)
                    rows = [(each.id, seq, each.kind, next(bodies), "pending") for each in numbered]
                    connection.exec_driver_sql(schema.ADD_REQUEST, rows)
                if settled:
                    connection.exec_driver_sql(schema.SETTLE, [(number,) for number in settled])
            self._tip = tip
            if self.mark is not None:
                self.mark.advance(event_rows[-1] if event_rows else None)
            return added, numbered

    def load(self) -> World:
        """See `Journal.load`."""
        with self._lock:
            return copied(self._known().draft.world)

    def pending(self) -> list[Request]:
        """See `Journal.pending`."""
        table = schema.outbox
        query = select(table.c.id, table.c.body).where(table.c.state == "pending").order_by(table.c.id)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        try:
            return [structs.replace(from_json(Request, loads(body)), id=number) for number, body in rows]
        except (CodecError, ValueError) as error:
            raise JournalError(f"{self.path}: a request cannot be read ({error}): restore a copy of it") from error

    def read(self, after: int = 0, limit: int = 1000, job: int | None = None) -> list[Recorded]:
        """See `Journal.read`. Reaches into the archive files."""
        stream = None if job is None else f"job/{job}"
        while True:
            archived, rows = self._archived_to(), list[EventRow]()
            for piece in self._rows(max(after, 0), limit, stream):
                rows.extend(piece[: limit - len(rows)])
                if len(rows) >= limit:
                    break
            if self._archived_to() == archived:  # else some may have moved to a file that was not looked into
                return records_of(rows)

    def retired(self, ids: Sequence[int] | None = None, before: int | None = None, limit: int = 1000) -> list[Job]:
        """See `Journal.retired`."""
        with self._reading() as connection:
            rows = records.read_retired(connection, ids, before, limit)
            bodies = records.environments(connection, list({name for _, name in rows}))
        return records.jobs_of(rows, bodies)

    # --- retention, telemetry, repair ------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """The seq of the newest event, 0 without events."""
        with self._lock:
            return self._known().draft.world.seq

    @property
    def snapshot_seq(self) -> int:
        """The seq of the newest snapshot, 0 without one."""
        with self._lock:
            return self._known().snapshot_seq

    @property
    def last_request(self) -> int:
        """The id of the newest request, 0 without any."""
        with self._lock:
            return self._known().last_request

    def digest(self, seq: int) -> str | None:
        """The digest of the event of that seq; None where it is not there, or its archive file is not."""
        if not 0 < seq <= self.last_seq:
            return None
        try:
            rows = next(iter(self._rows(seq - 1, 1, None)), ())
            return digest_of(checked(tuple(rows[0]))) if rows and rows[0][0] == seq else None
        except JournalError:
            return None

    def backup(self) -> backup_stamp.Stamp | None:
        """What the file carries where it is a backup, and nothing has been recorded since."""
        with self._reading() as connection:
            found = backup_stamp.read(connection)
        ends = found is not None and found.seq == self.last_seq
        return found if found and ends and found.digest in ("", self.digest(found.seq)) else None

    def begin_anew(self, request: int) -> None:
        """Make of a backup a ledger again; ids of requests go on above this one. Raises JournalError."""
        with self._lock:
            with self._transaction() as connection:
                backup_stamp.remove(connection)
                begin_above(connection, request)
            self._known().last_request = max(self.last_request, request)
            with self._reading() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def snapshot(self, world: World) -> None:
        """Record the whole world as of its seq, so that a restart replays only later events. Raises JournalError."""
        with self._lock:
            tip = self._known()
            if world.seq > tip.draft.world.seq:
                raise ValueError(f"a world at seq {world.seq}, and the ledger ends at {tip.draft.world.seq}")
            with self._transaction() as connection:
                snapshots.put(connection, world)
            tip.snapshot_seq = max(tip.snapshot_seq, world.seq)

    def archive(self, before_seq: int) -> int:
        """Move events with a lower seq, as far as a snapshot covers them, to archive files; returns how many.

        Settled requests as old as they are dropped. Raises JournalError; what was moved until then, stays moved.
        """
        with self._lock:
            until = min(before_seq, self._known().snapshot_seq + 1)
            table = schema.event
            with self._reading() as connection:
                rows = connection.execute(_ALL_COLUMNS.where(table.c.seq < until).order_by(table.c.seq)).all()
                named = connection.execute(select(schema.archive.c.name)).scalars().all()
            if not rows:
                return 0
            try:
                forget_unnamed(self.path.parent, named, rows[0][0])
                for piece in pieces(rows, _ARCHIVED_AT_ONCE):
                    self._archive(piece)
            except OSError as error:
                raise journal_error(self.path.parent, error) from error
            return len(rows)

    def add_samples(self, samples: Sequence[GpuTelemetry]) -> None:
        """Keep samples in the ring; they are written with the next commit, and lost with a crash before it."""
        with self._lock:
            self._ring.waiting.extend(samples)

    def samples(self, since: float = 0.0, node: str | None = None, limit: int = 1000) -> list[GpuTelemetry]:
        """Samples later than `since`, of one node where given, oldest first; the newest `limit` of them."""
        with self._reading() as connection:
            return self._ring.read(connection, since, node, limit)

    def add_series(self, changes: Sequence[SeriesChange]) -> None:
        """Keep changes of series; they are written with the next commit, and lost with a crash before it."""
        with self._lock:
            self._series.add(changes)

    def series(self, job: int) -> dict[str, list[Point]]:
        """The points of each series of a job, by name."""
        with self._reading() as connection:
            return self._series.read(connection, job)

    def means(self, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """The means of these series of all jobs, by job and name."""
        with self._reading() as connection:
            return self._series.means(connection, names)

    def divergences(self) -> dict[int, dict[str, Divergence]]:
        """Where the series that have diverged did, by job and name, as far as they are written."""
        with self._reading() as connection:
            return read_divergences(connection)

    def flush(self) -> None:
        """Write the samples and series that wait. Raises JournalError."""
        with self._lock:
            if self._ring.waiting or self._series.waiting:
                with self._transaction():
                    pass

    def verify(self) -> int:
        """Check the file, fold all events, archived ones too, and compare with world and projections.

        Returns the number of events. Raises JournalError that names the first difference.
        """
        with self._lock:
            kept = self._known().draft.world
            with self._reading() as connection:
                damage = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
            if damage != "ok":
                raise JournalError(f"{self.path} is damaged ({damage}): restore a copy of it")
            world, rows = self._built()
            try:
                validate(world)
            except ValueError as error:
                raise JournalError(f"{self.path}: the events contradict themselves: {error}") from error
            if _recorded(world) != _recorded(kept):
                raise JournalError(
                    f"{self.path}: the snapshot at seq {self.snapshot_seq} differs from the events: "
                    "hpcdl ledger rebuild makes it anew"
                )
            with self._reading() as connection:
                found = projections.difference(connection, rows)
            if found:
                raise JournalError(f"{self.path}: {found}: hpcdl ledger rebuild makes the tables anew")
            return world.seq

    def copy(self, target: Path) -> int:
        """Write all that is committed into a file of its own (0600), without the archives; the seq of its last event.

        Raises JournalError.
        """
        with self._lock:
            self.flush()
            with self._reading() as connection:
                try:
                    copy_database(connection, target)
                except (OSError, sqlite3.Error) as error:
                    raise journal_error(target, error) from error
            return self.last_seq

    def rebuild(self) -> None:
        """Make the projections anew from all events. Raises JournalError."""
        with self._lock:
            _, rows = self._built()
            with self._transaction() as connection:
                projections.replace_all(connection, rows)

    # --- inside ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._lock:
            if self._connection.closed:
                raise JournalError(f"{self.path} is closed: the daemon is ending, try again in a moment")
            try:
                yield self._connection
            except DBAPIError as error:
                raise journal_error(self.path, error) from error
            finally:
                self._rollback()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """What is done inside is committed at its end, together with the samples that wait, or not at all."""
        try:
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield self._connection
            samples, changes = self._ring.write(self._connection), self._series.write(self._connection)
            if self._lease_check is not None and not self._lease_check():
                raise LeaseLost(f"the lease on {self.path.parent} is lost: another daemon took over, this one must end")
            self._connection.commit()
        except BaseException as error:
            self._rollback()
            if isinstance(error, DBAPIError | OSError):
                raise journal_error(self.path, error) from error
            raise
        self._ring.written(samples)
        self._series.written(changes)

    def _rollback(self) -> None:
        """End a transaction, also one whose COMMIT failed, which SQLAlchemy takes for ended and SQLite does not."""
        self._connection.rollback()
        driver: Any = self._connection.connection.driver_connection
        if driver.in_transaction:
            driver.rollback()

    def _archived_to(self) -> int:
        """The seq of the newest event that is in an archive file, 0 without any."""
        with self._reading() as connection:
            return connection.execute(select(func.max(schema.archive.c.last))).scalar() or 0

    def _known(self) -> Tip:
        if self._tip is None:
            self._tip = self._find_tip()
        return self._tip

    def _find_tip(self) -> Tip:
        archived = self._archived_to()
        with self._reading() as connection, folding(self.path):
            tip, world = read_tip(connection, self.path, archived)
        with folding(self.path):
            tip.draft = Draft(fold(world, self._counted(self._records(world.seq), tip.last - world.seq)))
        tip.versions = records.open_streams(tip.versions, tip.draft.world)
        if tip.draft.world.seq != tip.last:
            raise JournalError(f"{self.path}: a snapshot is ahead of the events: restore a copy of it")
        return tip

    def _built(self) -> tuple[World, dict[str, list[projections.Row]]]:
        with folding(self.path):
            return projections.built(self._records(0))

    def _counted(self, records: Iterator[Recorded], of: int) -> Iterator[Recorded]:
        for done, record in enumerate(records):
            if done % READ_STRIDE == 0 and done:
                self._on_read(done, of)
            yield record

    def _records(self, after: int) -> Iterator[Recorded]:
        for piece in self._rows(after, PAGE, None):
            yield from records_of(piece)

    def _rows(self, after: int, page: int, stream: str | None) -> Iterator[Sequence[EventRow]]:
        """The rows with seq > after, of one stream where given, in pieces, from archive files and table."""
        yield from event_rows(self._reading, self._archived, after, page, stream)

    def _read_archive(self, name: str, first: int, last: int) -> list[EventRow]:
        return read_archive(self.path.with_name(name), first, last)

    def _archive(self, rows: Sequence[EventRow]) -> None:
        first, last = rows[0][0], rows[-1][0]
        name = write_archive(self.path.parent, rows)
        known = self._known().versions  # of retired jobs nothing is counted any more
        versions = {row[2]: row[3] for row in rows if row[2] in known}
        with self._transaction() as connection:
            connection.exec_driver_sql(schema.ADD_ARCHIVE, (first, last, name, *jobs_in(rows)))
            if versions:
                connection.exec_driver_sql(schema.PUT_STREAM, list(versions.items()))
            connection.execute(delete(schema.event).where(schema.event.c.seq <= last))
            outbox = schema.outbox
            connection.execute(delete(outbox).where(outbox.c.state == "settled", outbox.c.seq <= last))
