"""Scaling curves learnt online: how far off they are after one, two and three numbers of GPUs."""

import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from hpcdl.core.model.profile import Observation, Observations, Profile, Timing
from hpcdl.estimators.posterior import Posterior
from hpcdl.estimators.scaling import SAVE_S, STARTUP_S, ScalingCurve, fit_curve, learner

SUMMIT = Path(__file__).parents[2] / "conf" / "profiles" / "summit-v100.yaml"

# Speeds on 1, 2, 4 and 8 GPUs, as the workloads of the SideCar paper are played with: from nearly linear to falling.
SIDECAR = {
    "ResNet-50": (1.0, 1.8, 2.15, 3.94),
    "ResNet-18": (1.0, 1.3, 1.55, 1.4),
    "ResNet-34": (1.0, 1.65, 2.4, 3.0),
    "Inception": (1.0, 1.85, 3.2, 5.0),
    "VGG": (1.0, 1.4, 2.0, 2.6),
    "GoogLeNet": (1.0, 1.8, 3.0, 4.5),
    "AlexNet": (1.0, 1.2, 1.3, 1.2),
    "LeNet": (1.0, 1.1, 1.1, 0.9),
    "ResNet-50 on P100": (0.597, 1.2573, 2.3623, 4.1527),
    "ResNet-18 on P100": (0.6, 0.907, 1.2318, 1.2537),
    "VGG on P100": (0.6, 0.9545, 1.5, 2.137),
    "AlexNet on K80": (0.4, 0.6316, 0.8739, 0.9796),
    "ResNet-34 on K80": (0.14, 0.2719, 0.5122, 0.9081),
    "Inception on K80": (0.14, 0.2769, 0.5411, 1.0332),
}
Rates = dict[int, float]


def sidecar() -> list[Rates]:
    return [dict(zip((1, 2, 4, 8), rates, strict=True)) for rates in SIDECAR.values()]


def summit() -> list[Rates]:
    listed = yaml.safe_load(SUMMIT.read_text())["profiles"]
    profiles = [Profile.from_mapping(name, values) for name, values in listed.items()]
    return [{gpus: rate for _, gpus, rate in profile.points} for profile in profiles]


def saw(rates: Rates, gpus: int, seconds: float = 600.0, kind: str = "v100") -> Observation:
    return Observation(kind, 1, gpus, rates[gpus] * seconds, seconds)


def errors_after(curves: list[Rates], seen: int, seconds: float = 600.0) -> list[float]:
    """Relative errors at the other numbers of GPUs, over every choice of `seen` numbers."""
    errors = []
    for rates in curves:
        for chosen in itertools.combinations(sorted(rates), seen):
            curve = fit_curve([saw(rates, gpus, seconds) for gpus in chosen], max(rates), kind="v100")
            errors += [abs(curve.rate(gpus) / rate - 1) for gpus, rate in rates.items() if gpus not in chosen]
    return errors


@pytest.mark.parametrize(
    ("curves", "bounds"), [(sidecar(), (0.24, 0.08, 0.05)), (summit(), (0.18, 0.13, 0.11))], ids=["sidecar", "summit"]
)
def test_the_error_at_other_numbers_of_gpus_falls_with_every_number_seen(
    curves: list[Rates], bounds: tuple[float, float, float]
) -> None:
    medians = [statistics.median(errors_after(curves, seen)) for seen in (1, 2, 3)]
    assert all(median < bound for median, bound in zip(medians, bounds, strict=True)), medians
    assert medians[2] < medians[1] < medians[0]


def test_the_spread_is_what_the_errors_are() -> None:
    """Errors over their predicted standard deviation have one of about 1: neither boasting nor timid."""
    for seen in (1, 2, 3):
        ratios = []
        for rates in sidecar() + summit():
            for chosen in itertools.combinations(sorted(rates), seen):
                curve = fit_curve([saw(rates, gpus) for gpus in chosen], 8, kind="v100")
                ratios += [
                    math.log(curve.rate(gpus) / rate) / curve.spread(gpus)
                    for gpus, rate in rates.items()
                    if gpus not in chosen
                ]
        assert 0.4 < float(np.std(ratios)) < 1.6


@pytest.mark.parametrize("name", SIDECAR)
def test_a_number_that_was_seen_returns_its_own_mean(name: str) -> None:
    rates = dict(zip((1, 2, 4, 8), SIDECAR[name], strict=True))
    curve = fit_curve([saw(rates, gpus, 7200) for gpus in rates], 8, kind="v100")
    for gpus, rate in rates.items():
        assert curve.rate(gpus) == pytest.approx(rate, rel=0.01)
        assert curve.spread(gpus) < 0.01
        assert curve.seen(gpus)
    assert not curve.seen(3)
    assert curve.spread(3) > curve.spread(4)


def test_before_anything_was_seen_more_gpus_help_less_and_less() -> None:
    curve = fit_curve([], 16, 4)
    rates = [curve.rate(2**doubling) for doubling in range(7)]
    gains = [after / before for before, after in itertools.pairwise(rates)]
    assert rates[0] == pytest.approx(1)
    assert 1.6 < gains[0] < 1.9
    assert all(1 < after < before for before, after in itertools.pairwise(gains))
    assert curve.rate(8, 2) < curve.rate(16)  # the same number of GPUs, but over a network
    assert curve.spread(1) > 1
    profile = curve.to_profile("unseen")
    assert profile.rate(1) == pytest.approx(1)
    assert "nothing was seen" in profile.source


def test_one_number_gives_the_scale_and_the_field_the_shape() -> None:
    one, field = fit_curve([Observation("", 1, 2, 70_000, 1000)], 8), fit_curve([], 8)
    assert one.rate(2) == pytest.approx(70, rel=0.01)
    for gpus in (1, 4, 8):
        assert one.rate(gpus) / one.rate(2) == pytest.approx(field.rate(gpus) / field.rate(2), rel=0.01)
    assert one.spread(2) < 0.01 < one.spread(4) < one.spread(8) < 1


def test_a_falling_curve_is_learnt_as_soon_as_it_was_seen_to_fall() -> None:
    falling = dict(zip((1, 2, 4, 8), SIDECAR["LeNet"], strict=True))
    curve = fit_curve([saw(falling, 1), saw(falling, 8)], 8, kind="v100")
    assert curve.rate(8) < curve.rate(1)
    assert curve.to_profile("lenet").best_gpus(8) < 8
    curve = fit_curve([saw(falling, 1), saw(falling, 4), saw(falling, 8)], 16, kind="v100")
    assert curve.rate(16) < curve.rate(8) < curve.rate(4)
    steep = {1: 10.0, 2: 4.0}
    assert fit_curve([saw(steep, 1), saw(steep, 2)], 8, kind="v100").to_profile("steep").best_gpus(8) == 1


def test_seconds_are_weights() -> None:
    long, short = Observation("", 1, 4, 2.0 * 7200, 7200), Observation("", 1, 8, 1.0 * 5, 5)
    noisy = fit_curve([Observation("", 1, 1, 7200, 7200), long, short], 8)
    sure = fit_curve([Observation("", 1, 1, 7200, 7200), long, Observation("", 1, 8, 7200, 7200)], 8)
    assert sure.rate(8) == pytest.approx(1, rel=0.01)
    assert noisy.rate(8) > 1.02
    assert noisy.spread(8) > 5 * sure.spread(8)
    assert noisy.rate(4) == pytest.approx(2, rel=0.01)


def test_observations_of_one_number_are_added_up_in_any_order() -> None:
    parts = [Observation("V100", 1, 2, 100, 50), Observation("v100", 1, 2, 300, 250), Observation("v100", 1, 1, 0, 30)]
    curve = fit_curve(parts, 4, kind="v100")
    assert curve.known == (Observation("v100", 1, 2, 400, 300),)
    assert curve == fit_curve(reversed(parts), 4, kind="V100")
    assert curve.rate(2) == pytest.approx(4 / 3, rel=0.01)


def test_noise_of_the_measurement_is_smoothed() -> None:
    rng = np.random.default_rng(11)
    rates = dict(zip((1, 2, 4, 8), SIDECAR["Inception"], strict=True))
    errors = []
    for _ in range(50):
        seen = [
            Observation("", 1, gpus, rates[gpus] * 6000 * math.exp(0.02 * rng.normal()), 60 * 100) for gpus in (1, 8)
        ]
        errors.append(abs(fit_curve(seen, 8).rate(4) / rates[4] - 1))
    assert statistics.median(errors) < 0.15


def test_another_kind_of_gpu_has_the_ratio_that_was_seen_else_the_usual_one() -> None:
    rates = dict(zip((1, 2, 4, 8), SIDECAR["GoogLeNet"], strict=True))
    fast = [saw(rates, gpus, kind="v100") for gpus in rates]
    unseen = fit_curve(fast, 8, kind="k80")
    assert 0.2 < unseen.rate(1) / rates[1] < 0.3  # what a K80 usually is beside a V100
    assert unseen.spread(2) > 0.5
    assert fit_curve(fast, 8, kind="another").rate(2) == pytest.approx(rates[2], rel=0.05)
    assert fit_curve((), 8, kind="k80").rate(1) == pytest.approx(0.25)
    slow = Observation("k80", 1, 2, 600 * rates[2] / 5, 600)
    known = fit_curve([*fast, slow], 8, kind="k80")
    assert known.rate(2) == pytest.approx(rates[2] / 5, rel=0.01)
    assert rates[4] / rates[2] < known.rate(4) / known.rate(2) < 2  # slower GPUs scale better
    assert known.on("v100").rate(8) == pytest.approx(rates[8], rel=0.01)
    assert known.spread(4) < fit_curve([slow], 8, kind="k80").spread(4)


def test_what_does_not_depend_on_the_gpu_is_carried_over_to_another_kind() -> None:
    def rate(gpus: int, computing: float) -> float:
        return 1 / (computing / gpus + 0.2 * (gpus > 1) + 0.05 * gpus)

    fast = [Observation("v100", 1, gpus, 6000 * rate(gpus, 1.0), 6000) for gpus in (1, 2, 4, 8)]
    for seen in (1, 4, 8):
        curve = fit_curve([*fast, Observation("k80", 1, seen, 6000 * rate(seen, 6.0), 6000)], 8, kind="k80")
        for gpus in (1, 2, 4, 8):
            assert curve.rate(gpus) == pytest.approx(rate(gpus, 6.0), rel=0.05)


@pytest.mark.parametrize("seen", [1, 2])
def test_a_kind_that_was_seen_profits_from_one_that_was_seen_more(seen: int) -> None:
    """The curves of one model on two kinds of GPU: with those of the other kind the errors are smaller than without."""
    pairs = [("ResNet-50", "ResNet-50 on P100"), ("ResNet-18", "ResNet-18 on P100"), ("VGG", "VGG on P100")]
    pairs += [("AlexNet", "AlexNet on K80"), ("ResNet-34", "ResNet-34 on K80"), ("Inception", "Inception on K80")]
    alone: list[float] = []
    together: list[float] = []
    for fast, slow in pairs:
        rates, others = (dict(zip((1, 2, 4, 8), SIDECAR[name], strict=True)) for name in (slow, fast))
        for chosen in itertools.combinations(sorted(rates), seen):
            mine = [saw(rates, gpus, kind="slow") for gpus in chosen]
            more = [saw(others, gpus) for gpus in others]
            for known, errors in ((mine, alone), ([*mine, *more], together)):
                curve = fit_curve(known, 8, kind="slow")
                errors += [abs(curve.rate(gpus) / rate - 1) for gpus, rate in rates.items() if gpus not in chosen]
    assert statistics.median(together) < 0.5 * statistics.median(alone)


def test_several_nodes() -> None:
    seen = [Observation("", 1, 4, 4000, 1000), Observation("", 2, 4, 5000, 1000)]
    curve = fit_curve(seen, 4, 4)
    assert curve.rate(4, 2) == pytest.approx(5, rel=0.02)
    assert 4 < curve.rate(4, 4) < 8
    assert curve.spread(4, 4) > curve.spread(4, 2)
    profile = curve.to_profile("wide")
    assert len(profile.points) == 16
    assert all(profile.rate(gpus, nodes) == pytest.approx(curve.rate(gpus, nodes)) for nodes, gpus, _ in profile.points)


def test_a_profile_of_what_was_learnt() -> None:
    base = Profile("base", ((1, 1, 1.0),), startup_s=20, save_s=3, resume_s=25)
    rates = dict(zip((1, 2, 4, 8), SIDECAR["VGG"], strict=True))
    curve = fit_curve([saw(rates, 1), saw(rates, 4)], 8, kind="v100")
    profile = curve.to_profile("vgg @ train.py", base, kinds=("K80",))
    assert (profile.name, profile.startup_s, profile.save_s, profile.resume_s) == ("vgg @ train.py", 20, 3, 25)
    assert [gpus for _, gpus, _ in profile.points] == list(range(1, 9))
    assert profile.rate(4) == pytest.approx(rates[4], rel=0.01)
    assert [kind for kind, _ in profile.kinds] == ["k80", "v100"]
    assert profile.on("v100").rate(4) == pytest.approx(rates[4], rel=0.01)
    assert 0.02 < profile.spread < 0.3
    assert profile.source == "learnt while it ran: 1200 s on 1 x 1 v100, 1 x 4 v100"
    assert Profile.from_mapping(profile.name, profile.to_mapping()) == replace(profile, measured=None)


def test_a_profile_of_many_nodes_has_few_points() -> None:
    profile = fit_curve([Observation("", 37, 4, 100, 100)], 4, 1000).to_profile("huge")
    nodes = sorted({count for count, _, _ in profile.points})
    assert len(nodes) < 50
    assert {1, 16, 37, 1000} <= set(nodes)
    assert profile.rate(4, 37) == pytest.approx(1, rel=0.02)


def test_what_learns_for_the_controller() -> None:
    learn = learner(8, 2, kinds=("v100", "k80"), base=Profile("base", ((1, 1, 1.0),), startup_s=20))
    assert learn("x @ train.py", Observations()) is None
    assert learn("x @ train.py", Observations((Observation("v100", 1, 1, 0, 60),))) is None
    profile = learn("x @ train.py", Observations((Observation("v100", 1, 2, 600, 60),)))
    assert profile is not None
    assert profile.on("v100").rate(2) == pytest.approx(10, rel=0.02)
    assert profile.startup_s == 20
    assert [kind for kind, _ in profile.kinds] == ["k80", "v100"]


def test_the_times_of_a_profile_are_those_seen() -> None:
    rates = (Observation("", 1, 2, 600, 60),)
    learn = learner(4)
    fresh = learn("x @ train.py", Observations(rates))
    assert fresh is not None
    assert (fresh.startup_s, fresh.save_s, fresh.resume_s) == (STARTUP_S, SAVE_S, STARTUP_S)
    started = learn("x @ train.py", Observations(rates, (Timing("startup_s", 2, 240),)))
    assert started is not None
    assert (started.startup_s, started.resume_s) == (120, 120)
    again = learn("x @ train.py", Observations(rates, (Timing("startup_s", 2, 240), Timing("resume_up_s", 1, 40))))
    assert again is not None
    assert (again.startup_s, again.resume_s, again.resume_up_s) == (120, 40, 40)
    moved = learn("x @ train.py", Observations(rates, (Timing("move_s", 2, 400), Timing("move_save_s", 2, 70))))
    assert moved is not None
    assert moved.restart_s(2, 2, moved=True, running=True) == 235
    base = Profile("base", ((1, 1, 1.0),), startup_s=100, gate_s=80, save_s=3, resume_s=9)
    known = learner(4, base=base)("x", Observations(rates, (Timing("startup_s", 1, 20), Timing("resume_s", 1, 11))))
    assert known is not None
    assert (known.startup_s, known.gate_s, known.save_s, known.resume_s) == (80, 80, 3, 11)


def test_extremes_stay_finite() -> None:
    odd = [Observation("", 1, 1, 1e9, 1e3), Observation("", 1, 2, 1.0, 1e6), Observation("", 512, 8, 3.0, 0.5)]
    curve = fit_curve(odd, 8, 512)
    rates = [curve.rate(gpus, nodes) for gpus in (1, 2, 3, 8) for nodes in (1, 2, 512)]
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)
    assert curve.rate(0) == 0


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (Observation("", 0, 1, 1, 1), "1 or more"),
        (Observation("", 1, 0, 1, 1), "1 or more"),
        (Observation("", 1, 1, math.nan, 1), "steps"),
        (Observation("", 1, 1, -1, 1), "steps"),
        (Observation("", 1, 1, 1, 0), "seconds"),
        (Observation("", 1, 1, 1, math.inf), "seconds"),
    ],
)
def test_observations_that_cannot_be(seen: Observation, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_curve([seen], 8)


def test_places_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        fit_curve([], 0)
    with pytest.raises(ValueError, match="1 or more"):
        ScalingCurve("", 1, 0, Posterior(()))
    for gpus, nodes in ((-1, 1), (1, 0), (0, 0)):
        with pytest.raises(ValueError, match="1 or more"):
            fit_curve([], 8).rate(gpus, nodes)
