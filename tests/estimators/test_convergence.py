"""Optimus's online fit: when a metric will have reached its target."""

import math
import statistics

import numpy as np
import pytest

from hpcdl.estimators.convergence import predict_steps, still_to_come

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


def _errors(fraction: float, pace_sigma: float, noise: float) -> tuple[list[float], list[float], int]:
    """Relative errors after that fraction of the way, with an earlier job's curve and without; how often nothing was
    said without. The earlier job made `exp(pace_sigma * normal)` steps for one of the job."""
    rng = np.random.default_rng(7)
    with_earlier, without, silent = [], [], 0
    for _ in range(60):
        top, b1, wanted, short = rng.uniform([0.75, 1.2, 500, 0.02], [0.97, 3.0, 5000, 0.06])
        b0, pace = (1 / short - b1) / wanted, math.exp(pace_sigma * float(rng.normal()))

        def curve(steps: list[float], pace: float, values: tuple[float, float, float]) -> Points:
            top, b0, b1 = values
            return [(k, top - loss(k / pace, b0, b1, 0.0) + noise * float(rng.normal())) for k in steps]

        earlier = curve(np.linspace(0, wanted * pace, 40).tolist(), pace, (top, b0, b1))
        many = math.ceil(20 * fraction)
        steps = np.linspace(0, wanted * fraction, many + 1)[1:].tolist()
        points = curve(steps, 1.0, (top, b0, b1))
        predicted = predict_steps(points, top - short, coming=still_to_come(points, earlier))
        assert predicted is not None
        with_earlier.append(abs(predicted / wanted - 1))
        alone = predict_steps(points, top - short)
        if alone is None:
            silent += 1
        else:
            without.append(abs(alone / wanted - 1))
    return with_earlier, without, silent


@pytest.mark.parametrize("pace_sigma", [0.0, 0.3, 0.7])
def test_an_earlier_job_says_how_long_a_later_one_is_before_its_own_points_do(pace_sigma: float) -> None:
    at_once, _, silent = _errors(0.0, pace_sigma, noise=0.003)
    assert silent == 60, "without an earlier one nothing is known then"
    assert statistics.median(at_once) < 0.03 + 0.8 * pace_sigma
    for fraction, most in ((0.1, 0.06), (0.3, 0.05), (0.7, 0.04)):
        found, alone, silent = _errors(fraction, pace_sigma, noise=0.003)
        assert statistics.median(found) < most
        if not silent:
            assert statistics.median(found) < 1.1 * statistics.median(alone)


def test_where_a_job_goes_its_own_way_the_earlier_one_says_nothing() -> None:
    other = [(float(k), 0.7 - loss(k, 0.05, 1.6, 0.0)) for k in range(0, 600, 20)]
    points = [(float(k), 0.93 - loss(k, 0.01, 1.2, 0.0)) for k in range(0, 200, 10)]
    assert still_to_come(points, other) == []
    assert still_to_come(points[:3], other), "three points do not show that"
    assert still_to_come([], other) == other
    assert still_to_come(points, []) == []
    past = [(float(k), 0.93 - loss(k, 0.01, 1.2, 0.0)) for k in range(0, 100, 10)]
    assert still_to_come(points, past) == [], "it went further"
    assert still_to_come(points, [(900.0, 0.9)]) == []


def test_of_what_is_to_come_nothing_counts_as_reached() -> None:
    points = [(float(k), 0.93 - loss(k, 0.01, 1.2, 0.0)) for k in range(0, 700, 20)]
    wanted = (1 / 0.08 - 1.2) / 0.01
    spike = [(step, 0.9 if step == 400.0 else metric) for step, metric in [*points, (1400.0, 0.865)]]
    predicted = predict_steps(points[:3], 0.85, coming=still_to_come(points[:3], spike))
    assert predicted == pytest.approx(wanted, rel=0.15)
    assert predict_steps(points[:12], 0.85, coming=[(1000.0, 0.84), (1200.0, 0.855)]) == pytest.approx(wanted, rel=0.1)


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
