"""The policy `deeppool`: foregrounds by their best plan within the limit, backgrounds on what they leave."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.fold.observations import measured
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.job import JobSpec, Sharing, StagePlan
from hpcdl.core.model.plan import JobView, burst_profile
from hpcdl.core.model.profile import Observation, Observations, Profile
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState
from hpcdl.deeppool.policy import DeepPool
from tests.adaptive.views import counts, decide, gpus, job, node, reasons, running, view
from tests.support.model_cluster import Cluster

PLANS = (
    StagePlan(1, 8.0, (1, 1), (6.0, 2.0)),
    StagePlan(2, 5.0, (2, 1), (3.5, 1.5)),
    StagePlan(4, 3.0, (4, 1), (1.5, 1.5)),
)
BURST = JobSpec(
    ("a",), "burst", gpus_max=None, burst=PLANS, steps=300_000, share=Sharing("foreground"), gpu_memory_mib=4_000
)
PLAIN = JobSpec(("b",), "plain", profile="plain", steps=2_000, share=Sharing("foreground"), gpu_memory_mib=4_000)
BACKGROUND = JobSpec(("c",), "back", profile="plain", steps=2_000, share=Sharing("background"), gpu_memory_mib=4_000)
# Amplification on 2, 4 and 8 GPUs: 1.25, 1.82, 2.67.
CURVE = Profile("curve", ((1, 1, 1.0), (1, 2, 1.6), (1, 4, 2.2), (1, 8, 3.0)), 60.0, 5.0, 25.0)


def burst(number: int) -> JobView:
    return job(number, profile=burst_profile(BURST), burst=PLANS)


def cluster(gpus: int = 4, memory_mib: int = 16_384, *, spec: JobSpec = BURST) -> Cluster:
    model = Cluster({"n1": gpus}, profiles={"burst": burst_profile(spec)}, watched=True, gpu_memory_mib=memory_mib)
    model.policies.add(DeepPool)
    model.send(cmd.ChoosePolicy("deeppool"))
    return model


def test_each_foreground_has_its_best_plan_within_the_limit() -> None:
    plan = decide(DeepPool(), view(burst(1), job(2, profile=CURVE), nodes=(node("n1", 8), node("n2", 8))))
    assert counts(plan) == [4, 4]  # more than 4 make the plans no faster, and break the other's limit
    assert "fastest of its burst-parallel plans" in reasons(plan)[0]
    assert "1.82 x its GPU-time on one GPU (limit 2)" in reasons(plan)[1]


@pytest.mark.parametrize(
    ("more", "number"),
    [
        ({"profile": None}, 1),
        ({"profile": None, "gpus_min": 3}, 3),
        ({"profile": CURVE, "gpus_min": 8}, 8),  # it takes no fewer
        ({"profile": CURVE, "counts": (1, 2, 8)}, 2),
        ({"profile": CURVE, "gpus_max": 3}, 3),
    ],
)
def test_the_users_range_comes_before_the_limit(more: dict[str, Any], number: int) -> None:
    assert counts(decide(DeepPool(), view(job(1, **more)))) == [number]


def test_an_elastic_foreground_gets_the_nodes_of_its_best_plan() -> None:
    spec = replace(BURST, nodes_max=4, rescale="torchrun", gpus_max=1)
    elastic = job(1, profile=burst_profile(spec), burst=PLANS, gpus_max=1, nodes_max=4, rescale="torchrun")
    assert counts(decide(DeepPool(), view(elastic, nodes=tuple(node(f"n{n}", 1) for n in range(8))))) == [4]


def test_the_fastest_type_of_gpu_comes_first() -> None:
    profile = replace(CURVE, kinds=(("k80", ((1, 1, 0.2), (1, 8, 0.6))),))
    seen = view(job(1, profile=profile), nodes=(node("n1", 8, "k80"), node("n2", 4, "a100")))
    assert gpus(decide(DeepPool(), seen)) == ["n2:0,1,2,3"]


def test_foregrounds_come_in_order_and_the_first_that_waits_keeps_the_others_waiting() -> None:
    seen = view(running(1, 0, 1, can_suspend=False, gpus_max=2), job(2, gpus_min=7, gpus_max=8), job(3))
    plan = decide(DeepPool(), seen)
    assert counts(plan) == [2, 0, 0]
    assert "job 2 is before it" in reasons(plan)[2]
    assert "before it" not in reasons(plan)[1], "it is the first"
    later = view(*seen.jobs[:2], job(3, priority=1))
    jobs = tuple(sorted(later.jobs, key=lambda each: each.order))
    assert counts(decide(DeepPool(), replace(later, jobs=jobs))) == [6, 2, 0]


def test_a_foreground_grows_onto_what_is_free_where_that_pays() -> None:
    small = running(1, 0, profile=CURVE)
    assert gpus(decide(DeepPool(), view(small))) == ["n1:0,1,2,3"]
    assert counts(decide(DeepPool(), view(replace(small, total=20)))) == [1]  # it is done before that has paid
    assert counts(decide(DeepPool(), view(replace(small, can_suspend=False)))) == [1]
    assert counts(decide(DeepPool(), view(small, running(2, *range(1, 8), gpus_min=7, gpus_max=7)))) == [1, 7]
    # From 4 to 5 GPUs is faster by less than a tenth.
    assert counts(decide(DeepPool(), view(running(1, 0, 1, 2, 3, profile=CURVE)))) == [4]


def test_a_job_that_agreed_to_be_a_background_is_no_foreground() -> None:
    plan = decide(DeepPool(), view(job(1, share=Sharing("background")), job(2, share=Sharing("foreground"))))
    assert counts(plan)[0] == 0
    assert counts(plan)[1] > 0
    # But its ranks come and go in place: nobody could have it leave at once.
    elastic = job(1, share=Sharing("background"), rescale="torchrun")
    assert counts(decide(DeepPool(), view(elastic))) == [6]


def test_backgrounds_run_where_the_foregrounds_plan_leaves_most_gpu_time() -> None:
    model = cluster(4)
    front, first, second = model.submit(BURST, BACKGROUND, BACKGROUND)
    model.run_until(lambda: len(model.world.backgrounds) == 2, within_s=500.0)
    assert {gpu.number for gpu, holder in model.world.holders.items() if holder[0] == front} == {0, 1, 2, 3}
    # The narrow stage is on the first one; the others are free for half of the time.
    assert {gpu.number: holder[0] for gpu, holder in model.world.backgrounds.items()} == {1: first, 2: second}


def test_memory_fits_before_anything_else_is_looked_at() -> None:
    model = cluster(2, memory_mib=6_000)
    model.submit(replace(BURST, gpus_max=2), BACKGROUND)
    model.run(100.0)
    assert not model.world.backgrounds
    model.submit(replace(BACKGROUND, gpu_memory_mib=1_000))
    model.run_until(lambda: bool(model.world.backgrounds), within_s=100.0)
    assert model.world.backgrounds[GpuRef("n1", 1)][0] == 3


def test_backgrounds_have_the_gpus_that_no_foreground_wants_and_keep_them_from_none() -> None:
    model = cluster(2)
    back, other = model.submit(BACKGROUND, BACKGROUND)
    model.run_until(lambda: all(model.job(each).progress.step is not None for each in (back, other)), within_s=500.0)
    assert not model.world.holders
    assert {model.job(each).running.placement.role for each in (back, other)} == {Role.BACKGROUND}
    (front,) = model.submit(replace(PLAIN, gpus_min=2, gpus_max=2))
    assert {gpu: holder[0] for gpu, holder in model.world.holders.items()} == dict.fromkeys(
        (GpuRef("n1", 0), GpuRef("n1", 1)), front
    ), "it was started beside them at once"
    (alone,) = model.submit(replace(PLAIN, share=None, priority=5))
    model.run_until(lambda: model.job(front).outcome is not None)
    assert model.job(alone).first_start_at is None  # nobody was suspended for a foreground
    model.run_until(lambda: model.job(alone).running is not None, within_s=60.0)
    assert model.job(back).suspends + model.job(other).suspends == 1
    model.run_to_end()
    assert {each.outcome for each in model.world.jobs.values()} == {JobState.DONE}
    model.check_replay((0.0, 0.5, 1.0))


def test_a_background_moves_to_a_gpu_that_nobody_has() -> None:
    model = cluster(2)
    busy, front, back = model.submit(replace(PLAIN, share=None, steps=500), PLAIN, BACKGROUND)
    model.run_until(lambda: bool(model.world.backgrounds), within_s=500.0)
    assert model.world.backgrounds[GpuRef("n1", 1)][0] == back
    model.run_until(lambda: model.job(busy).outcome is not None)
    model.run_until(lambda: GpuRef("n1", 0) in model.world.backgrounds, within_s=500.0)
    model.run(100.0)
    assert {gpu.number: holder[0] for gpu, holder in model.world.backgrounds.items()} == {0: back}
    assert model.job(back).suspends == 1
    assert model.job(front).suspends == 0
    model.run_to_end()


def test_a_plan_of_an_old_ledger_says_nothing_of_free_gpu_time() -> None:
    old = replace(PLANS[2], stage_ms=())
    assert [old.idle(rank) for rank in range(4)] == [0.0] * 4
    assert [PLANS[2].idle(rank) for rank in range(4)] == [0.0, 0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match="2 stages take 2 times"):
        StagePlan(1, 1.0, (1, 1), (1.0,))


def test_what_was_measured_corrects_the_plans_for_the_next_placement() -> None:
    # Planned are 125, 200 and 333 steps/s on 1, 2 and 4 GPUs.
    truth = Profile("plain", ((1, 1, 120.0), (1, 2, 180.0), (1, 4, 90.0)), 5.0, 1.0, 5.0)
    model = Cluster({"n1": 4}, profiles={"plain": truth}, watched=True)
    model.policies.add(DeepPool)
    model.send(cmd.ChoosePolicy("deeppool"))
    (first,) = model.submit(replace(BURST, steps=9_000))
    model.run_until(lambda: model.job(first).running is not None, within_s=10.0)
    assert len(model.job(first).running.placement.gpus) == 4
    model.run_to_end()
    (second,) = model.submit(replace(BURST, steps=9_000))
    assert len(model.job(second).running.placement.gpus) == 2
    model.run_to_end()
    model.check_replay((0.0, 0.5, 1.0))


def seen(*rates: tuple[int, float], kind: str = "") -> Observations:
    return Observations(tuple(Observation(kind, 1, number, 100 * rate, 100.0) for number, rate in rates))


def test_a_measured_rate_counts_for_its_number_of_gpus_and_those_above() -> None:
    profile = burst_profile(BURST)
    assert measured(profile, Observations()) is profile
    assert measured(profile, seen((1, 126.0), (4, 330.0))) is profile  # as planned, within a few percent
    slow = measured(profile, seen((2, 100.0)))
    assert [round(slow.rate(n) / profile.rate(n), 2) for n in (1, 2, 3, 4, 8)] == pytest.approx(
        [1, *[0.5] * 4], abs=0.02
    )
    both = measured(profile, seen((2, 100.0), (4, 333.0)))
    assert [round(both.rate(n) / profile.rate(n), 2) for n in (1, 2, 3, 4)] == pytest.approx([1, 0.5, 0.5, 1], abs=0.02)
    kinds = measured(profile, seen((4, 100.0), kind="k80"))
    assert kinds.on("k80").rate(4) == kinds.rate(4) == pytest.approx(100.0, rel=0.03)
    assert kinds.rate(2) == profile.rate(2)


def test_jobs_of_one_script_with_other_plans_learn_nothing_from_each_other() -> None:
    other = replace(BURST, burst=(PLANS[0], StagePlan(2, 4.0, (2, 2), (2.0, 2.0))))
    assert len({BURST.learns_as, other.learns_as, replace(BURST, burst=()).learns_as}) == 3
    again = replace(BURST, burst=tuple(replace(plan, time_ms=plan.time_ms * 1.01) for plan in PLANS))
    assert again.learns_as == BURST.learns_as
