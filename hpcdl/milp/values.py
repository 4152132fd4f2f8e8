"""What each number of nodes is worth to each trainer (BFTrainer, eq. 13 to 16), for the user's objective.

case.py says who the candidates are, pricing.py what they can do; here that becomes the solver's problem. Beside it:
the settings of these policies, and for how long a decision is taken to last.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.milp.case import AllocationCase, TrainerCandidate
from hpcdl.solver import ElasticTrainer, ThroughputCurve

RANK_POWER = 1 / 3
"""Under `jct`, the trainer that is k-th in falling order of what is left weighs k to this power (heSRPT)."""

ON_TIME = 1e3
"""Under `deadline`, to be fast enough for it is worth as much to a trainer as so many nodes' progress."""

SHORTEST_REST_S = 1.0
"""A trainer is never taken to be done in less."""


def trainers(case: AllocationCase, horizon_s: float, overdue: int | None = None) -> list[ElasticTrainer]:
    """The problem of eq. 16 for the objective of the view; one trainer for each candidate.

    `throughput` sums steps/s, as the paper does. All others sum what each trainer does in units of what it does on one
    node (the paper's efficiency): as it is for `efficiency` and for objectives without a rule of their own here
    (`fair`, `makespan`); times the job's weight for `priority`; times what rises as less is left of it for `jct`. For
    `deadline` being fast enough to be on time is worth ON_TIME nodes more. `overdue`: a job that must get nodes.
    """
    weights = _weights(case)
    deadline = case.view.objective == "deadline"
    found = []
    must = [each.must or each.job.id == overdue for each in case.candidates]
    extra = 0.0
    if any(must):
        extra = _beyond(case.candidates, weights, horizon_s)
    for each, weight, needed in zip(case.candidates, weights, must, strict=True):
        job, its = each.job, each.its
        curves = its.curves
        if deadline:
            curves = _by_deadline(case, each)
        if each.holds and its.move_s > its.up_s and len(curves) > 1:
            lost = each.rate * (its.move_s - its.up_s) / horizon_s
            curves = _moved(curves, each.group, job.nodes, lost)
        if each.must:
            curves = tuple([curve if at == each.group else None for at, curve in enumerate(curves)])
        if needed and weight > 0:
            more = extra * (4.0 if each.must else 1.0) / weight
            curves = tuple([None if curve is None else _raised(curve, job.nodes, more) for curve in curves])
        up_s, down_s = its.up_s, its.down_s
        # Under way it loses what it does now, not what it will do; raised, no more than it does.
        if needed or each.trains != len(each.current):
            part = _lost(each, curves if needed else its.curves)
            up_s, down_s = up_s * part, down_s * part
        now = len(each.current)
        found.append(
            ElasticTrainer(
                curves, job.nodes, job.nodes_max, (), now, max(each.group, 0), up_s, down_s, weight, horizon_s
            )
        )
    return found


def _lost(each: TrainerCandidate, curves: Sequence[ThroughputCurve | None]) -> float:
    """Steps/s now, by what the curves say of `current`."""
    curve = curves[each.group] if each.current else None
    there = 0.0 if curve is None else curve.rate(len(each.current))
    return each.rate / there if there > 0 else 0.0


def _weights(case: AllocationCase) -> list[float]:
    """The weight of each candidate's steps/s."""
    objective = case.view.objective
    if objective == "throughput":
        return [1.0] * len(case.candidates)
    if objective == "priority":
        return [each.job.weight / each.its.unit for each in case.candidates]
    if objective != "jct":
        return [1.0 / each.its.unit for each in case.candidates]
    left_s = [_left_s(case, each) for each in case.candidates]
    order = sorted(left_s)
    shorter = {seconds: at for at, seconds in reversed(list(enumerate(order)))}
    many = len(left_s)
    return [
        (1.0 - shorter[seconds] / many) ** RANK_POWER / each.its.unit
        for seconds, each in zip(left_s, case.candidates, strict=True)
    ]


def lefts_of(case: AllocationCase) -> list[float]:
    """What the candidates of a case still have to do, in seconds on one node, ascending; infinite where not known."""
    return sorted(_left_s(case, each) for each in case.candidates)


def _left_s(case: AllocationCase, candidate: TrainerCandidate) -> float:
    """What it still has to do, in seconds on one node; infinite where that is not known."""
    left = candidate.job.remaining(case.view.now, _kind(case, candidate))
    return float("inf") if left is None else left / candidate.its.unit


def _kind(case: AllocationCase, candidate: TrainerCandidate) -> str:
    return case.kinds[candidate.group][0] if candidate.group >= 0 else ""


def _by_deadline(case: AllocationCase, candidate: TrainerCandidate) -> tuple[ThroughputCurve | None, ...]:
    """The curves, higher by ON_TIME from the number of nodes on with which it would be on time."""
    its = candidate.its
    due, left = candidate.job.deadline, candidate.job.remaining(case.view.now, _kind(case, candidate))
    if due is None or left is None:
        return its.curves
    here = case.view.now
    found = []
    for number, curve in enumerate(its.curves):
        start_s = 0.0 if candidate.holds and candidate.group == number else its.up_s
        room_s = due - here - start_s
        if curve is None or room_s < SHORTEST_REST_S:
            found.append(curve)
        else:
            found.append(_stepped(curve, candidate.job.nodes, left / room_s * (1 - 1e-6), ON_TIME * its.unit))
    return tuple(found)


def _stepped(curve: ThroughputCurve, fewest: int, needed: float, extra: float) -> ThroughputCurve:
    """The curve, raised by `extra` from the first number of nodes on where it is `needed`; itself if it never is."""
    last = curve.points[-1][0]
    if max(rate for _, rate in curve.points) < needed:
        return curve
    low, high = fewest, max(last, fewest)
    if curve.rate(high) < needed:
        low = high = next(nodes for nodes, rate in curve.points if rate >= needed)  # it falls further on
    while low < high:
        middle = (low + high) // 2
        if curve.rate(middle) >= needed:
            high = middle
        else:
            low = middle + 1
    points = {nodes: rate + (extra if nodes >= low else 0.0) for nodes, rate in curve.points}
    points[low] = curve.rate(low) + extra
    if low > 1:
        points[low - 1] = curve.rate(low - 1)
    return ThroughputCurve(tuple(sorted(points.items())))


def _raised(curve: ThroughputCurve, fewest: int, extra: float) -> ThroughputCurve:
    """The curve, higher by `extra` from `fewest` nodes on."""
    points = {nodes: rate + extra for nodes, rate in curve.points if nodes > fewest}
    points[fewest] = curve.rate(fewest) + extra
    return ThroughputCurve(tuple(sorted(points.items())))


def _moved(
    curves: tuple[ThroughputCurve | None, ...], group: int, fewest: int, lost: float
) -> tuple[ThroughputCurve | None, ...]:
    """The curves, lower by what a move costs in all groups but its own."""
    return tuple(
        [
            curve if curve is None or number == group else _raised(curve, fewest, -lost)
            for number, curve in enumerate(curves)
        ]
    )


def _beyond(candidates: Sequence[TrainerCandidate], weights: Sequence[float], horizon_s: float) -> float:
    """More than all trainers together can gain or lose, per second of the horizon."""
    total = 1.0
    for each, weight in zip(candidates, weights, strict=True):
        its = each.its
        highest = max((curve.highest for curve in its.curves if curve is not None), default=0.0)
        dearest = max(its.up_s, its.down_s, its.move_s)
        total += weight * (highest + ON_TIME * its.unit) * (1.0 + dearest / horizon_s)
    return 2.0 * total


@dataclass(frozen=True, slots=True)
class Reallocation:
    """What users may set of the policies that spread elastic trainers over nodes.

    `t_fwd_s`: the forward-looking time in seconds (BFTrainer, eq. 16); None: from the changes of the set of nodes seen
    so far.

    `parallel`: trainers that run at a time, at most (the paper's Pjmax); None: as many as there are nodes for.
    `packing`: the policy that packs jobs on single nodes under `harvest`. ValueError where a number makes no sense.
    """

    t_fwd_s: float | None = 120.0
    parallel: int | None = None
    packing: str = "adaptive"

    def __post_init__(self) -> None:
        if self.t_fwd_s is not None and not (math.isfinite(self.t_fwd_s) and self.t_fwd_s > 0):
            raise ValueError(f"t_fwd_s must be a number of seconds above 0, got {self.t_fwd_s}")
        if self.parallel is not None and self.parallel < 1:
            raise ValueError(f"parallel must be 1 or more, got {self.parallel}")
        if self.packing not in PACKING:
            raise ValueError(f"packing must be one of {', '.join(PACKING)}, got {self.packing!r}")


PACKING = ("adaptive", "marble")
"""Policies that can pack jobs on single nodes under `harvest`."""

USUAL_S = 120.0
"""T_fwd (BFTrainer, section 3.4.3) where nothing was seen yet: the paper's best value on Summit (figure 9)."""

ENOUGH = 8
"""Gaps from which on they are believed."""

GAPS = 1.5
"""The adaptive T_fwd is so many mean gaps: not every change concerns everybody. Summit's mean of 84 s gives 126 s."""

SHORTEST_HORIZON_S = 30.0

LONGEST_HORIZON_S = 3600.0

GRAIN = 1.25
"""The adaptive T_fwd is rounded to powers of it, so that it does not change at every event."""


def t_fwd(settings: Reallocation, gaps: Sequence[float], dearest_s: float) -> float:
    """The forward-looking time T_fwd: seconds for which a decision is taken to last (section 3.4.3).

    Fixed, or from the gaps (s) between the last changes of the set of nodes: GAPS times their mean, within
    SHORTEST_HORIZON_S and LONGEST_HORIZON_S, rounded, and never below `dearest_s`, the seconds of the dearest rescale
    upwards, since no growth could pay within less.
    """
    if settings.t_fwd_s is not None:
        return settings.t_fwd_s
    if len(gaps) < ENOUGH:
        return max(USUAL_S, dearest_s)
    mean = sum(gaps) / len(gaps)
    seconds = min(LONGEST_HORIZON_S, max(SHORTEST_HORIZON_S, GAPS * mean))
    return max(float(GRAIN ** round(math.log(seconds, GRAIN))), dearest_s)


@dataclass(frozen=True, slots=True)
class HorizonSpan:
    """A span of the horizon with a constant number of nodes: it ends in `end_s` from now, and is `seconds` long."""

    end_s: float
    seconds: float
    nodes: int


def spans(lives: Sequence[float], horizon_s: float) -> list[HorizonSpan]:
    """The horizon cut where nodes leave, with how many are still there. `lives`: seconds that each stays (infinite: not
    known)."""
    found: list[HorizonSpan] = []
    before = 0.0
    for end in sorted({min(max(life, 0.0), horizon_s) for life in lives} | {horizon_s}):
        if end > before:
            found.append(HorizonSpan(end, end - before, sum(life >= end for life in lives)))
            before = end
    return found
