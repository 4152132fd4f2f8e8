"""The choice of counts as a mixed integer linear program: what program.py adds nodes to, and by itself for HiGHS.

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
class CountPiece:
    """Counts `first` to `last` of a group (-1: none), one of which a trainer has if it takes the piece."""

    group: int
    first: int
    last: int
    taken: int  # column: it is this piece
    more: int  # column: nodes beyond the first; -1: there is one count only

    @property
    def nodes(self) -> list[tuple[int, float]]:
        """(column, value) whose sum is the count; 0 where the piece is not taken."""
        terms = [(self.taken, float(self.first))]
        return terms if self.more < 0 else [*terms, (self.more, 1.0)]


@dataclass(frozen=True, slots=True)
class CountChoice:
    """The program, the pieces of each trainer, and what a unit of its cost is worth: values are `unit` x -cost."""

    model: IntegerProgram
    pieces: list[list[CountPiece]]
    unit: float


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
    choice = choice_of_counts(rows)
    found = solve_with_highs(choice.model, limits or SolverLimits())
    if found.values is None:
        raise SolverError("HiGHS found no counts within its limits")
    chosen = []
    for mine in choice.pieces:
        piece = max(mine, key=lambda each: found.values[each.taken] if found.values else 0.0)
        more = round(found.values[piece.more]) if piece.more >= 0 else 0
        chosen.append((piece.first + min(more, piece.last - piece.first), max(piece.group, 0)))
    for group, nodes in enumerate(rows.capacity.tolist()):
        if sum(count for count, where in chosen if where == group) > nodes:
            raise SolverError(f"the counts of HiGHS do not fit into group {group}")
    return allotment(trainers, chosen, None if found.optimal else choice.unit * -found.bound, SOLVER)


def choice_of_counts(rows: Rows) -> CountChoice:
    """The program of some trainers on groups of nodes."""
    largest = float(np.abs(rows.value).max(initial=0)) or 1.0
    scale = LARGEST / largest
    model = IntegerProgram()
    pieces: list[list[CountPiece]] = [[] for _ in range(rows.trainers)]
    for row, trainer in enumerate(rows.trainer.tolist()):
        first = last = int(rows.nodes[row])
        taken, more = model.binary(-float(rows.value[row]) * scale), -1
        if rows.inner[row]:
            last = int(rows.nodes[row + 1])
            more = model.column(0.0, float(last - first), -float(rows.slope[row]) * scale)
        pieces[trainer].append(CountPiece(int(rows.group[row]), first, last, taken, more))
    for mine in pieces:
        model.row(1.0, 1.0, [(piece.taken, 1.0) for piece in mine])
        for piece in mine:
            if piece.more >= 0:
                model.row(-math.inf, 0.0, [(piece.more, 1.0), (piece.taken, -float(piece.last - piece.first))])
    for group, nodes in enumerate(rows.capacity.tolist()):
        terms = [term for mine in pieces for piece in mine if piece.group == group for term in piece.nodes]
        model.row(-math.inf, float(nodes), terms)
    return CountChoice(model, pieces, off_grid(1, rows.exponent) * largest / LARGEST)
