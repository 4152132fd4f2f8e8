"""Optimus's online fit: when a metric will have reached its target."""

import math
import statistics

import numpy as np
import pytest

from hpcdl.estimators.convergence import predict_steps

Points = list[tuple[float, float]]


def loss(k: float, b0: float, b1: float, b2: float) -> float:
    return 1 / (b0 * k + b1) + b2


@pytest.mark.parametrize(("b0", "b1", "b2"), [(0.01, 0.4, 0.1), (0.002, 1.5, 0.0), (0.2, 0.2, 1.7)])
def test_a_loss_without_noise_is_predicted_exactly(b0: float, b1: float, b2: float) -> None:
    points = [(float(k), loss(k, b0, b1, b2)) for k in range(0, 300, 10)]
    target = b2 + 0.6 * (loss(300, b0, b1, b2) - b2)
    wanted = (1 / (target - b2) - b1) / b0
    predicted = predict_steps(points, target, rising=False)
    assert predicted == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("percent", [1.0, 100.0])
def test_an_accuracy_is_the_mirror_image(percent: float) -> None:
    points = [(float(k), percent * (0.93 - loss(k, 0.01, 1.2, 0.0))) for k in range(0, 600, 20)]
    wanted = (1 / 0.05 - 1.2) / 0.01
    assert predict_steps(points, 0.88 * percent) == pytest.approx(wanted, rel=0.02)


def test_a_metric_of_any_size() -> None:
    points = [(float(k), 700 - 300 * loss(k, 0.01, 1.0, 0.0)) for k in range(0, 600, 20)]
    assert predict_steps(points, 670.0) == pytest.approx(900, rel=0.02)
    falling = [(k, value - 800) for k, value in points]
    assert predict_steps([(k, -800 - value) for k, value in falling], -670.0, rising=False) == pytest.approx(
        900, rel=0.02
    )


def _curves(fraction: float, noise: float) -> tuple[list[float], int]:
    """Relative errors after that fraction of the way, and how often nothing was said."""
    rng = np.random.default_rng(7)
    errors, silent = [], 0
    for _ in range(60):
        top, b1, wanted, short = rng.uniform([0.75, 1.2, 500, 0.02], [0.97, 3.0, 5000, 0.06])
        b0 = (1 / short - b1) / wanted
        steps = np.linspace(wanted * fraction / 20, wanted * fraction, 20)
        points = [(float(k), top - loss(k, b0, b1, 0.0) + noise * float(rng.normal())) for k in steps]
        predicted = predict_steps(points, top - short)
        if predicted is None:
            silent += 1
        else:
            errors.append(abs(predicted / wanted - 1))
    return errors, silent


def test_more_points_predict_better() -> None:
    early, middle, late = (_curves(fraction, noise=0.003) for fraction in (0.1, 0.3, 0.7))
    medians = [statistics.median(errors) for errors, _ in (early, middle, late)]
    assert medians[0] < 0.3
    assert medians[1] < 0.12
    assert medians[2] < 0.05
    assert medians[2] < medians[1] < medians[0]
    assert late[1] == 0


def test_an_outlier_changes_little() -> None:
    clean = [(float(k), 0.9 - loss(k, 0.01, 1.2, 0.0)) for k in range(0, 600, 20)]
    broken = list(clean)
    broken[12] = (240.0, 0.02)
    broken[20] = (400.0, 1.0)  # above the target, for one evaluation
    assert predict_steps(broken, 0.85) == pytest.approx(predict_steps(clean, 0.85), rel=0.05)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(10, 0.5)],
        [(10, 0.5), (20, 0.6)],
        [(10, 0.5)] * 5,
        [(10.0 * k, 0.5) for k in range(10)],
        [(10.0 * k, 0.0) for k in range(10)],
        [(10.0 * k, 0.9 - 0.05 * k) for k in range(10)],
    ],
    ids=["none", "one", "two", "one step", "equal", "zero", "falling"],
)
def test_where_nothing_can_be_said(points: Points) -> None:
    assert predict_steps(points, 0.95) is None


def test_an_asymptote_short_of_the_target_is_never_reached() -> None:
    points = [(float(k), 0.8 - loss(k, 0.02, 1.3, 0.0)) for k in range(0, 1000, 10)]
    assert predict_steps(points, 0.85) is None
    assert predict_steps(points, 0.79) is not None
    assert predict_steps([(k, -value) for k, value in points], -0.85, rising=False) is None


def test_a_target_that_was_reached_is_not_predicted() -> None:
    assert predict_steps([(10, 0.5)], 0.5) == 10
    assert predict_steps([(30, 0.7), (10, 0.3), (20, 0.6)], 0.55) == 20
    assert predict_steps([(10, 2.0), (20, 1.0)], 1.5, rising=False) == 20


def test_a_prediction_is_never_in_the_past() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        values = np.cumsum(np.abs(rng.normal(size=12))) * 0.02
        predicted = predict_steps(
            [(float(k), float(value)) for k, value in enumerate(values)], float(values[-1]) + 0.01
        )
        assert predicted is None or 11 <= predicted < math.inf


@pytest.mark.parametrize(
    ("points", "target"),
    [
        ([(1, math.nan)], 0.5),
        ([(math.nan, 1)], 0.5),
        ([(1, 0.1)], math.nan),
        ([(1, math.inf)], 0.5),
        ([(-1, 0.1)], 0.5),
    ],
)
def test_what_is_no_number(points: Points, target: float) -> None:
    with pytest.raises(ValueError, match=r"finite|negative"):
        predict_steps(points, target)
