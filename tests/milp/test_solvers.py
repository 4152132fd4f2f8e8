"""All solvers find the same optimum, strange problems included; what they say of themselves is true."""

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdl.milp.answer import nodes_of, reasons
from hpcdl.milp.counts_program import choice_of_counts
from hpcdl.milp.model import IntegerProgram, SolverError, SolverLimits, SolverResult
from hpcdl.milp.problem import Problem, read
from hpcdl.milp.program import node_level
from hpcdl.milp.solve import SOLVERS, free_bound, legal, solve
from hpcdl.milp.solvers import NODE_SOLVERS
from hpcdl.milp.solvers import solve_with_highs as by_highs
from hpcdl.solver.rows import read as trainer_rows
from tests.milp.made import best, faults, problem
from tests.support.seeds import seeds

OVER_NODES = ("highs", "cbc", "gurobi")


def answer(asked: dict[str, Any], solver: str) -> dict[str, Any]:
    """The answer, as the command prints it."""
    read_back = read(json.dumps(asked))
    found = solve(read_back, solver)
    assert not found.warnings
    allotment = found.allotment
    rows = list(zip(read_back.ids, nodes_of(read_back, allotment), allotment.groups, strict=True))
    return {
        "solver": allotment.solver,
        "optimal": allotment.optimal,
        "objective": allotment.value,
        "bound": allotment.bound,
        "allocation": {name: list(got) if isinstance(got, tuple) else got for name, got, _ in rows},
        "groups": {name: read_back.groups[at].name for name, _, at in rows if at is not None},
        "why": dict(zip(read_back.ids, reasons(read_back, allotment), strict=True)),
    }


@pytest.mark.parametrize("start", range(0, seeds(500), 100))
@pytest.mark.parametrize("solver", ["exact", "dp"])
def test_solvers_over_counts_find_the_optimum(solver: str, start: int) -> None:
    for seed in range(start, start + 100):
        for groups in (False, True):
            asked = problem(seed, groups=groups)
            print("seed", seed, "groups", groups)
            said = answer(asked, solver)
            assert faults(asked, said) == []
            assert said["optimal"]


@pytest.mark.parametrize("start", range(0, seeds(80), 10))
@pytest.mark.parametrize("solver", [*OVER_NODES, "counts-highs"])
def test_solvers_over_nodes_find_the_optimum(solver: str, start: int) -> None:
    for seed in range(start, start + 10):
        for groups in (False, True):
            asked = problem(seed, groups=groups)
            print("seed", seed, "groups", groups)
            said = answer(asked, solver)
            assert said["solver"] == solver
            assert faults(asked, said) == []
            assert said["optimal"]


@pytest.mark.parametrize("solver", SOLVERS)
def test_strange_problems(solver: str) -> None:
    lone = {"id": "a", "min": 1, "max": 9, "scale_up_s": 20, "scale_down_s": 5, "curve": [[1, 1.0], [4, 4.0]]}
    for what, change, count in (
        ("needs more nodes than there are", {"nodes": 3, "trainers": [{**lone, "min": 40, "max": 64}]}, 0),
        ("has more nodes than are allowed", {"nodes": 8, "trainers": [{**lone, "max": 2, "current": 8}]}, 2),
        ("has fewer nodes than are needed", {"nodes": 2, "trainers": [{**lone, "min": 3, "current": 2}]}, 0),
        ("no nodes", {"nodes": 0, "trainers": [lone]}, 0),
        ("no throughput", {"nodes": 3, "trainers": [{**lone, "curve": [[1, 0]]}]}, 0),
        ("costs more than it gains", {"nodes": 3, "trainers": [{**lone, "current": 1, "scale_up_s": 1e4}]}, 1),
        ("worth nothing", {"nodes": 3, "trainers": [{**lone, "weight": 0}]}, 0),
        ("all nodes at once", {"nodes": 9, "trainers": [{**lone, "curve": [[1, 1.0], [9, 9.0]]}]}, 9),
        ("all nodes back at once", {"nodes": 9, "trainers": [{**lone, "current": 9, "max": 1}]}, 1),
        ("more pay, few do not", {"nodes": 9, "trainers": [{**lone, "curve": [[3, 0], [4, 1]]}]}, 4),
        ("sizes only", {"nodes": 7, "trainers": [{**lone, "sizes": [1, 2, 8]}]}, 2),
        ("more held than there is", {"nodes": 2, "trainers": [{**lone, "current": 5}]}, 2),
    ):  # fmt: skip
        asked = {"horizon_s": 120, **change}
        said = answer(asked, solver)
        assert (what, faults(asked, said), said["optimal"]) == (what, [], True)
        if solver in ("exact", "dp") or what not in ("no throughput", "worth nothing", "more pay, few do not"):
            assert (what, said["allocation"]["a"]) == (what, count)  # elsewhere more nodes may be worth the same
    assert answer({"horizon_s": 120, "nodes": 3, "trainers": []}, solver)["objective"] == 0.0


@pytest.mark.parametrize("solver", [*OVER_NODES, "exact"])
def test_a_trainer_that_changes_group_pays_a_rescale_up_and_nothing_else(solver: str) -> None:
    row = {"id": "a", "min": 1, "max": 2, "group": "old", "current": 2, "scale_up_s": 30, "scale_down_s": 50}
    asked = {"horizon_s": 100, "groups": {"old": 2, "new": 2}}
    asked["trainers"] = [{**row, "curve": {"old": [[2, 10.0]], "new": [[2, 14.0]]}}]
    said = answer(asked, solver)
    assert faults(asked, said) == []
    assert said["groups"] == {"a": "new"}
    assert said["objective"] == pytest.approx(100 * 14 - 10 * 30)


def test_big_m_lets_a_trainer_change_by_more_than_half_of_the_nodes() -> None:
    grow = {"id": "a", "current": 1, "max": 9, "curve": [[1, 1], [9, 9]]}
    back = {"id": "b", "current": 8, "max": 8, "curve": [[1, 0.1]]}
    asked = {"horizon_s": 120, "nodes": 9, "trainers": [grow, back]}
    for solver in OVER_NODES:
        assert answer(asked, solver)["allocation"] == {"a": 9, "b": 0}


def test_a_curve_that_is_not_concave_needs_neighbouring_points() -> None:
    # Between its points the curve is far below the line from its first to its last one.
    dips = {"id": "a", "min": 1, "max": 9, "curve": [[2, 8.0], [3, 1.0], [8, 2.0], [9, 40.0]]}
    asked = {"horizon_s": 1, "nodes": 8, "trainers": [dips]}
    for solver in OVER_NODES:
        assert answer(asked, solver)["allocation"] == {"a": 2}


@pytest.mark.parametrize("groups", [False, True])
def test_the_program_over_nodes_is_as_tight_as_the_one_over_counts(groups: bool) -> None:
    for seed in range(seeds(60)):
        asked = read(json.dumps(problem(seed, groups=groups)))
        if not asked.trainers or not any(asked.capacities):
            continue
        print("seed", seed)
        counts = choice_of_counts(trainer_rows(asked.trainers, asked.capacities)).model
        assert relaxed(node_level(asked).model) == pytest.approx(relaxed(counts), rel=1e-6, abs=1e-6)


def relaxed(model: IntegerProgram) -> float:
    """The least cost where no column must be whole."""
    found = by_highs(replace(model, integer=[False] * model.columns), SolverLimits())
    assert found.optimal
    return found.bound


def large() -> Problem:
    """More than a solver does in a moment."""
    rows = [
        {"id": f"t{n}", "max": 40, "current": 3, "scale_up_s": 20, "curve": [[1, 3 + n % 7], [8, 20 + n % 5], [40, 60]]}
        for n in range(20)
    ]
    return read(json.dumps({"horizon_s": 120, "nodes": 100, "trainers": rows}))


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_without_a_map_at_the_limit_the_current_one_stays(solver: str) -> None:
    asked = large()
    found = solve(asked, solver, SolverLimits(work=0, seconds=1e-3)).allotment
    assert not found.optimal
    assert found.counts == (3,) * 20
    assert found.value == pytest.approx(asked.stay("").value)
    best_one = solve(asked, "exact").allotment.value
    assert found.value < best_one <= found.bound < 100 * abs(best_one)
    assert found.solver == solver


@pytest.mark.parametrize(("low", "stays"), [(0.0, True), (1e9, False)])
def test_at_a_limit_the_better_map_is_taken(low: float, stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"id": "a", "current": 3, "max": 4, "scale_down_s": 1, "curve": [[1, 5.0], [2, 1.0 + low], [4, 9.0]]}
    asked = read(json.dumps({"horizon_s": 10, "nodes": 4, "trainers": [row]}))

    def stopped(model: IntegerProgram, limits: SolverLimits) -> SolverResult:
        # It found two nodes for the trainer, and has not proven anything.
        program = node_level(asked)
        values = [0.0] * model.columns
        for column in program.nodes[0, 0][:2]:
            values[column] = 1.0
        return SolverResult(values, -1e30, False)

    monkeypatch.setitem(NODE_SOLVERS, "highs", stopped)
    found = solve(asked, "highs").allotment
    assert found.counts == ((3,) if stays else (2,))
    assert not found.optimal
    assert found.value <= found.bound == pytest.approx(free_bound(asked))


def test_an_illegal_current_map_is_shrunk_to_the_next_legal_one() -> None:
    rows = [
        {"id": "over", "current": 5, "max": 3, "curve": [[1, 1]]},
        {"id": "under", "current": 1, "min": 2, "max": 3, "curve": [[1, 1]]},
        {"id": "sizes", "current": 3, "max": 8, "sizes": [1, 2, 8], "curve": [[1, 1]]},
        {"id": "many", "current": 9, "max": 9, "curve": [[1, 1]]},
    ]
    asked = read(json.dumps({"horizon_s": 120, "nodes": 10, "trainers": rows}))
    assert asked.stay("exact").counts == (3, 0, 2, 5)
    assert asked.stay("exact").groups == (0, None, 0, 0)


def test_what_is_not_installed_falls_back_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = read(json.dumps(problem(3)))
    expected = solve(asked).allotment.value
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    said = solve(asked, "gurobi")
    assert said.allotment.solver == "highs"
    assert len(said.warnings) == 1
    assert said.warnings[0].startswith("gurobi cannot be used, highs is instead: gurobipy cannot be imported")
    monkeypatch.setitem(sys.modules, "pulp", None)
    assert solve(asked, "cbc").allotment.solver == "highs"

    def refuses(model: IntegerProgram, limits: SolverLimits) -> SolverResult:
        raise SolverError("HiGHS refuses the program")

    monkeypatch.setitem(NODE_SOLVERS, "highs", refuses)
    said = solve(asked, "gurobi")
    assert said.allotment.solver == "exact"
    assert said.allotment.value == pytest.approx(expected)
    assert said.warnings[0].startswith("gurobi and highs and cbc cannot be used, exact is instead: ")
    assert said.warnings[0].count("\n") == 0


def test_a_licence_that_is_too_small_falls_back_with_its_numbers() -> None:
    rows = [{"id": f"t{n}", "max": 40, "current": 3, "curve": [[1, n + 1.0], [40, 60.0]]} for n in range(10)]
    asked = read(json.dumps({"horizon_s": 120, "nodes": 200, "trainers": rows}))
    said = solve(asked, "gurobi")
    assert said.allotment.solver == "highs"
    assert said.allotment.value == pytest.approx(solve(asked).allotment.value)
    assert "the licence of gurobipy is too small for 2," in said.warnings[0]


def test_a_map_that_breaks_the_rules_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = read(json.dumps({"horizon_s": 1, "nodes": 4, "trainers": [{"id": "a", "min": 3, "curve": [[3, 1.0]]}]}))

    def wrong(model: IntegerProgram, limits: SolverLimits) -> SolverResult:
        values = [0.0] * model.columns
        values[node_level(asked).nodes[0, 0][0]] = 1.0
        return SolverResult(values, 0.0, True)

    for name in NODE_SOLVERS:
        monkeypatch.setitem(NODE_SOLVERS, name, wrong)
    said = solve(asked, "highs")
    assert said.allotment.solver == "exact"
    assert "breaks the rules" in said.warnings[0]
    assert not legal(asked, [(1, 0)])
    assert not legal(asked, [(5, 0)])
    assert legal(asked, [(4, 0)])


def test_limits_and_names_are_checked() -> None:
    for work, seconds in ((-1, 1.0), (1, 0.0), (1, float("nan"))):
        with pytest.raises(ValueError, match="a limit of"):
            SolverLimits(work, seconds)
    with pytest.raises(ValueError, match="no solver is called 'simplex'"):
        solve(read(json.dumps(problem(1))), "simplex")


def test_a_program_that_makes_no_sense_is_refused() -> None:
    model = IntegerProgram()
    model.column(1.0, 0.0)
    model.row(float("nan"), 0.0, [(0, 1.0)])
    with pytest.raises(SolverError, match="HiGHS"):
        by_highs(model, SolverLimits())


def test_the_free_bound_is_above_every_map() -> None:
    for seed in range(300):
        for groups in (False, True):
            asked = problem(seed, groups=groups)
            highest = best(asked)
            assert free_bound(read(json.dumps(asked))) >= highest - 1e-9 * max(1.0, abs(highest)), seed


def test_no_solver_is_loaded_before_it_is_asked_for() -> None:
    code = (
        "import sys, hpcdl.milp.solve, hpcdl.milp.answer\n"
        "print([name for name in ('scipy.optimize', 'pulp', 'gurobipy', 'ortools') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_bound_at_a_limit_is_one(solver: str) -> None:
    asked = large()
    highest = solve(asked).allotment.value
    for limits in (SolverLimits(work=1), SolverLimits(work=0, seconds=0.3), SolverLimits(work=3, seconds=1.0)):
        found = solve(asked, solver, limits).allotment
        assert found.value <= highest * (1 + 1e-9)
        assert found.bound >= highest * (1 - 1e-12)
        assert found.value >= asked.stay("").value
        assert found.optimal == (found.bound == found.value)


def test_a_limit_beyond_what_highs_can_count_is_none() -> None:
    assert by_highs(node_level(large()).model, SolverLimits(work=10**10)).optimal


def test_highs_at_its_limit_of_nodes_answers_with_what_it_has() -> None:
    draw = random.Random(1)
    model = IntegerProgram()
    columns = [model.binary(-draw.randint(10, 1000)) for _ in range(60)]
    for _ in range(8):
        row = [(column, float(draw.randint(10, 1000))) for column in columns]
        model.row(-math.inf, sum(weight for _, weight in row) // 3, row)
    assert by_highs(model, SolverLimits(work=0)).values is None
    found = by_highs(model, SolverLimits(work=2))
    assert found.values is not None
    assert not found.optimal
    assert found.bound <= sum(cost * value for cost, value in zip(model.cost, found.values, strict=True))


def test_a_program_that_does_not_fit_into_memory_is_not_made() -> None:
    rows = [{"id": f"t{n}", "curve": [[1, 1.0 + n]]} for n in range(6)]
    asked = read(json.dumps({"horizon_s": 1, "nodes": 10**5, "trainers": rows}))
    said = solve(asked, "highs")
    assert said.allotment.solver == "exact"
    assert said.warnings[0].startswith(
        "highs and cbc cannot be used, exact is instead: 600,000 pairs of trainer and node"
    )
