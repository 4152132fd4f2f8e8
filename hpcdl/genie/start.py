"""Starts of jobs one after another on what is free, and the words of GENIE's policies: why a job runs or waits.

Shared by genie/policy.py and genie/baselines.py; none of them suspends anything.
"""

from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.units import count, fold_nodes, seconds_text
from hpcdl.genie.model import THETA, expected_at, platform_of, startup_s
from hpcdl.placement.pool import Pool, most_free, pool_of
from hpcdl.placement.shapes import packed


class Launch:
    """A decision's starts. Free GPUs only become fewer, so what did not fit once is not tried again.

    `pool`: what is free, in which jobs that keep their GPUs have been given the reason why; `platform`: all there is.
    """

    def __init__(self, view: View, theta: float = THETA) -> None:
        self.pool, self.platform = pool_of(view), platform_of(view, theta)
        _keep(self.pool)
        self._full: set[tuple[int, int, str | None]] = set()
        self._most = ""
        self._enough: dict[int, int] = {}

    def start(self, job: JobView, nodes: int, gpus: int, kind: str | None = None) -> bool:
        """Gives the job `gpus` GPUs on each of `nodes` nodes, if they are free; `kind`: of that type."""
        shape = (nodes, gpus, kind)
        if shape in self._full:
            return False
        placement = packed(self.pool, nodes, gpus, kind)
        if placement is None:
            self._full.add(shape)
            return False
        self.pool.give(job, placement, started(self.pool, job, placement))
        self._most = ""
        self._enough.clear()
        return True

    def free(self, nodes: int, gpus: int) -> str:
        """What is free, as it matters to a job that needs `gpus` GPUs on each of `nodes` nodes."""
        if nodes == 1:
            self._most = self._most or most_free(self.pool)
            return self._most
        if gpus not in self._enough:
            self._enough[gpus] = sum(len(free) >= gpus for free in self.pool.free.values())
        return f"{count(self._enough[gpus], 'node')} with them free"


def _keep(pool: Pool) -> None:
    """Says of the jobs that keep their GPUs when they will be done."""
    for job in pool.view.jobs:
        kept = pool.placements.get(job.id)
        if kept is None or job.placement is None or not kept.same_gpus(job.placement):
            continue
        if all(name in pool.nodes for name in kept.nodes):
            pool.reasons[job.id] = started(pool, job, kept)


def started(pool: Pool, job: JobView, placement: Placement) -> str:
    """The reason of a job that has its GPUs."""
    kind = pool.nodes[placement.nodes[0]].kind
    return f"on {where(placement)}{outcome_words(job, placement, pool.view.now, kind, expected_at(job))}"


NO_FIT = "no numbers of GPUs that it takes are there on its nodes"


def shape(nodes: int, gpus: int) -> str:
    """A shape in words: `2 GPUs on one node`, `2 GPUs on each of 3 nodes`."""
    return f"{count(gpus, 'GPU')} on one node" if nodes == 1 else f"{count(gpus, 'GPU')} on each of {nodes} nodes"


def where(placement: Placement) -> str:
    """A placement in words: `2 GPUs of n1`, `2 GPUs each of n[1-3]`."""
    each = "" if len(placement.shares) == 1 else " each"
    return f"{count(placement.per_node, 'GPU')}{each} of {fold_nodes(placement.nodes)}"


def _perhaps(job: JobView) -> str:
    """What an estimate that rests on steps of jobs alike begins with."""
    return "perhaps " if job.profile is not None and job.profile.trials else ""


def allowance_words(job: JobView, allowance: float | None) -> str:
    """The waiting allowance (eq. 13) for people."""
    if allowance is None:
        return "behind the jobs with a deadline: its length is not known"
    if allowance < 0:
        return f"would be {_perhaps(job)}{seconds_text(-allowance)} late if it started now"
    return f"it can wait {seconds_text(allowance)} and still be on time"


def outcome_words(job: JobView, placement: Placement, now: float, kind: str, due: float | None) -> str:
    """When the job will end on these GPUs, and how that lies to `due`; "" where it is not known."""
    left = job.remaining(now, kind)
    if left is None or job.profile is None:
        return ""
    rate = job.profile.on(kind).rate(placement.per_node, len(placement.shares))
    start = 0.0 if job.step_at is not None and job.placement is not None else startup_s(job, len(placement.gpus))
    ends = now + start + left / rate
    text = f"; done in {seconds_text(ends - now)}"
    if due is None:
        return text
    return f"{text}, {_perhaps(job)}{seconds_text(abs(due - ends))} {'before it is due' if ends <= due else 'late'}"
