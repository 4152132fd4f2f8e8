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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from types import ModuleType

import numpy as np

from hpcdl.counts.fast import loops
from hpcdl.counts.table import Floats, Ints, Mask
from hpcdl.counts.trainers import LEAST_NUMBER, MOST_NODES, Curve, Trainer

WIDE = 2 * MOST_NODES  # more than any number of nodes
OUT = 2.0**61  # of the range of integers
TOO_LARGE = "the values are too large: their sum is not finite"
KEY_BITS = 59  # the keys of a choice add up to less than 2**KEY_BITS


@dataclass(frozen=True, slots=True)
class Rows:
    """The knots of all trainers, a row each, sorted by trainer, group and nodes; the first of each has no node."""

    trainer: Ints
    group: Ints  # -1: none
    nodes: Ints
    value: Ints  # on the grid
    distance: Ints
    inner: Mask  # whether the counts between this row and the next one are allowed
    slope: Ints  # of the value between them
    starts: Ints  # first row of each trainer
    capacity: tuple[int, ...]  # by group
    shift: int  # a key is value * 2**shift - distance
    exponent: int  # one step of the grid is 2**exponent

    @property
    def trainers(self) -> int:
        """Number of trainers."""
        return len(self.starts)

    @property
    def keys(self) -> Ints:
        """The key of each row."""
        return (self.value << self.shift) - self.distance

    def valued(self, key: int) -> int:
        """The value in the key of a choice, on the grid."""
        return -(-key >> self.shift)

    def real(self, steps: int) -> float:
        """A value on the grid as a value of the caller's (may overflow to infinity)."""
        try:
            return math.ldexp(steps, self.exponent)
        except OverflowError:
            return math.copysign(math.inf, steps)

    @property
    def rounding(self) -> int:
        """By how many steps the grid may have moved the value of a choice."""
        return max(self.capacity, default=0) * len(self.capacity) + 2 * self.trainers


@dataclass(frozen=True, slots=True)
class _Lanes:
    """A trainer in a group that it can use, each; and what the grid makes of their numbers."""

    trainer: Ints
    group: Ints
    home: Mask  # whether the trainer has nodes of this group now
    first: Ints  # point of its curve in the columns below
    length: Ints  # points of the curve
    at: Ints  # nodes of each point
    value: Ints  # of the throughput there
    slope: Ints  # of the line that ends there
    exponent: int  # one step of the grid is 2**exponent


def read(trainers: Sequence[Trainer], capacities: Sequence[int]) -> Rows:
    """The rows of some trainers on groups of so many nodes each. ValueError: numbers without sense."""
    capacity = _capacities(capacities)
    for t in trainers:
        if t.now and t.group >= len(capacity):
            raise ValueError(f"a trainer runs in group {t.group}, which is not there: there are {len(capacity)}")
    many = len(trainers)
    numbers = np.array([(t.fewest, t.most, t.now, t.group, len(t.sizes)) for t in trainers], dtype=np.int64)
    factors = np.array([(t.weight, t.horizon_s, t.held_rate, t.up_s, t.down_s) for t in trainers], dtype=np.float64)
    numbers, factors = numbers.reshape(many, 5), factors.reshape(many, 5)
    # What is out of reach must not count for the grid: one trainer's throughput on more nodes than there are would make
    # it so coarse that others' is 0 on it.
    curves = [tuple(t.reach(group, nodes) for group, nodes in enumerate(capacity)) for t in trainers]
    for number, t in enumerate(trainers):
        if t.now and factors[number, 2] and not t.grows(capacity):
            factors[number, 3] = 0.0
            if len(capacity) == 1 and not (t.now <= capacity[0] and t.allows(t.now, 0)):
                factors[number, 4] = 0.0  # it loses the same with whatever it gets
    shift = (sum(capacity) + int(numbers[:, 2].sum()) + many).bit_length()
    compiled = loops()
    if compiled:
        return _compiled(compiled, trainers, curves, capacity, numbers, factors, shift)
    return _vectorised(trainers, curves, capacity, numbers, factors, shift)


def _compiled(
    compiled: ModuleType,
    trainers: Sequence[Trainer],
    curves: Sequence[tuple[Curve | None, ...]],
    capacity: tuple[int, ...],
    numbers: Ints,
    factors: Floats,
    shift: int,
) -> Rows:
    """What `_vectorised` gives, by compiled loops."""
    # Trainers with the same curve share its points.
    at: list[Ints] = []
    slopes: list[Floats] = []
    places: dict[int, int] = {}
    lanes: list[tuple[int, int, int, int]] = []
    extremes: list[tuple[float, float]] = []
    points = 0
    for number, its in enumerate(curves):
        for group, curve in enumerate(its):
            if curve is None:
                continue
            place = places.get(id(curve))
            if place is None:
                place = places[id(curve)] = points
                at.append(curve.at)
                slopes.append(curve.slope)
                points += len(curve.at)
            lanes.append((number, group, place, len(curve.points)))
            extremes.append((curve.highest, curve.steepest))
    sizes = list(chain.from_iterable([trainer.sizes for trainer in trainers if trainer.sizes]))
    exponent, table, inner = compiled.columns(
        numbers,
        factors,
        np.array(lanes, dtype=np.int64).reshape(len(lanes), 4),
        np.array(extremes, dtype=np.float64).reshape(len(lanes), 2),
        np.concatenate(at) if at else np.zeros(0, np.int64),
        np.concatenate(slopes) if slopes else np.zeros(0),
        np.array(sizes, dtype=np.int64),
        np.array(capacity, dtype=np.int64),
        KEY_BITS - shift,
        1 / LEAST_NUMBER,
    )
    if len(trainers) and not len(inner):
        raise ValueError(TOO_LARGE)
    owner, group_of, nodes, value, distance, slope, starts = table
    return Rows(
        owner, group_of, nodes, value, distance, inner, slope, starts[: len(trainers)], capacity, shift, exponent
    )


def _vectorised(
    trainers: Sequence[Trainer],
    curves: Sequence[tuple[Curve | None, ...]],
    capacity: tuple[int, ...],
    numbers: Ints,
    factors: Floats,
    shift: int,
) -> Rows:
    many = len(trainers)
    fewest, most, now, _, listed = numbers.T
    weight, horizon, held_rate, up_s, down_s = factors.T
    with np.errstate(over="ignore"):
        ups, downs, gains = weight * held_rate * up_s, weight * held_rate * down_s, weight * horizon
    lanes = _lanes(trainers, curves, capacity, gains, np.maximum(np.abs(ups), np.abs(downs)), KEY_BITS - shift)
    up = np.rint(np.ldexp(ups, -lanes.exponent)).astype(np.int64)
    down = np.rint(np.ldexp(downs, -lanes.exponent)).astype(np.int64)

    high = np.minimum(most[lanes.trainer], np.array(capacity, dtype=np.int64)[lanes.group])
    by_lane = (fewest[lanes.trainer], high, now[lanes.trainer], listed[lanes.trainer] > 0)
    lane, nodes = _knots(trainers, lanes, *by_lane)
    owner, home = lanes.trainer[lane], lanes.home[lane]
    held = now[owner]
    stay = home & (nodes == held)
    cost = np.where(stay, 0, np.where(home & (nodes < held), down[owner], up[owner]))
    value = _on_curve(lanes, lane, nodes) - cost
    distance = np.where(home, np.abs(nodes - held), nodes + held)

    # The row without nodes comes before the others of its trainer.
    every = np.arange(many)
    before = np.searchsorted(owner, every)
    group = np.insert(lanes.group[lane], before, -1)
    owner, nodes = np.insert(owner, before, every), np.insert(nodes, before, 0)
    value, distance = np.insert(value, before, -down), np.insert(distance, before, now)
    span = np.diff(nodes)
    inner, slope = np.zeros(len(owner), np.bool_), np.zeros(len(owner), np.int64)
    inner[:-1] = (np.diff(owner) == 0) & (np.diff(group) == 0) & (span > 1) & (listed[owner[:-1]] == 0)
    np.floor_divide(np.diff(value), span, out=slope[:-1], where=inner[:-1])
    return Rows(owner, group, nodes, value, distance, inner, slope, before + every, capacity, shift, lanes.exponent)


def _capacities(capacities: Sequence[int]) -> tuple[int, ...]:
    for group, nodes in enumerate(capacities):
        if not 0 <= nodes <= MOST_NODES or nodes != int(nodes):
            raise ValueError(f"group {group} has {nodes} nodes: it must be a whole number from 0 to {MOST_NODES}")
    return tuple(int(nodes) for nodes in capacities) or (0,)


def _lanes(
    trainers: Sequence[Trainer],
    curves_of: Sequence[tuple[Curve | None, ...]],
    capacity: tuple[int, ...],
    gains: Floats,
    costs: Floats,
    bits: int,
) -> _Lanes:
    """All lanes, on a grid on which no choice within the capacities is worth 2**bits, nor any part of one."""
    pairs = [
        (number, group, trainer.now > 0 and group == trainer.group, curve)
        for number, (trainer, its) in enumerate(zip(trainers, curves_of, strict=True))
        for group, curve in enumerate(its)
        if curve is not None
    ]
    curves = [curve for *_, curve in pairs]
    owner = np.array([number for number, *_ in pairs], dtype=np.int64)
    group = np.array([group for _, group, *_ in pairs], dtype=np.int64)
    length = np.array([len(curve.at) for curve in curves], dtype=np.int64)
    gain = gains[owner]

    # What nodes are worth at most: the sum of what each trainer gains at most, or the best rate for a node on all.
    highest, steepest = np.zeros(len(trainers)), np.zeros(len(capacity))
    with np.errstate(over="ignore", invalid="ignore"):
        np.maximum.at(highest, owner, gain * np.array([curve.highest for curve in curves]))
        np.maximum.at(steepest, group, gain * np.array([curve.steepest for curve in curves]))
        most = float(min(highest.sum(), steepest @ np.array(capacity, dtype=np.float64)) + costs.sum())
    if not most < 1 / LEAST_NUMBER:
        raise ValueError(TOO_LARGE)
    exponent = math.frexp(max(most, LEAST_NUMBER))[1] - bits

    at = np.concatenate([curve.at for curve in curves]) if curves else np.zeros(0, np.int64)
    slopes = np.concatenate([curve.slope for curve in curves]) if curves else np.zeros(0)
    # What is out of reach is out of the range of integers too, perhaps; then it may be anything.
    slope = np.rint(np.clip(np.ldexp(slopes * np.repeat(gain, length), -exponent), -OUT, OUT)).astype(np.int64)
    first = np.cumsum(length) - length
    step = np.diff(at, prepend=0)
    step[first] = at[first]
    value = np.cumsum(slope * step)
    value -= np.repeat(value[first] - slope[first] * step[first], length)
    home = np.array([home for _, _, home, _ in pairs], dtype=np.bool_)
    return _Lanes(owner, group, home, first, length, at, value, slope, exponent)


def _knots(
    trainers: Sequence[Trainer], lanes: _Lanes, low: Ints, high: Ints, now: Ints, listed: Mask
) -> tuple[Ints, Ints]:
    """Lane and nodes of every knot, in rising order. `low`, `high`, `now`, `listed` are by lane."""
    every = np.arange(len(lanes.trainer))
    home = every[lanes.home & ~listed]
    lane = np.concatenate([every, every, home, home, home, np.repeat(every, lanes.length)])
    nodes = np.concatenate([low, high, now[home] - 1, now[home], now[home] + 1, lanes.at])
    keep = ~listed[lane]
    lane, nodes = lane[keep], nodes[keep]
    if listed.any():
        sizes = [trainers[number].sizes for number in lanes.trainer[listed].tolist()]
        lane = np.concatenate([lane, np.repeat(every[listed], [len(each) for each in sizes])])
        nodes = np.concatenate([nodes, np.fromiter(chain.from_iterable(sizes), np.int64)])
    keep = (nodes >= low[lane]) & (nodes <= high[lane])
    found = np.unique(lane[keep] * WIDE + nodes[keep])
    return found // WIDE, found % WIDE


def _on_curve(lanes: _Lanes, lane: Ints, nodes: Ints) -> Ints:
    """What the throughput of so many nodes is worth in a lane."""
    if not len(lane):
        return np.zeros(0, np.int64)
    points = np.repeat(np.arange(len(lanes.length)), lanes.length) * WIDE + lanes.at
    after = np.searchsorted(points, lane * WIDE + nodes)
    flat = after == lanes.first[lane] + lanes.length[lane]
    after = np.minimum(after, len(points) - 1)
    # Back from the point that is reached; beyond the last point it is as high as there.
    back = np.where(flat, 0, lanes.at[after] - nodes)
    return np.where(
        flat, lanes.value[lanes.first[lane] + lanes.length[lane] - 1], lanes.value[after] - back * lanes.slope[after]
    )
