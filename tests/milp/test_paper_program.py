"""The program over nodes that the solvers get has the optimum of the paper's own."""

import json
from typing import Any

import pytest

from hpcdl.milp.model import SolverLimits
from hpcdl.milp.problem import read
from hpcdl.milp.program import node_level
from hpcdl.milp.solvers import solve_with_highs
from tests.milp.made import faults, options, problem, worth
from tests.milp.paper_program import paper_program
from tests.milp.test_solvers import answer
from tests.support.seeds import seeds


def plain(seed: int) -> dict[str, Any]:
    """A problem with one group of nodes that have names, and sizes from min to max, as in the paper."""
    asked = problem(seed)
    if not isinstance(asked["nodes"], list):
        count = asked["nodes"]
        asked["nodes"], taken = [f"n{at}" for at in range(count)], 0
        for row in asked["trainers"]:
            now = row.pop("current", 0)
            row["current"] = asked["nodes"][taken : taken + now]
            taken += now
    for row in asked["trainers"]:
        row.pop("sizes", None)
    return asked


@pytest.mark.parametrize("start", range(0, seeds(100), 20))
def test_the_paper_s_equations_have_the_same_optimum(start: int) -> None:
    for seed in range(start, start + 20):
        asked = plain(seed)
        print("seed", seed)
        if not asked["trainers"]:
            continue
        literal = solve_with_highs(paper_program(asked), SolverLimits(seconds=60.0))
        program = node_level(read(json.dumps(asked)))
        ours = solve_with_highs(program.model, SolverLimits(seconds=60.0))
        assert literal.optimal
        assert ours.optimal
        assert literal.values is not None
        assert ours.values is not None
        costs, rows = paper_program(asked).cost, asked["trainers"]
        value = -sum(cost * x for cost, x in zip(costs, literal.values, strict=True))
        chosen = program.chosen(len(rows), ours.values)
        mine = sum(worth(asked, row, nodes, "") for row, (nodes, _) in zip(rows, chosen, strict=True))
        scale = max(1.0, *(abs(worth(asked, row, *each)) for row in rows for each in options(asked, row)))
        assert abs(value - mine) <= 1e-6 * scale
        assert faults(asked, answer(asked, "highs")) == []
