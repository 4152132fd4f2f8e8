"""GPU telemetry: a ring of the newest samples in the ledger.

Samples are no events: one that is lost with a crash is no loss, and no commit waits for them. `hpcdl report` and the
page do not need them.
"""

from collections import deque
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from hpcdl.ledger import schema

_LARGEST = 1e15


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """One GPU at one time: utilisation in %, memory in MiB, power in W; None where the GPU does not report it."""

    at: float
    node: str
    gpu: int
    util: float | None = None
    mem: float | None = None
    power: float | None = None

    def __post_init__(self) -> None:
        # What the file cannot hold must not stand in the way of the events that it would be written with.
        for value in (self.at, self.gpu, self.util, self.mem, self.power):
            if value is not None and not -_LARGEST < value < _LARGEST:
                raise ValueError(f"the numbers of a sample must be below {_LARGEST:g}, got {value}")
        if not self.node.isprintable():
            raise ValueError(f"a sample's node must be printable, got {self.node!r}")


class Ring:
    """At most `size` samples, the newest; those not written yet wait for the next commit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting: deque[GpuTelemetry] = deque(maxlen=size)
        self._last = 0

    def load(self, connection: Connection) -> None:
        """Find where the ring on disk stands."""
        self._last = connection.execute(select(func.max(schema.sample.c.id))).scalar() or 0

    def write(self, connection: Connection) -> int:
        """Write what waits, within the caller's transaction, and drop the oldest; `written` follows the commit."""
        rows = [
            (number, each.at, each.node, each.gpu, each.util, each.mem, each.power)
            for number, each in enumerate(self.waiting, self._last + 1)
        ]
        if rows:
            connection.exec_driver_sql(schema.ADD_SAMPLE, rows)
            connection.exec_driver_sql(schema.DROP_SAMPLES, (self._last + len(rows) - self.size,))
        return len(rows)

    def written(self, count: int) -> None:
        """The transaction of `write`, which returned `count`, is committed."""
        self._last += count
        for _ in range(count):
            self.waiting.popleft()

    def read(self, connection: Connection, since: float, node: str | None, limit: int) -> list[GpuTelemetry]:
        """Samples with `at` > since, oldest first, at most the newest `limit`."""
        table = schema.sample
        query = select(*table.columns).where(table.c.at > since)
        if node is not None:
            query = query.where(table.c.node == node)
        rows = connection.execute(query.order_by(table.c.id.desc()).limit(limit)).all()
        stored = [GpuTelemetry(*row[1:]) for row in reversed(rows)]
        fresh = [each for each in self.waiting if each.at > since and node in (None, each.node)]
        return [*stored, *fresh][-limit:] if limit > 0 else []
