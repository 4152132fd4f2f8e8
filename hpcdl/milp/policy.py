"""BFTrainer (HPDC 2021): idle nodes for elastic trainers, by an exact optimisation at every event."""

from collections.abc import Callable
from dataclasses import dataclass

from hpcdl.core.model import Target
from hpcdl.core.plan import JobView, Plan, Standing, Targets, View
from hpcdl.counts import Trainer, allocate
from hpcdl.milp.case import Case, case_of
from hpcdl.milp.decided import Decided
from hpcdl.milp.horizon import t_fwd
from hpcdl.milp.layout import nodes_of, placement_of
from hpcdl.milp.pays import horizon_of, paying, without_useless
from hpcdl.milp.pricing import priced
from hpcdl.milp.priors import LENGTH_S, LOOK_S, unseen
from hpcdl.milp.reallocation import Reallocation
from hpcdl.milp.values import trainers
from hpcdl.milp.words import Said, kept, reason, waits

PATIENCE_S = 4 * 3600.0
PATIENCE_RUNS = 4.0
"""PATIENCE_S and PATIENCE_RUNS times its own length on one node after its submit a job is overdue. If it is the first
of all jobs, it must then get nodes, whatever that costs. When it is done another one is the first: nobody starves."""


class BFTrainer:
    """Section 3 of the paper at every decision, over counts of nodes (which suffice: hpcdl/counts).

    FCFS: the first jobs, as many as may run in parallel, are the trainers (`case_of`). Each gets as many whole nodes as
    are best for all of them together over the forward-looking time, rescale costs included (`values`). Who falls below
    its fewest nodes waits. Where it is known when nodes leave, nothing is started or grown on them that cannot pay.
    """

    name = "bftrainer"
    deadlines = "deadline"

    def __init__(self, settings: Reallocation | None = None) -> None:
        self.settings = settings or Reallocation()

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        case = case_of(view, self.settings.parallel)
        return planned(case, solved(case, self.settings))


Beside = Callable[[float, bool], list[Trainer]]
"""What else wants nodes, as trainers of their own: for a horizon in seconds, and whether some must get nodes."""


def solved(case: Case, settings: Reallocation, beside: Beside | None = None, first: JobView | None = None) -> Decided:
    """The best counts for the candidates of a case, and after them for what else wants nodes.

    `first`: the first of the jobs for which `beside` speaks. Of all jobs that wait or run, the first one must get nodes
    once it is overdue.
    """
    view = case.view
    horizon_s = t_fwd(settings, view.gaps, max((each.its.up_s for each in case.candidates), default=0.0))
    if case.some_end and case.candidates:
        without_useless(case)
        horizon_s = horizon_of(case, horizon_s)
    ours = case.candidates[0].job if case.candidates else None
    oldest = min((job for job in (ours, first) if job is not None), key=lambda job: job.order, default=None)
    if oldest is None:
        return Decided((), (), 0.0, True, 0.0, 0.0)
    due_at = overdue_at(case, oldest)
    due = due_at <= view.now
    asked = trainers(case, horizon_s, oldest.id if due else None)
    if beside is not None:
        asked += beside(horizon_s, due and oldest is first)
    found = allocate(asked, case.capacities)
    raised = due or any(each.must for each in case.candidates)
    waits = oldest.placement is None if oldest is first else not found.counts[0]
    return Decided(
        found.counts,
        found.groups,
        horizon_s,
        found.optimal,
        None if raised else found.bound,
        found.gap,
        due_at if waits and not due else None,
    )


def overdue_at(case: Case, job: JobView) -> float:
    """When the job is to get nodes before all others, should it then be the first one."""
    length_s = LENGTH_S if job.total is None else job.total / priced(job, case.kinds, holds=False).unit
    return job.submitted_at + PATIENCE_S + PATIENCE_RUNS * length_s


def planned(case: Case, decided: Decided) -> Plan:
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
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """What was decided of the jobs of a case. `named`: targets of those for which something changes."""

    case: Case
    decided: Decided
    named: dict[int, Target]
    said: dict[int, Said]
    wake_at: float | None

    def reason(self, job: JobView) -> str:
        """Why a job of the case has what it has."""
        about = self.said.get(job.id)
        if about is not None:
            return reason(self.case, about)
        return kept(self.case, job) if job.id in self.case.kept else waits(self.case, job)


def placed(case: Case, decided: Decided) -> Placed:
    """GPUs of nodes for what was decided."""
    view = case.view
    known = case.some_end
    loss = []
    if known:
        for each, many, group in zip(case.candidates, decided.counts, decided.groups, strict=False):
            curve = None if group is None else each.its.curves[group]
            loss.append(0.0 if curve is None else each.its.lose_s * curve.rate(many) / each.its.unit)
    chosen = nodes_of(case, decided.counts, decided.groups, loss, decided.horizon_s)
    short: dict[int, str] = {}
    if known and decided.horizon_s:
        decided, chosen, short = paying(case, decided, chosen)
    named: dict[int, Target] = {}
    said: dict[int, Said] = {}
    wakes = [] if decided.wake_at is None else [decided.wake_at]
    for each, names, many, group in zip(case.candidates, chosen, decided.counts, decided.groups, strict=False):
        job = each.job
        placement = placement_of(case, each, names)
        said[job.id] = about = Said(each, many, group, decided.horizon_s, short.get(job.id, ""))
        if placement is not job.placement or job.standing is not Standing.STEADY:
            named[job.id] = Target(job.id, placement, reason(case, about))
        if placement is not None and unseen(job):
            wakes.append(view.now + LOOK_S)
    for job in view.steady:
        if job.id not in said and job.id not in case.kept and case.about(job):
            named[job.id] = Target(job.id, None, waits(case, job))
    return Placed(case, decided, named, said, min(wakes, default=None))
