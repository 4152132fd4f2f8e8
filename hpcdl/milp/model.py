"""A mixed integer linear program, for any solver, and what a solver found.

program.py and counts_program.py write programs, solvers.py solves them. Only values and their checks here; no solver is
imported.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class IntegerProgram:
    """min sum cost x, with rows and columns between their bounds; columns may be integers.

    `start`: a feasible solution, for solvers that can begin with one. Rows are stored one after the other: row i has
    the coefficients `values[starts[i]:starts[i + 1]]` of the columns `index[...]`.
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
