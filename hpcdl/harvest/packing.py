"""What nodes are worth for jobs on single nodes, packed on them, in the unit of trainers on several nodes.

policy.py solves BFTrainer's problem with these trainers beside the real ones, and so decides how many nodes are packed.
An upper bound of what packing trains there, not a placement.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from hpcdl.core.model.plan import JobView, Standing, View
from hpcdl.core.model.profile import MAX_GPUS, Profile
from hpcdl.milp.case import AllocationCase
from hpcdl.milp.pricing import COST_S, Kinds, profile_of
from hpcdl.solver import ElasticTrainer, ThroughputCurve

KNOTS = 64
"""The value of packing on many nodes is worked out for so many numbers of nodes; between them it is taken as linear."""

WEIGHTS = 8
"""Weights of jobs are rounded to so many steps below 1, so that most jobs are alike."""

MOVE = 1.5
"""A job that has to leave its node is taken to lose so many suspends and resumes: it waits as well."""


@dataclass(frozen=True, slots=True)
class Pack:
    """The jobs that share the nodes of one group.

    `kept`: nodes that they keep in any case; `used`: other nodes on which they hold GPUs. `jobs`: in order. `in_order`:
    each of them gets the number of GPUs on which it is fastest, one after another (MARBLE's way); else numbers are
    chosen by what they gain.
    """

    group: int
    kept: int
    used: int
    jobs: Sequence[JobView]
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class _JobClass:
    """What jobs with the same numbers are worth: profile, range, and a weight in steps of 1 / WEIGHTS."""

    profile: Profile
    allowed: tuple[int, ...]
    weight: float


def packs_of(
    case: AllocationCase, singles: Iterable[JobView], kept: Sequence[int], used: Sequence[int], in_order: bool
) -> list[Pack]:
    """A pack for each group: jobs that hold GPUs go with their node's, others where most GPUs are left for them.

    `kept`, `used`: nodes by group, see `Pack`. Beyond one job a GPU, nobody is counted.
    """
    jobs: list[list[JobView]] = [[] for _ in case.kinds]
    room = [size * (many + also) for (_, size), many, also in zip(case.kinds, case.capacities, kept, strict=True)]
    left = list(room)
    wait = []
    kinds = {kind: number for number, kind in enumerate(case.kinds)}
    for job in singles:
        if job.blocked:
            continue
        aim = job.placement or job.target
        node = None if aim is None else case.nodes.get(aim.shares[0].node)
        at = None if node is None else kinds.get((node.kind, len(node.gpus)))
        if at is None:
            wait.append(job)
        else:
            jobs[at].append(job)
            left[at] -= job.gpus_min
    for job in wait:
        fitting = [at for at, (_, size) in enumerate(case.kinds) if job.allowed(size) and left[at] >= job.gpus_min]
        if fitting:
            at = max(fitting, key=lambda at: (left[at] / max(1, room[at]), -at))
            jobs[at].append(job)
            left[at] -= job.gpus_min
        elif not any(number > 0 for number in left):
            break
    return [Pack(at, kept[at], used[at], tuple(mine), in_order) for at, mine in enumerate(jobs)]


def trainer_of(
    case: AllocationCase, pack: Pack, horizon_s: float, lefts: Sequence[float], must: bool
) -> ElasticTrainer | None:
    """The trainer that stands for a pack in the problem of eq. 16; None where no node is worth anything to it.

    Its value of n more nodes than it keeps is that of the GPUs on them, dealt out to whose progress gains most by each,
    however they lie on the nodes: an upper bound of what any policy packs there. Nodes that it gives up cost it the
    progress of the jobs there while they are suspended, resumed, and wait. `lefts`: seconds that the trainers on
    several nodes have left, ascending, for the weights of `jct`. `must`: it must get a node, if it can.
    """
    kind, size = case.kinds[pack.group]
    many = len(case.names[pack.group])
    if not many or not pack.jobs:
        return None
    values = _values(case, pack, kind, size, lefts)
    numbers = sorted(
        {*np.unique(np.linspace(0, many, min(many, KNOTS) + 1).astype(int)).tolist(), min(pack.used, many)}
    )
    worth = [
        float(values[number + pack.kept]) if number + pack.kept < len(values) else float(values[-1])
        for number in numbers
    ]
    if pack.used:
        held = worth[numbers.index(min(pack.used, many))]
        a_node = (held - worth[0]) / pack.used * _stall_s(pack) / horizon_s
        worth = [each - a_node * max(0, pack.used - number) for number, each in zip(numbers, worth, strict=True)]
    extra = 0.0
    if must:
        extra = 1e3 * (1.0 + sum(map(abs, worth)) + len(case.candidates) * many)
    points = [(number, each - worth[0] + extra) for number, each in zip(numbers, worth, strict=True) if number]
    if must and points[0][0] > 1:
        points.insert(0, (1, points[0][1]))
    curves: list[ThroughputCurve | None] = [None] * len(case.kinds)
    curves[pack.group] = ThroughputCurve(tuple(points))
    return ElasticTrainer(tuple(curves), 1, many, horizon_s=horizon_s)


def _values(case: AllocationCase, pack: Pack, kind: str, size: int, lefts: Sequence[float]) -> list[float]:
    """The value of 0, 1, 2, ... nodes for the jobs of the pack."""
    steps: list[tuple[float, int]] = []  # gain of a GPU, GPUs
    alike: Counter[_JobClass] = Counter()
    for job in pack.jobs:
        profile = profile_of(job, tuple(sorted({kind for kind, _ in case.kinds})))
        weight = _weight(case.view, job, profile, case.kinds, kind, lefts)
        each = _JobClass(profile, job.allowed(size), weight)
        if pack.in_order:
            steps.append(_fastest(profile.on(kind), each.allowed, weight))
        else:
            alike[each] += 1
    for each, number in alike.items():
        gains = _gains(each.profile.on(kind), each.allowed)
        steps += [(gain * each.weight, gpus * number) for gain, gpus in gains]
    if not pack.in_order:
        steps.sort(reverse=True)
    ends = list(accumulate((gpus for _, gpus in steps), initial=0))
    worth = list(accumulate((gain * gpus for gain, gpus in steps), initial=0.0))
    nodes = len(case.names[pack.group]) + pack.kept
    return [float(each) for each in np.interp(np.arange(nodes + 1) * size, ends, worth)]


def _fastest(profile: Profile, allowed: tuple[int, ...], weight: float) -> tuple[float, int]:
    """What a GPU is worth where the job has as many as it is fastest on, and how many those are."""
    gpus = max(allowed, key=lambda number: (profile.rate(number), -number))
    return profile.rate(gpus) * weight / gpus, gpus


@lru_cache(maxsize=4096)
def _gains(profile: Profile, allowed: tuple[int, ...]) -> tuple[tuple[float, int], ...]:
    """What a GPU adds at most, in steps/s, and how many such there are: the upper hull of the rates, from (0, 0)."""
    hull: list[tuple[int, float]] = [(0, 0.0)]
    for gpus in allowed:
        point = (gpus, profile.rate(gpus))
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    found = []
    for before, after in pairwise(hull):
        if _slope(before, after) <= 0:
            break
        found.append((_slope(before, after), after[0] - before[0]))
    return tuple(found)


def _slope(before: tuple[int, float], after: tuple[int, float]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])


def _weight(view: View, job: JobView, profile: Profile, kinds: Kinds, kind: str, lefts: Sequence[float]) -> float:
    """What a step/s of the job counts."""
    if view.objective == "throughput":
        return 1.0
    unit = _unit(profile, kinds, job.allowed(MAX_GPUS))
    if view.objective == "priority":
        return job.weight / unit
    if view.objective != "jct" or not lefts:
        return 1.0 / unit
    left = job.remaining(view.now, kind)
    longer = 0 if left is None else sum(each >= left / unit for each in lefts)
    share = (1 + longer) / (1 + len(lefts))
    return float(np.ceil(share ** (1 / 3) * WEIGHTS) / WEIGHTS) / unit


@lru_cache(maxsize=4096)
def _unit(profile: Profile, kinds: Kinds, allowed: tuple[int, ...]) -> float:
    """Steps/s on one node of the group where that is fastest."""
    rates = [
        profile.on(kind).rate(max(fitting)) for kind, size in kinds if (fitting := [n for n in allowed if n <= size])
    ]
    return max(rates, default=1.0)


def _stall_s(pack: Pack) -> float:
    """Seconds that a job on a node that is given up makes no progress, as they are on average."""
    stalls = [
        COST_S * 2 if job.profile is None else job.profile.suspend_resume_s
        for job in pack.jobs
        if job.standing is Standing.STEADY
    ]
    return MOVE * sum(stalls) / len(stalls) if stalls else 0.0
