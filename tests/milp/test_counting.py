"""Solvers of mixed integer programs decide counts as well as the exact choice, or it decides."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcdl.core.model.milp_solvers import MILP_SOLVERS
from hpcdl.milp.counting import CountedNodes, MilpCounts, exact_counts
from hpcdl.milp.exchange import question_text, read_question, read_reply, refusal_text, reply_text
from hpcdl.milp.model import SolverError, SolverLimits
from hpcdl.milp.problem import Problem, read
from hpcdl.milp.program import node_level
from hpcdl.milp.solve import ProblemAnswer, solve
from hpcdl.solver import Allotment
from tests.milp.made import problem
from tests.support.seeds import seeds


def made(seed: int, *, groups: bool = False) -> Problem:
    return read(json.dumps(problem(seed, groups=groups)))


def usual() -> Problem:
    """A problem in which trainers hold nodes and others may have them."""
    curve = [[1, 10.0], [4, 30.0], [8, 40.0]]
    rows = [{"id": name, "max": 8, "curve": curve, "scale_up_s": 20, "scale_down_s": 5} for name in "abc"]
    return read(json.dumps({"horizon_s": 120, "nodes": 8, "trainers": [{**rows[0], "current": 3}, *rows[1:]]}))


def counted(counts: MilpCounts, asked: Problem) -> CountedNodes:
    return counts(asked.trainers, asked.capacities)


@pytest.mark.parametrize("solver", [each for each in MILP_SOLVERS if each != "exact"])
@pytest.mark.parametrize("groups", [False, True])
def test_a_solver_decides_what_the_exact_choice_is_worth(solver: str, groups: bool) -> None:
    counts = MilpCounts(solver, 60.0)
    for seed in range(seeds(30)):
        asked = made(seed, groups=groups)
        print("seed", seed)
        found = counted(counts, asked)
        exact = exact_counts(asked.trainers, asked.capacities)
        assert found.trouble == ""
        assert found.allotment.optimal
        assert found.allotment.value == pytest.approx(exact.allotment.value, rel=1e-6, abs=1e-6)
        if asked.trainers and any(asked.capacities):
            assert found.solver.startswith(solver)
            assert found.solver.endswith("proven optimal")
    assert counts.exact == 0


def test_what_is_not_proven_within_the_limits_is_decided_by_the_exact_counts_and_told_once() -> None:
    counts = MilpCounts("highs", 1e-9)
    asked = usual()
    first = counted(counts, asked)
    exact = exact_counts(asked.trainers, asked.capacities)
    assert first.allotment == exact.allotment
    assert first.solver == f"{exact.solver}; {first.trouble.partition(':')[0]}"
    assert "highs has not proven its answer within 1e-09 s or 10,000 nodes" in first.trouble
    assert counted(counts, asked) == replace(first, trouble="")
    again = counted(counts, replace(asked, horizon_s=60.0, trainers=tuple(reversed(asked.trainers))))
    assert again.trouble == ""
    assert (counts.solves, counts.exact, len(counts.troubles)) == (2, 2, 1)


def answering(change: Allotment) -> MilpCounts:
    return MilpCounts("highs", 5.0, lambda asked, solver, limits: ProblemAnswer(replace(change, solver=solver)))


def test_what_is_proven_after_its_time_does_not_count() -> None:
    """CBC looks at the clock only now and then."""
    asked = usual()
    proven = replace(exact_counts(asked.trainers, asked.capacities).allotment, solver="cbc")
    for seconds, by in (
        (4.9, "cbc over nodes: proven optimal"),
        (5.1, "exact over counts: proven optimal; cbc has not"),
    ):
        counts = MilpCounts("cbc", 5.0, lambda *_, took=seconds: ProblemAnswer(proven, (), took))
        assert counted(counts, asked).solver.startswith(by)


def test_no_solver_is_trusted() -> None:
    asked = usual()
    best = exact_counts(asked.trainers, asked.capacities).allotment
    for what, answer in (
        ("gives nodes that it may not", replace(best, counts=(8, 8, 8), groups=(0, 0, 0))),
        ("calls optimal what is worth less", replace(best, counts=(0, 0, 1), groups=(None, None, 0))),
        ("has not proven its answer", replace(best, optimal=False)),
    ):
        found = counted(answering(answer), asked)
        assert found.allotment == best
        assert what in found.trouble
        assert what in found.solver


def test_a_solver_that_gives_no_answer_is_named() -> None:
    def fails(asked: Problem, solver: str, limits: SolverLimits) -> ProblemAnswer:
        raise SolverError("its process has not answered in time")

    found = counted(MilpCounts("cbc", 5.0, fails), usual())
    assert found.trouble == "cbc gave no answer: its process has not answered in time: the exact counts decide then"


def test_a_licence_that_is_too_small_is_told_once_and_highs_decides() -> None:
    def small(asked: Problem, solver: str, limits: SolverLimits) -> ProblemAnswer:
        instead = solve(asked, "highs", limits)
        return replace(instead, warnings=("gurobi cannot be used, highs is instead: too small",))

    counts, asked = MilpCounts("gurobi", 5.0, small), usual()
    found = counted(counts, asked)
    assert found.trouble == "gurobi cannot be used, highs is instead: too small"
    assert found.solver == "highs over nodes: proven optimal"
    assert counted(counts, replace(asked, trainers=asked.trainers[::-1])).trouble == ""


def test_the_same_question_is_not_solved_twice() -> None:
    asked_of: list[Problem] = []

    def noted(asked: Problem, solver: str, limits: SolverLimits) -> ProblemAnswer:
        asked_of.append(asked)
        return solve(asked, solver, limits)

    counts, asked = MilpCounts("counts-highs", 5.0, noted), usual()
    assert counted(counts, asked) == counted(counts, asked)
    assert len(asked_of) == 1


@pytest.mark.parametrize("groups", [False, True])
def test_the_current_map_is_a_solution_to_begin_with(groups: bool) -> None:
    looked_at = 0
    for seed in range(seeds(200)):
        model = node_level(made(seed, groups=groups)).model
        if not model.columns:
            continue
        looked_at += 1
        start = np.array(model.start)
        rows = csr_array((model.values, model.index, model.starts), shape=(model.rows, model.columns)) @ start
        print("seed", seed)
        assert (rows >= np.array(model.row_lower) - 1e-9).all()
        assert (rows <= np.array(model.row_upper) + 1e-9).all()
        assert (start >= np.array(model.lower)).all()
        assert (start <= np.array(model.upper)).all()
    assert looked_at > seeds(200) / 2


def test_a_problem_and_its_answer_are_the_same_after_the_exchange() -> None:
    limits = SolverLimits(77, 1.5)
    for seed in range(seeds(40)):
        asked = made(seed, groups=seed % 2 == 0)
        back, solver, its_limits = read_question(question_text(asked, "cbc", limits))
        assert (back.trainers, back.capacities) == (asked.trainers, asked.capacities)
        assert (solver, its_limits) == ("cbc", limits)
        answer = solve(asked)
        assert read_reply(reply_text(answer), len(asked.trainers)) == answer
    unknown = ProblemAnswer(Allotment((0,), (None,), 1.0, math.inf, False, "highs"))
    assert read_reply(reply_text(unknown), 1) == unknown


def test_an_answer_that_is_none_says_so() -> None:
    for text, why in (
        ("", "no answer"),
        (refusal_text("MemoryError: "), "MemoryError"),
        (reply_text(ProblemAnswer(Allotment((1,), (0,), 1.0, 1.0, True, "cbc"))), "1 of 2 trainers"),
    ):
        with pytest.raises(SolverError, match=why):
            read_reply(text, 2)
