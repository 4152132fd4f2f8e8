"""The baselines of section 7.1 on views made by hand."""

from hpcdl.core.model.profile import Profile
from hpcdl.genie import Capacity, Fifo, MinMin, TetrisCer, TetrisPerf, WeightedFair
from tests.genie.made import CURVE, FLAT, decide, gpus, job, on, running, shapes


def test_fifo_gives_what_was_asked_for_strictly_in_order() -> None:
    busy = running(1, on(0, 1), total=None)
    plan = decide(Fifo(), busy, job(2, gpus_max=3), job(3, gpus_max=1))
    assert gpus(plan) == ["n1:0,1", "-", "-"]
    assert plan.targets[1].reason == "needs 3 GPUs on one node, 2 free on n1"
    assert plan.targets[2].reason == "needs 1 GPU on one node, 2 free on n1; job 2 is before it"
    assert gpus(decide(Fifo(), busy, job(2, gpus_max=2))) == ["n1:0,1", "n1:2,3"]


def test_fifo_passes_by_what_can_never_start() -> None:
    plan = decide(Fifo(), job(1, gpus_min=9, gpus_max=9), job(2, nodes=2), job(3))
    assert gpus(plan) == ["-", "-", "n1:0,1,2,3"]


def test_fifo_on_several_nodes_takes_the_fewest_it_may() -> None:
    assert shapes(decide(Fifo(), job(1, nodes=2, nodes_max=3), n1=4, n2=4, n3=4)) == [(2, 4)]
    assert shapes(decide(Fifo(), job(1, counts=(1, 2)), n1=4)) == [(1, 2)]
    assert shapes(decide(Fifo(), job(1, gpus_max=8), n1=4, n2=2)) == [(1, 4)]


def test_min_min_takes_the_earliest_ect() -> None:
    plan = decide(MinMin(), job(1, deadline=900.0), job(2, deadline=0.0), job(3, total=None), job(4, deadline=500.0))
    assert gpus(plan) == ["-", "n1:0,1,2,3", "-", "-"]
    assert plan.targets[0].reason == "needs 4 GPUs on one node, 0 of 4 GPUs free; job 4 is before it"


def test_weighted_fair_takes_the_earliest_mean_of_arrival_and_ect() -> None:
    first = job(1, submitted_at=0.0, deadline=1000.0)  # 500
    second = job(2, submitted_at=300.0, deadline=600.0)  # 450
    third = job(3, submitted_at=450.0, deadline=550.0)  # 500, later
    order = [target.placement is not None for target in decide(WeightedFair(), first, second, third, now=460.0).targets]
    assert order == [False, True, False]
    assert gpus(decide(WeightedFair(), first, third, now=460.0)) == ["n1:0,1,2,3", "-"]


def test_capacity_keeps_each_user_to_a_share() -> None:
    jobs = [job(1, user="a"), job(2, user="a"), job(3, user="b")]
    plan = decide(Capacity(), *jobs, n1=4)
    assert gpus(plan) == ["n1:0,1", "-", "n1:2,3"]
    assert plan.targets[1].reason == "its queue holds 2 of its 2 GPUs, 2 free on n1"


def test_capacity_strictly_fifo_within_a_queue() -> None:
    jobs = [job(1, user="a", gpus_max=1), job(2, user="a", gpus_min=2), job(3, user="a", gpus_max=1), job(4, user="b")]
    plan = decide(Capacity(), *jobs, n1=4)
    assert gpus(plan) == ["n1:0", "-", "-", "n1:1,2"]
    assert plan.targets[2].reason.endswith("; job 2 is before it")


def test_capacity_a_job_larger_than_its_share_may_have_an_empty_queue() -> None:
    plan = decide(Capacity(), job(1, user="a", gpus_min=3), job(2, user="b"), n1=4)
    assert gpus(plan) == ["n1:0,1,2", "n1:3"]


def test_capacity_with_one_user_is_the_whole() -> None:
    assert gpus(decide(Capacity(), job(1), job(2), n1=4, n2=4)) == ["n1:0,1,2,3", "n2:0,1,2,3"]


def test_tetris_perf_takes_the_fastest_placement() -> None:
    assert shapes(decide(TetrisPerf(), job(1, nodes_max=2), job(2), n1=4, n2=4)) == [(2, 4), None]
    assert shapes(decide(TetrisPerf(), job(1, profile=FLAT))) == [(1, 1)]  # equally fast: the cheapest


def test_tetris_cer_takes_the_highest_cer_whatever_the_deadline() -> None:
    plan = decide(TetrisCer(), job(1, deadline=400.0), job(2, deadline=100.0), job(3), n1=4)
    assert gpus(plan) == ["n1:0,1", "n1:2,3", "-"]
    assert plan.targets[2].reason == "has most for its cost at 1.9 steps/s: needs 2 GPUs on one node, 0 of 4 GPUs free"


def test_tetris_packs_past_a_job_that_does_not_fit() -> None:
    wide = Profile("wide", ((1, 1, 0.1), (1, 4, 4.0)))
    busy = running(1, on(0, 1), total=None)
    plan = decide(TetrisCer(), busy, job(2, profile=wide), job(3, profile=CURVE))
    assert gpus(plan) == ["n1:0,1", "-", "n1:2,3"]
