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
from hpcdl.core.model.incarnation import Incarnation, IncarnationState
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import fold_nodes
from hpcdl.core.model.world import Job, Node, World
from hpcdl.ledger import records, schema

Row = tuple[Any, ...]
_LARGEST = (1 << 63) - 1


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
                ended = isinstance(event, ev.IncarnationEnded)
                self.incarnations[event.job, event.incarnation] = _ended(world, event, at) if ended else None
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
                self.retired[job.id] = _job_row(job), row
                self.environments[environment[0]] = environment

    def rows(self, world: World) -> dict[str, list[Row]]:
        """The rows by table, from the world after the events."""
        incarnations = []
        for (number, which), row in self.incarnations.items():
            job = world.jobs.get(number)
            live = None if job is None else job.incarnation(which)
            if row is None and live is not None:
                row = _incarnation_row(number, live)
            if row is not None:
                incarnations.append(row)
        return {
            "job": [
                self.retired[number][0] if number in self.retired else _job_row(world.jobs[number])
                for number in self.jobs
            ],
            "incarnation": incarnations,
            "node": [_node_row(world.nodes[name]) for name in self.nodes],
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
        for key in sorted(kept.keys() | wanted.keys()):
            if kept.get(key) != wanted.get(key):
                named = ".".join(map(str, key))
                if table.name in schema.PRIVATE:
                    return f"{table.name} {named}: the table and the events differ"
                return f"{table.name} {named}: the table says {kept.get(key)}, the events say {wanted.get(key)}"
    return ""


def plain(text: str) -> str:
    """The text, with what UTF-8 cannot hold (bytes of a command line that were none) spelt out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _whole(number: int | None) -> int | None:
    """What a trainer reports may be larger than a column takes; the events keep it as it is."""
    return None if number is None else max(-_LARGEST, min(number, _LARGEST))


def _job_row(job: Job) -> Row:
    return (
        job.id,
        plain(job.spec.name),
        plain(job.spec.user),
        state_of(job).value,
        int(job.held),
        _whole(job.progress.step),
        _whole(job.progress.total),
        _whole(job.progress.saved_step),
        job.suspends,
        job.failures.total,
        job.submitted_at,
        job.first_start_at,
        job.finished_at,
        None if job.last.cause is None else job.last.cause.value,
        plain(job.last.detail),
        _whole(job.last.exit_code),
    )


def _incarnation_row(job: int, incarnation: Incarnation, end: tuple[float, str, str] | None = None) -> Row:
    placement = incarnation.placement
    return (
        job,
        incarnation.number,
        (incarnation.state if end is None else IncarnationState.EXITED).value,
        plain(fold_nodes(incarnation.nodes)),
        "" if placement is None else plain(",".join(map(str, placement.gpus))),
        None if placement is None else placement.role.value,
        int(incarnation.warm),
        incarnation.requested_at,
        incarnation.granted_at,
        incarnation.started_at,
        None if incarnation.progress is None else incarnation.progress.ready_at,
        None if end is None else end[0],
        None if end is None else end[1],
        plain(end[2] if end is not None else incarnation.stop.detail if incarnation.stop is not None else ""),
    )


def _ended(world: World, event: ev.Event, at: float) -> Row | None:
    """The last row of an incarnation, which is not in the world any more after this event."""
    assert isinstance(event, ev.IncarnationEnded)
    job = world.jobs.get(event.job)
    incarnation = None if job is None else job.incarnation(event.incarnation)
    if incarnation is None:
        return None
    return _incarnation_row(event.job, incarnation, (at, event.cause.value, event.detail))


def _node_row(node: Node) -> Row:
    return (
        plain(node.name),
        "lost" if node.lost else "connected" if node.connected else "silent",
        plain(node.reason),
        node.since,
        len(node.gpus),
        len(node.usable),
        _whole(node.cpus),
        _whole(node.memory_mib),
        _whole(node.agent_pid),
        int(node.emulated),
    )
