"""A mixed integer linear program, for any solver, and what a solver found.

program.py and counts_program.py write programs, solvers.py solves them. Only values and their checks here; no solver is
imported.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class IntegerProgram:
    """min sum cost x, with rows and columns between their bounds; columns may be integers, and in sets of type SOS2.

    `start`: a feasible solution, for solvers that can begin with one.

    In an SOS2, of three columns or more, at most two are not 0, and these are neighbours. Rows are stored one after the
    other: row i has the coefficients `values[starts[i]:starts[i + 1]]` of the columns `index[...]`.
    """

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    sos2: list[tuple[int, ...]] = field(default_factory=list)
    implied: set[int] = field(default_factory=set)  # numbers of the sets that hold in every optimum anyway

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    def column(
        self, lower: float, upper: float, cost: float = 0.0, *, integer: bool = False, start: float = 0.0
    ) -> int:
        """Adds a column; its number."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.cost.append(cost)
        self.integer.append(integer)
        self.start.append(start)
        return len(self.cost) - 1

    def binary(self, cost: float = 0.0, *, start: float = 0.0) -> int:
        """Adds a column that is 0 or 1; its number."""
        return self.column(0.0, 1.0, cost, integer=True, start=start)

    def row(self, lower: float, upper: float, terms: Iterable[tuple[int, float]]) -> None:
        """Adds lower <= sum of value x column <= upper, for the (column, value) in `terms`, each column once."""
        for column, value in terms:
            self.index.append(column)
            self.values.append(value)
        self.starts.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def with_binaries(self) -> "IntegerProgram":
        """The same program without sets: a binary for each pair of neighbours, one of them 1, says where it is not 0.

        Sets that are implied need none.
        """
        model = IntegerProgram(
            list(self.lower), list(self.upper), list(self.cost), list(self.integer), list(self.start),
            list(self.row_lower), list(self.row_upper), list(self.starts), list(self.index), list(self.values),
        )  # fmt: skip
        for number, columns in enumerate(self.sos2):
            if number in self.implied:
                continue
            used = [at for at, column in enumerate(columns) if self.start[column]]
            begin = min(used[0] if used else 0, len(columns) - 2)
            pairs = [model.binary(start=float(at == begin)) for at in range(len(columns) - 1)]
            model.row(1.0, 1.0, [(pair, 1.0) for pair in pairs])
            for at, column in enumerate(columns):
                beside = pairs[max(0, at - 1) : at + 1]
                terms = [(pair, -self.upper[column]) for pair in beside]
                model.row(-math.inf, 0.0, [(column, 1.0), *terms])
        return model


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """How much a solver may do before it answers with what it has.

    `work`: nodes of branch and bound (Gurobi: its units of work), which give the same answer on every machine;
    `seconds`: of wall time, in case a single node takes for ever.
    """

    work: int = 100_000
    seconds: float = 3600.0

    def __post_init__(self) -> None:
        if self.work < 0 or not self.seconds > 0:
            raise ValueError(f"a limit of {self.work} nodes and {self.seconds} s")


@dataclass(frozen=True, slots=True)
class SolverResult:
    """What a solver says: `values` of all columns (None: it found no feasible ones), no solution costs less than
    `bound` (-inf: not known), and whether it proved that these are the best."""

    values: Sequence[float] | None
    bound: float
    optimal: bool


class SolverError(Exception):
    """A solver that cannot be used here; the message says why in one line."""
