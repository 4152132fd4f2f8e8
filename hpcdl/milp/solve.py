"""A problem's answer by any of the solvers, checked, and never worse than the current map.

`hpcdl allocate` calls `solve`; a solver that is missing, not licensed or fails is named in a warning, and the next
one takes its place. No solver's map is trusted: it must be legal, and worth no less than the current one.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module

from hpcdl.milp.counts_program import allocate_highs
from hpcdl.milp.model import SolverError, SolverLimits, SolverResult
from hpcdl.milp.problem import Problem, allowed
from hpcdl.milp.program import node_level
from hpcdl.milp.solvers import NODE_SOLVERS
from hpcdl.solver import Allotment, ElasticTrainer, ThroughputCurve, allocate
from hpcdl.solver.nodes import allotment

COUNT_SOLVERS = ("exact", "dp", "counts-highs")
"""Solvers that optimise over counts; the others do over nodes."""
SOLVERS = (*COUNT_SOLVERS, "highs", "cbc", "gurobi")
_NEEDS = {"counts-highs": "scipy.optimize", "highs": "scipy.optimize", "cbc": "pulp", "gurobi": "gurobipy"}
_MOST_CHOICES = 500_000  # of a program over nodes: two variables and four rows each
_TOLERANCE = 1e-6  # of solvers: by so much of it a bound may be wrong
_INSTEAD = {"gurobi": ("highs", "cbc"), "highs": ("cbc",), "cbc": ("highs",)}


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """What a solver answers, and a line about each one that could not; `allotment.solver` is the one that did, in so
    many seconds.
    """

    allotment: Allotment
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0


def solve(problem: Problem, solver: str = "exact", limits: SolverLimits | None = None) -> ProblemAnswer:
    """The best map of a problem by that solver; by the next one where it is not there or not licensed.

    A solver over nodes that stops at its limits with a map gives the better one of that and the current map, without
    one the current map (BFTrainer, section 3.6), shrunk where it is illegal; `optimal` is false then, and the bound
    is what the solver proved so far. ValueError: no such solver, or numbers that are too large.
    """
    if solver not in SOLVERS:
        raise ValueError(f"no solver is called {solver!r}: there are {', '.join(SOLVERS)}")
    failed: list[str] = []
    why: list[str] = []
    for each in dict.fromkeys((solver, *_INSTEAD.get(solver, ()), "exact")):
        began = time.monotonic()
        try:
            found = _by(problem, each, limits or SolverLimits())
        except SolverError as error:
            failed.append(each)
            why.append(str(error))
            continue
        said = (
            (f"{' and '.join(failed)} cannot be used, {each} is instead: {'; '.join(dict.fromkeys(why))}",)
            if failed
            else ()
        )
        return ProblemAnswer(found, said, time.monotonic() - began)
    raise AssertionError("the exact solver can always be used")


def load(solver: str) -> None:
    """Imports what that solver needs, as far as it is installed, so that a solve takes no longer than the next one."""
    allocate(
        [
            ElasticTrainer((ThroughputCurve(((1, 1.0), (4, 3.0))),), 1, 4, (), 1),
            ElasticTrainer((ThroughputCurve(((2, 1.0),)),), 1, 2),
        ],
        [3],
    )
    if solver in _NEEDS:
        with suppress(ImportError):
            import_module(_NEEDS[solver])


def _by(problem: Problem, solver: str, limits: SolverLimits) -> Allotment:
    if solver in ("exact", "dp"):
        try:
            return allocate(problem.trainers, problem.capacities, solver)
        except MemoryError:
            if solver == "exact":
                raise
            raise SolverError("the dynamic program needs too much memory") from None
    if solver == "counts-highs":
        return _better(allocate_highs(problem.trainers, problem.capacities, limits), problem)
    return _by_nodes(problem, solver, limits)


def _better(found: Allotment, problem: Problem) -> Allotment:
    """What was found, or the current map where that is worth more, which within tolerances even an optimum may be."""
    stay = problem.stay(found.solver)
    if found.value >= stay.value:
        return found
    return replace(stay, bound=stay.value if found.optimal else max(found.bound, stay.value), optimal=found.optimal)


def _by_nodes(problem: Problem, solver: str, limits: SolverLimits) -> Allotment:
    size = sum(problem.groups[group].size for _, group in problem.places())
    if size > _MOST_CHOICES:
        raise SolverError(f"{size:,} pairs of trainer and node are more than the {_MOST_CHOICES:,} that are possible")
    program = node_level(problem)
    found = NODE_SOLVERS[solver](program.model, limits) if program.model.columns else SolverResult((), 0.0, True)
    bound = found.bound * program.scale
    bound = min(bound + _TOLERANCE * abs(bound), free_bound(problem))
    if found.values is None:
        stay = problem.stay(solver)
        return replace(stay, bound=max(bound, stay.value))
    chosen = program.chosen(len(problem.trainers), found.values)
    if not legal(problem, chosen):
        raise SolverError("its map breaks the rules of the problem")
    return _better(allotment(problem.trainers, chosen, None if found.optimal else bound, solver), problem)


def legal(problem: Problem, chosen: Sequence[tuple[int, int]]) -> bool:
    """Whether trainers may have these (nodes, group), and there are so many."""
    left = problem.capacities
    for trainer, (nodes, group) in zip(problem.trainers, chosen, strict=True):
        if not 0 <= group < len(left) or not trainer.allows(nodes, group):
            return False
        left[group] -= nodes
    return all(nodes >= 0 for nodes in left)


def free_bound(problem: Problem) -> float:
    """What all trainers together would be worth if each had all nodes for itself: no map is worth more."""
    return math.fsum(_most(problem, trainer) for trainer in problem.trainers)


def _most(problem: Problem, trainer: ElasticTrainer) -> float:
    best = trainer.worth(0)
    for group, curve in enumerate(trainer.curves):
        if curve is None:
            continue
        sizes = allowed(trainer, problem.groups[group].size)
        if not trainer.sizes and sizes:  # its value is linear between these
            corners = {sizes[0], sizes[-1], trainer.now - 1, trainer.now, trainer.now + 1}
            sizes = [each for each in corners.union(at for at, _ in curve.points) if each in sizes]
        best = max([best, *(trainer.worth(each, group) for each in sizes)])
    return best
