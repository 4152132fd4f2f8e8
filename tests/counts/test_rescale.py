"""What a size of an elastic trainer is worth, and counts of several against their definition."""

import itertools
import math
import random

import pytest

from hpcdl.counts import Elastic, rescaled, solve


def test_worth_of_each_size() -> None:
    trainer = Elastic(2, 5, ((1, 10.0), (3, 20.0), (4, 22.0)), now=3, up_s=20.0, down_s=5.0)
    item = rescaled(trainer, 120.0)
    assert item.required
    assert item.units == (0, 2, 3, 4, 5)
    assert item.values == (-100.0, 120 * 15.0 - 100, 120 * 20.0, 120 * 22.0 - 400, 120 * 22.0 - 400)
    assert rescaled(trainer, 120.0, pool=3, weight=2.0).values == tuple(2 * value for value in item.values)
    assert rescaled(trainer, 120.0, pool=3).pools == (3,) * 5


def test_who_does_not_run_starts_free_of_charge() -> None:
    trainer = Elastic(2, 3, ((2, 10.0),), up_s=20.0, down_s=5.0)
    assert rescaled(trainer, 60.0).values == (0.0, 600.0, 600.0)
    assert trainer.rates([0, 1, 2, 9]) == [0.0, 5.0, 10.0, 10.0]


def test_counts_of_several_trainers_are_the_best() -> None:
    draw = random.Random(7)
    for _ in range(30):
        trainers = []
        for _ in range(3):
            fewest = draw.randint(1, 3)
            rates = sorted(draw.uniform(1, 10) for _ in range(3))
            points = tuple(zip((1, 3, 6), rates, strict=True))
            trainers.append(
                Elastic(fewest, fewest + 4, points, draw.choice([0, 2, 4]), draw.uniform(0, 90), draw.uniform(0, 90))
            )
        items = [rescaled(trainer, 100.0) for trainer in trainers]
        found = solve(items, [10])
        best = max(
            math.fsum(item.values[place] for item, place in zip(items, places, strict=True))
            for places in itertools.product(*(range(len(item.units)) for item in items))
            if sum(item.units[place] for item, place in zip(items, places, strict=True)) <= 10
        )
        assert found.optimal
        assert found.value == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"fewest": 0},
        {"fewest": 9},
        {"now": -1},
        {"points": ()},
        {"points": ((0, 1.0),)},
        {"points": ((2, 1.0), (2, 2.0))},
        {"points": ((2, math.nan),)},
        {"points": ((2, -1.0),)},
        {"up_s": math.inf},
        {"down_s": -1.0},
    ],
)
def test_numbers_without_sense(change: dict[str, object]) -> None:
    right: dict[str, object] = {"fewest": 1, "most": 4, "points": ((1, 1.0), (4, 3.0))}
    assert Elastic(**right).now == 0  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        Elastic(**{**right, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("horizon", [-1.0, math.nan, math.inf])
def test_a_horizon_without_sense(horizon: float) -> None:
    with pytest.raises(ValueError, match="forward-looking time"):
        rescaled(Elastic(1, 2, ((1, 1.0),)), horizon)
