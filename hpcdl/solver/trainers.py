"""Elastic trainers as numbers: what each count of nodes is worth to each of them (BFTrainer, section 3).

Values in, values out, checked when they are made; rows.py lays them out for the search.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

MOST_NODES = 10**6  # of a group, and of a trainer; what is more is a mistake, and would not be exact
LEAST_NUMBER = 1e-250  # what is nearer to 0 counts as 0; also the inverse of what is too large
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ThroughputCurve:
    """Throughput f by number of nodes n, in any unit: a line through `points`, of any shape.

    `points`: (n, f) in rising order of n, from 1 node on; f is finite. f is linear between two points (BFTrainer,
    equations 11 and 12) and from (0, 0) to the first one, and flat after the last.
    """

    points: Points
    slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)  # of the line that ends at each point
    highest: float = field(init=False, repr=False, compare=False)  # the largest |f(n)|
    steepest: float = field(init=False, repr=False, compare=False)  # the largest |f(n)| / n

    def __post_init__(self) -> None:
        nodes = [0, *(at for at, _ in self.points)]
        rates = [0.0, *(rate for _, rate in self.points)]
        if len(nodes) < 2 or any(after <= before for before, after in pairwise(nodes)):
            raise ValueError(f"a curve at {nodes[1:]} nodes: one point at least, in rising order, from 1 node on")
        if nodes[-1] > MOST_NODES or any(at != int(at) for at in nodes):
            raise ValueError(f"a curve at {nodes[1:]} nodes: whole numbers up to {MOST_NODES}")
        for at, rate in self.points:
            if not abs(rate) < 1 / LEAST_NUMBER:
                raise ValueError(f"throughput {rate} at {at} nodes: it must be a number, and finite")
        put = object.__setattr__
        lines = zip(pairwise(rates), pairwise(nodes), strict=True)
        put(self, "slopes", tuple((after - before) / (high - low) for (before, after), (low, high) in lines))
        put(self, "highest", max(map(abs, rates)))
        put(self, "steepest", max(abs(rate) / at for at, rate in self.points))

    def rate(self, nodes: int) -> float:
        """f(nodes), for 0 nodes or more."""
        after = bisect_left(self.points, (nodes, -math.inf))
        if after == len(self.points):
            return self.points[-1][1]
        at, rate = self.points[after]
        if at == nodes:
            return rate
        at, rate = self.points[after - 1] if after else (0, 0.0)
        return rate + self.slopes[after] * (nodes - at)


@dataclass(frozen=True, slots=True)
class ElasticTrainer:
    """A trainer that may have no node, or `fewest` to `most` nodes of one group (equations 3 and 4).

    `curves`: its throughput in each group; None: it cannot use that group. `sizes`, where given: it takes only these
    counts, of those from `fewest` to `most`. `now`: the nodes that it has, of the group `group` (0: it does not run);
    a number that it could not be given is fine. `up_s`, `down_s`: seconds that a rescale to more, and to fewer nodes,
    costs. `horizon_s`: the forward-looking time. `weight`: what its throughput counts.
    """

    curves: tuple[ThroughputCurve | None, ...]
    fewest: int = 1
    most: int = 1
    sizes: tuple[int, ...] = ()
    now: int = 0
    group: int = 0
    up_s: float = 0.0
    down_s: float = 0.0
    weight: float = 1.0
    horizon_s: float = 120.0

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most <= MOST_NODES:
            raise ValueError(f"{self.fewest} to {self.most} nodes: from 1 to {MOST_NODES}, the most no less")
        if any(after <= before for before, after in pairwise((0, *self.sizes))):
            raise ValueError(f"sizes {self.sizes}: they must be in rising order, from 1 node on")
        if not 0 <= self.now <= MOST_NODES:
            raise ValueError(f"a trainer cannot have {self.now} nodes")
        if self.now and not (0 <= self.group < len(self.curves) and self.curves[self.group]):
            raise ValueError(f"a trainer runs in group {self.group}, and has no curve there")
        if not (
            0.0 <= self.up_s < math.inf
            and 0.0 <= self.down_s < math.inf
            and 0.0 <= self.weight < math.inf
            and 0.0 <= self.horizon_s < math.inf
        ):
            for name in ("up_s", "down_s", "weight", "horizon_s"):
                if not 0.0 <= (number := getattr(self, name)) < math.inf:
                    raise ValueError(f"{name} is {number}: it must be 0 or more, and finite")

    @property
    def held_rate(self) -> float:
        """f(C): the throughput that it has now."""
        curve = self.curves[self.group] if self.now else None
        return curve.rate(self.now) if curve else 0.0

    def worth(self, nodes: int, group: int | None = None) -> float:
        """The value of `nodes` nodes of a group (None: its current one): weight * (horizon_s * f(n) - f(C) * R).

        R = up_s if n > C, down_s if n < C, else 0 (equations 13 to 16); in another group than the current one it
        moves, and R = up_s; without nodes R = down_s. A trainer that does not run has f(C) = 0.
        """
        group = self.group if group is None else group
        rate = 0.0
        if nodes:
            curve = self.curves[group]
            if curve is None:
                raise ValueError(f"a trainer has no curve in group {group}")
            rate = curve.rate(nodes)
        if not self.now or (nodes == self.now and group == self.group):
            return self.weight * (self.horizon_s * rate)
        stall = self.up_s if nodes and (nodes > self.now or group != self.group) else self.down_s
        return self.weight * (self.horizon_s * rate - self.held_rate * stall)

    def allows(self, nodes: int, group: int) -> bool:
        """Whether it may have so many nodes of that group."""
        if nodes == 0:
            return True
        if not self.fewest <= nodes <= self.most or (self.sizes and nodes not in self.sizes):
            return False
        return 0 <= group < len(self.curves) and self.curves[group] is not None

    def reach(self, group: int, nodes: int) -> ThroughputCurve | None:
        """Its throughput over the counts that it may have where a group has so many nodes; None: there are none."""
        curve = self.curves[group] if group < len(self.curves) else None
        high = min(self.most, nodes)
        if curve is None or (not self.sizes and self.fewest == 1 and curve.points[-1][0] <= high):
            return curve
        return _within(curve, self.fewest, high, self.sizes)

    def grows(self, capacities: Sequence[int]) -> bool:
        """Whether it could get more nodes than it has, or some of another group, where groups have so many."""
        for group, nodes in enumerate(capacities):
            its = self.reach(group, nodes)
            if its is not None and (
                group != self.group or (its.points[-1][0] if self.sizes else min(self.most, nodes)) > self.now
            ):
                return True
        return False


@lru_cache(maxsize=4096)
def _within(curve: ThroughputCurve, low: int, high: int, sizes: tuple[int, ...]) -> ThroughputCurve | None:
    if sizes:
        counts = [size for size in sizes if low <= size <= high]
        return ThroughputCurve(tuple((size, curve.rate(size)) for size in counts)) if counts else None
    if low > high:
        return None
    inside = [point for point in curve.points if low < point[0] < high]
    ends = ((low, curve.rate(low)), (high, curve.rate(high)))
    return ThroughputCurve(tuple(sorted({*ends, *inside})))
