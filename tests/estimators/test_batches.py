"""GENIE's model, fitted to what jobs of a type showed at their batch sizes."""

import math

import pytest

from hpcdl.core.model.latency import LatencyModel, Stretch
from hpcdl.core.model.profile import Observation, Observations, Timing
from hpcdl.estimators.batches import ERROR, BatchesSeen, fit_kinds, predictor

V100 = LatencyModel((Stretch(8, 64, (20.0, 4.0, -0.02)),), gamma=0.5, lambda_=0.4)
H100 = LatencyModel((Stretch(8, 64, (50.0, 9.0, -0.03)),), gamma=0.5, lambda_=0.4)


def seen_of(
    model: LatencyModel, kind: str, batch: int, *places: tuple[int, int], seconds: float = 50.0
) -> Observations:
    rates = tuple(
        Observation(kind, nodes, gpus, model.rate(batch, nodes, gpus) / batch * seconds, seconds)
        for nodes, gpus in places
    )
    return Observations(rates, (Timing("startup_s", 1, 10.0 + batch), Timing("save_s", 1, 2.0)))


@pytest.fixture
def seen() -> BatchesSeen:
    places = {8: ((1, 1),), 16: ((1, 1),), 32: ((1, 1),), 64: ((1, 1), (1, 2), (2, 2))}
    return tuple((batch, seen_of(V100, "v100", batch, *there)) for batch, there in places.items())


def test_a_batch_that_nobody_tried(seen: BatchesSeen) -> None:
    predict = predictor(4, 2)
    profile = predict("a batch 24 @ x.py", 24, seen, True)
    assert profile is not None
    assert profile is predict("a batch 24 @ x.py", 24, seen, True)
    for nodes, gpus in ((1, 1), (1, 3), (2, 2)):
        assert profile.rate(gpus, nodes) == pytest.approx(V100.rate(24, nodes, gpus) / 24, rel=1e-3)
    assert profile.at_batch(48).rate(1) == pytest.approx(V100.rate(48, 1, 1) / 48, rel=1e-3)
    assert (profile.batch, profile.startup_s, profile.save_s) == (24, 40.0, 2.0)
    assert ERROR <= profile.spread < 0.07
    assert {(each.nodes, each.gpus) for each in profile.trials} == {(1, 1), (1, 2), (2, 2)}
    assert all(each.scale == pytest.approx(math.log1p(profile.spread)) for each in profile.trials)
    assert profile.source == "predicted by GENIE's model from batch sizes 8,16,32,64"


def test_beyond_what_was_run_little_is_known(seen: BatchesSeen) -> None:
    predict = predictor(1)
    for batch, outside in ((4, 2.0), (256, 4.0)):
        profile = predict("a", batch, seen, True)
        assert profile is not None
        assert profile.spread >= math.expm1(math.log(outside))


def test_inference_does_not_synchronise(seen: BatchesSeen) -> None:
    profile = predictor(4)("a", 32, seen, False)
    assert profile is not None
    assert profile.rate(4) == pytest.approx(4 * V100.single(8) / 32, rel=1e-3)


def test_each_kind_of_gpu_has_its_model_where_enough_was_seen(seen: BatchesSeen) -> None:
    both = tuple(
        (batch, Observations((*each.rates, *seen_of(H100, "h100", batch, (1, 1), seconds=5.0).rates), each.times))
        for batch, each in seen
    )
    assert [kind for kind, _ in fit_kinds(both, True)] == ["v100", "h100"]
    profile = predictor(1)("a", 24, both, True)
    assert profile is not None
    assert profile.on("h100").rate(1) == pytest.approx(H100.rate(24, 1, 1) / 24, rel=1e-3)
    assert profile.on("k80").rate(1) == pytest.approx(V100.rate(24, 1, 1) / 24, rel=1e-3)
    few = tuple((batch, both[place][1] if place < 2 else seen[place][1]) for place, (batch, _) in enumerate(seen))
    assert [kind for kind, _ in fit_kinds(few, True)] == ["v100"]


def test_what_was_seen_on_one_gpu_only_scales_as_most_jobs_do(seen: BatchesSeen) -> None:
    alone = tuple((batch, Observations(each.rates[:1], each.times)) for batch, each in seen)
    profile = predictor(4)("a", 24, alone, True)
    assert profile is not None
    assert profile.rate(1) == pytest.approx(V100.rate(24, 1, 1) / 24, rel=0.01)
    assert 1 < profile.speedup(4) < 4
    assert profile.spread > 2 * ERROR, "on several GPUs little is known"
    (trial,) = profile.trials
    assert ERROR <= math.expm1(trial.scale) < 0.07, "on one much"


def test_two_batches_are_no_model(seen: BatchesSeen) -> None:
    assert predictor(1)("a", 24, seen[:2], True) is None
    assert predictor(1)("a", 24, (), True) is None


def test_in_a_wide_gap_between_batch_sizes_less_is_known(seen: BatchesSeen) -> None:
    def spread(batch: int, known: BatchesSeen) -> float:
        profile = predictor(1)("a", batch, known, True)
        assert profile is not None
        return profile.spread

    curve = {size: 400 * size / (size + 10) for size in (8, 16, 24, 32, 48, 64)}
    rates = {size: Observations((Observation("", 1, 1, rate / size * 60, 60.0),)) for size, rate in curve.items()}
    wide = tuple((size, rates[size]) for size in (8, 16, 64))
    near = tuple((size, rates[size]) for size in (8, 16, 24, 48, 64))
    profile = predictor(1)("a", 32, wide, True)
    assert profile is not None
    assert abs(math.log(profile.rate(1) / (curve[32] / 32))) < math.log1p(spread(32, wide)), "it is that far off"
    assert spread(32, near) < spread(32, wide)
