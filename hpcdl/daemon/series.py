"""Series of jobs from heartbeats: what trainers report, and what their jobs use of GPUs, processors and memory.

In memory those of jobs that were heard of lately; the ledger has all (`ledger/series.py`), and gets what changed in one
call now and then. Nothing here decides anything, and a heartbeat that is lost is a gap in a curve. For the event
loop's thread.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdl.core.model.series import (
    LARGEST,
    MOST_NAMES,
    NAME,
    USE,
    Divergence,
    Point,
    Series,
    divergence,
    mean_of,
    not_finite_since,
    sample,
    thinned,
)
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import World
from hpcdl.ledger.series import SeriesChange
from hpcdl.wire.messages import HeartbeatMessage, MetricLine

log = logging.getLogger("hpcdl.daemon")

GATHER_S = 3.0
"""Changes go to the ledger this often."""

POINTS_AT_ONCE = 2_000
"""Points of one hand-over: commits of events wait for them. The rest goes with the next one."""

FORGET_S = 120.0
"""A job of which nothing was heard for so long leaves the memory."""

FINISHED = 128
"""Points of each series that are kept of a job that is over."""

_MOST_USED = 1e15
"""More of anything is no measurement."""

Points = Mapping[str, Sequence[Point]]

Means = Mapping[int, Mapping[str, float]]
"""By job and series."""


@dataclass(slots=True)
class _JobSeries:
    """Series of a job by name. `loaded`: with what the ledger has of it; until then samples wait in `early`."""

    heard_at: float
    series: dict[str, Series] = field(default_factory=dict)
    loaded: bool = False
    early: list[tuple[str, Point]] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)

    def add(self, name: str, point: Point) -> None:
        if not self.loaded:
            if len(self.early) < POINTS_AT_ONCE:
                self.early.append((name, point))
            return
        series = self.series.get(name)
        if series is None:
            metrics = sum(1 for each in self.series if each not in USE)
            if name not in USE and metrics >= MOST_NAMES:
                return
            series = self.series[name] = Series()
        series.add(point)
        self.changed.add(name)

    def load(self, stored: Points) -> None:
        """The ledger has these points; then come those that waited."""
        self.series = {name: Series(points) for name, points in stored.items()}
        self.loaded = True
        for name, point in self.early:
            self.add(name, point)
        self.early = []


class SeriesKeeper:
    """The series of all jobs. `not_finite`: of jobs whose metrics have stopped being finite, also of those that are
    over, since about which step each of these metrics is, by job."""

    def __init__(
        self,
        world: Callable[[], World],
        now: Callable[[], float],
        keep: Callable[[Sequence[SeriesChange]], object],
        read: Callable[[int], Awaitable[Points]],
        diverged: Mapping[int, Mapping[str, Divergence]],
        means: Callable[[Sequence[str]], Awaitable[Means]] | None = None,
    ) -> None:
        """`now`: seconds since the epoch. `keep`: hands changes to the ledger, and must not wait; `read`: the series
        of a job in the ledger, which has these that `diverged`; `means`: of its series of all jobs."""
        self._world, self._now, self._keep, self._read = world, now, keep, read
        self._means = means
        self._jobs: dict[int, _JobSeries] = {}
        self._loading: set[asyncio.Task[None]] = set()
        self._due = False
        self.not_finite = {job: not_finite_since(each) for job, each in diverged.items()}

    def heard(self, node: str, heartbeat: HeartbeatMessage) -> None:
        """Takes what a heartbeat says of jobs."""
        world, at = self._world(), self._now()
        for line in heartbeat.metrics:
            if line.name not in USE and NAME.fullmatch(line.name) and _is_known(world, line):
                for row in line.points:
                    if (point := _point(at, *row)) is not None:
                        self._add(line.job, line.name, point, at)
        for job, name, point in _use(world, node, heartbeat, at):
            self._add(job, name, point, at)

    def _add(self, job: int, name: str, point: Point, at: float) -> None:
        found = self._jobs.get(job)
        if found is None:
            found = self._jobs[job] = _JobSeries(at)
            task = asyncio.get_running_loop().create_task(self._load(job, found))
            self._loading.add(task)
            task.add_done_callback(self._loading.discard)
        found.heard_at = at
        found.add(name, point)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(GATHER_S, self._hand_over)

    async def _load(self, job: int, found: _JobSeries) -> None:
        try:
            found.load(await self._read(job))
        except Exception as error:  # the ledger is closed, or cannot be read: the next sample tries again
            log.warning("the series of job %d cannot be read: %s", job, error)
            if self._jobs.get(job) is found:
                del self._jobs[job]

    def _hand_over(self) -> None:
        """Hands over what has changed, and forgets jobs that are quiet."""
        self._due = False
        self.flush(POINTS_AT_ONCE)
        world, before = self._world(), self._now() - FORGET_S
        for number, job in list(self._jobs.items()):
            known = world.jobs.get(number)
            finished = known is None or known.finished
            if job.loaded and not job.changed and (finished or job.heard_at < before):
                if finished and (changes := _shortened(number, job.series)):
                    self._keep(changes)
                del self._jobs[number]
        if any(job.changed or not job.loaded or job.heard_at >= before for job in self._jobs.values()):
            self._due = True
            asyncio.get_running_loop().call_later(GATHER_S, self._hand_over)

    def flush(self, most: int | None = None) -> None:
        """Hands over what has changed, about `most` points of it; whose turn it was comes last the next time."""
        changes: list[SeriesChange] = []
        number_of_points = 0
        for number, job in list(self._jobs.items()):
            if most is not None and number_of_points >= most:
                break
            if job.changed:
                self._jobs[number] = self._jobs.pop(number)
            for name in sorted(job.changed):
                first, points = job.series[name].changes()
                job.changed.discard(name)
                changes.append(SeriesChange(number, name, first, tuple(points)))
                number_of_points += len(points)
            if job.loaded:
                self._note(number, job.series)
        if changes:
            self._keep(changes)

    def _note(self, number: int, series: Mapping[str, Series]) -> None:
        if since := divergences_of({name: each.points for name, each in series.items()}):
            self.not_finite[number] = not_finite_since(since)
        else:
            self.not_finite.pop(number, None)

    def recent(self, job: int) -> Points:
        """Its series as far as they are in memory: of every job that was heard of lately."""
        found = self._jobs.get(job)
        if found is None or not found.loaded:
            return {}
        return {name: list(each.points) for name, each in found.series.items()}

    async def means(self, names: Sequence[str]) -> Means:
        """The means of these series of all jobs, by job and name."""
        found = {} if self._means is None else {job: dict(means) for job, means in (await self._means(names)).items()}
        for number, job in self._jobs.items():
            for name in names:
                if job.loaded and name in job.series and (mean := mean_of(job.series[name].points)) is not None:
                    found.setdefault(number, {})[name] = mean
        return found

    async def points(self, job: int) -> Points:
        """The series of a job, by name."""
        found = self._jobs.get(job)
        return await self._read(job) if found is None or not found.loaded else self.recent(job)


def divergences_of(series: Points) -> dict[str, Divergence]:
    """Where the series of a job that have diverged did."""
    found = ((name, divergence(points)) for name, points in series.items())
    return {name: where for name, where in found if where is not None}


def _point(
    now: float,
    age_s: float,
    step: int,
    last: float | None,
    mean: float | None,
    low: float | None,
    high: float | None,
    samples: int,
    not_finite: int,
) -> Point | None:
    """A point as an agent says it, `age_s` ago; None of one that cannot be, which no file could hold either."""
    numbers = [each for each in (last, mean, low, high) if each is not None]
    if not (0 <= step < 1 << 53 and 0 <= not_finite <= samples < 1 << 31 and samples > 0 and math.isfinite(age_s)):
        return None
    if not all(-LARGEST < each < LARGEST for each in numbers) or len({each is None for each in (mean, low, high)}) > 1:
        return None
    return Point(min(now, now - age_s), step, last, mean, low, high, samples, not_finite)


def _is_known(world: World, line: MetricLine) -> bool:
    """Whether the job is one of the world's, and the attempt its newest."""
    job = world.jobs.get(line.job)
    return job is not None and line.incarnation == job.last_incarnation


def _use(world: World, node: str, heartbeat: HeartbeatMessage, at: float) -> Iterator[tuple[int, str, Point]]:
    """(job, series, sample) of what the jobs on a node use: the mean over the job's GPUs there."""
    gpus: dict[int, list[tuple[int | None, int | None, float | None]]] = {}
    for line in heartbeat.gpus:
        place = GpuRef(node, line.index)
        for holder in (world.holders.get(place), world.backgrounds.get(place)):
            if holder is not None:
                gpus.setdefault(holder[0], []).append((line.util, line.memory_mib, line.power_w))
    for job, samples in gpus.items():
        for name, values in zip(("gpu_util", "gpu_memory", "gpu_power"), zip(*samples, strict=True), strict=True):
            known = [value for value in values if value is not None and abs(value) < _MOST_USED]
            if known:
                yield job, name, _of_several(at, known)
    for trainer in heartbeat.trainers:
        if trainer.job in world.jobs:
            for name, value in (("cpu", trainer.cpu), ("memory", trainer.resident_mib)):
                if value is not None and abs(value) < _MOST_USED:
                    yield trainer.job, name, sample(at, None, value)


def _of_several(at: float, values: Sequence[float]) -> Point:
    """One sample of several GPUs: their mean, and the least and the most of them."""
    mean = sample(at, None, sum(values) / len(values))
    if mean.mean is None:
        return mean
    return Point(at, None, mean.last, mean.mean, float(min(values)), float(max(values)))


def _shortened(job: int, series: Mapping[str, Series]) -> list[SeriesChange]:
    """The changes that leave FINISHED points of each series at most; one that diverged keeps the step where it did."""
    return [
        SeriesChange(job, name, 0, tuple(thinned(each.points, FINISHED)))
        for name, each in series.items()
        if len(each.points) > FINISHED and divergence(each.points) is None
    ]
