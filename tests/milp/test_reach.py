"""Trainers whose sizes are above the nodes: whatever they would be worth there, the others get what they should."""

import json
import random
from typing import Any

import pytest

from hpcdl.milp.problem import Problem, allowed, read
from hpcdl.milp.solve import SOLVERS, solve
from hpcdl.solver import ElasticTrainer, allocate
from tests.support.seeds import seeds

FAST = ("exact", "dp")


def brute(problem: Problem) -> float:
    """The most that any counts are worth: every allowed count of every trainer, one group."""
    (room,) = problem.capacities
    best = [0.0] * (room + 1)
    for trainer in problem.trainers:
        worth = {0: trainer.worth(0)} | {count: trainer.worth(count, 0) for count in allowed(trainer, room)}
        best = [max(best[used - count] + value for count, value in worth.items() if count <= used)
                for used in range(room + 1)]  # fmt: skip
    return best[room]


def made(seed: int, most: int) -> dict[str, Any]:
    """Curves and sizes that go up to several times the nodes, where throughput may be anything."""
    draws = random.Random(seed)
    nodes = draws.randint(1, most)
    trainers = []
    for number in range(draws.randint(1, 5)):
        sizes = sorted({draws.randint(1, draws.choice([nodes, 4 * nodes])) for _ in range(draws.randint(1, 6))})
        far = 10.0 ** draws.choice([0, 1, 12, 20, 60])
        curve = [[size, draws.uniform(1, 9) * size ** draws.choice([0.5, 1, 1.5]) * (far if size > nodes else 1)]
                 for size in sizes]  # fmt: skip
        row: dict[str, Any] = {"id": f"t{number}", "curve": curve, "weight": draws.choice([0.5, 1, 2]),
                               "scale_up_s": draws.choice([0, 5, 200]), "scale_down_s": draws.choice([0, 5, 100]),
                               "current": draws.choice([0, 0, draws.randint(0, nodes)])}  # fmt: skip
        if far > 10 or draws.random() < 0.5:
            row["sizes"] = sizes
            if row["current"] not in sizes:
                row["current"] = 0
        elif draws.random() < 0.5:
            row["min"] = draws.randint(1, 2 * nodes)
        trainers.append(row)
    return {"horizon_s": draws.choice([10, 120, 1000]), "nodes": nodes, "trainers": trainers}


def check(question: dict[str, Any], solvers: tuple[str, ...]) -> None:
    problem = read(json.dumps(question))
    best = brute(problem)
    for solver in solvers:
        found = solve(problem, solver).allotment
        assert found.optimal, solver
        assert found.value == pytest.approx(best, rel=1e-6, abs=1e-6), (solver, question)
        assert sum(found.counts) <= question["nodes"]
        assert all(t.allows(nodes, 0) for t, nodes in zip(problem.trainers, found.counts, strict=True))


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_node_idles_for_one_that_needs_more_than_there_are(solver: str) -> None:
    """With the throughput that it would have, the grid was so coarse that others' was 0 on it: 0 of 377 nodes used."""
    question = {"horizon_s": 120, "nodes": 377, "trainers": [
        {"id": "big", "min": 512, "curve": [[512, 1e20], [1024, 2e20]]},
        {"id": "a", "curve": [[1, 10], [64, 300], [211, 600]]},
        {"id": "b", "sizes": [64, 166, 1024], "curve": [[64, 300], [166, 500], [1024, 1e15]]},
    ]}  # fmt: skip
    found = solve(read(json.dumps(question)), solver).allotment
    assert (found.counts, found.optimal) == ((0, 211, 166), True)
    assert found.value == pytest.approx(120 * 1100)


@pytest.mark.parametrize("seed", range(seeds(150)))
def test_sizes_above_the_nodes_over_counts(seed: int) -> None:
    check(made(seed, 40), FAST)


@pytest.mark.parametrize("seed", range(seeds(12)))
def test_sizes_above_the_nodes_by_every_solver(seed: int) -> None:
    check(made(1000 + seed, 9), SOLVERS)


def test_who_has_more_than_there_are_loses_the_same_with_whatever_it_gets() -> None:
    question = {"horizon_s": 10, "nodes": 100, "trainers": [
        {"id": "had", "current": 512, "sizes": [64, 512], "curve": [[64, 300], [512, 1e30]], "scale_down_s": 100},
        {"id": "other", "curve": [[36, 40]]},
    ]}  # fmt: skip
    problem = read(json.dumps(question))
    for solver in SOLVERS:
        assert solve(problem, solver).allotment.counts == (64, 36), solver


@pytest.mark.parametrize("solver", FAST)
def test_what_is_nothing_beside_another_one_gets_what_is_left(solver: str) -> None:
    """A weight of 10^12 is how people write "first", and 10^60 is more than a grid of integers has room for."""
    for weight in (1e3, 1e9, 1e12, 1e20, 1e60):
        question = {"horizon_s": 120, "nodes": 377, "trainers": [
            {"id": "first", "weight": weight, "max": 200, "curve": [[1, 10], [200, 900]]},
            {"id": "a", "curve": [[1, 10], [100, 600], [377, 700]]},
            {"id": "b", "weight": 1e-12, "current": 40, "scale_up_s": 5, "curve": [[1, 10], [377, 500]]},
        ]}  # fmt: skip
        found = allocate(*_numbers(question), solver)
        assert (found.counts[0], sum(found.counts), found.optimal) == (200, 377, True), weight


def _numbers(question: dict[str, Any]) -> tuple[tuple[ElasticTrainer, ...], list[int]]:
    problem = read(json.dumps(question))
    return problem.trainers, problem.capacities


def test_in_several_groups_too() -> None:
    curve = [[2, 10.0], [8, 1e40]]
    question = {"horizon_s": 10, "groups": {"a": 4, "b": 3}, "trainers": [
        {"id": "x", "sizes": [2, 8], "curve": curve}, {"id": "y", "sizes": [2, 8], "curve": curve},
        {"id": "z", "curve": {"a": [[1, 1.0]], "b": [[1, 2.0]]}},
    ]}  # fmt: skip
    problem = read(json.dumps(question))
    for solver in SOLVERS:
        found = solve(problem, solver).allotment
        assert found.value == pytest.approx(10 * 22.0), solver
    assert allocate(problem.trainers, problem.capacities).counts == (2, 2, 1)
