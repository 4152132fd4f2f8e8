"""The whole world as one JSON value, so that a restart replays only what came after."""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from hpcdl.core.fold.fold import copied
from hpcdl.core.model.frozen import CodecError, changed, from_json, to_json, unchecked
from hpcdl.core.model.world import Job, World
from hpcdl.ledger import schema

FORMAT = 8
"""To be raised when the world gets a field that old events fill: snapshots of another format are not read."""

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


def world_of(body: str) -> World:
    """The world from `body_of` it. Raises CodecError."""
    try:
        found = from_json(_Snapshot, json.loads(body))
        jobs = zip(found.world.jobs.items(), found.used, strict=True)
        found.world.jobs = {number: _with_env(job, found.environments[place]) for (number, job), place in jobs}
    except (ValueError, LookupError, RecursionError) as error:
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
    query = select(table.c.seq, table.c.body).where(table.c.format == FORMAT).order_by(table.c.seq.desc())
    for seq, body in connection.execute(query).all():
        try:
            world = world_of(body)
        except CodecError:
            continue  # the one before it, or the events from the start, say the same
        if world.seq == seq:
            return world
    return World()
