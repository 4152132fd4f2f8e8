"""The program over counts for HiGHS against the exact solver."""

import random

import pytest

from hpcdl.milp.counts_program import allocate_highs
from hpcdl.milp.model import SolverLimits
from hpcdl.solver import ElasticTrainer, ThroughputCurve, allocate
from tests.solver.instances import several, tiny


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_the_exact_solver(seed: int) -> None:
    draw = random.Random(seed)
    if seed % 2:
        trainers, capacities = tiny(draw, draw.choice([1, 2]))
    else:
        capacities = [draw.randint(5, 80)]
        trainers = several(draw, draw.randint(1, 10), capacities[0], draw.choice([4, 64]))
    exact, found = allocate(trainers, capacities), allocate_highs(trainers, capacities)
    assert found.optimal, f"seed {seed}"
    assert found.value == pytest.approx(exact.value, rel=1e-6, abs=1e-6), f"seed {seed}"
    use = [0] * len(capacities)
    for trainer, nodes, group in zip(trainers, found.counts, found.groups, strict=True):
        if nodes:
            assert group is not None
            assert trainer.allows(nodes, group), f"seed {seed}"
            use[group] += nodes
    assert all(used <= room for used, room in zip(use, capacities, strict=True)), f"seed {seed}"


def test_what_is_between_the_knots_costs_no_columns() -> None:
    trainers = [
        ElasticTrainer((ThroughputCurve(((10_000, 10_000.0 * rate),)),), most=10_000, now=3, up_s=5.0)
        for rate in (1, 2, 3)
    ]
    found = allocate_highs(trainers, [10_000])
    assert found.counts == allocate(trainers, [10_000]).counts
    assert found.solver == "counts-highs"


def test_limits_are_kept_and_said() -> None:
    trainers = several(random.Random(3), 20, 300, 64)
    found = allocate_highs(trainers, [300], SolverLimits(work=1))
    best = allocate(trainers, [300])
    assert found.value <= best.value * (1 + 1e-9) <= found.bound * (1 + 1e-6)


def test_nothing_to_do() -> None:
    assert allocate_highs([], [4]).counts == ()
    none = allocate_highs([ElasticTrainer((None,))], [4])
    assert (none.counts, none.groups, none.value, none.optimal) == ((0,), (None,), 0.0, True)
