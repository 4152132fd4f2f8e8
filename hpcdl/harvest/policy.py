"""Two levels: trainers on several nodes by an exact optimisation, jobs on single nodes packed on the others.

How many nodes are for whom is decided by the same optimisation: packing takes part in it as one more trainer for each
group of nodes, whose value of n nodes is what the jobs that would share them train there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcdl.adaptive import Adaptive
from hpcdl.core.model.plan import BY_SETTING, JobView, Plan, Policy, Standing, Targets, View
from hpcdl.core.model.units import count
from hpcdl.core.model.world import JobState, Target
from hpcdl.harvest.packing import packs_of, trainer_of
from hpcdl.marble import Marble
from hpcdl.milp import Reallocation
from hpcdl.milp.case import AllocationCase, case_of
from hpcdl.milp.counting import Counting
from hpcdl.milp.layout import NodeCounts
from hpcdl.milp.policy import NodeOptimiser, placed, solved
from hpcdl.milp.values import lefts_of
from hpcdl.placement.pool import no_nodes
from hpcdl.solver import ElasticTrainer


class Harvest(NodeOptimiser):
    """Elastic trainers over whole nodes as `bftrainer`; jobs on single nodes as `packing` says, on the other nodes.

    Jobs that may have more than one node are trainers. What they do not get is for packing; what single-node jobs hold
    there and cannot leave stays theirs. The first of all jobs, of both kinds, gets its turn after PATIENCE_S.
    """

    name = "harvest"
    sharing = BY_SETTING

    def __init__(self, settings: Reallocation | None = None, counting: Counting | None = None) -> None:
        """See `NodeOptimiser`."""
        super().__init__(settings, counting)
        self.packing: Policy = Marble() if self.settings.packing == "marble" else Adaptive()

    def _decide(self, view: View, counting: Counting) -> Plan:
        wide = frozenset(job.id for job in view.jobs if job.nodes_max > 1)
        if not wide:
            return self.packing.decide(view)
        singles = tuple(job for job in view.jobs if job.id not in wide)
        stuck = _stuck(singles)
        case = case_of(view, self.settings.parallel, wide, stuck)
        first = next((job for job in singles if not job.blocked), None)

        def beside(horizon_s: float, must: bool) -> list[ElasticTrainer]:
            return self._packing(case, singles, stuck, horizon_s, first if must else None)

        decided = solved(case, self.settings, counting, beside if first is not None else None, first)
        _keep(case, decided, singles)
        wide_plan = placed(case, decided)
        named = dict(wide_plan.named)
        below = _below(view, named, singles)
        plan: Plan | None = None
        if below.view.nodes and singles:
            plan = self.packing.decide(below.view)
            named.update(_said(plan, below))
        else:
            named.update(_nothing(view, below, len(case.where)))
        inner = plan.targets if plan is not None else ()

        def why(job: JobView) -> str:
            if job.id in wide:
                return wide_plan.reason(job)
            if isinstance(inner, Targets):
                return inner.of(below.view.by_id[job.id]).reason
            return _waits(view, job, len(case.where))

        wakes = [wide_plan.wake_at, None if plan is None else plan.wake_at]
        return Plan(
            Targets(view, named, why),
            () if plan is None else tuple(number for number in plan.warm if number not in below.moved),
            min((at for at in wakes if at is not None), default=None),
            wide_plan.decided.optimal and (plan is None or plan.optimal),
            decided.bound,
            decided.gap,
            decided.solver,
            decided.trouble,
        )

    def _packing(
        self,
        case: AllocationCase,
        singles: Sequence[JobView],
        stuck: frozenset[str],
        horizon_s: float,
        first: JobView | None,
    ) -> list[ElasticTrainer]:
        """Trainers that stand for packing. `first`: a job that must get its turn."""
        kinds = {kind: number for number, kind in enumerate(case.kinds)}
        kept, used = [0] * len(kinds), [0] * len(kinds)
        for name in stuck:
            node = case.nodes.get(name)
            at = None if node is None else kinds.get((node.kind, len(node.gpus)))
            if at is not None:
                kept[at] += 1
        for name in _used(case, singles):
            used[case.where[name]] += 1
        lefts = lefts_of(case) if case.view.objective == "jct" else []
        packs = packs_of(case, singles, kept, used, self.settings.packing == "marble")
        due = None
        if first is not None and not (first.placement is not None and set(first.placement.nodes) <= stuck):
            due = next((pack.group for pack in packs if first in pack.jobs), None)
        found = [trainer_of(case, pack, horizon_s, lefts, pack.group == due) for pack in packs]
        return [trainer for trainer in found if trainer is not None]


def _stuck(singles: Sequence[JobView]) -> frozenset[str]:
    """Nodes that packing keeps: of jobs that cannot be suspended, or that are blocked and about to leave."""
    return frozenset(
        name
        for job in singles
        if job.placement is not None and (job.blocked or not (job.can_suspend or job.leaving))
        for name in job.placement.nodes
    )


def _used(case: AllocationCase, singles: Sequence[JobView]) -> list[str]:
    """Nodes that can be given and that these jobs hold, or are about to get; those with most of their GPUs first."""
    trainers = {name for each in case.candidates for name in each.current}
    load: dict[str, int] = {}
    for job in singles:
        aim = job.target if job.placement is None or job.leaving else job.placement
        for share in () if aim is None else aim.shares:
            if share.node in case.where and share.node not in trainers:
                load[share.node] = load.get(share.node, 0) + len(share.gpus)
    return sorted(load, key=lambda name: (-load[name], name))


def _keep(case: AllocationCase, decided: NodeCounts, singles: Sequence[JobView]) -> None:
    """Takes out of the case the nodes that packing has and is to keep: as many as it gets, the fullest ones."""
    beside = slice(len(case.candidates), None)
    left = {group: many for many, group in zip(decided.counts[beside], decided.groups[beside], strict=True)}
    gone = set()
    for name in _used(case, singles):
        group = case.where[name]
        if left.get(group, 0) > 0:
            left[group] -= 1
            gone.add(name)
    if gone:
        case.names = [[name for name in names if name not in gone] for names in case.names]
        case.where = {name: group for name, group in case.where.items() if name not in gone}


@dataclass(frozen=True, slots=True)
class _Below:
    """What the packing policy sees. `moved`: ids of jobs whose node was taken: they look as if they were suspended."""

    view: View
    moved: frozenset[int]


def _below(view: View, named: dict[int, Target], singles: Sequence[JobView]) -> _Below:
    """All nodes that no trainer gets or holds on to, and the single-node jobs."""
    gone: set[str] = set()
    for job in view.jobs:
        if job.nodes_max == 1:
            continue
        target = named.get(job.id)
        if target is not None:
            placement = target.placement
        elif job.standing is Standing.STEADY:
            placement = job.placement
        else:
            placement = job.placement if job.blocked else None
        if placement is not None:
            gone.update(placement.nodes)
    nodes = tuple(node for node in view.nodes if node.name not in gone)
    jobs, moved = [], set()
    for job in singles:
        seen = job
        if job.target is not None and not gone.isdisjoint(job.target.nodes):
            seen = replace(seen, target=None)
        if job.standing is Standing.STEADY and job.placement is not None and not gone.isdisjoint(job.placement.nodes):
            moved.add(job.id)
            seen = _as_suspended(job, view)
        jobs.append(seen)
    return _Below(
        View(view.now, nodes, tuple(jobs), view.objective, view.bare, view.gaps, view.arrivals),
        frozenset(moved),
    )


def _as_suspended(job: JobView, view: View) -> JobView:
    """The job as it will be once it has left its node."""
    kind = "" if job.placement is None else view.kind_of(job.placement.nodes[0])
    return replace(
        job,
        state=JobState.SUSPENDED,
        placement=None,
        target=None,
        last=job.placement,
        step=int(job.steps(view.now, kind)),
        step_at=None,
        held_gpu_s=job.attained_gpu_s(view.now),
        held_since=None,
    )


def _said(plan: Plan, below: _Below) -> dict[int, Target]:
    """The packing policy's targets, but for those that its plan does not name and that say nothing new."""
    targets = plan.targets
    if not isinstance(targets, Targets):
        return {target.job: target for target in targets}
    said = dict(targets.named)
    for number in below.moved:
        said[number] = targets.of(below.view.by_id[number])
    return said


def _nothing(view: View, below: _Below, nodes: int) -> dict[int, Target]:
    """Single-node jobs that have to leave, where no node is left for them."""
    return {number: Target(number, None, _waits(view, view.by_id[number], nodes)) for number in sorted(below.moved)}


def _waits(view: View, job: JobView, nodes: int) -> str:
    if job.blocked:
        return job.blocked
    if job.standing is Standing.STEADY and job.placement is not None:
        return f"keeps {count(len(job.placement.gpus), 'GPU')} of a node whose agent is away"
    if not view.nodes:
        return no_nodes(view, job)
    return f"trainers on several nodes gain more from {count(nodes, 'node')} now"
