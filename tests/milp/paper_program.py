"""BFTrainer's program as section 3 of the paper prints it, equation by equation: what program.py is compared with.

One group of nodes, whose nodes have names. Every condition has its own variables and its big M; S2 are binaries, one
for each pair of neighbouring points, as HiGHS has no such sets.
"""

import math
from typing import Any

from hpcdl.milp.model import IntegerProgram
from tests.milp.made import rate


def paper_program(asked: dict[str, Any]) -> IntegerProgram:
    """min of what equation 16 maximises, for a problem as `hpcdl allocate` reads it, without `sizes` and groups."""
    model, names = IntegerProgram(), asked["nodes"]
    big = float(2 * len(names) + max((row.get("min", 1) for row in asked["trainers"]), default=0) + 1)
    every = [_trainer(model, asked, row, big) for row in asked["trainers"]]
    for at in range(len(names)):  # equation 5
        model.row(-math.inf, 1.0, [(x[at], 1.0) for x in every])
    return model


def _trainer(model: IntegerProgram, asked: dict[str, Any], row: dict[str, Any], big: float) -> list[int]:
    """x_jn of a trainer, with all that concerns it alone."""
    names = asked["nodes"]
    c = [float(name in row.get("current", ())) for name in names]
    x = [model.binary() for _ in names]
    nodes = model.column(0.0, float(len(names)))
    model.row(0.0, 0.0, [(nodes, 1.0), *((each, -1.0) for each in x)])  # equation 2
    _sizes(model, nodes, row.get("min", 1), row.get("max", len(names)), big)
    _stays(model, x, c, big)
    _gain(model, asked, row, nodes)
    _rescale(model, row, nodes, int(sum(c)), big)
    return x


def _sizes(model: IntegerProgram, nodes: int, low: int, high: int, big: float) -> None:
    """Equations 3 and 4: N = 0, or N >= min; N = 0, or N <= max."""
    lower, upper = model.binary(), model.binary()
    model.row(float(low), math.inf, [(nodes, 1.0), (lower, big)])
    model.row(-math.inf, big, [(nodes, 1.0), (lower, big)])
    model.row(-math.inf, float(high), [(nodes, 1.0), (upper, -big)])
    model.row(-math.inf, big, [(nodes, 1.0), (upper, big)])


def _stays(model: IntegerProgram, x: list[int], c: list[float], big: float) -> None:
    """Equations 9 and 10."""
    u = [model.binary() for _ in x]
    for mine, node, held in zip(u, x, c, strict=True):
        model.row(-math.inf, held, [(mine, 1.0), (node, -1.0)])
        model.row(-held, math.inf, [(mine, 1.0), (node, -1.0)])
        model.row(held, math.inf, [(mine, 1.0), (node, 1.0)])
        model.row(-math.inf, 2.0 - held, [(mine, 1.0), (node, 1.0)])
    z = model.binary()
    model.row(sum(c), math.inf, [*((each, 1.0) for each in x), *((each, -1.0) for each in u), (z, big)])
    model.row(-math.inf, sum(c) + big, [*((each, 1.0) for each in [*x, *u]), (z, big)])


def _gain(model: IntegerProgram, asked: dict[str, Any], row: dict[str, Any], nodes: int) -> None:
    """Equations 11 and 12, and the first term of 16. The points are those of the curve, no node, and all nodes."""
    last = max(len(asked["nodes"]), row["curve"][-1][0])
    points = sorted({0, last, *(at for at, _ in row["curve"])})
    worth = row.get("weight", 1.0) * asked["horizon_s"]
    w = [model.column(0.0, 1.0, -worth * rate(row["curve"], at)) for at in points]
    model.row(1.0, 1.0, [(each, 1.0) for each in w])
    model.row(0.0, 0.0, [(nodes, -1.0), *((each, float(at)) for each, at in zip(w, points, strict=True))])
    pairs = [model.binary() for _ in points[1:]]
    model.row(1.0, 1.0, [(each, 1.0) for each in pairs])
    for at, each in enumerate(w):
        model.row(-math.inf, 0.0, [(each, 1.0), *((pair, -1.0) for pair in pairs[max(0, at - 1) : at + 1])])


def _rescale(model: IntegerProgram, row: dict[str, Any], nodes: int, here: int, big: float) -> None:
    """Equations 13 to 15, and the second term of 16."""
    held = row.get("weight", 1.0) * rate(row["curve"], here) if here else 0.0
    up = model.binary(held * row.get("scale_up_s", 0.0))
    down = model.binary(held * row.get("scale_down_s", 0.0))
    model.row(-math.inf, float(here), [(nodes, 1.0), (up, here - big)])
    model.row(0.0, math.inf, [(nodes, 1.0), (up, -(here + 1.0))])
    model.row(-math.inf, big, [(nodes, 1.0), (down, big - (here - 1.0))])
    model.row(float(here), math.inf, [(nodes, 1.0), (down, float(here))])
