"""Throughput between, beyond and below the measured points, and errors that say what is wrong."""

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.profile import Profile, ProfileError

VGG = Profile(
    "vgg16",
    ((1, 1, 3.73), (1, 2, 6.85), (1, 3, 7.91), (1, 4, 8.73), (1, 5, 9.20), (1, 6, 8.93)),
    startup_s=36.8,
    save_s=5.0,
    resume_s=40.0,
)
rates = st.floats(min_value=1e-3, max_value=1e4)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    places = draw(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 16)), min_size=1, max_size=12, unique=True))
    points = tuple((nodes, gpus, draw(rates)) for nodes, gpus in places)
    seconds = st.floats(min_value=0, max_value=1e4)
    steps = sorted(draw(st.sets(st.integers(0, 10**6), max_size=4)))
    accuracy = tuple((step, draw(st.floats(-1e4, 1e4))) for step in steps)
    return Profile("p", points, draw(seconds), draw(seconds), draw(seconds), accuracy=accuracy)


def test_rate_is_exact_at_points_linear_between_and_may_fall() -> None:
    profile = Profile("p", ((1, 2, 4.0), (1, 4, 10.0), (1, 8, 6.0)))
    assert [profile.rate(gpus) for gpus in (2, 3, 4, 6, 8)] == [4.0, 7.0, 10.0, 8.0, 6.0]


def test_rate_is_proportional_below_and_flat_beyond_the_points() -> None:
    profile = Profile("p", ((1, 2, 4.0), (1, 4, 10.0)))
    assert [profile.rate(gpus) for gpus in (0, 1, 5, 100)] == [0.0, 2.0, 10.0, 10.0]
    assert [profile.covers(gpus) for gpus in (1, 2, 3, 4, 5)] == [False, True, True, True, False]


def test_rate_across_nodes() -> None:
    one = Profile("p", ((1, 4, 10.0),))
    assert one.rate(4, nodes=2) == 10.0
    assert not one.covers(4, nodes=2)
    several = Profile("p", ((2, 4, 10.0), (4, 4, 30.0), (4, 8, 40.0)))
    assert [several.rate(4, nodes) for nodes in (1, 2, 3, 4, 9)] == [5.0, 10.0, 20.0, 30.0, 30.0]
    assert several.rate(8, nodes=3) == pytest.approx((10.0 + 40.0) / 2)
    assert [several.covers(4, nodes) for nodes in (1, 2, 3, 4, 5)] == [False, True, True, True, False]
    assert not several.covers(8, nodes=3)


def test_best_gpus_within_limits() -> None:
    assert VGG.best_gpus(6) == 5
    assert VGG.best_gpus(3) == 3
    assert VGG.best_gpus(6, minimum=6) == 6
    assert VGG.best_gpus(1000, minimum=50) == 50
    with pytest.raises(ValueError, match="1 <= minimum <= limit"):
        VGG.best_gpus(2, minimum=3)


def test_best_gpus_takes_the_smallest_of_equals() -> None:
    assert Profile("p", ((1, 1, 5.0), (1, 2, 5.0 * (1 + 1e-12)), (1, 3, 5.0))).best_gpus(8) == 1
    assert Profile("p", ((1, 1, 5.0), (1, 2, 5.0 * (1 + 1e-6)))).best_gpus(8) == 2


def test_seconds_to_finish() -> None:
    assert VGG.seconds_to_finish(0, 800, 6) == pytest.approx(36.8 + 800 / 8.93)
    assert VGG.seconds_to_finish(300, 800, 2, cold=False) == pytest.approx(500 / 6.85)
    assert VGG.seconds_to_finish(900, 800, 2, cold=False) == 0.0
    assert VGG.seconds_to_finish(0, 800, 0) == math.inf
    assert VGG.suspend_resume_s == 45.0
    with pytest.raises(ValueError, match="steps must not be negative"):
        VGG.seconds_to_finish(-1, 800, 2)


def test_efficiency() -> None:
    assert VGG.efficiency(1) == 1.0
    assert VGG.efficiency(2) == pytest.approx(6.85 / (2 * 3.73))
    assert Profile("p", ((1, 4, 8.0), (2, 4, 12.0))).efficiency(4, nodes=2) == pytest.approx(12 / (8 * 2))
    with pytest.raises(ValueError, match="not defined"):
        VGG.efficiency(0)


@given(profiles(), st.integers(1, 20), st.integers(1, 20), st.integers(1, 10))
def test_best_gpus_is_the_argmax(profile: Profile, one: int, other: int, nodes: int) -> None:
    low, high = sorted((one, other))
    best = profile.best_gpus(high, low, nodes)
    top = max(profile.rate(gpus, nodes) for gpus in range(low, high + 1))
    assert low <= best <= high
    assert profile.rate(best, nodes) >= top * (1 - 1e-9)
    assert all(profile.rate(gpus, nodes) < top * (1 - 1e-9) for gpus in range(low, best))


@given(profiles(), st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 20), st.booleans())
def test_seconds_to_finish_never_grows_with_the_step(p: Profile, step: int, more: int, gpus: int, cold: bool) -> None:
    total = 10_000
    later = p.seconds_to_finish(min(total, step + more), total, gpus, cold=cold)
    assert 0 <= later <= p.seconds_to_finish(step, total, gpus, cold=cold)
    assert p.seconds_to_finish(step, total, gpus) == pytest.approx(
        p.seconds_to_finish(step, total, gpus, cold=False) + p.startup_s
    )


@given(profiles(), st.integers(1, 40), st.integers(1, 12))
def test_rate_stays_between_its_neighbours_and_below_the_best_point(profile: Profile, gpus: int, nodes: int) -> None:
    top = max(rate for *_, rate in profile.points)
    assert 0 < profile.rate(gpus, nodes) <= top * (1 + 1e-12)
    on_one = sorted((count, rate) for n, count, rate in profile.points if n == nodes)
    for (low, at_low), (high, at_high) in pairwise(on_one):
        if low <= gpus <= high:
            lower, upper = sorted((at_low, at_high))
            assert lower * (1 - 1e-9) <= profile.rate(gpus, nodes) <= upper * (1 + 1e-9)
    for count, rate in on_one:
        assert profile.rate(count, nodes) == pytest.approx(rate, rel=1e-12)


@given(profiles())
def test_mapping_and_codec_read_back_what_they_wrote(profile: Profile) -> None:
    assert Profile.from_mapping(profile.name, json.loads(json.dumps(profile.to_mapping()))) == profile
    assert from_json(Profile, json.loads(json.dumps(to_json(profile)))) == profile


def test_order_of_points_does_not_matter() -> None:
    assert Profile("p", ((1, 2, 3.0), (1, 1, 2.0))) == Profile("p", ((1, 1, 2.0), (1, 2, 3.0)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points": ()}, "profile p: points: at least one is needed"),
        ({"points": ((1, 1, 2.0), (1, 2, -1.0))}, r"profile p: points\[1\]: rate must be positive, got -1"),
        ({"points": ((1, 1, 0.0),)}, r"points\[0\]: rate must be positive, got 0"),
        ({"points": ((1, 1, math.nan),)}, r"points\[0\]: rate must be a finite number, got nan"),
        ({"points": ((1, 1, math.inf),)}, r"points\[0\]: rate must be a finite number, got inf"),
        ({"points": ((1, 0, 1.0),)}, r"points\[0\]: gpus must be from 1 to 1024, got 0"),
        ({"points": ((0, 1, 1.0),)}, r"points\[0\]: nodes must be from 1 to 100000, got 0"),
        ({"points": ((1, 3, 1.0), (1, 3, 2.0))}, r"points\[1\]: nodes 1, gpus 3 is already in points\[0\]"),
        ({"startup_s": -1.0}, "startup_s: must be a finite number of seconds, 0 or more, got -1"),
        ({"save_s": math.nan}, "save_s: must be a finite number"),
        ({"resume_s": math.inf}, "resume_s: must be a finite number"),
        ({"name": " "}, "a profile's name must be printable"),
        ({"accuracy": ((-1, 0.1),)}, r"profile p: accuracy\[0\]: needs step >= 0 and a finite metric, got -1 and 0.1"),
        ({"accuracy": ((1, math.nan),)}, r"accuracy\[0\]: needs step >= 0 and a finite metric, got 1 and nan"),
        ({"accuracy": ((5, 0.1), (5, 0.2))}, r"accuracy\[1\]: steps must ascend, got 5 after 5"),
    ],
)
def test_wrong_numbers_are_named(changes: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"name": "p", "points": ((1, 1, 1.0),)} | changes
    with pytest.raises(ProfileError, match=message):
        Profile(**values)


def test_from_mapping_fills_in_and_ignores_unknown_keys() -> None:
    profile = Profile.from_mapping(
        "p", {"points": [{"gpus": 1, "rate": 2, "colour": "red"}], "startup_s": 7, "later": [1], "aliases": ["q"]}
    )
    assert profile == Profile("p", ((1, 1, 2.0),), 7.0, 0.0, 7.0, "", ("q",))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (None, "profile p: the profile: expected keys and values, got None"),
        ({}, "profile p: points: expected a list"),
        ({"points": [3]}, r"profile p: points\[0\]: expected keys and values, got 3"),
        ({"points": [{"gpus": 1}]}, r"profile p: points\[0\]: rate missing"),
        ({"points": [{}]}, r"points\[0\]: gpus and rate missing"),
        ({"points": [{"gpus": 1.5, "rate": 1}]}, r"points\[0\]: gpus: expected a whole number, got 1.5"),
        ({"points": [{"gpus": True, "rate": 1}]}, r"points\[0\]: gpus: expected a whole number, got True"),
        ({"points": [{"gpus": 1, "rate": "fast"}]}, r"points\[0\]: rate: expected a number, got 'fast'"),
        ({"points": [{"gpus": 1, "rate": 10**400}]}, r"points\[0\]: rate: the number is too large"),
        ({"points": [{"gpus": 1, "rate": 1}], "save_s": "x"}, "profile p: save_s: expected a number, got 'x'"),
        ({"points": [{"gpus": 1, "rate": 1}], "source": 3}, "profile p: source: expected text, got 3"),
        ({"points": [{"gpus": 1, "rate": 1}], "aliases": "q"}, "profile p: aliases: expected a list of names"),
        ({"points": [{"gpus": 1, "rate": 1}], "accuracy": 3}, "profile p: accuracy: expected a list of {step, metric}"),
        (
            {"points": [{"gpus": 1, "rate": 1}], "accuracy": [{"step": 1}]},
            r"profile p: accuracy\[0\]: metric missing",
        ),
        (
            {"points": [{"gpus": 1, "rate": 1}], "accuracy": [{"step": 1.5, "metric": 0.1}]},
            r"accuracy\[0\]: step: expected a whole number, got 1.5",
        ),
    ],
)
def test_wrong_data_is_named(mapping: object, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Profile.from_mapping("p", mapping)


def test_rate_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="got -1 and 1"):
        VGG.rate(-1)
    with pytest.raises(ValueError, match="got 1 and 0"):
        VGG.rate(1, nodes=0)


def test_a_rescale_in_place_costs_what_is_known_of_it() -> None:
    points = ((1, 1, 1.0),)
    unknown = Profile("p", points, save_s=2.0, resume_s=3.0)
    assert (unknown.rescale_for(1, 2), unknown.rescale_for(2, 1)) == (5.0, 5.0)
    one = Profile("p", points, save_s=2.0, resume_s=3.0, shrink_s=0.5)
    assert (one.rescale_for(1, 2), one.rescale_for(2, 1)) == (0.5, 0.5)
    both = Profile("p", points, grow_s=1.0, shrink_s=0.5)
    assert (both.rescale_for(1, 2), both.rescale_for(2, 1)) == (1.0, 0.5)
