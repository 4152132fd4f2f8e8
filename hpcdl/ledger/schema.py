"""The tables of the ledger, as SQLAlchemy Core has them, and the statements that the writer repeats.

The statements are compiled once, from the tables: what is left of an append is one `execute` a table. A table is never
changed without a step in `migrations`, which has its own text of all of them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    Delete,
    Float,
    Index,
    Insert,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Update,
    bindparam,
    delete,
    text,
    update,
)
from sqlalchemy.dialects import sqlite

from hpcdl.core.model.incarnation import Incarnation, IncarnationState
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import fold_nodes
from hpcdl.core.model.world import Job, Node

metadata = MetaData()

event = Table(
    "event",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("at", Float, nullable=False),  # seconds since the epoch
    Column("stream", Text, nullable=False),  # job/7, node/n1 or daemon
    Column("version", Integer, nullable=False),  # counts within the stream
    Column("kind", Text, nullable=False),
    Column("schema", Integer, nullable=False),  # of the body
    Column("body", Text, nullable=False),  # JSON
    Column("cause", Integer),  # seq of the event that led to it
    UniqueConstraint("stream", "version"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("seq", Integer, nullable=False),  # of the last event of its commit
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),  # JSON
    Column("state", Text, nullable=False, server_default=text("'pending'")),  # pending or settled
    # An id is never used twice, also when the newest requests are gone: agents know requests by it.
    sqlite_autoincrement=True,
)
Index("outbox_pending", outbox.c.id, sqlite_where=outbox.c.state == "pending")

# --- what the events amount to: each column, and what fills it --------------------------------------------------------

_LARGEST = (1 << 63) - 1


def plain(text: str) -> str:
    """The text, with what UTF-8 cannot hold (bytes of a command line that were none) spelt out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _whole(number: int | None) -> int | None:
    """What a trainer reports may be larger than a column takes; the events keep it as it is."""
    return None if number is None else max(-_LARGEST, min(number, _LARGEST))


class Ending(NamedTuple):
    """How an attempt ended, and when, in seconds since the epoch."""

    at: float
    cause: str
    detail: str


class Attempt(NamedTuple):
    """What a row of the table of attempts is made of. `ending`: None while it lives."""

    job: int
    of: Incarnation
    ending: Ending | None = None

    @property
    def detail(self) -> str:
        """How it ended, or why it is to end; "" for neither."""
        return self.ending.detail if self.ending else self.of.stop.detail if self.of.stop is not None else ""


def _column(
    name: str, kind: type[Any], value: Callable[[Any], Any], *, key: bool = False, null: bool = False
) -> Column[Any]:
    """A column, and what fills it from the row's subject. `null`: it may be empty."""
    return Column(name, kind, primary_key=key, nullable=null, info={"value": value})


def row_of(table: Table, subject: Job | Attempt | Node) -> tuple[Any, ...]:
    """The subject's row in the table of its kind."""
    return tuple([value(subject) for value in _values(table)])


@cache
def _values(table: Table) -> tuple[Callable[[Any], Any], ...]:
    return tuple(column.info["value"] for column in table.columns)


job = Table(
    "job",
    metadata,
    _column("id", Integer, lambda job: job.id, key=True),
    _column("name", Text, lambda job: plain(job.spec.name)),
    _column("user", Text, lambda job: plain(job.spec.user)),
    _column("state", Text, lambda job: state_of(job).value),
    _column("held", Integer, lambda job: int(job.held)),
    _column("step", Integer, lambda job: _whole(job.progress.step), null=True),
    _column("total", Integer, lambda job: _whole(job.progress.total), null=True),
    _column("saved_step", Integer, lambda job: _whole(job.progress.saved_step), null=True),
    _column("suspends", Integer, lambda job: job.suspends),
    _column("failures", Integer, lambda job: job.failures.total),
    _column("submitted_at", Float, lambda job: job.submitted_at),
    _column("first_start_at", Float, lambda job: job.first_start_at, null=True),
    _column("finished_at", Float, lambda job: job.finished_at, null=True),
    _column("last_cause", Text, lambda job: None if job.last.cause is None else job.last.cause.value, null=True),
    _column("last_detail", Text, lambda job: plain(job.last.detail)),
    _column("exit_code", Integer, lambda job: _whole(job.last.exit_code), null=True),
)

incarnation = Table(
    "incarnation",
    metadata,
    _column("job", Integer, lambda each: each.job, key=True),
    _column("number", Integer, lambda each: each.of.number, key=True),
    _column("state", Text, lambda each: (IncarnationState.EXITED if each.ending else each.of.state).value),
    _column("nodes", Text, lambda each: plain(fold_nodes(each.of.nodes))),  # n[1-2]
    _column("gpus", Text, lambda each: plain(",".join(map(str, each.of.placement.gpus if each.of.placement else ())))),
    _column("role", Text, lambda each: each.of.placement.role.value if each.of.placement else None, null=True),
    _column("warm", Integer, lambda each: int(each.of.warm)),
    _column("requested_at", Float, lambda each: each.of.requested_at),
    _column("granted_at", Float, lambda each: each.of.granted_at, null=True),
    _column("started_at", Float, lambda each: each.of.started_at, null=True),
    _column("ready_at", Float, lambda each: each.of.progress.ready_at if each.of.progress else None, null=True),
    _column("ended_at", Float, lambda each: each.ending.at if each.ending else None, null=True),
    _column("cause", Text, lambda each: each.ending.cause if each.ending else None, null=True),
    _column("detail", Text, lambda each: plain(each.detail)),
)

node = Table(
    "node",
    metadata,
    _column("name", Text, lambda node: plain(node.name), key=True),
    _column("state", Text, lambda node: "lost" if node.lost else "connected" if node.connected else "silent"),
    _column("reason", Text, lambda node: plain(node.reason)),
    _column("since", Float, lambda node: node.since),
    _column("gpus", Integer, lambda node: len(node.gpus)),
    _column("usable", Integer, lambda node: len(node.usable)),
    _column("cpus", Integer, lambda node: _whole(node.cpus)),
    _column("memory_mib", Integer, lambda node: _whole(node.memory_mib)),
    _column("agent_pid", Integer, lambda node: _whole(node.agent_pid)),
    _column("emulated", Integer, lambda node: int(node.emulated)),
)

retired = Table(  # jobs that have left the world, as they were then
    "retired",
    metadata,
    Column("job", Integer, primary_key=True),
    Column("environment", Text, nullable=False),  # its name
    Column("body", Text, nullable=False),  # JSON, without what is as by default
)

environment = Table(  # of retired jobs; those of one shell share it
    "environment",
    metadata,
    Column("name", Text, primary_key=True),  # a digest
    Column("body", Text, nullable=False),  # JSON
)

snapshot = Table(
    "snapshot",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("format", Integer, nullable=False),
    Column("body", Text, nullable=False),  # the world as JSON
)

archive = Table(
    "archive",
    metadata,
    Column("first", Integer, primary_key=True),  # seq
    Column("last", Integer, nullable=False),
    Column("name", Text, nullable=False),  # of the file beside the ledger
    Column("lowest", Integer),  # of the jobs that its events are of; null where nobody looked
    Column("highest", Integer),
)

stream = Table(  # the versions that archived events had reached
    "stream",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
)

sample = Table(
    "sample",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("node", Text, nullable=False),
    Column("gpu", Integer, nullable=False),
    Column("util", Float),  # %
    Column("mem", Float),  # MiB
    Column("power", Float),  # W
)

series = Table(  # points of the curves of jobs, see `core.model.series`
    "series",
    metadata,
    Column("job", Integer, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("step", Integer),
    Column("last", Float),
    Column("mean", Float),
    Column("low", Float),
    Column("high", Float),
    Column("samples", Integer, nullable=False),
    Column("not_finite", Integer, nullable=False),
    sqlite_with_rowid=False,
)

PROJECTIONS = (job, incarnation, node, environment, retired)
PRIVATE = frozenset({"environment", "retired"})
"""Tables whose rows may hold secrets: no message shows them."""


def compiled(statement: Insert | Update | Delete) -> str:
    """The statement's text with `?` for its parameters, in the order of the table's columns."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))


def inserted(table: Table, *, replacing: bool = False) -> str:
    """An INSERT of whole rows, given as tuples; `replacing` rows of the same key."""
    statement: Any = table.insert().values({column.name: bindparam(column.name) for column in table.columns})
    return compiled(statement.prefix_with("OR REPLACE") if replacing else statement)


ADD_EVENT = inserted(event)
ADD_REQUEST = inserted(outbox)
ADD_SAMPLE = inserted(sample, replacing=True)
ADD_SERIES = inserted(series, replacing=True)
ADD_ARCHIVE = inserted(archive)
ADD_SNAPSHOT = inserted(snapshot, replacing=True)
PUT_STREAM = inserted(stream, replacing=True)
PUT_ROW = {table.name: inserted(table, replacing=True) for table in PROJECTIONS}
SETTLE = compiled(update(outbox).where(outbox.c.id == bindparam("number")).values(state=text("'settled'")))
DROP_STREAM = compiled(delete(stream).where(stream.c.name == bindparam("stream")))
DROP_SERIES = compiled(
    delete(series).where(
        series.c.job == bindparam("of"), series.c.name == bindparam("called"), series.c.place >= bindparam("beyond")
    )
)
DROP_SAMPLES = compiled(delete(sample).where(sample.c.id <= bindparam("last")))
