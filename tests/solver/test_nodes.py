"""Counts of elastic trainers: every solver against brute force and the others; ties, bounds, strange numbers."""

import dataclasses
import math
import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from hpcdl.solver import Allotment, ElasticTrainer, ThroughputCurve, allocate, exact, kernels
from hpcdl.solver import compiled as fast
from hpcdl.solver.rows import read
from tests.solver.instances import every_choice, several, tiny
from tests.support.seeds import seeds

BATCH = 100  # instances of a test
LINE = ThroughputCurve(((1, 1.0), (64, 64.0)))


@pytest.fixture(params=["numpy", "numba"])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """With compiled loops, where numba is installed, and without."""
    if request.param == "numba" and not fast.prepare():
        pytest.skip("numba is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast._Compilation, "tried", True)
        patch.setattr(fast._Compilation, "compiled", fast._Compilation.compiled if request.param == "numba" else None)
        yield


@pytest.fixture
def hard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small problems go by first cores that are too small, by branches, and by windows that slide."""
    monkeypatch.setattr(exact, "FIRST_ROWS", 1)
    monkeypatch.setattr(exact, "CHEAP", 0)
    monkeypatch.setattr(exact, "COMPILED_CHEAP", 0)
    monkeypatch.setattr(exact, "BRANCH", 1)
    monkeypatch.setattr(kernels, "SHORT", 1)


def medium(seed: int) -> tuple[list[ElasticTrainer], list[int]]:
    draw = random.Random(seed)
    nodes = draw.randint(1, 120)
    return several(draw, draw.randint(1, 14), nodes, draw.choice([4, 16, 64, 150])), [nodes]


def check(trainers: list[ElasticTrainer], capacities: list[int], found: Allotment, seed: object = None) -> None:
    """It is allowed, it fits, it is worth what it says, and the bound is one."""
    use = [0] * len(capacities)
    for trainer, nodes, group in zip(trainers, found.counts, found.groups, strict=True):
        assert (group is None) == (nodes == 0), f"seed {seed}"
        if group is not None:
            assert trainer.allows(nodes, group), f"seed {seed}"
            use[group] += nodes
    assert all(used <= room for used, room in zip(use, capacities, strict=True)), f"seed {seed}"
    worth = math.fsum(map(ElasticTrainer.worth, trainers, found.counts, found.groups))
    assert found.value == pytest.approx(worth, rel=1e-12, abs=1e-9), f"seed {seed}"
    assert found.bound >= found.value, f"seed {seed}"
    assert found.gap == (found.bound - found.value if not found.optimal else 0.0), f"seed {seed}"


@pytest.mark.parametrize("batch", range(seeds(8)))
def test_tiny_ones_against_every_choice(loops: None, batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        trainers, capacities = tiny(random.Random(seed))
        value, counts = every_choice(trainers, capacities)
        for solver in ("exact", "dp"):
            found = allocate(trainers, capacities, solver)
            check(trainers, capacities, found, seed)
            assert (found.counts, found.optimal, found.solver) == (counts, True, solver), f"seed {seed}, {solver}"
            assert found.value == pytest.approx(value, rel=1e-12, abs=1e-9), f"seed {seed}, {solver}"


@pytest.mark.parametrize("batch", range(6))
def test_exact_is_the_dynamic_program(loops: None, batch: int) -> None:
    for seed in range(10_000 + batch * BATCH // 2, 10_000 + (batch + 1) * BATCH // 2):
        trainers, capacities = medium(seed)
        found, plain = allocate(trainers, capacities), allocate(trainers, capacities, "dp")
        check(trainers, capacities, found, seed)
        assert dataclasses.replace(found, solver="dp") == plain, f"seed {seed}"


@pytest.mark.parametrize("batch", range(4))
def test_branches_cores_and_windows_find_the_same(loops: None, hard: None, batch: int) -> None:
    for seed in range(20_000 + batch * BATCH // 2, 20_000 + (batch + 1) * BATCH // 2):
        trainers, capacities = medium(seed) if seed % 2 else tiny(random.Random(seed))
        found, plain = allocate(trainers, capacities), allocate(trainers, capacities, "dp")
        assert dataclasses.replace(found, solver="dp") == plain, f"seed {seed}"


@pytest.mark.parametrize("batch", range(seeds(2)))
def test_several_groups_against_the_dynamic_program(loops: None, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALL", "MIDDLE"):
        monkeypatch.setattr(sys.modules["hpcdl.solver.nodes"], name, -1)
    optimal = 0
    for seed in range(30_000 + batch * 30, 30_000 + (batch + 1) * 30):
        draw = random.Random(seed)
        trainers, capacities = tiny(draw, draw.choice([2, 3]))
        if seed % 2:
            capacities = [draw.randint(1, 12) for _ in range(draw.choice([2, 2, 3]))]
            trainers = several(draw, draw.randint(1, 7), sum(capacities), draw.choice([4, 12]), len(capacities))
        found, plain = allocate(trainers, capacities), allocate(trainers, capacities, "dp")
        check(trainers, capacities, found, seed)
        small = 1e-9 * abs(plain.value) + 1e-9
        assert found.value - small <= plain.value <= found.bound + small, f"seed {seed}"
        assert not found.optimal or abs(found.value - plain.value) <= small, f"seed {seed}"
        assert allocate(trainers, capacities) == found, f"seed {seed}"
        optimal += found.optimal
    assert optimal >= 25


@pytest.mark.parametrize("seed", range(40_000, 40_050))
def test_small_problems_with_several_groups_are_always_exact(seed: int) -> None:
    trainers, capacities = tiny(random.Random(seed), 2)
    value, _ = every_choice(trainers, capacities)
    found = allocate(trainers, capacities)
    check(trainers, capacities, found, seed)
    assert found.optimal, f"seed {seed}"
    assert found.value == pytest.approx(value, rel=1e-12, abs=1e-9), f"seed {seed}"


def test_compiled_or_not_the_rows_and_the_answers_are_the_same() -> None:
    if not fast.prepare():
        pytest.skip("numba is not installed")
    for seed in range(50_000, 50_200):
        draw = random.Random(seed)
        groups = draw.choice([1, 1, 2, 3])
        capacities = [draw.randint(1, 150) for _ in range(groups)]
        trainers = several(draw, draw.randint(1, 20), sum(capacities), draw.choice([4, 64, 150]), groups)
        if seed % 2:
            trainers, capacities = tiny(draw, groups)
        found = []
        for compiled in (fast._Compilation.compiled, None):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fast._Compilation, "compiled", compiled)
                rows = read(trainers, capacities)
                found.append((rows, allocate(trainers, capacities) if groups == 1 else None))
        assert found[0][1] == found[1][1], f"seed {seed}"
        for name in ("trainer", "group", "nodes", "value", "distance", "inner", "slope", "starts", "exponent", "shift"):
            assert np.array_equal(getattr(found[0][0], name), getattr(found[1][0], name)), f"seed {seed}, {name}"


def test_large_ones_are_proven() -> None:
    for seed in range(3):
        trainers = several(random.Random(seed), 300, 3000, 3000, kinds=("concave",))
        found = allocate(trainers, [3000])
        check(trainers, [3000], found, seed)
        assert found.optimal


def test_groups_of_a_large_machine_have_a_small_gap() -> None:
    for seed in (1, 2, 3):
        trainers = several(random.Random(seed), 60, 1200, 64, 3, ("concave",), gaps=False)
        found = allocate(trainers, [400] * 3)
        check(trainers, [400] * 3, found, seed)
        assert found.relative_gap <= 1e-3


def test_one_more_node_never_makes_it_worse() -> None:
    for seed in range(60_000, 60_050):
        trainers, (nodes,) = medium(seed)
        assert allocate(trainers, [nodes + 1]).value >= allocate(trainers, [nodes]).value, f"seed {seed}"


def test_nothing_to_choose(loops: None) -> None:
    for capacities in ([], [0], [5], [3, 4]):
        assert allocate([], capacities) == Allotment((), (), 0.0, 0.0, True, "exact")
    for capacities in ([], [0], [1]):
        assert allocate([ElasticTrainer((LINE,), 2, 4)], capacities).counts == (0,)
    assert allocate([ElasticTrainer((None,), 1, 4)], [9]).counts == (0,)
    stopped = allocate([ElasticTrainer((LINE,), 2, 4, now=3, down_s=5.0)], [0])
    assert (stopped.counts, stopped.value) == ((0,), -15.0)


def test_costs_larger_than_gains_keep_everyone_where_they_are(loops: None) -> None:
    trainers = [
        ElasticTrainer((LINE,), 1, 64, now=3, up_s=1e6, down_s=1e6),
        ElasticTrainer((LINE,), 1, 64, now=2, up_s=1e6),
    ]
    assert allocate(trainers, [64]).counts == (3, 2)
    assert allocate([trainers[1]], [64]).counts == (2,)


def test_what_is_worth_less_than_nothing_is_not_chosen(loops: None) -> None:
    falling = ThroughputCurve(((1, -1.0), (4, -2.0), (8, 1.0)))
    assert allocate([ElasticTrainer((falling,), 1, 8)], [6]).counts == (0,)
    assert allocate([ElasticTrainer((falling,), 1, 8)], [8]).counts == (8,)


def test_a_count_that_it_could_not_be_given(loops: None) -> None:
    assert allocate([ElasticTrainer((LINE,), 4, 8, now=2, up_s=10.0)], [6]).counts == (6,)
    assert allocate([ElasticTrainer((LINE,), 4, 8, now=20, down_s=1.0)], [30]).counts == (8,)
    assert allocate([ElasticTrainer((LINE,), 1, 64, (1, 2, 4, 8), now=3)], [7]).counts == (4,)


def test_ties_go_to_few_nodes_then_to_the_current_counts_then_to_the_first(loops: None) -> None:
    flat = ThroughputCurve(((2, 5.0),))
    assert allocate([ElasticTrainer((flat,), 1, 8)], [8]).counts == (2,)
    line = ElasticTrainer((LINE,), 1, 8)
    assert allocate([line, line], [8]).counts == (8, 0)
    assert allocate([line, dataclasses.replace(line, now=6), line], [8]).counts == (2, 6, 0)
    assert allocate([ElasticTrainer((LINE, LINE), 1, 4, now=2, group=1)], [4, 4]).groups == (1,)


def test_a_move_to_another_group_costs_a_rescale_up() -> None:
    double = ThroughputCurve(((64, 128.0),))
    mover = ElasticTrainer((LINE, double), 1, 4, now=4, group=0, up_s=50.0, down_s=1.0, horizon_s=100.0)
    assert mover.worth(4, 1) == 100.0 * 8 - 4 * 50.0
    found = allocate([mover], [4, 4])
    assert (found.counts, found.groups, found.value) == ((4,), (1,), 600.0)
    dear = dataclasses.replace(mover, up_s=150.0)
    assert allocate([dear], [4, 4]).groups == (0,)
    assert allocate([mover], [0, 1]).value == max(200.0 - 4 * 50.0, -4 * 1.0)


def test_worth_is_the_definition() -> None:
    trainer = ElasticTrainer(
        (ThroughputCurve(((2, 10.0), (4, 14.0))),), 1, 6, now=2, up_s=20.0, down_s=5.0, weight=2.0, horizon_s=60.0
    )
    assert [trainer.worth(nodes) for nodes in (0, 1, 2, 3, 4, 6)] == [-100.0, 500.0, 1200.0, 1040.0, 1280.0, 1280.0]


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (2, 2.0)), ((1, float("nan")),), ((1, float("inf")),)])
def test_curves_without_sense(points: tuple) -> None:
    with pytest.raises(ValueError, match=r"a curve at|throughput"):
        ThroughputCurve(points)


@pytest.mark.parametrize(
    "change",
    [
        {"fewest": 0},
        {"fewest": 9},
        {"now": -1},
        {"sizes": (2, 1)},
        {"sizes": (0, 1)},
        {"now": 2, "group": 1},
        {"now": 2, "group": -1},
        *(
            {name: bad}
            for name in ("up_s", "down_s", "weight", "horizon_s")
            for bad in (-1.0, float("nan"), float("inf"))
        ),
    ],
)
def test_trainers_without_sense(change: dict) -> None:
    with pytest.raises(ValueError, match=r"."):
        ElasticTrainer(**{"curves": (LINE, None), "most": 8, **change})


def test_problems_without_sense(loops: None) -> None:
    with pytest.raises(ValueError, match="no solver of counts is called 'simplex': there are exact, dp"):
        allocate([], [4], "simplex")
    with pytest.raises(ValueError, match="group 1 has -1 nodes"):
        allocate([], [4, -1])
    with pytest.raises(ValueError, match="runs in group 1, which is not there"):
        allocate([ElasticTrainer((LINE, LINE), 1, 4, now=2, group=1)], [4])
    with pytest.raises(ValueError, match="too large"):
        allocate([ElasticTrainer((ThroughputCurve(((1, 1e200),)),), 1, 4, horizon_s=1e120)], [4])


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1e200])
def test_values_of_any_size(loops: None, scale: float) -> None:
    trainers = [
        ElasticTrainer((ThroughputCurve(((1, 3 * scale), (2, 4 * scale))),), 1, 2, horizon_s=1.0) for _ in range(2)
    ]
    found = allocate(trainers, [3])
    assert found.counts == (2, 1)
    assert found.value == pytest.approx(7 * scale)


@pytest.mark.parametrize("name", ["raise_to", "slid", "span_max", "first_best"])
def test_loops_for_the_compiler_do_what_numpy_does(name: str) -> None:
    for seed in range(70_000, 70_060):
        trainers, capacities = tiny(random.Random(seed))
        plain = allocate(trainers, capacities, "dp")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast._Compilation, "compiled", None)
            patch.setattr(kernels, "SHORT", 1)
            patch.setattr(kernels, name, getattr(kernels, f"_{name}_loop"))
            assert allocate(trainers, capacities).counts == plain.counts, f"seed {seed}"


def test_numba_is_loaded_only_where_it_pays() -> None:
    script = (
        "import sys, hpcdl.cli, hpcdl.solver as c\n"
        "t = c.ElasticTrainer((c.ThroughputCurve(((1, 1.0),)),), 1, 4)\n"
        "print(c.allocate([t], [4]).counts, 'numba' in sys.modules, 'scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["(1,)", "False", "False"]
