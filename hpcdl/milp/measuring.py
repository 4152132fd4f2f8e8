"""Trainers whose curve nobody told are measured on two numbers of nodes, early: MalleTrain's light advisor.

One rate says nothing of how a trainer scales, and while its nodes stay nothing else is seen. So a trainer that is
rescaled in place begins on its fewest nodes, and has its others once its rate there is seen: a few reports. It is then
taken to gain from every node until it was measured on many, so that it is. One that was seen on many only goes to its
fewest for as long. MalleTrain (Ma et al., ICPE 2024, arXiv 2404.15668) walks from many nodes to few; eq. 16 of
BFTrainer charges a growth with what is trained before it, which is least on the fewest nodes.

Where a trainer stands follows from what was seen of jobs like it, so nothing is stored here: who loses nodes meanwhile
keeps what was measured. The nodes that it is to have are kept for it. No other policy knows of this.
"""

from collections.abc import Collection
from dataclasses import replace

from hpcdl.core.model.plan import JobView
from hpcdl.milp.case import AllocationCase, TrainerCandidate
from hpcdl.milp.layout import NodeCounts
from hpcdl.solver import ThroughputCurve

APART = 2
"""Two numbers of nodes show how a trainer scales where one is a doubling of the other, or more; and to so many times an
equal share of the nodes it is tried on those that are free."""

LOOK_S = 2.0
"""A first report is looked for so soon: agents send one every half second at first."""

PATIENCE_S = 60.0
"""Without a report for so long, nobody waits for it."""

STEPS = 20.0
"""Steps that show a rate for sure (`fold/trials.py`): who makes fewer in PATIENCE_S leaves no nodes for it."""

LONG = 5.0
"""Nodes are left for it where the trainer trains on for so many times what that costs, as under `adaptive`."""

HIDDEN = 0.5
"""A rate is seen once it is more likely than not that it is no warm-up's."""


def hopeful(case: AllocationCase) -> None:
    """Takes trainers that were not measured on many nodes to gain as much from each, up to an equal share of them, and
    up to APART of these on nodes that nobody else has. Where no rate is known at all, that on one node is the mean of
    the others'."""
    rates = [each.its.unit for each in case.candidates if each.job.profile is not None]
    usual = sum(rates) / len(rates) if rates else None
    for place, each in enumerate(case.candidates):
        curves = tuple([_hopeful(case, each, group, usual) for group in range(len(each.its.curves))])
        if curves != each.its.curves:
            unit = max(curve.rate(1) for curve in curves if curve is not None)
            case.candidates[place] = replace(each, its=replace(each.its, curves=curves, unit=unit))


def _hopeful(case: AllocationCase, each: TrainerCandidate, group: int, usual: float | None) -> ThroughputCurve | None:
    curve, seen = each.its.curves[group], _seen(case, each, group)
    if curve is None or seen is None or (seen and max(seen) >= APART * min(seen)):
        return curve
    known = max(seen, default=each.job.nodes)
    share = -(-len(case.names[group]) // len(case.candidates))
    free = len(case.names[group]) - sum(len(other.current) for other in case.candidates if other.group == group)
    mine = len(each.current) if each.group == group else 0
    top = max(known, min(each.job.nodes_max, max(share, min(APART * share, mine + free))))
    of_one = curve.rate(known) / known if seen or usual is None else usual
    beyond = {nodes: of_one * top * rate / curve.rate(top) for nodes, rate in curve.points if nodes > top}
    return ThroughputCurve(tuple(({1: of_one, top: of_one * top} | beyond).items()))


def measuring(case: AllocationCase, decided: NodeCounts) -> NodeCounts:
    """The decision, with fewer nodes for those that are to be measured on fewer now."""
    counts, why = list(decided.counts), {}
    for place, each in enumerate(case.candidates):
        group = decided.groups[place]
        fewer = counts[place] if group is None else _now(case, each, counts[place], group)
        if fewer < counts[place]:
            why[each.job.id] = f"{counts[place] - fewer} more once its rate on {fewer} is seen: nobody knows its curve"
            counts[place] = fewer
    return replace(decided, counts=counts, optimal=False, why=why) if why else decided


def _now(case: AllocationCase, each: TrainerCandidate, many: int, group: int) -> int:
    """On how many nodes a trainer that is to have `many` is first."""
    job, held, seen = each.job, len(each.current), _seen(case, each, group)
    if seen is None or _known(job, seen):
        return many
    if not each.holds:
        return many if seen else job.nodes
    if each.group != group or each.trains != held:
        return many
    if held not in seen:
        return min(many, held) if _awaited(case, each) else many
    return job.nodes if job.in_place and job.nodes not in seen and _pays(case, each) else many


def looks_at(case: AllocationCase, each: TrainerCandidate, many: int, group: int) -> float | None:
    """When to look for the rate of a trainer that gets so many nodes; None where it is seen, or told."""
    seen = _seen(case, each, group)
    if seen is None or _known(each.job, seen) or many in seen:
        return None
    return case.view.now + LOOK_S if many != len(each.current) or _awaited(case, each) else None


def _seen(case: AllocationCase, each: TrainerCandidate, group: int) -> Collection[int] | None:
    """Numbers of nodes of a group on which the rate of jobs like it was seen.

    None where the curve is told, or is not measured: of one on a fixed number, or whose ranks start anew for each.
    """
    job, profile = each.job, each.job.profile
    if job.rescale != "in-process" or job.nodes_max < APART * job.nodes:
        return None
    if profile is None:
        return ()
    if profile.measured is None:
        return None
    spots = {(trial.kind, trial.nodes, trial.gpus) for trial in profile.trials if trial.hidden < HIDDEN}
    spots.update(profile.measured)  # trials are of the last attempts only
    kind, gpus = case.kinds[group][0], each.its.takes[group]
    return {nodes for of, nodes, each_gpus in spots if (of, each_gpus) == (kind, gpus)}


def _known(job: JobView, seen: Collection[int]) -> bool:
    return job.nodes in seen and max(seen) >= APART * job.nodes


def _awaited(case: AllocationCase, each: TrainerCandidate) -> bool:
    """Whether its next report may still come soon."""
    job = each.job
    since = job.step_at
    if since is None:
        since = (case.view.now if job.held_since is None else job.held_since) + each.its.up_s
    return case.view.now - since <= PATIENCE_S


def _pays(case: AllocationCase, each: TrainerCandidate) -> bool:
    """Whether a trainer lasts for so long that it may leave nodes to be measured."""
    left = each.job.remaining(case.view.now, case.kinds[each.group][0])
    cost_s = each.its.up_s + each.its.down_s + LOOK_S
    return each.rate * PATIENCE_S >= STEPS and (left is None or left >= LONG * cost_s * each.rate)
