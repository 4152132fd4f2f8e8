"""Series of jobs in the ledger: a row for each point, at most `core.model.series.MOST` of them a series.

As samples of GPUs these are telemetry, no events: what waits is written with the next commit, and lost with a crash
before it. Of the jobs that have finished longest ago the series go, once there are more rows than ROWS; those of
unfinished jobs only where that is not enough.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, func, select

from hpcdl.core.model.series import Divergence, Point, mean_of
from hpcdl.ledger import schema

ROWS = 400_000
"""About 30 MB."""

_STEP_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SeriesChange:
    """The points of a series from place `first` on are these, and no others."""

    job: int
    name: str
    first: int
    points: tuple[Point, ...]


class SeriesTable:
    """The series of a ledger; changes that are not written yet wait for the next commit."""

    def __init__(self, rows: int = ROWS) -> None:
        self._waiting: dict[tuple[int, str], SeriesChange] = {}
        self._most = rows
        self._rows = self._rows_after = 0

    @property
    def waiting(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._waiting)

    def add(self, changes: Iterable[SeriesChange]) -> None:
        """Keep changes for the next commit; of each series they become one."""
        for change in changes:
            before = self._waiting.get((change.job, change.name))
            if before is not None and before.first < change.first:
                points = (*before.points[: change.first - before.first], *change.points)
                change = SeriesChange(change.job, change.name, before.first, points)
            self._waiting[change.job, change.name] = change

    def load(self, connection: Connection) -> None:
        """Find how many rows there are."""
        self._rows = connection.execute(select(func.count()).select_from(schema.series)).scalar() or 0

    def write(self, connection: Connection) -> int:
        """Write what waits, within the caller's transaction; `written` follows the commit."""
        changes, self._rows_after = list(self._waiting.values()), self._rows
        if changes:
            beyond = [(change.job, change.name, change.first) for change in changes]
            self._rows_after -= connection.exec_driver_sql(schema.DROP_SERIES, beyond).rowcount
        rows = [
            (change.job, change.name, place, *row_of(point))
            for change in changes
            for place, point in enumerate(change.points, change.first)
        ]
        if rows:
            connection.exec_driver_sql(schema.ADD_SERIES, rows)
            self._rows_after += len(rows)
        if self._rows_after > self._most:
            self._drop_oldest(connection, {change.job for change in changes})
        return len(changes)

    def written(self, count: int) -> None:
        """The transaction of `write`, which returned `count`, is committed."""
        self._rows = self._rows_after
        for place in list(self._waiting)[:count]:
            del self._waiting[place]

    def read(self, connection: Connection, job: int) -> dict[str, list[Point]]:
        """The points of each series of a job, by name. Whoever goes on with one counts its places from here."""
        stored = _stored(connection, job)
        for change in self._waiting.values():
            if change.job == job:
                kept = {at: point for at, point in stored.get(change.name, {}).items() if at < change.first}
                stored[change.name] = kept | dict(enumerate(change.points, change.first))
        found = {name: list(points.values()) for name, points in stored.items()}
        moved = (name for name, points in stored.items() if min(points, default=0))  # its first ones were dropped
        self.add([SeriesChange(job, name, 0, tuple(found[name])) for name in moved])
        return found

    def means(self, connection: Connection, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """The means of these series of all jobs, by job and name; of what has no finite sample there is none."""
        found = read_means(connection, names)
        for job, name in list(self._waiting):
            if name in names and (mean := mean_of(self.read(connection, job)[name])) is not None:
                found.setdefault(job, {})[name] = mean
        return found

    def _drop_oldest(self, connection: Connection, kept: Iterable[int]) -> None:
        """Series of the oldest jobs that were not written now, until a tenth of the room is free again."""
        table, jobs = schema.series, schema.job
        unfinished = and_(jobs.c.id.is_not(None), jobs.c.finished_at.is_(None))
        sizes = connection.execute(
            select(table.c.job, func.count())
            .select_from(table.outerjoin(jobs, jobs.c.id == table.c.job))
            .where(table.c.job.not_in(set(kept)))
            .group_by(table.c.job)
            .order_by(unfinished, jobs.c.finished_at, table.c.job)
        ).all()
        for job, size in sizes:
            if self._rows_after <= 0.9 * self._most:
                return
            connection.execute(delete(table).where(table.c.job == job))
            self._rows_after -= size


def read_means(connection: Connection, names: Sequence[str]) -> dict[int, dict[str, float]]:
    """As `SeriesTable.means`, as far as they are written."""
    table = schema.series
    weight = table.c.samples - table.c.not_finite
    query = (
        select(table.c.job, table.c.name, func.sum(table.c.mean * weight) / func.sum(weight))
        .where(table.c.name.in_(names), table.c.mean.is_not(None))
        .group_by(table.c.job, table.c.name)
    )
    found: dict[int, dict[str, float]] = {}
    for job, name, mean in connection.execute(query):
        found.setdefault(job, {})[name] = mean
    return found


def read_divergences(connection: Connection) -> dict[int, dict[str, Divergence]]:
    """Where the series that have diverged did, as `core.model.series.divergence` has it, by job and name."""
    found: dict[int, dict[str, Divergence]] = {}
    for job, name, after, by in connection.exec_driver_sql(_DIVERGED):
        found.setdefault(job, {})[name] = (after, by)
    return found


_DIVERGED = """
SELECT ends.job, ends.name, CASE WHEN ends.place < 0 THEN -1 ELSE coalesce(finite.step, 0) END, beyond.step
FROM (SELECT job, name, max(CASE WHEN last IS NULL THEN -1 ELSE place END) AS place FROM series GROUP BY job, name)
AS ends
LEFT JOIN series AS finite ON finite.job = ends.job AND finite.name = ends.name AND finite.place = ends.place
JOIN series AS beyond ON beyond.job = ends.job AND beyond.name = ends.name AND beyond.place = ends.place + 1
WHERE beyond.step IS NOT NULL ORDER BY ends.job, ends.name
"""


def row_of(point: Point) -> tuple[float | int | None, ...]:
    """The point's columns."""
    step = None if point.step is None else min(point.step, _STEP_MOST)
    return (point.at, step, point.last, point.mean, point.low, point.high, point.samples, point.not_finite)


def _stored(connection: Connection, job: int) -> dict[str, dict[int, Point]]:
    """The points of each series of a job by name and place, in order, as far as they are written."""
    table = schema.series
    rows = connection.execute(select(table).where(table.c.job == job).order_by(table.c.name, table.c.place)).all()
    found: dict[str, dict[int, Point]] = {}
    for row in rows:
        found.setdefault(row[1], {})[row[2]] = Point(*row[3:])
    return found
