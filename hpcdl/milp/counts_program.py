"""The choice of counts as a mixed integer linear program for HiGHS: a check on the solvers of hpcdl/solver/.

The counts that a trainer may have fall into pieces on which its value is linear: its knots (hpcdl/solver/rows.py) and
what is between neighbouring ones. A binary for each piece says which one it takes, and a number how far into it the
count is; given the binaries that number is whole of itself, since in each group at most one trainer is between the
ends of its piece. This is BFTrainer's program (section 3, equations 3, 4 and 11 to 16) without its nodes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcdl.milp.model import IntegerProgram, SolverError, SolverLimits
from hpcdl.milp.solvers import solve_with_highs
from hpcdl.solver import Allotment, ElasticTrainer
from hpcdl.solver.kernels import Rows
from hpcdl.solver.nodes import allotment
from hpcdl.solver.rows import read
from hpcdl.solver.table import off_grid

SOLVER = "counts-highs"
LARGEST = 1e4  # value of a piece in the program: far above what HiGHS takes for 0


@dataclass(frozen=True, slots=True)
class _CountRange:
    """Counts `first` to `last` of a group (-1: none), worth `value` and `slope` more for each after the first."""

    group: int
    first: int
    last: int
    value: float
    slope: float
    taken: int  # column: it is this piece
    more: int  # column: nodes beyond the first; -1: there is one count only


def allocate_highs(
    trainers: Sequence[ElasticTrainer], capacities: Sequence[int], limits: SolverLimits | None = None
) -> Allotment:
    """The counts of the highest value (see hpcdl.solver.nodes), among equals whichever HiGHS finds.

    Where the limits end the search, the best that was found, with its bound. SolverError: HiGHS cannot be used, or
    found nothing, or what is no answer. ValueError: numbers that make no sense.
    """
    rows = read(trainers, capacities)
    if not rows.trainers:
        return Allotment((), (), 0.0, 0.0, True, SOLVER)
    largest = float(np.abs(rows.value).max()) or 1.0
    model, pieces = _program(rows, LARGEST / largest)
    found = solve_with_highs(model, limits or SolverLimits())
    if found.values is None:
        raise SolverError("HiGHS found no counts within its limits")
    chosen = []
    for mine in pieces:
        piece = max(mine, key=lambda each: found.values[each.taken] if found.values else 0.0)
        more = round(found.values[piece.more]) if piece.more >= 0 else 0
        chosen.append((piece.first + min(more, piece.last - piece.first), max(piece.group, 0)))
    for group, nodes in enumerate(rows.capacity.tolist()):
        if sum(count for count, where in chosen if where == group) > nodes:
            raise SolverError(f"the counts of HiGHS do not fit into group {group}")
    bound = off_grid(1, rows.exponent) * largest / LARGEST * -found.bound
    return allotment(trainers, chosen, None if found.optimal else bound, SOLVER)


def _program(rows: Rows, scale: float) -> tuple[IntegerProgram, list[list[_CountRange]]]:
    """The program, with values multiplied by `scale`, and the pieces of each trainer."""
    model = IntegerProgram()
    pieces: list[list[_CountRange]] = [[] for _ in range(rows.trainers)]
    for row, trainer in enumerate(rows.trainer.tolist()):
        first, value = int(rows.nodes[row]), float(rows.value[row]) * scale
        last, slope = first, 0.0
        if rows.inner[row]:
            last, slope = int(rows.nodes[row + 1]), float(rows.slope[row]) * scale
        taken = model.binary(-value)
        more = model.column(0.0, float(last - first), -slope) if last > first else -1
        pieces[trainer].append(_CountRange(int(rows.group[row]), first, last, value, slope, taken, more))
    for mine in pieces:
        model.row(1.0, 1.0, [(piece.taken, 1.0) for piece in mine])
        for piece in mine:
            if piece.more >= 0:
                model.row(-math.inf, 0.0, [(piece.more, 1.0), (piece.taken, -float(piece.last - piece.first))])
    for group, nodes in enumerate(rows.capacity.tolist()):
        terms = []
        for piece in (each for mine in pieces for each in mine if each.group == group):
            terms.append((piece.taken, float(piece.first)))
            if piece.more >= 0:
                terms.append((piece.more, 1.0))
        model.row(-math.inf, float(nodes), terms)
    return model, pieces
