"""The whole world as one JSON value, so that a restart replays only what came after."""

import json

from sqlalchemy import Connection, delete, select

from hpcdl.core.codec import CodecError, from_json, to_json
from hpcdl.core.model import World
from hpcdl.ledger import schema

FORMAT = 7
"""To be raised when the world gets a field that old events fill: snapshots of another format are not read."""

KEPT = 2


def body_of(world: World) -> str:
    """The world as text."""
    return json.dumps(to_json(world), separators=(",", ":"))


def world_of(body: str) -> World:
    """The world from `body_of` it. Raises CodecError."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the snapshot is not JSON: {error}") from None
    return from_json(World, data)


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
