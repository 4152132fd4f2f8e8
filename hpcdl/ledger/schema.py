"""The tables of the ledger, as SQLAlchemy Core has them, and the statements that the writer repeats.

The statements are compiled once, from the tables: what is left of an append is one `execute` a table.
"""

from typing import Any

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

job = Table(
    "job",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("held", Integer, nullable=False),
    Column("step", Integer),
    Column("total", Integer),
    Column("saved_step", Integer),
    Column("suspends", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("submitted_at", Float, nullable=False),
    Column("first_start_at", Float),
    Column("finished_at", Float),
    Column("last_cause", Text),
    Column("last_detail", Text, nullable=False),
    Column("exit_code", Integer),
)

incarnation = Table(
    "incarnation",
    metadata,
    Column("job", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("nodes", Text, nullable=False),  # n[1-2]
    Column("gpus", Text, nullable=False),  # n1:0,n1:1; empty at the gate
    Column("role", Text),
    Column("warm", Integer, nullable=False),
    Column("requested_at", Float, nullable=False),
    Column("granted_at", Float),
    Column("started_at", Float),
    Column("ready_at", Float),
    Column("ended_at", Float),
    Column("cause", Text),
    Column("detail", Text, nullable=False),
)

node = Table(
    "node",
    metadata,
    Column("name", Text, primary_key=True),
    Column("state", Text, nullable=False),  # connected, silent or lost
    Column("reason", Text, nullable=False),
    Column("since", Float, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("usable", Integer, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("agent_pid", Integer, nullable=False),
    Column("emulated", Integer, nullable=False),
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
ADD_ARCHIVE = inserted(archive)
ADD_SNAPSHOT = inserted(snapshot, replacing=True)
PUT_STREAM = inserted(stream, replacing=True)
PUT_ROW = {table.name: inserted(table, replacing=True) for table in PROJECTIONS}
SETTLE = compiled(update(outbox).where(outbox.c.id == bindparam("number")).values(state=text("'settled'")))
DROP_STREAM = compiled(delete(stream).where(stream.c.name == bindparam("stream")))
DROP_SAMPLES = compiled(delete(sample).where(sample.c.id <= bindparam("last")))
