"""Where a journal stands: the world after its last event, and what is counted beside it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select

from hpcdl.core.journal import JournalError
from hpcdl.core.lifecycle import Draft
from hpcdl.core.model import World
from hpcdl.core.transitions import IllegalEvent
from hpcdl.ledger import schema, snapshots


@dataclass(slots=True)
class Tip:
    """So that an append reads nothing. Thrown away when a commit fails, and read again.

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
