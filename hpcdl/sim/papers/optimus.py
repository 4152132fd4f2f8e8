"""Optimus as the MARBLE paper runs it against MARBLE (section VII.C): it gives jobs nodes, not GPUs.

A policy for this one table: `hpcdl/sidecar/baselines.py` has Optimus as the SideCar paper runs it.
"""

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, Plan, View
from hpcdl.core.model.units import count
from hpcdl.core.model.world import JobState
from hpcdl.placement.pool import Pool, pool_of

PERIOD_S = 600.0
"""Seconds between two reallocations: "Optimus schedules DL jobs in 10 minutes slots"."""

_AT_ONCE_S = 1e-3


class OptimusNodes:
    """Optimus's allocation (Peng et al., EuroSys 2018, section 4.1) in units of nodes with all their GPUs.

    Each waiting job starts on one node. In every slot, free nodes are added one by one, each to the job whose remaining
    time it reduces most. A running job is suspended and resumed for it. What a restart costs does not enter, as there.
    """

    name = "optimus"

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        pool = pool_of(view)
        empty = [name for name, node in sorted(pool.nodes.items()) if len(pool.free[name]) == len(node.gpus)]
        given: dict[int, list[str]] = {}
        for job in pool.queue():
            if empty:
                given[job.id] = [empty.pop(0)]
            else:
                pool.refuse(job, "waits for an empty node")
        if view.now % PERIOD_S < _AT_ONCE_S:
            _add(view, given, empty)
        jobs = {job.id: job for job in view.jobs}
        for number, nodes in given.items():
            pool.give(jobs[number], _whole(pool, nodes), f"{count(len(nodes), 'whole node')} by marginal gain")
        plan = pool.plan()
        until = PERIOD_S - view.now % PERIOD_S
        return Plan(plan.targets, wake_at=view.now + (until if until > _AT_ONCE_S else PERIOD_S))


def _add(view: View, given: dict[int, list[str]], empty: list[str]) -> None:
    """Gives the empty nodes away: `given` has the nodes of jobs that start or change."""
    while empty:
        best, most = None, 0.0
        for job in view.jobs:
            gain = _gain_s(view, job, given.get(job.id))
            if gain > most:
                best, most = job, gain
        if best is None:
            return
        given.setdefault(best.id, list(best.placement.nodes) if best.placement is not None else []).append(empty.pop(0))


def _gain_s(view: View, job: JobView, nodes: list[str] | None) -> float:
    """Seconds by which one more node shortens the job; 0 where it cannot have one now."""
    held = job.placement
    if nodes is None and (held is None or job.leaving or job.state is not JobState.RUNNING or not job.can_suspend):
        return 0.0
    many = len(nodes) if nodes is not None else len(held.shares) if held is not None else 0
    left = job.remaining(view.now)
    if left is None or job.profile is None or job.blocked or not many or many >= job.nodes_max:
        return 0.0
    gpus = view.largest_node
    return left / job.profile.rate(gpus, many) - left / job.profile.rate(gpus, many + 1)


def _whole(pool: Pool, nodes: list[str]) -> Placement:
    return Placement(tuple(Share(name, pool.nodes[name].gpus) for name in sorted(nodes)), Role.PRIMARY)
