"""The plan in the making with the end of every job in it, and what a change would do to the makespan."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from hpcdl.core.model import JobState, Placement, Role, Share
from hpcdl.core.plan import JobView, View
from hpcdl.core.units import GpuRef
from hpcdl.elastic import predict
from hpcdl.placing.pool import Pool, pool_of

MARGIN_S = 1.0
"""So long after a job is expected to train it is looked at again."""

LATE_S = 60.0
"""And so long after a look at which it should have trained and did not."""


class Forecast(NamedTuple):
    """`MS_predict` of Algorithms 1 and 2, smaller is better: compared in this order.

    The paper predicts a makespan from the remaining time of the running job and the completion of the incoming one and
    leaves open how the other jobs count and what decides between equals. Here it is that of the workload: the latest
    predicted end of all jobs that have GPUs or get them; among equals the smaller sum of ends (so, of JCTs); then
    fewer GPUs.
    """

    makespan_s: float
    sum_s: float
    gpus: int


@dataclass(slots=True)
class Held:
    """A job that has GPUs in the plan, and the seconds until it trains on them (0: it does) and until it ends.

    settled: this decision has dealt with it.
    """

    job: JobView
    placement: Placement
    trains_s: float
    ends_s: float
    settled: bool = False

    @property
    def node(self) -> str:
        """Its node, the first one of several."""
        return self.placement.shares[0].node

    @property
    def gpus(self) -> int:
        """GPUs on each of its nodes."""
        return self.placement.per_node


@dataclass(slots=True)
class Outlook:
    """A pool with the predicted end of every job that has GPUs in it.

    `promised`: ends of jobs that are initialised ahead, by id, seconds from now; they have no GPUs yet.
    """

    pool: Pool
    kinds: dict[str, str]
    held: dict[int, Held] = field(default_factory=dict)
    promised: dict[int, float] = field(default_factory=dict)
    _left: dict[int, float] = field(default_factory=dict)
    _ends: list[tuple[float, int]] = field(default_factory=list)
    _sum: float = 0.0

    @property
    def now(self) -> float:
        """The view's time."""
        return self.pool.view.now

    def steps_left(self, job: JobView) -> float:
        """Steps that the job still has to do."""
        left = self._left.get(job.id)
        if left is None:
            place = job.placement
            kind, gpus = ("", 0) if place is None else (self.kinds.get(place.nodes[0], ""), place.per_node)
            left = self._left[job.id] = predict.steps_left(job, self.now, kind, gpus)
        return left

    def rate(self, job: JobView, nodes: Iterable[str], gpus: int) -> float:
        """Steps/s of the job there: as on the slowest kind among these nodes."""
        return min(predict.rate(job, kind, gpus) for kind in {self.kinds.get(name, "") for name in nodes})

    def start_ends_s(self, job: JobView, nodes: tuple[str, ...], gpus: int, wait_s: float = 0.0) -> float:
        """The end of an incoming job on these GPUs; `wait_s`: for how long they keep its start waiting."""
        begins = wait_s + predict.start_s(job, self.now, nodes, gpus * len(nodes))
        return begins + self.steps_left(job) / self.rate(job, nodes, gpus)

    def reshaped_ends_s(self, held: Held, node: str, gpus: int, after_s: float = 0.0) -> float:
        """The end of a running job of one node with `gpus` GPUs on `node`, reshaped in `after_s` seconds."""
        left = self.steps_left(held.job) - after_s * self.rate(held.job, [held.node], held.gpus)
        if left <= 0:
            return held.ends_s
        stall = predict.reshape_s(held.job, held.gpus, gpus, moved=node != held.node)
        return after_s + stall + left / self.rate(held.job, [node], gpus)

    def put(self, job: JobView, placement: Placement, ends_s: float) -> None:
        """Notes that the job has these GPUs in the plan, and is settled."""
        before = self.held.get(job.id)
        if before is None:
            trains_s = predict.start_s(job, self.now, placement.nodes, len(placement.gpus))
        elif placement.same_gpus(before.placement):
            trains_s = before.trains_s
        else:
            moved = placement.nodes != before.placement.nodes
            trains_s = predict.reshape_s(job, len(before.placement.gpus), len(placement.gpus), moved)
        self.held[job.id] = Held(job, placement, trains_s, ends_s, settled=True)
        self.add_up()

    def look_again_at(self, waiting: bool) -> float | None:
        """When the next job begins to train, if that matters: it can be reshaped from then on.

        It does where jobs wait or GPUs are idle; so the Job Launcher "periodically checks the states of all GPUs and
        jobs" (section III-B).
        """
        if not waiting and not any(self.pool.free.values()):
            return None
        begin = [each.trains_s for each in self.held.values() if each.trains_s > 0 or each.job.step_at is None]
        return min((self.now + (LATE_S if seconds <= 0 else seconds + MARGIN_S) for seconds in begin), default=None)

    def add_up(self) -> None:
        """Reckons the sums that forecasts start from."""
        ends = {number: each.ends_s for number, each in self.held.items()} | self.promised
        self._ends = sorted(((end, number) for number, end in ends.items()), reverse=True)
        self._sum = sum(ends.values())

    def forecast(self, changed: Mapping[int, float] | None = None, gpus: int = 0) -> Forecast:
        """What is to be expected if these jobs' ends were others; `gpus`: how many more than now are given."""
        changed = changed or {}
        first = next((end for end, number in islice(self._ends, len(changed) + 1) if number not in changed), 0.0)
        latest = max(first, *changed.values()) if changed else first
        total = self._sum + sum(
            end - (self.held[number].ends_s if number in self.held else 0.0) for number, end in changed.items()
        )
        return Forecast(latest, total, gpus)

    def changeable(self) -> list[Held]:
        """Running jobs of one node that may be reshaped now, by id."""
        return [each for _, each in sorted(self.held.items()) if not each.settled and self._may_change(each)]

    def _may_change(self, held: Held) -> bool:
        job = held.job
        return (
            job.state is JobState.RUNNING
            and job.placement is not None
            and job.step_at is not None
            and job.can_suspend
            and not job.leaving
            and len(held.placement.shares) == 1
            and set(held.placement.shares[0].gpus) <= set(self._usable(held.node))
        )

    def _usable(self, node: str) -> tuple[int, ...]:
        found = self.pool.nodes.get(node)
        return () if found is None else found.gpus

    def fewer(self, held: Held, gpus: int) -> Placement:
        """The lowest `gpus` of its GPUs."""
        return Placement((Share(held.node, held.placement.shares[0].gpus[:gpus]),), Role.PRIMARY)

    def other(self, held: Held, node: str, gpus: int) -> Placement:
        """`gpus` GPUs on `node`: on its own node those that it has and the lowest free ones."""
        own = held.placement.shares[0].gpus if node == held.node else ()
        return Placement((Share(node, tuple(sorted((*own, *self.pool.free[node])[:gpus]))),), Role.PRIMARY)


def _restart_s(job: JobView, now: float, placement: Placement) -> float:
    """Seconds until a job that is between two placements, or has none yet, trains on this one."""
    if job.placement is None:
        return predict.start_s(job, now, placement.nodes, len(placement.gpus))
    moved = job.placement.nodes != placement.nodes
    return predict.reshape_s(job, len(job.placement.gpus), len(placement.gpus), moved)


def _take_back(pool: Pool, job: JobView, placement: Placement) -> None:
    """The job is in the queue again, and what is free of its GPUs is so for all."""
    del pool.placements[job.id], pool.reasons[job.id]
    held = {gpu for each in pool.view.jobs if each.placement is not None for gpu in each.placement.gpus}
    for node, gpu in placement.gpus:
        if GpuRef(node, gpu) not in held:
            pool.free[node] = sorted({*pool.free[node], gpu})


def outlook_of(view: View) -> Outlook:
    """The outlook when every job keeps what it has or is about to have."""
    pool = pool_of(view)
    outlook = Outlook(pool, {node.name: node.kind for node in view.nodes})
    for job in view.jobs:
        placement = pool.placements.get(job.id)
        if placement is None:
            continue
        if predict.initialisation_left_s(job, view.now) > 0 and job.placement is None:
            _take_back(pool, job, placement)  # it is still being initialised, and what it waited for has become free
            continue
        running = job.placement is not None and placement.same_gpus(job.placement)
        wait = predict.stalled_s(job, view.now) if running else _restart_s(job, view.now, placement)
        ends = wait + outlook.steps_left(job) / outlook.rate(job, placement.nodes, placement.per_node)
        outlook.held[job.id] = Held(job, placement, wait, ends, settled=not running)
    outlook.add_up()
    return outlook
