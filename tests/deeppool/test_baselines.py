"""What plans are compared with: Algorithm 1 as it is printed, partitions, and what scaling predicts."""

import random
from dataclasses import replace

import pytest

from hpcdl.deeppool.baselines import (
    OperatingPoint,
    algorithm_1,
    background_per_s,
    gain_over_one_partition,
    gain_over_partition,
    operating_points,
)
from hpcdl.deeppool.models import model_document
from hpcdl.deeppool.planner import data_parallel, plan_burst
from hpcdl.deeppool.problem import BurstProblemError, read_problem
from hpcdl.deeppool.scaling import scaling_by_gpus
from tests.deeppool import brute


def test_algorithm_1_is_the_shortest_path_without_a_limit_and_breaks_limits() -> None:
    draw, broken, kept, worse = random.Random("algorithm 1"), 0, 0, 0
    for _ in range(300):
        document = brute.random_chain(draw)
        problem = read_problem(document | {"limit": None})
        plain = algorithm_1(problem)
        assert plain is not None
        assert plain.time_ms == pytest.approx(plan_burst(problem).time_ms, rel=1e-9)
        limited = replace(problem, limit=draw.choice([1.0, 1.2, 1.5, 2.0]), exempt_below_ms=0.0)
        theirs, ours = algorithm_1(limited), plan_burst(limited)
        assert theirs is not None
        if all((layer.amplification or 0) <= (limited.limit or 0) * (1 + 1e-9) for layer in theirs.layers):
            assert ours.time_ms <= theirs.time_ms * (1 + 1e-9), document
            kept += 1
            worse += theirs.time_ms > ours.time_ms * (1 + 1e-9)
        else:
            broken += 1
    assert broken > 50
    assert kept > 50
    assert algorithm_1(read_problem(model_document("inception-v3"))) is None, "not a chain"


def test_operating_points_share_the_gpus_between_foreground_and_background() -> None:
    problem = read_problem(model_document("vgg16"))
    points = operating_points(problem, (0.5, 2.0, None), 32)
    plan = plan_burst(replace(problem, limit=2.0))
    with pytest.raises(BurstProblemError):
        plan_burst(replace(problem, limit=0.5))
    limited = next(point for point in points if point.setting == "limit 2")
    assert not any("0.5" in point.setting for point in points), "no plan keeps that limit"
    assert limited.free_gpus == pytest.approx(8 - plan.gpu_ms / plan.time_ms)
    own = 32e3 / plan.time_ms
    assert limited.total_per_s == pytest.approx(own + limited.free_gpus * background_per_s(problem, 32))
    half = next(point for point in points if point.setting == "4 of 8 GPUs")
    assert half.time_ms == pytest.approx(data_parallel(problem, 4).time_ms)
    assert half.free_gpus == 4
    branches = read_problem(model_document("inception-v3") | {"branches": "parallel", "gpus": 2})
    with pytest.raises(BurstProblemError, match="its branches need 4 GPUs side by side, of 2"):
        operating_points(branches, (2.0, None), 32)


def test_the_gain_is_against_the_partitions_line_at_the_same_throughput() -> None:
    def point(kind: str, speedup: float, total: float) -> OperatingPoint:
        return OperatingPoint(kind, "", 1.0, speedup, 0.0, 0.0, total)

    line = [point("partition", 1.0, 30.0), point("partition", 3.0, 20.0), point("partition", 4.0, 10.0)]
    assert gain_over_partition([*line, point("burst parallel", 3.0, 25.0)]) == pytest.approx(0.5)
    assert gain_over_partition([*line, point("burst parallel", 3.0, 31.0)]) is None
    assert gain_over_one_partition([*line, point("burst parallel", 3.0, 25.0)]) == pytest.approx(2.0)
    assert gain_over_one_partition([*line, point("burst parallel", 3.0, 20.0)]) == pytest.approx(0.0)
    assert gain_over_one_partition([*line, point("burst parallel", 3.0, 5.0)]) == pytest.approx(-0.25)
    assert gain_over_one_partition([*line, point("burst parallel", 3.0, 31.0)]) is None


def test_batch_optimal_scaling_is_the_best_batch_and_per_gpu_batches_shrink() -> None:
    problem = replace(read_problem(model_document("vgg16")), global_batch=256)
    points = scaling_by_gpus(problem, 64, 2048)
    assert [point.gpus for point in points] == [1, 2, 4, 8, 16, 32, 64]
    assert points[0].strong == pytest.approx(1)
    assert points[0].weak == pytest.approx(1)
    sizes = [point.samples_per_gpu for point in points]
    assert sizes == sorted(sizes, reverse=True), "figure 2: the optimal batch per GPU decreases"
    assert points[-1].weak < points[-1].strong < points[-1].batch_optimal <= points[-1].burst
