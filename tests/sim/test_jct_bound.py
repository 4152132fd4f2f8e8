"""The bound on the mean JCT: below every schedule of small cases, below every policy, and met where it can be."""

import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from hpcdl.core.model.job import Sharing
from hpcdl.core.model.profile import Profile
from hpcdl.policies import all_policies
from hpcdl.sim import Conditions, NodeSpell, SimJob, Workload, cluster, simulate, summarise
from hpcdl.sim.jct_bound import mean_jct_bound_s, srpt_mean_jct_s
from hpcdl.sim.slowdowns import Slowdown

ALONE = Conditions()


def least_mean_jct_s(workload: Workload) -> float:
    """Of all schedules that change at whole seconds, by trying them all; without costs."""
    jobs, nodes = workload.jobs, workload.nodes
    choices = [
        [None, *((node.kind, gpus) for node in nodes for gpus in job.gpus_counts if gpus <= node.gpus)] for job in jobs
    ]
    room = {node.kind: node.gpus for node in nodes}

    @cache
    def least(now: int, left: tuple[float, ...]) -> float:
        """The sum of the JCTs from now on of those that are not done."""
        if max(left) <= 0:
            return 0.0
        best = float("inf")
        waits = [left[place] > 0 and job.submit_s <= now for place, job in enumerate(jobs)]
        here = [each if wait else [None] for each, wait in zip(choices, waits, strict=True)]
        for option in product(*here):
            taken = dict.fromkeys(room, 0)
            for each in option:
                if each is not None:
                    taken[each[0]] += each[1]
            if all(each is None for each in option) and all(job.submit_s <= now for job in jobs):
                continue
            if any(taken[kind] > gpus for kind, gpus in room.items()):
                continue
            after, spent = [], 0.0
            for place, each in enumerate(option):
                rate = 0.0 if each is None else jobs[place].profile.on(each[0]).rate(each[1])
                spent += min(1.0, left[place] / rate if rate else 1.0) if waits[place] else 0.0
                after.append(round(max(0.0, left[place] - rate), 6))
            best = min(best, spent + least(now + 1, tuple(after)))
        return best

    return least(0, tuple(float(job.steps) for job in jobs)) / len(jobs)


def drawn_case(seed: int) -> Workload:
    draws = random.Random(seed)
    kinds = draws.choice([("a",), ("a", "b")])
    jobs = []
    for number in range(draws.choice((2, 3))):
        curves = []
        for kind in kinds:
            one = draws.choice((1.0, 2.0, 3.0))
            curves.append((kind, ((1, 1, one), (1, 2, one * draws.choice((1.0, 1.5, 2.0))))))
        profile = Profile(f"p{number}", curves[0][1], kinds=tuple(curves))
        counts = draws.choice(((1,), (2,), (1, 2)))
        jobs.append(
            SimJob(
                float(draws.randrange(3)), f"j{number}", profile, draws.randrange(1, 9),
                gpus_min=counts[0], gpus_max=counts[-1], gpus_counts=counts,
            )
        )  # fmt: skip
    nodes = tuple(NodeSpell(f"n{kind}", 2, kind) for kind in kinds)
    return Workload("drawn", tuple(sorted(jobs, key=lambda job: job.submit_s)), nodes)


@pytest.mark.parametrize("seed", range(40))
def test_no_schedule_of_a_small_case_is_below_it(seed: int) -> None:
    case = drawn_case(seed)
    bound = mean_jct_bound_s(case, ALONE)
    assert bound is not None
    assert 0 < bound <= least_mean_jct_s(case) + 1e-9


def test_some_schedule_meets_it_where_one_gpu_is_all_there_is() -> None:
    flat = Profile("flat", ((1, 1, 1.0),))
    jobs = tuple(
        SimJob(at, f"{at}", flat, steps, gpus_max=1, gpus_counts=(1,)) for at, steps in ((0, 5), (1, 2), (2, 1))
    )
    case = Workload("queue", jobs, cluster(1, 1, "a"))
    assert mean_jct_bound_s(case, ALONE) == least_mean_jct_s(case) == pytest.approx((8 + 2 + 2) / 3)


def test_types_weigh_what_jobs_get_of_them() -> None:
    """Of a type on which nobody trains well a GPU counts for little, so nothing is gained by its many GPUs."""
    profile = Profile("p", ((1, 1, 1.0),), kinds=(("fast", ((1, 1, 1.0),)), ("slow", ((1, 1, 0.01),))))
    jobs = tuple(SimJob(0.0, f"j{number}", profile, 100, gpus_max=1) for number in range(10))
    nodes = (NodeSpell("f", 1, "fast"), *(NodeSpell(f"s{number}", 8, "slow") for number in range(4)))
    bound = mean_jct_bound_s(Workload("w", jobs, nodes), ALONE)
    plain = srpt_mean_jct_s([(0.0, 100.0)] * 10, [(0.0, float("inf"), 33.0)])
    assert plain is not None
    assert bound is not None
    assert bound > 10 * plain


@pytest.mark.parametrize("policy", ["adaptive", "elastic", "marble", "srt", "las", "max-min", "fifo"])
@pytest.mark.parametrize("seed", range(3))
def test_no_policy_is_below_it(policy: str, seed: int) -> None:
    draws = random.Random(seed)
    curves = {"a": (1.0, 1.7, 3.0), "b": (0.4, 0.7, 0.9)}
    kinds = tuple((kind, tuple(zip((1, 1, 1), (1, 2, 4), rates, strict=True))) for kind, rates in curves.items())
    profile = Profile("p", kinds[0][1], kinds=kinds, startup_s=20.0, gate_s=5.0, resume_s=20.0, save_s=4.0)
    at, jobs = 0.0, []
    for number in range(25):
        at += draws.expovariate(1 / 150)
        jobs.append(SimJob(at, f"j{number}", profile, draws.randrange(50, 3000), gpus_max=4))
    nodes = (*cluster(1, 4, "a"), NodeSpell("n2", 4, "b", 0.0, 6000.0), NodeSpell("n2", 4, "b", 9000.0))
    work = Workload("w", tuple(jobs), nodes)
    for conditions in (Conditions(seed=seed), Conditions(seed=seed, spread=0.3, jitter=0.5), Conditions(warm=True)):
        bound = mean_jct_bound_s(work, conditions)
        results = summarise(simulate(work, policy, all_policies(), conditions))
        assert results.finished == 25
        assert results.mean_jct_s is not None
        assert bound is not None
        assert 0 < bound <= results.mean_jct_s


def test_a_job_alone_takes_its_start_and_its_fastest_option() -> None:
    profile = Profile("p", ((1, 1, 1.0), (1, 4, 2.0)), startup_s=30.0)
    work = Workload("w", (SimJob(7.0, "j", profile, 100, gpus_max=4),), cluster(1, 4))
    assert mean_jct_bound_s(work, ALONE) == 80.0
    assert mean_jct_bound_s(work, Conditions(jitter=0.1)) == 50.0
    assert mean_jct_bound_s(Workload("none", (), cluster(1, 4)), ALONE) is None


def test_nodes_that_go_leave_no_bound_and_two_jobs_on_a_gpu_a_lower_one() -> None:
    jobs = [(0.0, 10.0), (0.0, 10.0)]
    assert srpt_mean_jct_s(jobs, [(5.0, 15.0, 1.0), (100.0, 110.0, 1.0)]) == (15 + 110) / 2
    assert srpt_mean_jct_s(jobs, [(0.0, 15.0, 1.0)]) is None
    flat = Profile("flat", ((1, 1, 1.0),))
    many = tuple(SimJob(0.0, f"j{number}", flat, 10, gpus_max=1) for number in range(10))
    alone = Workload("w", many, cluster(1, 1))

    pair = Slowdown(slowdown=0.25, share=0.7)
    shared = replace(
        alone, jobs=tuple(replace(job, share=Sharing.from_text("background")) for job in many), slowdowns=(pair,)
    )
    bounds = [mean_jct_bound_s(work, ALONE) for work in (alone, shared)]
    assert bounds == [55.0, pytest.approx(55.0 / (1 / 1.25 + 0.7))]
