"""Requests as rows of the outbox."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sqlalchemy import Connection, delete, select

from hpcdl.core.codec import from_json, to_json
from hpcdl.core.journal import Request
from hpcdl.ledger import schema
from hpcdl.ledger.records import dumps, loads


def pending(connection: Connection) -> Sequence[tuple[int, str]]:
    """Ids and bodies of those that are not settled, oldest first."""
    table = schema.outbox
    query = select(table.c.id, table.c.body).where(table.c.state == "pending").order_by(table.c.id)
    return [(number, body) for number, body in connection.execute(query)]


def requests_of(rows: Iterable[tuple[int, str]]) -> list[Request]:
    """The requests of such rows. Raises CodecError and ValueError."""
    return [replace(from_json(Request, loads(body)), id=number) for number, body in rows]


def forget(connection: Connection, last: int) -> None:
    """Drop settled ones of commits up to that seq, within the caller's transaction."""
    table = schema.outbox
    connection.execute(delete(table).where(table.c.state == "settled", table.c.seq <= last))


def begin_above(connection: Connection, last: int) -> None:
    """Have ids go on above that one, within the caller's transaction."""
    known = connection.exec_driver_sql("SELECT max(seq) FROM sqlite_sequence WHERE name = 'outbox'").scalar() or 0
    if last > known:
        connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = 'outbox'")
        connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox', ?)", (last,))


def bodies(requests: Iterable[Request]) -> Iterator[str]:
    """Requests as JSON. Those to all nodes of a job name the same nodes and GPUs, which are written down once."""
    known: dict[int, str] = {}
    for request in requests:
        plain = to_json(replace(request, nodes=(), placement=None))
        shared = []
        for name in ("nodes", "placement"):
            value = getattr(request, name)
            if id(value) not in known:  # they live as long as the requests do
                known[id(value)] = dumps(to_json(value))
            del plain[name]
            shared.append(f'"{name}":{known[id(value)]}')
        yield f"{dumps(plain)[:-1]},{','.join(shared)}}}"
