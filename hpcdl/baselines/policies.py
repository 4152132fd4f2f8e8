"""Shortest remaining time, least attained service (Tiresias) and max-min fairness: an order, and who fits into it.

Each gives a job the number of GPUs that it asked for (its maximum, as far as one node has it) or nothing, and suspends
what comes later in its order where the GPUs are wanted by what comes earlier. None decides how many.
"""

import math
from abc import ABC, abstractmethod

from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import JobView, Plan, View
from hpcdl.core.model.units import count, fold_nodes, seconds_text
from hpcdl.placement.pool import Pool, impossible, pool_of
from hpcdl.placement.shapes import packed


class Ordered(ABC):
    """Serves jobs in an order of its own: each the asked number of GPUs while they last, the rest nothing.

    A job keeps the GPUs that it holds as long as its turn comes in time. One that cannot be suspended comes first.
    """

    name = ""
    wake_s: float | None = None
    """Seconds after which the order may be another one though nothing happened."""

    @abstractmethod
    def order(self, job: JobView, view: View) -> float:
        """The job's key in the order: smaller is earlier."""

    @abstractmethod
    def words(self, job: JobView, view: View) -> str:
        """The job's place in the order, in words and numbers."""

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        pool = pool_of(view)
        waiting = [job for job in view.jobs if not job.blocked and (job.placement is None or not job.leaving)]
        for job in waiting:
            _take_back(pool, job)
        order = {job.id: (not _must_stay(job), -job.priority, self.order(job, view)) for job in waiting}
        served: dict[int, Placement] = {}
        for job in sorted(waiting, key=lambda job: (order[job.id], job.submitted_at, job.id)):
            placement = self._place(pool, job)
            if placement is not None:
                served[job.id] = placement
                where = f"{count(len(placement.gpus), 'GPU')} of {fold_nodes(placement.nodes)}"
                pool.give(job, placement, f"has {where}: {self.words(job, view)}")
            else:
                never = impossible(pool, job)
                asked = f"needs {count(_asked(pool, job) * job.nodes, 'GPU')}"
                pool.refuse(job, never or f"{asked}, held by those before it: {self.words(job, view)}")
        wake_at = None if self.wake_s is None or len(served) == len(waiting) else view.now + self.wake_s
        plan = pool.plan()
        return Plan(plan.targets, wake_at=wake_at)

    def _place(self, pool: Pool, job: JobView) -> Placement | None:
        own = job.placement or job.target
        if own is not None and all(set(share.gpus) <= set(pool.free.get(share.node, ())) for share in own.shares):
            return own
        return job.placement if _must_stay(job) else packed(pool, job.nodes, _asked(pool, job))


def _take_back(pool: Pool, job: JobView) -> None:
    """Its GPUs are free to be given, to itself or to others."""
    own = pool.placements.pop(job.id, None)
    pool.reasons.pop(job.id, None)
    if own is None:
        return
    for share in own.shares:
        node = pool.nodes.get(share.node)
        if node is not None:
            back = set(pool.free[share.node]) | (set(share.gpus) & set(node.gpus))
            pool.free[share.node] = sorted(back)


def _must_stay(job: JobView) -> bool:
    return job.placement is not None and not job.can_suspend


def _asked(pool: Pool, job: JobView) -> int:
    """GPUs on each node: as many as it takes, and as the largest nodes have, of which it needs so many."""
    sizes = sorted((len(node.gpus) for node in pool.view.nodes), reverse=True)
    numbers = job.allowed(sizes[job.nodes - 1]) if len(sizes) >= job.nodes else ()
    return numbers[-1] if numbers else job.gpus_min


class ShortestRemainingTime(Ordered):
    """Shortest remaining time first, preemptive: the time on the asked GPUs, as the profile predicts it.

    A job whose remaining time is not known comes last.
    """

    name = "srt"

    def order(self, job: JobView, view: View) -> float:
        """Seconds left on the asked GPUs; infinite where they are not known."""
        kind = view.kind_of(job.placement.nodes[0]) if job.placement is not None else ""
        left = job.remaining(view.now, kind)
        numbers = job.allowed(view.largest_node)
        if left is None or job.profile is None or not numbers:
            return math.inf
        # On the default type, wherever it runs: an order that changes with what it gives would turn in circles.
        return left / job.profile.rate(numbers[-1], job.nodes)

    def words(self, job: JobView, view: View) -> str:
        """See `Ordered.words`."""
        left = self.order(job, view)
        return "its remaining time is not known" if math.isinf(left) else f"{seconds_text(left)} left"


class LeastAttainedService(Ordered):
    """Tiresias (NSDI'19), discretised two-dimensional LAS: queues by GPU seconds attained, FIFO within a queue.

    `THRESHOLD_GPU_S` parts the two queues. The paper's other knob, promotion of what starves, is left out: while new
    jobs keep all GPUs busy, those of the second queue wait.
    """

    name = "las"
    wake_s = 300.0
    THRESHOLD_GPU_S = 3600.0

    def order(self, job: JobView, view: View) -> float:
        """0 for the first queue, 1 for the second."""
        return float(job.attained_gpu_s(view.now) >= self.THRESHOLD_GPU_S)

    def words(self, job: JobView, view: View) -> str:
        """See `Ordered.words`."""
        queue = "first" if self.order(job, view) == 0 else "second"
        return f"{job.attained_gpu_s(view.now) / 3600:.1f} GPU h attained, {queue} queue"


class MaxMinFairness(Ordered):
    """Max-min fairness over time, in rounds: who has had least is next. Unlike Gavel's (OSDI'20) blind to types of GPU.

    GPU seconds are counted in whole rounds, so that who runs keeps running for a round.
    """

    name = "max-min"
    wake_s = 360.0

    def order(self, job: JobView, view: View) -> float:
        """Whole rounds in which it has held the GPUs that it asked for."""
        asked = max(1, (job.allowed(view.largest_node) or (job.gpus_min,))[-1] * job.nodes)
        return float(job.attained_gpu_s(view.now) / asked // self.wake_s)

    def words(self, job: JobView, view: View) -> str:
        """See `Ordered.words`."""
        return f"{count(int(self.order(job, view)), 'round')} of {self.wake_s:.0f} s attained"
