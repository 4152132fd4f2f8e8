"""Stored forms: events as rows and as lines of archive files, and retired jobs as rows.

An archive file, `ledger-archive-<first>-<last>.jsonl.gz`, holds every event from seq `first` to `last`, a JSON list a
line in the order of the event table's columns. It is whole and durable before the ledger names it and drops the rows;
one that the ledger does not name is what a crash in between left, and counts for nothing.
"""

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, or_, select

from hpcdl.core.controller.journal import Journal, JournalError, Stamped
from hpcdl.core.model.events import Event, JobsRetired, Recorded, decode, encode
from hpcdl.core.model.frozen import CodecError, changed, from_json, to_json, unchecked
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import Job, World
from hpcdl.ledger import schema
from hpcdl.ledger.flat_records import Stored, flat_job, nested_job
from hpcdl.wire.private_files import write_new

EVENT_SCHEMA = 1
"""Of the bodies that this program writes, and the highest that it reads."""

JOB = "job/"
"""How the streams of jobs begin; their id follows."""

PAGE = 2_000
"""Rows that are read in one go."""

EventRow = Sequence[Any]
"""(seq, at, stream, version, kind, schema, body, cause): the event table's columns."""

dumps = json.JSONEncoder(separators=(",", ":")).encode  # ASCII, so that any text can be stored

loads = json.loads


_TYPES = frozenset((int, at, str, int, str, int, str, cause) for at in (int, float) for cause in (int, type(None)))
"""The types of a row: SQLite keeps whatever is put into a column."""


def checked(row: EventRow) -> EventRow:
    """The row. Raises JournalError where a value is none that can be there."""
    if tuple(map(type, row)) not in _TYPES:
        raise _damaged(row, "a value has another type than its column")
    return row


def _damaged(row: EventRow, why: object) -> JournalError:
    return JournalError(f"the ledger is damaged at event {row[0] if row else '?'} ({why}): restore a copy of it")


def row_of(record: Recorded, stream: str) -> EventRow:
    """The row of a record; `stream` is the event's, as it is stored."""
    event = record.event
    body = dumps(encode(event))
    return (record.seq, record.at, stream, record.version, event.kind, EVENT_SCHEMA, body, record.cause)


def digest_of(row: EventRow) -> str:
    """A digest of an event's row: another history has another event under the same number."""
    seq, at, *rest = row
    return hashlib.sha256(dumps([seq, float(at), *rest]).encode("ascii")).hexdigest()[:32]


def records_of(rows: Sequence[EventRow]) -> list[Recorded]:
    """The records of rows. Raises JournalError that names the seq of what cannot be read."""
    try:
        bodies = json.loads(f"[{','.join([checked(row)[6] for row in rows])}]")
        if len(bodies) != len(rows):
            raise ValueError("a body is not one value")
    except (ValueError, TypeError, RecursionError):
        return [_record(row, _loads(row)) for row in rows]
    return [_record(row, body) for row, body in zip(rows, bodies, strict=True)]


def _loads(row: EventRow) -> Any:
    try:
        return json.loads(row[6])
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(row, error) from error


def _record(row: EventRow, body: Any) -> Recorded:
    seq, at, stream, version, kind, written, _, cause = row
    if written > EVENT_SCHEMA:
        raise JournalError(f"event {seq} ({kind}) was written by a newer hpcdl: update hpcdl")
    try:
        event: Event = decode(kind, body)
    except CodecError as error:
        raise JournalError(f"the ledger's event {seq} ({kind}) cannot be read: {error}: restore a copy of it") from None
    if stream not in (event.stream, schema.plain(event.stream)):
        raise _damaged(row, f"it is in the stream {stream[:80]!r} and of {event.stream[:80]!r}")
    return Recorded(seq, at, version, event, cause)


def _job_of(stream: str) -> int | None:
    number = stream.removeprefix(JOB)
    return int(number) if stream.startswith(JOB) and number.isdecimal() else None


def jobs_in(rows: Iterable[EventRow]) -> tuple[int, int]:
    """The lowest and the highest job that these events are of; (1, 0) where they are of none."""
    jobs = [job for row in rows if (job := _job_of(row[2])) is not None]
    return (min(jobs), max(jobs)) if jobs else (1, 0)


def archive_name(first: int, last: int) -> str:
    """The name of the file of these events."""
    return f"ledger-archive-{first:012d}-{last:012d}.jsonl.gz"


def write_archive(folder: Path, rows: Sequence[EventRow]) -> str:
    """Write the rows to an archive file (0600), durably, and return its name. Raises OSError; nothing is then left."""
    name = archive_name(rows[0][0], rows[-1][0])
    content = gzip.compress("".join(f"{dumps(list(row))}\n" for row in rows).encode("ascii"), 6, mtime=0)
    temporary = folder / f".{name}.tmp"
    temporary.unlink(missing_ok=True)
    write_new(temporary, content)
    try:
        os.replace(temporary, folder / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return name


def read_archive(path: Path, first: int, last: int) -> list[EventRow]:
    """The rows of an archive file. Raises JournalError where it is missing, damaged or of other events."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            rows: list[EventRow] = [json.loads(line) for line in file]
        if len(rows) != last - first + 1 or any(checked(row)[0] != seq for seq, row in enumerate(rows, first)):
            raise ValueError(f"its events are not {first} to {last}")
    except FileNotFoundError:
        raise JournalError(f"{path} is missing, with events {first} to {last}: put it back") from None
    except (OSError, EOFError, ValueError, TypeError, LookupError, zlib.error) as error:
        raise JournalError(f"{path} is damaged ({error}): restore a copy of it") from error
    return rows


def forget_unnamed(folder: Path, named: Iterable[str], first_kept: int) -> None:
    """Remove what a crash left: archive files that the ledger does not name, of events that it still has itself."""
    known = set(named)
    for path in folder.glob("*ledger-archive-*"):
        match = re.fullmatch(r"\.?(ledger-archive-(\d{12,})-\d{12,}\.jsonl\.gz)(\.tmp)?", path.name)
        if match and (match[3] or (match[1] not in known and int(match[2]) >= first_kept)):
            path.unlink(missing_ok=True)


def pieces(rows: Iterable[EventRow], size: int) -> Iterator[list[EventRow]]:
    """The rows in lists of at most `size`."""
    piece: list[EventRow] = []
    for row in rows:
        piece.append(row)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def event_rows(
    reading: Callable[[], AbstractContextManager[Connection]],
    archived: Callable[[str, int, int], Sequence[EventRow]],
    after: int,
    page: int,
    stream: str | None,
) -> Iterator[Sequence[EventRow]]:
    """The rows with seq > after, of one stream where given, in pieces, from archive files and table.

    `reading()`: the connection, for a query at a time; `archived`: as `read_archive`, by the file's name.
    """
    archive, table = schema.archive, schema.event
    wanted = select(archive.c.first, archive.c.last, archive.c.name).where(archive.c.last > after)
    if stream is not None and stream.startswith(JOB):
        job = int(stream.removeprefix(JOB))
        wanted = wanted.where(or_(archive.c.lowest.is_(None), and_(archive.c.lowest <= job, archive.c.highest >= job)))
    with reading() as connection:
        files = connection.execute(wanted.order_by(archive.c.first)).all()
    for first, last, name in files:
        if name != archive_name(first, last):
            raise JournalError(
                f"the ledger is damaged: events {first} to {last} are in no archive file: restore a copy"
            )
        rows = archived(name, first, last)
        yield [row for row in rows if row[0] > after and stream in (None, row[2])]
        after = last
    chosen = select(table) if stream is None else select(table).where(table.c.stream == stream)
    page = max(1, min(page, PAGE))
    while True:
        with reading() as connection:
            found = connection.execute(chosen.where(table.c.seq > after).order_by(table.c.seq).limit(page)).all()
        if found:
            yield found
        if len(found) < page:
            return
        after = found[-1][0]


# --- retired jobs -----------------------------------------------------------------------------------------------------

Env = tuple[tuple[str, str], ...]

_AT_ONCE = 500
"""Ids of one query; SQLite takes some thousands."""


def retired_rows(job: Job) -> tuple[tuple[int, str, str], tuple[str, str]]:
    """The row of a job that has left the world, and that of its environment.

    A row has all that was known of the job but what is so by default: a program that knows more of jobs then makes the
    same rows of the same events. Environments, which are most of a job and which jobs of one shell share, are kept
    once, by a digest.
    """
    text = dumps(to_json(job.spec.env))
    name = hashlib.sha256(text.encode("ascii")).hexdigest()
    body, by_default = _flat(job), _flat_default()
    spec = _without(body["spec"], by_default["spec"], ("command", "name"))
    return (job.id, name, dumps(_without(body, by_default, ("id", "spec", "submitted_at")) | {"spec": spec})), (
        name,
        text,
    )


def _flat(job: Job) -> Stored:
    return flat_job(to_json(changed(job, spec=unchecked(job.spec, env=()))))


@cache
def _flat_default() -> Stored:
    return _flat(Job(0, JobSpec(("true",), "true"), 0.0))


def _without(values: Stored, defaults: Stored, required: tuple[str, ...]) -> Stored:
    """The values that are not so by default, and those that have no default."""
    return {name: value for name, value in values.items() if name in required or value != defaults[name]}


def read_retired(
    connection: Connection, ids: Sequence[int] | None, before: int | None, limit: int
) -> list[tuple[str, str]]:
    """The bodies of jobs and the names of their environments, as `Journal.retired` has them."""
    table = schema.retired
    query = select(table.c.body, table.c.environment)
    if before is not None:
        query = query.where(table.c.job < before)
    if ids is None:
        rows = connection.execute(query.order_by(table.c.job.desc()).limit(limit)).all()
        return [(body, name) for body, name in rows]
    found: dict[int, tuple[str, str]] = {}
    for first in range(0, len(ids), _AT_ONCE):
        asked = query.add_columns(table.c.job).where(table.c.job.in_(ids[first : first + _AT_ONCE]))
        found.update((number, (body, name)) for body, name, number in connection.execute(asked))
    return [found[number] for number in dict.fromkeys(ids) if number in found][:limit]


def environments(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Their bodies by name."""
    table, found = schema.environment, dict[str, str]()
    for first in range(0, len(names), _AT_ONCE):
        asked = select(table).where(table.c.name.in_(names[first : first + _AT_ONCE]))
        found.update((row.name, row.body) for row in connection.execute(asked))
    return found


def jobs_of(rows: Sequence[tuple[str, str]], bodies: dict[str, str]) -> list[Job]:
    """The jobs of these rows. Raises JournalError."""
    envs: dict[str, Env] = {}
    found = []
    for body, name in rows:
        try:
            if name not in envs:
                envs[name] = tuple((str(key), str(value)) for key, value in loads(bodies[name]))
            job = from_json(Job, nested_job(loads(body)))
        except (CodecError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise JournalError(
                f"a retired job cannot be read ({type(error).__name__}): hpcdl ledger rebuild makes the tables anew"
            ) from error
        found.append(changed(job, spec=unchecked(job.spec, env=envs[name])))
    return found


def open_streams(versions: Mapping[str, int], world: World) -> dict[str, int]:
    """Of the versions that streams have reached, those in which events may still come: not of retired jobs."""
    jobs, found = world.jobs, versions.items()
    return {name: at for name, at in found if not name.startswith(JOB) or _job_of(name) in jobs}


def forget_streams(connection: Connection, events: Sequence[Stamped], versions: dict[str, int]) -> None:
    """Drop the versions of jobs that these events retire, within the caller's transaction: no event follows there."""
    gone = [f"{JOB}{number}" for _, event in events if isinstance(event, JobsRetired) for number in event.jobs]
    for stream in gone:
        versions.pop(stream, None)
    if gone:
        connection.exec_driver_sql(schema.DROP_STREAM, [(stream,) for stream in gone])


def every_job(journal: Journal) -> Iterator[Job]:
    """All that there ever were: those that have left the world, the newest first, then the others."""
    before: int | None = None
    while found := journal.retired(before=before):
        yield from found
        before = found[-1].id
    yield from journal.load().jobs.values()
