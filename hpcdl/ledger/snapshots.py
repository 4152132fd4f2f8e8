"""Snapshots: the whole world as one JSON value, so that a restart replays only what came after.

A snapshot is never needed: the one before it, or the events from the start, say the same. `flat_records` reads those of
the format before.
"""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from hpcdl.core.fold.fold import copied
from hpcdl.core.model.frozen import CodecError, changed, from_json, to_json, unchecked
from hpcdl.core.model.world import Job, World
from hpcdl.ledger import schema
from hpcdl.ledger.flat_records import nested_incarnation, nested_job

FORMAT = 10
"""To be raised when the world gets a field that old events fill."""

FLAT_JOBS, FLAT = 9, 8
"""Earlier formats that are still read: jobs are flat (`flat_records`); and their incarnations too."""

KEPT = 2

Env = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A world whose jobs have no environments, which are most of it, and which jobs of one shell share.

    `used`: the place in `environments` of that of each job, in the order of `world.jobs`.
    """

    world: World
    environments: tuple[Env, ...]
    used: tuple[int, ...]


def body_of(world: World) -> str:
    """The world as text."""
    known: dict[Env, int] = {}
    used = tuple(known.setdefault(job.spec.env, len(known)) for job in world.jobs.values())
    bare = copied(world)
    bare.jobs = {number: _with_env(job, ()) for number, job in world.jobs.items()}
    return json.dumps(to_json(_Snapshot(bare, tuple(known), used)), separators=(",", ":"))


def world_of(body: str, format: int = FORMAT) -> World:
    """The world from `body_of` it, or from what an earlier version made of it. Raises CodecError."""
    try:
        plain = json.loads(body)
        if format < FORMAT:
            jobs = {number: nested_job(job) for number, job in plain["world"]["jobs"].items()}
            for job in jobs.values() if format == FLAT else ():
                job["live"] = [nested_incarnation(each) for each in job["live"]]
            plain["world"]["jobs"] = jobs
        found = from_json(_Snapshot, plain)
        bare = zip(found.world.jobs.items(), found.used, strict=True)
        found.world.jobs = {number: _with_env(job, found.environments[place]) for (number, job), place in bare}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"the snapshot cannot be read: {error}") from None
    return found.world


def _with_env(job: Job, env: Env) -> Job:
    return changed(job, spec=unchecked(job.spec, env=env))


def put(connection: Connection, world: World) -> None:
    """Add a snapshot, within the caller's transaction, and drop all but the newest ones."""
    connection.exec_driver_sql(schema.ADD_SNAPSHOT, (world.seq, FORMAT, body_of(world)))
    table = schema.snapshot
    newest = select(table.c.seq).order_by(table.c.seq.desc()).limit(KEPT)
    connection.execute(delete(table).where(table.c.seq.not_in(newest)))


def newest(connection: Connection) -> World:
    """The world of the newest snapshot that can be read; an empty one without any, to which all events belong."""
    table = schema.snapshot
    query = (
        select(table.c.seq, table.c.format, table.c.body)
        .where(table.c.format.in_((FORMAT, FLAT_JOBS, FLAT)))
        .order_by(table.c.seq.desc())
    )
    for seq, format, body in connection.execute(query).all():
        try:
            world = world_of(body, format)
        except CodecError:
            continue  # the one before it, or the events from the start, say the same
        if world.seq == seq:
            return world
    return World()
