"""What the events amount to, as rows for people with sqlite3: jobs, incarnations (also those that ended) and nodes;
and the jobs that have left the world.

A row depends on the events so far and not on how they were batched, so that rows kept up to date commit by commit
are the ones that `rebuild` makes of all events.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select

from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import events as ev
from hpcdl.core.model.events import JobsRetired
from hpcdl.core.model.world import World
from hpcdl.ledger import records, schema

Row = tuple[Any, ...]


class ChangedRows:
    """The rows that a run of events changes."""

    def __init__(self) -> None:
        self.jobs: dict[int, None] = {}
        self.nodes: dict[str, None] = {}
        self.incarnations: dict[tuple[int, int], Row | None] = {}
        self.retired: dict[int, tuple[Row, Row]] = {}
        self.environments: dict[str, Row] = {}

    def add(self, world: World, event: ev.Event, at: float) -> None:
        """Note what `event` is about to change in `world`."""
        if isinstance(event, ev.JobEvent):
            numbers = event.members if isinstance(event, ev.ArraySubmitted) else (event.job,)
            self.jobs.update(dict.fromkeys(numbers))
            if isinstance(event, ev.IncarnationEvent):
                row = _ended(world, event, at) if isinstance(event, ev.IncarnationEnded) else None
                self.incarnations[event.job, event.incarnation] = row
        elif isinstance(event, ev.NodeEvent):
            self.nodes[event.node] = None
            if isinstance(event, ev.NodeLost):
                for number in world.active:
                    for incarnation in world.jobs[number].live:
                        if incarnation.part(event.node) is not None:
                            self.jobs[number] = None
                            self.incarnations[number, incarnation.number] = None
        elif isinstance(event, ev.DaemonStarted):
            self.nodes.update(dict.fromkeys(world.nodes))
        elif isinstance(event, JobsRetired):
            for job in (world.jobs[number] for number in event.jobs if number in world.jobs):
                row, environment = records.retired_rows(job)
                self.retired[job.id] = schema.row_of(schema.job, job), row
                self.environments[environment[0]] = environment

    def rows(self, world: World) -> dict[str, list[Row]]:
        """The rows by table, from the world after the events."""
        incarnations = []
        for (number, which), row in self.incarnations.items():
            job = world.jobs.get(number)
            live = None if job is None else job.incarnation(which)
            if row is None and live is not None:
                row = schema.row_of(schema.incarnation, schema.Attempt(number, live))
            if row is not None:
                incarnations.append(row)
        return {
            "job": [
                self.retired[number][0] if number in self.retired else schema.row_of(schema.job, world.jobs[number])
                for number in self.jobs
            ],
            "incarnation": incarnations,
            "node": [schema.row_of(schema.node, world.nodes[name]) for name in self.nodes],
            "environment": list(self.environments.values()),
            "retired": [row for _, row in self.retired.values()],
        }


def write(connection: Connection, rows: dict[str, list[Row]]) -> None:
    """Put the rows, within the caller's transaction."""
    for name, values in rows.items():
        if values:
            connection.exec_driver_sql(schema.PUT_ROW[name], values)


def replace_all(connection: Connection, rows: dict[str, list[Row]]) -> None:
    """Put these rows and no others, within the caller's transaction."""
    for table in schema.PROJECTIONS:
        connection.execute(table.delete())
    write(connection, rows)


def built(records: Iterable[ev.Recorded]) -> tuple[World, dict[str, list[Row]]]:
    """The world and the rows that all events amount to. Raises IllegalEvent."""
    draft, touched = Draft(World()), ChangedRows()
    for record in records:
        touched.add(draft.world, record.event, record.at)
        draft.add(record.event, record.at)
        draft.events.clear()
    return draft.world, touched.rows(draft.world)


def difference(connection: Connection, rows: dict[str, list[Row]]) -> str:
    """The first row in which the ledger differs from `rows`, in words, or ""."""
    for table in schema.PROJECTIONS:
        keys = len(table.primary_key.columns)
        kept = {tuple(row)[:keys]: tuple(row) for row in connection.execute(select(table))}
        wanted = {row[:keys]: row for row in rows[table.name]}
        for key in sorted(kept.keys() | wanted.keys(), key=lambda each: [(str(type(part)), part) for part in each]):
            if kept.get(key) != wanted.get(key):
                named = ".".join(map(str, key))
                if table.name in schema.PRIVATE:
                    return f"{table.name} {named}: the table and the events differ"
                return f"{table.name} {named}: the table says {kept.get(key)}, the events say {wanted.get(key)}"
    return ""


def _ended(world: World, event: ev.IncarnationEnded, at: float) -> Row | None:
    """The last row of an incarnation, which is not in the world any more after this event."""
    job = world.jobs.get(event.job)
    incarnation = None if job is None else job.incarnation(event.incarnation)
    if incarnation is None:
        return None
    ending = schema.Ending(at, event.cause.value, event.detail)
    return schema.row_of(schema.incarnation, schema.Attempt(event.job, incarnation, ending))
