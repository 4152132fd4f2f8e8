"""BFTrainer's program over nodes (section 3, equations 1 to 16), and its answer as counts.

For each trainer j and each group g in which it may run (the paper has one group): x_jn says that it gets node n. A
trainer that has C nodes of a group may get N of the same group by keeping or by adding; in another group it has C = 0.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hpcdl.milp.model import IntegerProgram
from hpcdl.milp.problem import Problem
from hpcdl.solver import Allotment, ElasticTrainer

_LARGEST_COST = 1e4  # of a column, after scaling: solvers' tolerances are absolute


@dataclass(slots=True)
class NodeLevel:
    """The program, and where in it the nodes of each (trainer, group) are. What it costs x `scale` is our objective."""

    model: IntegerProgram
    nodes: dict[tuple[int, int], list[int]]
    scale: float

    def chosen(self, trainers: int, values: Sequence[float]) -> list[tuple[int, int]]:
        """(nodes, group) of each trainer."""
        found = [(0, 0)] * trainers
        for (trainer, group), columns in self.nodes.items():
            number = sum(values[column] > 0.5 for column in columns)
            if number:
                found[trainer] = (number, group)
        return found


@dataclass(slots=True)
class _Build:
    problem: Problem
    stay: Allotment  # the current map, as far as it is allowed: the solution to begin with
    model: IntegerProgram = field(default_factory=IntegerProgram)
    nodes: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    running: dict[int, list[int]] = field(default_factory=dict)  # trainer -> y^l of its groups


def node_level(problem: Problem) -> NodeLevel:
    """The mixed integer program of a problem (equations 1 to 16).

    Big-M is twice the number of nodes: in equation 10 a trainer may give up that much more than it adds, and with
    |N| + 1 it could not change by more than half of the nodes. Where a trainer needs more nodes than that, M is that
    number, for equation 4.
    """
    build = _Build(problem, problem.stay(""))
    model = build.model
    holders = _holders(problem)
    for trainer, group in problem.places():
        kept = set(_mine(holders[group], trainer)[: _stays(build, trainer, group)])
        size = problem.groups[group].size
        build.nodes[trainer, group] = [model.binary(start=float(node in kept)) for node in range(size)]
    for group, its in enumerate(problem.groups):  # equation 5: a node is one trainer's
        columns = [each for (_, where), each in build.nodes.items() if where == group]
        if len(columns) > 1:
            for node in range(its.size):
                model.row(-math.inf, 1.0, [(each[node], 1.0) for each in columns])
    for trainer, group in problem.places():
        _place(build, trainer, group, _mine(holders[group], trainer))
    for stays in build.running.values():  # a trainer uses one group at a time
        if len(stays) > 1:
            model.row(len(stays) - 1.0, math.inf, [(each, 1.0) for each in stays])
    largest = max(map(abs, model.cost), default=0.0)
    scale = 2.0 ** math.ceil(math.log2(largest / _LARGEST_COST)) if largest > 0 else 1.0
    model.cost = [cost / scale for cost in model.cost]
    return NodeLevel(model, build.nodes, -scale)


def _mine(holders: list[int | None], trainer: int) -> list[int]:
    return [node for node, owner in enumerate(holders) if owner == trainer]


def _stays(build: _Build, trainer: int, group: int) -> int:
    """How many nodes of the group it has to begin with."""
    return build.stay.counts[trainer] if build.stay.groups[trainer] == group else 0


def _holders(problem: Problem) -> list[list[int | None]]:
    """Of each node of each group the trainer that has it now; where nodes have no names, the first ones in turn."""
    found: list[list[int | None]] = [[None] * group.size for group in problem.groups]
    numbers = [{name: at for at, name in enumerate(group.names or ())} for group in problem.groups]
    following = [0] * len(problem.groups)
    for number, trainer in enumerate(problem.trainers):
        group = trainer.group
        if problem.groups[group].names is not None:
            for name in problem.held[number]:
                found[group][numbers[group][name]] = number
        else:
            until = min(following[group] + trainer.now, problem.groups[group].size)
            for node in range(following[group], until):
                found[group][node] = number
            following[group] = until
    return found


def _place(build: _Build, number: int, group: int, mine: list[int]) -> None:
    """Everything about a trainer in a group; `mine`: the nodes that it has there."""
    trainer, model = build.problem.trainers[number], build.model
    x, stays = build.nodes[number, group], _stays(build, number, group)
    big = float(max(2 * len(x), trainer.fewest, 1))
    nodes = model.column(0.0, float(len(x)), start=float(stays))  # equation 2: N_j = sum x_jn
    model.row(0.0, 0.0, [(nodes, 1.0), *((each, -1.0) for each in x)])
    _size(build, number, trainer, nodes, big)
    if mine:
        _no_migration(model, x, mine, big)
    _rate(build, trainer, group, nodes, stays)
    _rescale(build, trainer, group, nodes, big)


def _size(build: _Build, number: int, trainer: ElasticTrainer, nodes: int, big: float) -> None:
    """Equation 4: N = 0, or fewest <= N <= most."""
    model = build.model
    none_low, none_high = model.binary(start=float(not model.start[nodes])), model.binary()
    model.row(float(trainer.fewest), math.inf, [(nodes, 1.0), (none_low, big)])
    model.row(-math.inf, big, [(nodes, 1.0), (none_low, big)])
    model.row(-math.inf, float(trainer.most), [(nodes, 1.0), (none_high, -big)])
    model.row(-math.inf, big, [(nodes, 1.0), (none_high, big)])
    build.running.setdefault(number, []).append(none_low)


def _no_migration(model: IntegerProgram, x: list[int], mine: list[int], big: float) -> None:
    """Equations 9 and 10: |N - C| = sum of u, where u_n = x_n xor c_n."""
    held = set(mine)
    terms: list[tuple[int, float]] = []
    for node, column in enumerate(x):
        c = 1.0 if node in held else 0.0
        u = model.binary(start=float(model.start[column] != c))
        model.row(-math.inf, c, [(u, 1.0), (column, -1.0)])
        model.row(-c, math.inf, [(u, 1.0), (column, -1.0)])
        model.row(c, math.inf, [(u, 1.0), (column, 1.0)])
        model.row(-math.inf, 2.0 - c, [(u, 1.0), (column, 1.0)])
        terms.append((u, 1.0))
    count = float(len(mine))
    z = model.binary(start=float(sum(model.start[column] for column in x) < count))
    added = [(column, 1.0) for column in x]
    model.row(count, math.inf, [*added, *((u, -1.0) for u, _ in terms), (z, big)])
    model.row(-math.inf, count + big, [*added, *terms, (z, big)])


def _rate(build: _Build, trainer: ElasticTrainer, group: int, nodes: int, stays: int) -> None:
    """Equations 11, 12 and the gain of 16: f(N) between neighbouring points, or at one of the allowed sizes."""
    problem, model = build.problem, build.model
    room = problem.groups[group].size
    curve = trainer.reach(group, room)
    assert curve is not None
    gain = trainer.weight * problem.horizon_s
    end = min(trainer.most, room)
    corners = [at for at, _ in curve.points]
    points = [0, *corners] if trainer.sizes or corners[-1] >= end else [0, *corners, end]
    rates = [curve.rate(at) for at in points]
    weights = _weights(points, stays)
    w = [
        model.column(0.0, 1.0, -gain * rate, integer=bool(trainer.sizes), start=weight)
        for rate, weight in zip(rates, weights, strict=True)
    ]
    model.row(1.0, 1.0, [(each, 1.0) for each in w])
    model.row(0.0, 0.0, [(nodes, -1.0), *((each, float(at)) for each, at in zip(w, points, strict=True) if at)])
    if not trainer.sizes and len(w) > 2:
        if _concave(points, rates):
            model.implied.add(len(model.sos2))
        model.sos2.append(tuple(w))


def _weights(points: Sequence[int], nodes: int) -> list[float]:
    """Of each point, so that their sum is that number of nodes: two neighbours have some, or one."""
    found = [0.0] * len(points)
    after = bisect_left(points, nodes)
    found[after] = 1.0
    if points[after] != nodes:
        before = points[after - 1]
        found[after] = (nodes - before) / (points[after] - before)
        found[after - 1] = 1.0 - found[after]
    return found


def _rescale(build: _Build, trainer: ElasticTrainer, group: int, nodes: int, big: float) -> None:
    """Equations 13 to 15 and the cost of 16: z^u = 1 where N > C, z^d = 1 where N < C."""
    model = build.model
    lost = trainer.weight * trainer.held_rate
    here = trainer.now if group == trainer.group else 0
    if not lost:
        return
    big = max(big, here + 1.0)
    room, grows = build.problem.capacities, trainer.grows(build.problem.capacities)
    if grows:
        # A trainer that goes to another group leaves all that it has: what that costs here is not counted there.
        up = model.binary(lost * (trainer.up_s if group == trainer.group else trainer.up_s - trainer.down_s))
        model.row(-math.inf, float(here), [(nodes, 1.0), (up, here - big)])
        model.row(0.0, math.inf, [(nodes, 1.0), (up, -(here + 1.0))])
    # Who can neither grow nor stay loses the same with whatever it gets.
    if here and (grows or len(room) > 1 or (here <= room[group] and trainer.allows(here, group))):
        down = model.binary(lost * trainer.down_s, start=float(model.start[nodes] < here))
        model.row(-math.inf, big, [(nodes, 1.0), (down, big - (here - 1.0))])
        model.row(float(here), math.inf, [(nodes, 1.0), (down, float(here))])


def _concave(points: Sequence[int], rates: Sequence[float]) -> bool:
    """Whether no point lies below the line between its neighbours: then the best weights are neighbours anyway."""
    steps = pairwise(zip(points, rates, strict=True))
    slopes = [(rate - before) / (at - start) for (start, before), (at, rate) in steps]
    return all(later <= earlier for earlier, later in pairwise(slopes))
