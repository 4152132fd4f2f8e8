"""Jobs that have left the world, as rows: all that was known of each, without what it has by default.

So a program that knows more of jobs makes the same rows of the same events. Environments, which are most of a job and
which jobs of one shell share, are kept once, by a digest.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from sqlalchemy import Connection, select

from hpcdl.core.changed import changed, unchecked
from hpcdl.core.codec import CodecError, from_json, to_json
from hpcdl.core.journal import Journal, JournalError, Stamped
from hpcdl.core.model import Job, JobSpec, World
from hpcdl.core.retireevents import JobsRetired
from hpcdl.ledger import schema
from hpcdl.ledger.records import JOB, dumps, loads

Env = tuple[tuple[str, str], ...]
_AT_ONCE = 500
"""Ids of one query; SQLite takes some thousands."""


def rows_of(job: Job) -> tuple[tuple[int, str, str], tuple[str, str]]:
    """Its row, and that of its environment."""
    text = dumps(to_json(job.spec.env))
    name = hashlib.sha256(text.encode("ascii")).hexdigest()
    body = _told(job, _defaults(Job))
    body["spec"] = _told(unchecked(job.spec, env=()), _defaults(JobSpec))
    return (job.id, name, dumps(body)), (name, text)


def _told(value: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    told = {}
    for field in fields(value):
        found = getattr(value, field.name)
        if field.name not in defaults or found != defaults[field.name]:
            told[field.name] = to_json(found)
    return told


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """The values that fields have by default."""
    found = {}
    for field in fields(kind):
        if field.default is not MISSING:
            found[field.name] = field.default
        elif field.default_factory is not MISSING:
            found[field.name] = field.default_factory()
    return found


def read(connection: Connection, ids: Sequence[int] | None, before: int | None, limit: int) -> list[tuple[str, str]]:
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
            job = from_json(Job, loads(body))
        except (CodecError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise JournalError(
                f"a retired job cannot be read ({type(error).__name__}): hpcdl ledger rebuild makes the tables anew"
            ) from error
        found.append(changed(job, spec=unchecked(job.spec, env=envs[name])))
    return found


def counted(versions: Mapping[str, int], world: World) -> dict[str, int]:
    """Of the versions that streams have reached, those in which events may still come: not of retired jobs."""
    jobs, found = world.jobs, versions.items()
    return {name: at for name, at in found if not name.startswith(JOB) or int(name.removeprefix(JOB)) in jobs}


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
