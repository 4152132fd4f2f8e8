"""Series: bounded, the first and the last sample kept, extremes and mean exact, steps and times in order."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.core.model.series import (
    MOST,
    Point,
    Series,
    divergence,
    joined,
    not_finite_since,
    sample,
    series_json,
    thinned,
)
from tests.support.seeds import seeds

VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-10, 10)
STEPS = st.lists(st.tuples(st.integers(0, 9), VALUES), min_size=1, max_size=300)
"""How far each sample is from the one before it, and its value."""


def finite(value: float) -> bool:
    return -1e300 < value < 1e300


def whole(points: list[Point]) -> Point:
    found = points[0]
    for point in points[1:]:
        found = joined(found, point)
    return found


@given(STEPS, st.integers(4, 40))
def test_a_curve_keeps_its_ends_its_extremes_and_its_mean(moves: list[tuple[int, float]], most: int) -> None:
    series, step, values = Series(most=most), 0, []
    for further, value in moves:
        step += further
        series.add(sample(1000.0 + step / 2, step, value))
        values.append((step, value))
        assert len(series.points) <= most
    points = series.points
    assert points[0] == sample(1000.0 + values[0][0] / 2, *values[0]), "the first sample, alone"
    last = values[-1]
    assert (points[-1].step, points[-1].at) == (last[0], 1000.0 + last[0] / 2)
    assert points[-1].last == (last[1] if finite(last[1]) else None)
    assert [each.step for each in points] == sorted(each.step or 0 for each in points)
    assert [each.at for each in points] == sorted(each.at for each in points)
    known = [value for _, value in values if finite(value)]
    found = whole(points)
    assert (found.samples, found.not_finite) == (len(values), len(values) - len(known))
    assert found.low == min(known, default=None)
    assert found.high == max(known, default=None)
    for point in points:
        assert (point.mean is None) == (point.samples == point.not_finite)
        if point.mean is not None and point.low is not None and point.high is not None:
            assert point.low <= point.mean <= point.high
    if known and max(map(abs, known)) <= 10:
        assert found.mean is not None
        assert math.isclose(found.mean, math.fsum(known) / len(known), abs_tol=1e-9)


@given(st.lists(st.tuples(st.integers(0, 60), VALUES), max_size=200), st.integers(4, 20))
def test_steps_that_go_back_replace_what_was_beyond(samples: list[tuple[int, float]], most: int) -> None:
    series = Series(most=most)
    for at, (step, value) in enumerate(samples):
        series.add(sample(float(at), step, value))
        steps = [each.step for each in series.points]
        assert steps == sorted(each or 0 for each in steps)
        assert steps[-1] == step
        assert len(steps) <= most


@given(STEPS, st.integers(4, 20), st.data())
@settings(max_examples=seeds(60))
def test_changes_make_of_a_copy_the_same_series(moves: list[tuple[int, float]], most: int, data: st.DataObject) -> None:
    series, copy, step = Series(most=most), list[Point](), 0
    for further, value in moves:
        step = max(0, step + further - 2)
        series.add(sample(float(step), step, value))
        if data.draw(st.booleans()):
            first, points = series.changes()
            copy[first:] = points
            assert copy == series.points
    first, points = series.changes()
    copy[first:] = points
    assert copy == series.points
    again = Series(copy, most)
    assert again.points == copy
    assert again.changes()[1] == []
    again.add(sample(float(step), step, 1.0))
    assert len(again.points) <= most


def test_a_long_curve_is_as_fine_all_along() -> None:
    series = Series()
    for step in range(100_000):
        series.add(sample(float(step), step, math.exp(-step / 20_000)))
    points = series.points
    assert MOST / 2 <= len(points) <= MOST
    widths = [each.samples for each in points[1:-1]]
    assert max(widths) <= 2 * min(widths)
    for point in points:
        assert point.step is not None
        assert point.mean is not None
        assert abs(point.mean - math.exp(-point.step / 20_000)) < 0.03
    assert len(thinned(points, 10)) <= 10


def test_use_has_no_steps_and_a_clock_that_is_set_back_does_no_harm() -> None:
    series = Series(most=4)
    for at, value in ((5.0, 1.0), (6.0, 2.0), (3.0, 3.0), (7.0, 4.0), (8.0, 5.0)):
        series.add(sample(at, None, value))
    assert [each.at for each in series.points] == sorted(each.at for each in series.points)
    assert whole(series.points).samples == 5


def test_a_loss_that_diverged_is_told_from_one_bad_step() -> None:
    series = Series()
    for step, value in enumerate((2.0, math.nan, 1.0, math.inf, None, math.nan)):
        series.add(sample(float(step), step, value))
    assert divergence(series.points) == (2, 3)
    answer = series_json("loss", series.points)
    assert (answer["last"], answer["not_finite_since"], answer["not_finite"]) == (None, 3, 4)
    assert (answer["first"], answer["low"], answer["high"], answer["mean"]) == (2.0, 1.0, 2.0, 1.5)
    assert (answer["kind"], answer["unit"], series_json("gpu_power", series.points)["unit"]) == ("metric", "", "W")
    assert (answer["label"], series_json("gpu_power", series.points)["label"]) == ("loss", "GPU power")
    series.add(sample(9.0, 9, 1.0))
    assert divergence(series.points) is None


def test_one_value_by_two_names_diverges_at_one_step() -> None:
    """Samples of the two are joined at other places, so that neither has the step where it was."""
    curves = {"loss": (7, 3), "metric": (5, 9), "accuracy": (1, 1)}
    points = {}
    for name, (offset, width) in curves.items():
        points[name] = [sample(0.0, 0, 1.0)]
        for step in range(1, 101):
            point = sample(float(step), step, 1.0 if step < (90 if name == "accuracy" else 51) else math.nan)
            if (step + offset) % width and step > 1:
                point = joined(points[name].pop(), point)
            points[name].append(point)
    found = {name: where for name in points if (where := divergence(points[name])) is not None}
    assert all(after < 51 <= by for name, (after, by) in found.items() if name != "accuracy")
    assert found["loss"] != found["metric"]
    since = not_finite_since(found)
    assert since["loss"] == since["metric"] == min(found["loss"][1], found["metric"][1])
    assert since["accuracy"] == 90, "another time"
    assert series_json("loss", points["loss"])["not_finite_since"] == found["loss"][1]
