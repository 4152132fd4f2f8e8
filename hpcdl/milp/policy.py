"""The policies `bftrainer` and `equal-share`: nodes for elastic trainers, at every event.

`bftrainer` is the optimisation of the paper (HPDC 2021), `equal-share` its baseline (section 5.1). From a view to a
plan: case.py, values.py, hpcdl/solver, layout.py, break_even.py, reasons.py. hpcdl/harvest solves the same case with
packing beside it. No policy keeps state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcdl.core.model.plan import JobView, Plan, Standing, Targets, View
from hpcdl.core.model.world import Target
from hpcdl.milp.break_even import horizon_of, paying, without_useless
from hpcdl.milp.case import AllocationCase, TrainerCandidate, case_of
from hpcdl.milp.counting import Counting, exact_counts
from hpcdl.milp.layout import NodeCounts, nodes_of, placement_of
from hpcdl.milp.measuring import hopeful, looks_at, measuring
from hpcdl.milp.pricing import LENGTH_S, LOOK_S, priced, unseen
from hpcdl.milp.reasons import CandidateDecision, kept, reason, waits
from hpcdl.milp.values import Reallocation, t_fwd, trainers
from hpcdl.solver import ElasticTrainer

PATIENCE_S = 4 * 3600.0

PATIENCE_RUNS = 4.0
"""PATIENCE_S and PATIENCE_RUNS times its own length on one node after its submission a job is overdue. If it is first
of all jobs, it must then get nodes, whatever that costs. When it is done another one is first: nobody starves."""


class NodeOptimiser(ABC):
    """What the policies have in common that decide numbers of nodes by optimisation."""

    deadlines = "deadline"

    def __init__(self, settings: Reallocation | None = None, counting: Counting | None = None) -> None:
        """`counting`: decides the counts in `deliberate`, and may take seconds; None: the exact choice does."""
        self.settings = settings or Reallocation()
        self._counting = counting

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        return self._decide(view, exact_counts)

    @property
    def deliberate(self) -> Callable[[View], Plan] | None:
        """See `Policy.deliberate`."""
        counting = self._counting
        return None if counting is None else lambda view: self._decide(view, counting)

    @abstractmethod
    def _decide(self, view: View, counting: Counting) -> Plan:
        """The plan for the view, by counts of `counting`."""


class BFTrainer(NodeOptimiser):
    """Section 3 of the paper at every decision, over counts of nodes (which suffice: hpcdl/solver).

    FCFS: the first jobs, as many as may run in parallel, are the trainers (`case_of`). Each gets as many whole nodes as
    are best for all of them together over the forward-looking time, rescale costs included (`values`). Who falls below
    its fewest nodes waits. Where it is known when nodes leave, nothing is started or grown on them that cannot pay.
    """

    name = "bftrainer"

    def _decide(self, view: View, counting: Counting) -> Plan:
        case = case_of(view, self.settings.parallel)
        return planned(case, solved(case, self.settings, counting))


Beside = Callable[[float, bool], list[ElasticTrainer]]
"""What else wants nodes, as trainers of their own: for a horizon in seconds, and whether some must get nodes."""


def solved(
    case: AllocationCase,
    settings: Reallocation,
    counting: Counting = exact_counts,
    beside: Beside | None = None,
    first: JobView | None = None,
) -> NodeCounts:
    """The best counts for the candidates of a case, and after them for what else wants nodes.

    `first`: the first of the jobs for which `beside` speaks. Of all jobs that wait or run, the first one must get nodes
    once it is overdue.
    """
    view = case.view
    hopeful(case)
    horizon_s = t_fwd(settings, view.gaps, max((each.its.up_s for each in case.candidates), default=0.0))
    if case.some_end and case.candidates:
        without_useless(case)
        horizon_s = horizon_of(case, horizon_s)
    ours = case.candidates[0].job if case.candidates else None
    oldest = min((job for job in (ours, first) if job is not None), key=lambda job: job.order, default=None)
    if oldest is None:
        return NodeCounts((), (), 0.0, True, 0.0, 0.0)
    due_at = overdue_at(case, oldest)
    due = due_at <= view.now
    asked = trainers(case, horizon_s, oldest.id if due else None)
    if beside is not None:
        asked += beside(horizon_s, due and oldest is first)
    counted = counting(asked, case.capacities)
    found = counted.allotment
    raised = due or any(each.must for each in case.candidates)
    waits = oldest.placement is None if oldest is first else not found.counts[0]
    best = NodeCounts(
        found.counts,
        found.groups,
        horizon_s,
        found.optimal,
        None if raised else found.bound,
        found.gap,
        due_at if waits and not due else None,
        counted.solver,
        counted.trouble,
    )
    return measuring(case, best)


def overdue_at(case: AllocationCase, job: JobView) -> float:
    """When the job is to get nodes before all others, should it then be the first one."""
    length_s = LENGTH_S if job.total is None else job.total / priced(job, case.kinds, holds=False).unit
    return job.submitted_at + PATIENCE_S + PATIENCE_RUNS * length_s


def planned(case: AllocationCase, decided: NodeCounts) -> Plan:
    """The plan that gives each candidate of a case its nodes; the case is of all jobs of the view."""
    mine = placed(case, decided)

    def why(job: JobView) -> str:
        return mine.reason(job)

    return Plan(
        Targets(case.view, mine.named, why),
        wake_at=mine.wake_at,
        optimal=mine.decided.optimal,
        bound=decided.bound,
        gap=decided.gap,
        solver=decided.solver,
        trouble=decided.trouble,
    )


@dataclass(frozen=True, slots=True)
class CaseTargets:
    """What was decided of the jobs of a case. `named`: targets of those for which something changes."""

    case: AllocationCase
    decided: NodeCounts
    named: dict[int, Target]
    said: dict[int, CandidateDecision]
    wake_at: float | None

    def reason(self, job: JobView) -> str:
        """Why a job of the case has what it has."""
        about = self.said.get(job.id)
        if about is not None:
            return reason(self.case, about)
        return kept(self.case, job) if job.id in self.case.kept else waits(self.case, job)


def placed(case: AllocationCase, decided: NodeCounts) -> CaseTargets:
    """GPUs of nodes for what was decided."""
    view = case.view
    known = case.some_end
    loss = []
    if known:
        for each, many, group in zip(case.candidates, decided.counts, decided.groups, strict=False):
            curve = None if group is None else each.its.curves[group]
            loss.append(0.0 if curve is None else each.its.lose_s * curve.rate(many) / each.its.unit)
    chosen = nodes_of(case, decided.counts, decided.groups, loss, decided.horizon_s)
    short = dict(decided.why)
    if known and decided.horizon_s:
        decided, chosen, useless = paying(case, decided, chosen)
        short |= useless
    named: dict[int, Target] = {}
    said: dict[int, CandidateDecision] = {}
    wakes = [] if decided.wake_at is None else [decided.wake_at]
    for each, names, many, group in zip(case.candidates, chosen, decided.counts, decided.groups, strict=False):
        job = each.job
        placement = placement_of(case, each, names)
        said[job.id] = about = CandidateDecision(each, many, group, decided.horizon_s, short.get(job.id, ""))
        if placement is not job.placement or job.standing is not Standing.STEADY:
            named[job.id] = Target(job.id, placement, reason(case, about))
        if placement is not None and unseen(job):
            wakes.append(view.now + LOOK_S)
        if placement is not None and group is not None and decided.horizon_s:
            look_at = looks_at(case, each, many, group)
            wakes += [] if look_at is None else [look_at]
    for job in view.steady:
        if job.id not in said and job.id not in case.kept and case.about(job):
            named[job.id] = Target(job.id, None, waits(case, job))
    return CaseTargets(case, decided, named, said, min(wakes, default=None))


class EqualShare:
    """BFTrainer's baseline (section 5.1): the nodes are split equally among the parallel trainers.

    Each gets as many as any other, between its fewest and its most.

    FCFS as `bftrainer`; what a rescale costs does not matter. Where nodes do not suffice for the fewest of all, the
    first ones have theirs; what is left of an equal split goes to the first ones too. With several groups of nodes a
    trainer stays in its own, and one that starts goes where most nodes are left for each.
    """

    name = "equal-share"

    def __init__(self, settings: Reallocation | None = None) -> None:
        self.settings = settings or Reallocation()

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        case = case_of(view, self.settings.parallel)
        counts, groups = shares(case)
        return planned(case, NodeCounts(counts, groups, 0.0))


def shares(case: AllocationCase) -> tuple[list[int], list[int | None]]:
    """Nodes and group of each candidate."""
    capacities = case.capacities
    members: list[list[int]] = [[] for _ in capacities]
    counts = [0] * len(case.candidates)
    groups: list[int | None] = [None] * len(counts)
    left = list(capacities)
    order = sorted(range(len(counts)), key=lambda number: not case.candidates[number].must)
    for number in order:
        each = case.candidates[number]
        fitting = [at for at, gpus in enumerate(each.its.takes) if gpus and left[at] >= each.job.nodes]
        if not fitting:
            continue
        at = max(fitting, key=lambda at: (at == each.group, capacities[at] / (1 + len(members[at])), -at))
        left[at] -= each.job.nodes
        members[at].append(number)
    for at, numbers in enumerate(map(sorted, members)):
        given = _split([case.candidates[number] for number in numbers], capacities[at])
        for number, many in zip(numbers, given, strict=True):
            counts[number], groups[number] = many, at if many else None
    return counts, groups


def _split(sharers: Sequence[TrainerCandidate], nodes: int) -> list[int]:
    """Each its fewest, then to whoever has least; of equals the first. There are enough for the fewest of all."""
    given = [each.job.nodes for each in sharers]
    left = nodes - sum(given)
    while left > 0:
        open_to = [at for at, each in enumerate(sharers) if given[at] < each.job.nodes_max]
        if not open_to:
            break
        least = min(given[at] for at in open_to)
        lowest = [at for at in open_to if given[at] == least]
        # Up to the next level all of them rise together.
        above = [given[at] for at in open_to if given[at] > least]
        room = min([sharers[at].job.nodes_max - least for at in lowest] + [each - least for each in above])
        rise = min(room, left // len(lowest))
        if rise:
            for at in lowest:
                given[at] += rise
            left -= rise * len(lowest)
        else:
            for at in lowest[:left]:
                given[at] += 1
            left -= min(left, len(lowest))
    return given
