"""Break-even: nothing is started or grown on nodes that leave before what it costs is paid back.

A policy's rule, beyond the paper: where it is known when nodes leave, the solver's counts (layout.NodeCounts) are cut
to what pays. It only ever takes nodes away from who would get them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from hpcdl.core.model.units import count, seconds_text
from hpcdl.milp.case import AllocationCase, TrainerCandidate
from hpcdl.milp.layout import NodeCounts
from hpcdl.milp.values import spans
from hpcdl.solver import ThroughputCurve


def lives_of(case: AllocationCase, names: Sequence[str]) -> list[float]:
    """Remaining seconds of each of these nodes, infinite where it is not known when it leaves."""
    now, nodes = case.view.now, case.nodes
    untils = [nodes[name].until for name in names]
    return [math.inf if until is None else max(0.0, until - now) for until in untils]


def without_useless(case: AllocationCase) -> None:
    """Takes free nodes out of the case that leave before anybody could train on them."""
    least_s = min((each.its.up_s for each in case.candidates), default=0.0)
    held = {name for each in case.candidates for name in each.current}
    gone = {
        name
        for names in case.names
        for name, life in zip(names, lives_of(case, names), strict=True)
        if life <= least_s and name not in held
    }
    if gone:
        case.names = [[name for name in names if name not in gone] for names in case.names]
        case.where = {name: group for name, group in case.where.items() if name not in gone}


def horizon_of(case: AllocationCase, t_fwd_s: float) -> float:
    """The forward-looking time; less where all nodes are known to leave earlier."""
    longest = max((life for names in case.names for life in lives_of(case, names)), default=math.inf)
    return min(t_fwd_s, longest) if longest > 0 else t_fwd_s


def paying(
    case: AllocationCase, decided: NodeCounts, chosen: Sequence[tuple[str, ...]]
) -> tuple[NodeCounts, list[tuple[str, ...]], dict[int, str]]:
    """The decision without those of the new nodes that do not pay; and why, by job.

    Of the nodes that a trainer is to get, in the order in which they stay, it gets those with which it does most until
    the horizon: what it does with the nodes that are still there, less what rescaling costs it now and whenever some
    leave. So a trainer that grows does more than if it had not, and one that starts trains before they leave.
    """
    counts, names, why = list(decided.counts), list(chosen), {}
    groups = list(decided.groups)
    for place, each in enumerate(case.candidates):
        group = decided.groups[place]
        if group is None or (each.holds and group != each.group):
            continue  # who moves has given up what it had: it may be another's by now
        kept = each.current if each.holds else ()
        fresh = [name for name in names[place] if name not in kept]
        if not fresh:
            continue
        ends = lives_of(case, fresh)
        starts = 0.0 if kept else each.its.up_s
        if min(ends) >= decided.horizon_s + starts:
            continue
        fresh = [name for _, name in sorted(zip([-end for end in ends], fresh, strict=True), key=lambda one: one[0])]
        many = _best(case, each, group, kept, fresh, decided.horizon_s)
        if many == len(fresh):
            continue
        wanted = set(fresh[:many])
        names[place] = tuple(name for name in names[place] if name in kept or name in wanted)
        counts[place] = len(names[place])
        groups[place] = group if counts[place] else None
        left = seconds_text(min(lives_of(case, fresh[many:])))
        why[each.job.id] = (
            f"{count(len(fresh) - many, 'node')} more would leave in {left}, before {each.its.up_s:.0f} s "
            f"of {'rescaling' if kept else 'starting'} pay"
        )
    if why:
        decided = replace(decided, counts=counts, groups=groups, optimal=False)
    return decided, names, why


def _best(
    case: AllocationCase, each: TrainerCandidate, group: int, kept: tuple[str, ...], fresh: list[str], horizon_s: float
) -> int:
    """How many of the fresh nodes, the first of which stay longest, are best for the trainer."""
    curve = each.its.curves[group]
    if curve is None:
        return 0
    old, new = lives_of(case, kept), lives_of(case, fresh)
    starts = 0.0 if kept else each.its.up_s
    best, value = 0, 0.0
    if kept:  # as it is, it does not lose what rescaling costs
        value = _worth(curve, each, old, horizon_s, 0.0) + each.rate * each.its.up_s
    for many in range(1, len(new) + 1):
        if many < len(new) and new[many] == new[many - 1]:
            continue  # with those that leave at the same time
        if len(old) + many < each.job.nodes:
            continue
        worth = _worth(curve, each, [*old, *new[:many]], horizon_s + starts, starts)
        if worth > value * (1 + 1e-12):
            best, value = many, worth
    return best


def _worth(
    curve: ThroughputCurve, each: TrainerCandidate, lives: Sequence[float], horizon_s: float, starts: float
) -> float:
    """Steps from now to the horizon on nodes that are there for so long, from `starts` on; rescales down cost steps."""
    steps, before = 0.0, 0
    for span in spans(lives, horizon_s):
        if before and span.nodes < before:
            steps -= each.its.lose_s * curve.rate(before)
        if span.nodes >= each.job.nodes:
            steps += curve.rate(span.nodes) * max(0.0, min(span.seconds, span.end_s - starts))
        before = span.nodes
    return steps
