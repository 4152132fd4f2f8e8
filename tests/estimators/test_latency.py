"""GENIE's prediction model and its light profiling, on curves of a known form with noise as a measurement has it."""

import re
import statistics
from itertools import pairwise

import numpy as np
import pytest

from hpcdl.core.model.latency import LatencyModel, Setting, Stretch
from hpcdl.core.model.profile import Profile, ProfileError
from hpcdl.estimators.latency import LightRun, fit, mean_error, plan_light_runs, profile_of

# gamma, lambda, and b0 of a rate per GPU of b / (b + b0)
MODELS = {
    "AlexNet": (1.4, 0.5, 16),
    "GoogLeNet": (0.6, 0.4, 8),
    "ResNet-50": (0.8, 0.4, 6),
    "Inception-v3": (0.6, 0.4, 6),
    "LSTM": (1.2, 0.5, 12),
    "Seq2seq": (1.0, 0.5, 12),
}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
FOUR = (1, 2, 3, 4)


def truth(model: str, setting: Setting) -> float:
    """Samples/s."""
    gamma, lambda_, b0 = MODELS[model]
    gpus = setting.nodes * setting.gpus
    lost = 0.0
    if gpus > 1:
        lost = ((setting.nodes - 1) * setting.gpus + lambda_ * (setting.gpus - 1)) * gamma / (gpus - 1)
    each = setting.batch / gpus
    return 200 * max((gpus - lost) * each / (each + b0), 0.05 * setting.batch / (setting.batch + b0))


def measured(model: str, seed: int, noise: float = 0.03) -> list[LightRun]:
    rng = np.random.default_rng(seed)
    return [
        LightRun(run, truth(model, run) * (1 + noise * float(rng.normal())), startup_s=30.0)
        for run in plan_light_runs(BATCHES, FOUR, FOUR)
    ]


@pytest.mark.parametrize("model", MODELS)
def test_the_mean_error_is_below_five_percent_on_every_placement(model: str) -> None:
    errors = []
    for seed in range(5):
        found = fit(measured(model, seed))
        assert found.startup_s == pytest.approx(30)
        for batch in (16, 32, 64, 128):
            for nodes in FOUR:
                for gpus in FOUR:
                    real = truth(model, Setting(batch, nodes, gpus))
                    errors.append(abs(found.rate(batch, nodes, gpus) / real - 1))
    assert len(errors) == 320
    assert statistics.mean(errors) < 0.05


def test_the_coefficients_come_back_without_noise() -> None:
    true = LatencyModel((Stretch(8, 32, (2.0, 1.5, -0.01)),), gamma=0.8, lambda_=0.4, startup_s=12.0)
    runs = [
        LightRun(run, true.rate(run.batch, run.nodes, run.gpus), 12.0)
        for run in [
            *plan_light_runs((8, 16, 32), (), ()),
            Setting(32, 1, 2),
            Setting(32, 1, 4),
            Setting(32, 2),
            Setting(32, 4),
        ]
    ]
    found = fit(runs)
    assert found.stretches[0].k == pytest.approx((2.0, 1.5, -0.01))
    assert (found.gamma, found.lambda_, found.startup_s) == pytest.approx((0.8, 0.4, 12.0))
    assert found.error == pytest.approx(0, abs=1e-9)


def test_equations_by_hand() -> None:
    model = LatencyModel((Stretch(1, 64, (1.0, 2.0, -0.01)),), gamma=0.6, lambda_=0.5, startup_s=10.0)
    assert model.single(8) == pytest.approx(1 + 16 - 0.64)
    assert model.communication(1, 1) == 0
    assert model.communication(1, 4) == pytest.approx(0.5 * 0.6)
    assert model.communication(4, 1) == pytest.approx(0.6)
    assert model.communication(2, 2) == pytest.approx((2 + 0.5) * 0.6 / 3)
    assert model.rate(32, 2, 2) == pytest.approx((4 - 0.5) * (1 + 16 - 0.64))


def test_inference_does_not_synchronise() -> None:
    runs = [LightRun(run, 50.0 * run.nodes * run.gpus) for run in plan_light_runs((2, 4, 8), (1, 2), (1, 2))]
    found = fit(runs, synchronises=False)
    assert found.communication(4, 4) == 0
    assert found.rate(64, 4, 4) == pytest.approx(16 * 50)


def test_outside_of_the_batches_eq_7_is_not_followed() -> None:
    model = LatencyModel((Stretch(4, 16, (0.0, 4.0, -0.1)),), gamma=0.0, lambda_=0.0)
    assert model.single(2) == pytest.approx(model.single(4) / 2)
    assert model.single(1000) == model.single(16)
    assert model.rate(16, 1, 8) == pytest.approx(8 * model.single(4) / 2)


def test_stretches_join_without_a_step() -> None:
    found = fit(measured("ResNet-50", 1, noise=0.0))
    assert len(found.stretches) > 1
    assert found.error < 0.025
    rates = [found.single(1 + 0.01 * step) for step in range(12_700)]
    assert all(abs(after / before - 1) < 0.02 for before, after in pairwise(rates))


def test_light_profiling_has_b_plus_g_plus_n_runs_and_none_twice() -> None:
    runs = plan_light_runs([64, 8, 16, 32, 8], [1, 2, 3, 4], [4, 2, 1])
    assert len(runs) == len(set(runs)) == 4 + 2 + 3
    assert runs[:4] == [Setting(8), Setting(16), Setting(32), Setting(64)]
    assert Setting(64, 1, 4) in runs
    assert Setting(64, 4, 1) in runs
    with pytest.raises(ValueError, match="batch sizes"):
        plan_light_runs([], [1], [1])


def test_a_profile_has_a_point_for_each_placement() -> None:
    found = fit(measured("Seq2seq", 2))
    profile = profile_of(found, "seq2seq", 64, 3, 4)
    assert len(profile.points) == 12
    assert profile.rate(4, 3) == pytest.approx(found.rate(64, 3, 4) / 64)
    assert (profile.startup_s, profile.resume_s) == (30, 30)
    assert profile.spread == found.error
    assert "batch size 64" in profile.source
    with pytest.raises(ValueError, match="1 or more"):
        profile_of(found, "seq2seq", 64, 0, 4)


def test_a_placement_that_synchronises_away_all_its_gpus_still_has_a_rate() -> None:
    model = LatencyModel((Stretch(1, 64, (10.0, 0.0, 0.0)),), gamma=5.0, lambda_=1.0)
    assert model.rate(8, 2, 1) == pytest.approx(0.5)
    assert profile_of(model, "x", 8, 4, 4).rate(1, 2) > 0


def _single(*rates: tuple[int, float]) -> list[LightRun]:
    return [LightRun(Setting(batch), rate) for batch, rate in rates]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "3 different batch sizes on 1 GPU for eq. 7, has none"),
        (_single((8, 10.0)), "has 8"),
        (_single((8, 10.0), (16, 15.0)), "has 8, 16"),
        (_single((8, 10.0), (8, 10.0), (8, 10.1), (8, 9.9)), "has 8"),
        ([LightRun(Setting(8, 1, 2), 10.0), LightRun(Setting(16, 1, 2), 12.0)], "has none"),
        (_single((8, 30.0), (16, 20.0), (32, 10.0)), "fall from 30 samples/s at a batch of 8 to 10 at 32"),
        (_single((8, 100.0), (16, 1.0), (32, 1.0), (64, 100.0)), "do not follow eq. 7"),
    ],
)
def test_runs_that_are_missing_or_make_no_sense(runs: list[LightRun], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(runs)


def test_equal_rates_are_a_full_gpu() -> None:
    found = fit(_single((8, 40.0), (16, 40.0), (32, 40.0)))
    assert found.single(12) == pytest.approx(40)
    assert (found.gamma, found.lambda_) == (0, 0)


def test_one_kind_of_paths_only() -> None:
    base = _single((8, 20.0), (16, 30.0), (32, 40.0))
    within = fit([*base, LightRun(Setting(32, 1, 2), 1.5 * 30.0)])
    assert (within.gamma, within.lambda_) == pytest.approx((0.5, 1.0))
    across = fit([*base, LightRun(Setting(32, 2, 1), 1.4 * 30.0)])
    assert (across.gamma, across.lambda_) == pytest.approx((0.6, 1.0))
    odd = fit([*base, LightRun(Setting(32, 2, 1), 2.2 * 30.0), LightRun(Setting(32, 1, 2), 1.6 * 30.0)])
    assert odd.gamma >= 0
    assert odd.lambda_ == 1
    slow = fit([*base, LightRun(Setting(32, 1, 2), 0.4 * 30.0)])  # two GPUs slower than one
    assert slow.rate(32, 1, 2) == pytest.approx(12.0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_are_none(value: float) -> None:
    with pytest.raises(ValueError, match="samples/s"):
        LightRun(Setting(8), value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Setting(0), "1 or more"),
        (lambda: LightRun(Setting(1), 1.0, -1.0), "start-up"),
        (lambda: Stretch(4, 2, (1.0, 0.0, 0.0)), "smallest"),
        (lambda: Stretch(1, 8, (1.0, -1.0, 0.0)), "at a batch of 8"),
        (lambda: Stretch(1, 8, (float("nan"), -1.0, 0.0)), "finite"),
        (lambda: LatencyModel((), 0.0, 0.0), "stretch"),
        (lambda: LatencyModel((Stretch(1, 8, (1.0, 0.0, 0.0)),), -1.0, 0.0), "negative"),
        (lambda: LatencyModel((Stretch(1, 2, (1.0, 0.0, 0.0)), Stretch(4, 8, (1.0, 0.0, 0.0))), 0.0, 0.0), "gap"),
    ],
)
def test_values_that_cannot_be(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_the_mean_error_of_no_runs() -> None:
    assert mean_error(LatencyModel((Stretch(1, 2, (1.0, 0.0, 0.0)),), 0.0, 0.0), []) == 0


def test_one_profile_answers_for_every_batch() -> None:
    found = fit(measured("ResNet-50", 1))
    profile = profile_of(found, "resnet50", 64, 2, 4)
    assert profile.batch == 64
    assert profile.at_batch(64) is profile
    for batch in (3, 24, 96, 500):
        other = profile.at_batch(batch)
        assert other is profile.at_batch(batch)
        for nodes, gpus in ((1, 1), (1, 3), (2, 4)):
            assert other.rate(gpus, nodes) == pytest.approx(found.rate(batch, nodes, gpus) / batch)
    again = Profile.from_mapping("resnet50", profile.to_mapping())
    assert again == profile
    assert again.at_batch(24) == profile.at_batch(24)


def test_gpus_of_another_type_keep_their_speed_in_comparison() -> None:
    found = fit(measured("ResNet-50", 1))
    whole = profile_of(found, "resnet50", 64, 1, 2)
    kinds = (("h100", tuple((nodes, gpus, 3 * rate) for nodes, gpus, rate in whole.points)),)
    other = Profile("x", whole.points, kinds=kinds, batch=64, latency=found).at_batch(16)
    assert other.on("h100").rate(2) == pytest.approx(3 * other.rate(2))


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"latency": 3}, "latency: expected stretches, gamma and lambda, got 3"),
        ({"latency": {"stretches": [{"smallest": 1}]}}, "stretches[0]: expected smallest, largest and k"),
        ({"latency": {"stretches": [{"smallest": "a", "largest": 2, "k": [1, 1, 0]}]}}, "expected a number, got 'a'"),
        ({"latency": {"stretches": []}}, "the model needs a stretch"),
        ({"batch": None}, "batch: of the points is needed beside a latency model"),
        ({"batch": 0}, "batch: must be 1 or more, got 0"),
        ({"batch": "many"}, "batch: expected a whole number"),
    ],
)
def test_what_is_no_latency_model(changes: dict[str, object], why: str) -> None:
    good = profile_of(fit(measured("LSTM", 1)), "lstm", 64, 1, 2).to_mapping()
    with pytest.raises(ProfileError, match=re.escape(why)):
        Profile.from_mapping("lstm", good | changes)


@pytest.mark.parametrize("batches", [(4, 16, 64), (8, 32, 128), (1, 3, 100)])
def test_wide_gaps_between_batches_are_straight_lines_of_the_time_of_a_step(batches: tuple[int, ...]) -> None:
    for model in MODELS:
        found = fit([LightRun(Setting(batch), truth(model, Setting(batch))) for batch in batches])
        for batch in range(batches[0], batches[-1] + 1):
            assert found.rate(batch, 1, 1) == pytest.approx(truth(model, Setting(batch)), rel=0.05)


def test_batches_a_factor_of_two_apart_are_eq_7_alone() -> None:
    runs = [LightRun(Setting(batch), rate) for batch, rate in ((8, 13.36), (16, 23.44), (32, 39.76))]
    assert fit(runs).stretches[0].k == pytest.approx((2.0, 1.5, -0.01))
