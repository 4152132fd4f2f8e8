"""Predicted ends: a plan in the making with the end of every job in it, and what a change does to the makespan.

The cost terms are those of section III-C of the paper, in seconds from now: a job's initialisation, the start of its
training process, training, checkpoint, and the end of process and job. `Profile.startup_s` holds the first two, of
which `gate_s` (the early initialisation) may be over before there are GPUs; `Profile.restart_s` holds checkpoint, stop
and start for a reshape. What comes after the last step is the same on any number of GPUs: it is left out, but under
`elastic-letter` (`PoolForecast.end_terms`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState
from hpcdl.placement.connections import closest
from hpcdl.placement.pool import Pool, pool_of

MARGIN_S = 1.0
"""So long after a job is expected to train it is looked at again."""

LATE_S = 60.0
"""And so long after a look at which it should have trained and did not."""


class MakespanForecast(NamedTuple):
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
class RunningJob:
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
class PoolForecast:
    """A pool with the predicted end of every job that has GPUs in it.

    `promised`: ends of jobs that are initialised ahead, by id, seconds from now; they have no GPUs yet. `end_terms`:
    ends hold the checkpoint before the termination, and the terminations of process and job (`Profile.save_for`).
    """

    pool: Pool
    kinds: dict[str, str]
    end_terms: bool = False
    held: dict[int, RunningJob] = field(default_factory=dict)
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
            left = self._left[job.id] = steps_left(job, self.now, kind, gpus)
        return left

    def rate(self, job: JobView, nodes: Iterable[str], gpus: int) -> float:
        """Steps/s of the job there: as on the slowest kind among these nodes."""
        return min(rate(job, kind, gpus) for kind in {self.kinds.get(name, "") for name in nodes})

    def start_ends_s(self, job: JobView, nodes: tuple[str, ...], gpus: int, wait_s: float = 0.0) -> float:
        """The end of an incoming job on these GPUs; `wait_s`: for how long they keep its start waiting."""
        begins = wait_s + start_s(job, self.now, nodes, gpus * len(nodes))
        return begins + self.steps_left(job) / self.rate(job, nodes, gpus) + self.terminates_s(job)

    def reshaped_ends_s(self, held: RunningJob, node: str, gpus: int, after_s: float = 0.0) -> float:
        """The end of a running job of one node with `gpus` GPUs on `node`, reshaped in `after_s` seconds."""
        left = self.steps_left(held.job) - after_s * self.rate(held.job, [held.node], held.gpus)
        if left <= 0:
            return held.ends_s
        stall = reshape_s(held.job, held.gpus, gpus, moved=node != held.node)
        return after_s + stall + left / self.rate(held.job, [node], gpus) + self.terminates_s(held.job)

    def terminates_s(self, job: JobView) -> float:
        """What comes after the last step: checkpoint, and the end of process and job; 0 without `end_terms`."""
        return job.profile.save_for(moved=True) if self.end_terms and job.profile is not None else 0.0

    def put(self, job: JobView, placement: Placement, ends_s: float) -> None:
        """Notes that the job has these GPUs in the plan, and is settled."""
        before = self.held.get(job.id)
        if before is None:
            trains_s = start_s(job, self.now, placement.nodes, len(placement.gpus))
        elif placement.same_gpus(before.placement):
            trains_s = before.trains_s
        else:
            moved = placement.nodes != before.placement.nodes
            trains_s = reshape_s(job, len(before.placement.gpus), len(placement.gpus), moved)
        self.held[job.id] = RunningJob(job, placement, trains_s, ends_s, settled=True)
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
        """Computes the sums that forecasts start from."""
        ends = {number: each.ends_s for number, each in self.held.items()} | self.promised
        self._ends = sorted(((end, number) for number, end in ends.items()), reverse=True)
        self._sum = sum(ends.values())

    def forecast(self, changed: Mapping[int, float] | None = None, gpus: int = 0) -> MakespanForecast:
        """The makespan predicted if these jobs' ends were others; `gpus`: how many more than now are given."""
        changed = changed or {}
        first = next((end for end, number in islice(self._ends, len(changed) + 1) if number not in changed), 0.0)
        latest = max(first, *changed.values()) if changed else first
        total = self._sum + sum(
            end - (self.held[number].ends_s if number in self.held else 0.0) for number, end in changed.items()
        )
        return MakespanForecast(latest, total, gpus)

    def changeable(self) -> list[RunningJob]:
        """Running jobs of one node that may be reshaped now, by id."""
        return [each for _, each in sorted(self.held.items()) if not each.settled and self._may_change(each)]

    def _may_change(self, held: RunningJob) -> bool:
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

    def fewer(self, held: RunningJob, gpus: int) -> Placement:
        """Its placement with fewer GPUs: the best connected of those that it has, else the lowest."""
        kept = closest(held.placement.shares[0].gpus, gpus, self.pool.distances(held.node))
        return Placement((Share(held.node, kept),), Role.PRIMARY)

    def other(self, held: RunningJob, node: str, gpus: int) -> Placement:
        """A placement of `gpus` GPUs on `node`: on its own node those that it has and the lowest free ones."""
        own = held.placement.shares[0].gpus if node == held.node else ()
        distances = self.pool.distances(node)
        kept = closest(own, min(gpus, len(own)), distances)
        return Placement((Share(node, closest(self.pool.free[node], gpus - len(kept), distances, kept)),), Role.PRIMARY)


def _restart_s(job: JobView, now: float, placement: Placement) -> float:
    """Seconds until a job that is between two placements, or has none yet, trains on this one."""
    if job.placement is None:
        return start_s(job, now, placement.nodes, len(placement.gpus))
    moved = job.placement.nodes != placement.nodes
    return reshape_s(job, len(job.placement.gpus), len(placement.gpus), moved)


def _take_back(pool: Pool, job: JobView, placement: Placement) -> None:
    """The job is in the queue again, and what is free of its GPUs is so for all."""
    del pool.placements[job.id], pool.reasons[job.id]
    held = {gpu for each in pool.view.jobs if each.placement is not None for gpu in each.placement.gpus}
    for node, gpu in placement.gpus:
        if GpuRef(node, gpu) not in held:
            pool.free[node] = sorted({*pool.free[node], gpu})


def outlook_of(view: View, end_terms: bool = False) -> PoolForecast:
    """The forecast of a view in which every job keeps what it has or is about to have."""
    pool = pool_of(view)
    outlook = PoolForecast(pool, {node.name: node.kind for node in view.nodes}, end_terms)
    for job in view.jobs:
        placement = pool.placements.get(job.id)
        if placement is None:
            continue
        if initialisation_left_s(job, view.now) > 0 and job.placement is None:
            _take_back(pool, job, placement)  # it is still being initialised, and what it waited for has become free
            continue
        running = job.placement is not None and placement.same_gpus(job.placement)
        wait = stalled_s(job, view.now) if running else _restart_s(job, view.now, placement)
        ends = wait + outlook.steps_left(job) / outlook.rate(job, placement.nodes, placement.per_node)
        ends += outlook.terminates_s(job)
        outlook.held[job.id] = RunningJob(job, placement, wait, ends, settled=not running)
    outlook.add_up()
    return outlook


UNKNOWN_S = 600.0
"""A job of unknown length is taken to go on for as long as it has, and for this many seconds at least."""

_NO_COSTS = Profile("unknown", ((1, 1, 1.0),))


def rate(job: JobView, kind: str, gpus: int) -> float:
    """Steps/s on `gpus` GPUs of that kind on each of its nodes. A job without a profile is taken to scale linearly."""
    if job.profile is None:
        return float(gpus * job.nodes)
    return job.profile.on(kind).rate(gpus, job.nodes)


def steps_left(job: JobView, now: float, kind: str, held: int) -> float:
    """Steps still to do; `kind` and `held`: the GPUs per node that it holds, 0 without any.

    Where no number of steps was given, what Optimus's fit to the reported accuracies says; else as many again as it
    has done.
    """
    known = job.remaining(now, kind)
    if known is not None:
        return known
    done = job.steps(now, kind)
    if job.accuracy_target is not None and job.accuracy:
        from hpcdl.estimators.convergence import predict_steps  # SciPy takes long to load, and few jobs need it

        predicted = predict_steps(job.accuracy, job.accuracy_target)
        if predicted is not None:
            return max(0.0, predicted - done)
    return max(done, UNKNOWN_S * rate(job, kind, max(held, job.gpus_min)))


def initialisation_left_s(job: JobView, now: float) -> float:
    """Seconds of early initialisation that a job which has never been started still has before it."""
    if job.profile is None or job.at_gate or job.state is not JobState.QUEUED or job.started_at is not None:
        return 0.0
    # One that is never started ahead by us fetches what it needs from its submission on, or has nothing to fetch.
    since = job.ahead_since if job.gate else job.submitted_at
    return job.profile.gate_s if since is None else max(0.0, job.profile.gate_s - max(0.0, now - since))


def start_s(job: JobView, now: float, nodes: tuple[str, ...], gpus: int) -> float:
    """Seconds until a job that holds nothing trains on `gpus` GPUs in all that are free on these nodes."""
    profile = job.profile or _NO_COSTS
    if job.last is not None:
        return profile.restart_s(len(job.last.gpus), gpus, moved=job.last.nodes != nodes, running=False)
    return profile.startup_s - profile.gate_s + initialisation_left_s(job, now)


def stalled_s(job: JobView, now: float) -> float:
    """Seconds until a job that holds GPUs trains on them; 0 while it does."""
    if job.step_at is not None or job.placement is None or job.profile is None:
        return 0.0
    since = now if job.held_since is None else job.held_since
    gpus = len(job.placement.gpus)
    if job.last is not None:
        moved = job.last.nodes != job.placement.nodes
        whole = job.profile.resume_for(len(job.last.gpus), gpus, moved)
    else:
        ahead = min(job.profile.gate_s, max(0.0, since - job.submitted_at))
        whole = job.profile.startup_s - ahead
    return max(0.0, whole - max(0.0, now - since))


def reshape_s(job: JobView, before: int, after: int, moved: bool) -> float:
    """Seconds without progress of a running job that goes from `before` GPUs in all to `after`."""
    return (job.profile or _NO_COSTS).restart_s(before, after, moved=moved, running=True)
