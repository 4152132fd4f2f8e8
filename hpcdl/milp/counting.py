"""Who decides the counts of `bftrainer` and `harvest`: the exact choice, or another solver whose answer is checked.

The paper's program (BFTrainer, section 3) is over nodes. It is asked for numbers of nodes only; which nodes they are
follows from layout.py, as with the exact choice. What a solver has not proven within its limits does not count: the
exact counts are there in any case.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

from hpcdl.milp.exchange import numbered
from hpcdl.milp.model import SolverError, SolverLimits
from hpcdl.milp.problem import Problem
from hpcdl.milp.solve import COUNT_SOLVERS, ProblemAnswer, legal, solve
from hpcdl.solver import Allotment, ElasticTrainer, allocate

MILP_POLICIES = ("bftrainer", "harvest")
"""Policies whose counts it decides."""

SEARCH_NODES = 10_000
"""Nodes of branch and bound after which a solver's search ends, whatever the machine (Gurobi: units of work)."""

_TOLERANCE = 1e-6
"""Values that differ by less, relatively, are equal: solvers stop at such differences."""


@dataclass(frozen=True, slots=True)
class CountedNodes:
    """Numbers of nodes, and in words which solver they are of and how good they are proven to be.

    `trouble`: why it is not the solver that was asked for, the first time; else "".
    """

    allotment: Allotment
    solver: str
    trouble: str = ""


Counting = Callable[[Sequence[ElasticTrainer], Sequence[int]], CountedNodes]
"""Numbers of nodes for these trainers, with so many nodes in each group."""

ProblemSolver = Callable[[Problem, str, SolverLimits], ProblemAnswer]
"""As `solve`, which it may do elsewhere. SolverError: it got no answer."""


def exact_counts(trainers: Sequence[ElasticTrainer], capacities: Sequence[int]) -> CountedNodes:
    """The best counts (`allocate`)."""
    found = allocate(trainers, capacities)
    return CountedNodes(found, _words(found))


class MilpCounts:
    """Counts by a solver of mixed integer programs, each answer compared with the exact one."""

    def __init__(self, solver: str, time_limit_s: float, solve_problem: ProblemSolver = solve) -> None:
        """`solver`: one of MILP_SOLVERS but `exact`. `time_limit_s`: seconds of a solve, should SEARCH_NODES not end it
        before."""
        self._solver, self._solve = solver, solve_problem
        self._limits = SolverLimits(SEARCH_NODES, time_limit_s)
        self._last: tuple[Problem, CountedNodes] | None = None
        self._told: set[str] = set()
        self.solves = self.exact = 0
        """Problems that were solved, and those of them that the exact counts decided."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why they did, or another solver; each once."""
        return tuple(sorted(self._told))

    def __call__(self, trainers: Sequence[ElasticTrainer], capacities: Sequence[int]) -> CountedNodes:
        """See `Counting`. What was asked last is answered as it was then, without its trouble."""
        problem = numbered(tuple(trainers), list(capacities))
        if self._last is not None and self._last[0] == problem:
            return self._last[1]
        found = self._counted(problem)
        self._last = problem, replace(found, trouble="")
        return found

    def _counted(self, problem: Problem) -> CountedNodes:
        self.solves += 1
        exact = allocate(problem.trainers, problem.capacities)
        if not problem.trainers or not any(problem.capacities):
            return CountedNodes(exact, _words(exact))
        try:
            answer = self._solve(problem, self._solver, self._limits)
        except SolverError as error:
            return self._instead(exact, f"{self._solver} gave no answer", f": {error}")
        found = answer.allotment
        chosen = [(nodes, group or 0) for nodes, group in zip(found.counts, found.groups, strict=True)]
        if not legal(problem, chosen):
            return self._instead(exact, f"{found.solver} gives nodes that it may not")
        value = fsum(each.worth(*one) for each, one in zip(problem.trainers, chosen, strict=True))
        if found.solver == exact.solver:
            return self._instead(exact, f"{self._solver} cannot be used", ": " + "; ".join(answer.warnings))
        # CBC looks at the clock between the steps of its search only, and may prove what it finds long after.
        if not found.optimal or answer.seconds > self._limits.seconds:
            limits = f"{self._limits.seconds:g} s or {self._limits.work:,} nodes of branch and bound"
            return self._instead(exact, f"{found.solver} has not proven its answer within {limits}")
        if value < exact.value - _TOLERANCE * abs(exact.value):
            return self._instead(exact, f"{found.solver} calls optimal what is worth less than the exact counts")
        stay = problem.stay(found.solver)
        same = [trainer.now for trainer in problem.trainers] == list(stay.counts)
        if same and stay.value >= value - _TOLERANCE * abs(value):
            found = replace(found, counts=stay.counts, groups=stay.groups, value=stay.value)
        instead = f"{self._solver} cannot be used, {found.solver} is instead"
        trouble = "" if found.solver == self._solver else self._once(instead, "; ".join(answer.warnings))
        return CountedNodes(found, _words(found), trouble)

    def _instead(self, exact: Allotment, why: str, more: str = "") -> CountedNodes:
        self.exact += 1
        trouble = self._once(why, f"{why}{more}: the exact counts decide then")
        return CountedNodes(exact, f"{_words(exact)}; {why}", trouble)

    def _once(self, kind: str, text: str) -> str:
        """The text, at the first trouble of that kind; "" later."""
        new = kind not in self._told
        self._told.add(kind)
        return text if new else ""


def _words(found: Allotment) -> str:
    """`highs over nodes: proven optimal`."""
    over = "counts" if found.solver in COUNT_SOLVERS else "nodes"
    proof = "proven optimal" if found.optimal else f"at most {100 * found.relative_gap:.2g} % below the optimum"
    return f"{found.solver} over {over}: {proof}"
