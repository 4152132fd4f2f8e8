"""What trainers may get, as sorted columns of whole numbers: the knots of each trainer's value, and what is between.

The value of a count is linear between neighbouring knots: the ends of the range, the points of the curve, the current
count and its neighbours; where sizes are listed, each is a knot. Values are put on a grid: their slopes and their
rescale costs are multiplied by a power of two and rounded to integers, so that sums are exact and equal is equal,
whatever the order of additions. That moves the value of a choice by at most (nodes + trainers) / 2 steps, some 1e-10
of it for 1,000 trainers on 10,000 nodes.

A key orders counts by value and then by how near they are to the current ones: value * 2**shift - distance, where
the distance is |n - C| in the current group, else n + C.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from operator import mul

import numpy as np

from hpcdl.solver.compiled import arithmetic
from hpcdl.solver.kernels import Rows
from hpcdl.solver.trainers import LEAST_NUMBER, MOST_NODES, ElasticTrainer, ThroughputCurve

KEY_BITS = 59  # the keys of a choice add up to less than 2**KEY_BITS

Knots = tuple[Sequence[int], Sequence[float]]  # nodes, and the slope of the curve before each


def read(trainers: Sequence[ElasticTrainer], capacities: Sequence[int]) -> Rows:
    """The rows of some trainers on groups of so many nodes each. ValueError: numbers without sense."""
    capacity = _capacities(capacities)
    for t in trainers:
        if t.now and t.group >= len(capacity):
            raise ValueError(f"a trainer runs in group {t.group}, which is not there: there are {len(capacity)}")
    # What is out of reach must not count for the grid: one trainer's throughput on more nodes than there are would make
    # it so coarse that others' is 0 on it.
    places: list[int] = []
    knots: list[int] = []
    slopes: list[float] = []
    factors: list[float] = []
    highest, costs, steepest = [], [], [0.0] * len(capacity)  # what is gained at most: by trainer, and for a node
    for number, t in enumerate(trainers):
        gain, up, down = _factors(t, capacity)
        factors += gain, up, down
        costs.append(max(abs(up), abs(down)))
        places += number, -1, -1, t.now, 0, 1
        knots.append(0)
        slopes.append(0.0)
        most = 0.0
        for group, nodes in enumerate(capacity):
            curve = t.reach(group, nodes)
            if curve is None:
                continue
            home = t.now if group == t.group else 0
            at, its_slopes = _knots(curve, t.fewest, min(t.most, nodes), home, bool(t.sizes))
            places += number, group, home or -1, t.now, not t.sizes, len(at)
            knots += at
            slopes += its_slopes
            most = max(most, gain * curve.highest)
            steepest[group] = max(steepest[group], gain * curve.steepest)
        highest.append(most)
    most = min(sum(highest), sum(map(mul, steepest, capacity))) + sum(costs)
    if not most < 1 / LEAST_NUMBER:
        raise ValueError("the values are too large: their sum is not finite")
    shift = (sum(capacity) + sum(t.now for t in trainers) + len(trainers)).bit_length()
    exponent = math.frexp(max(most, LEAST_NUMBER))[1] - (KEY_BITS - shift)
    nodes_of = np.array(knots, dtype=np.int64)
    trainer, group_of, value, distance, inner, slope, starts = arithmetic().lay_out(
        np.array(places, dtype=np.int64).reshape(-1, 6),
        nodes_of,
        np.array(slopes),
        np.array(factors).reshape(-1, 3),
        math.ldexp(1.0, -exponent),
    )
    room = np.array(capacity, dtype=np.int64)
    return Rows(trainer, group_of, nodes_of, value, distance, inner, slope, starts, room, shift, exponent)


@lru_cache(maxsize=4096)
def _knots(curve: ThroughputCurve, low: int, high: int, now: int, sized: bool) -> Knots:
    """The knots of a trainer on one group, where it has `now` nodes."""
    points = [at for at, _ in curve.points]
    if sized:
        return points, curve.slopes
    near = (now - 1, now, now + 1) if now else ()
    knots = sorted({low, high, *(at for at in (*points, *near) if low < at < high)})
    slopes = (*curve.slopes, 0.0)  # flat after the last point
    return knots, [slopes[bisect_left(points, at)] for at in knots]


def _factors(t: ElasticTrainer, capacity: Sequence[int]) -> tuple[float, float, float]:
    """What a unit of throughput is worth, and what a rescale to more nodes and one to fewer cost."""
    held, up_s, down_s = t.held_rate, t.up_s, t.down_s
    if t.now and held and not t.grows(capacity):
        up_s = 0.0
        if len(capacity) == 1 and not (t.now <= capacity[0] and t.allows(t.now, 0)):
            down_s = 0.0  # it loses the same with whatever it gets
    return t.weight * t.horizon_s, t.weight * held * up_s, t.weight * held * down_s


def _capacities(capacities: Sequence[int]) -> tuple[int, ...]:
    for group, nodes in enumerate(capacities):
        if not 0 <= nodes <= MOST_NODES or nodes != int(nodes):
            raise ValueError(f"group {group} has {nodes} nodes: it must be a whole number from 0 to {MOST_NODES}")
    return tuple(int(nodes) for nodes in capacities) or (0,)
