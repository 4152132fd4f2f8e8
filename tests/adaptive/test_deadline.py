"""The objective `deadline`: who is accepted, who is told that it will be late, and that nobody waits for ever."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hpcdl.adaptive import Adaptive, deadline
from hpcdl.adaptive.deadline import AGE_RUNS, AGE_S, accept, aged, choose, outlook
from hpcdl.adaptive.options import OptionMenu, candidates
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.profile import Profile
from hpcdl.policies import all_policies
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.workload import SimJob, Workload, cluster
from tests.adaptive.views import decide, job, node, running, view
from tests.support.seeds import seeds

SLOW = Profile("slow", ((1, 1, 1.0), (1, 2, 1.6), (1, 4, 2.5)), 30.0, 20.0, 30.0)
DUE = {"objective": "deadline"}


def due_view(*jobs: JobView, gpus: int = 4, now: float = 0.0) -> View:
    return view(*jobs, nodes=(node("n1", gpus),), now=now, **DUE)


def due_job(number: int, total: int, deadline: float | None, **more: object) -> JobView:
    known: dict[str, object] = {"profile": SLOW, "deadline": deadline, "submitted_at": 0.0}
    return job(number, total, **(known | more))


def gpus_of(seen: View) -> dict[int, int]:
    plan = decide(Adaptive(), seen)
    return {target.job: len(target.placement.gpus) if target.placement else 0 for target in plan.targets}


def accepted(found: OptionMenu, seen: View) -> set[int]:
    return {each.job.id for each in accept(outlook(seen, found).prospects, seen.now, sum(found.capacity))}


def test_it_gets_as_many_gpus_as_its_deadline_needs() -> None:
    others = [due_job(number, 1000, 5000.0) for number in (2, 3)]
    assert gpus_of(due_view(due_job(1, 1000, 680.0), *others)) == {1: 2, 2: 1, 3: 1}


def test_of_two_that_cannot_both_be_on_time_the_one_that_needs_less_is() -> None:
    seen = due_view(due_job(1, 3000, 3100.0), due_job(2, 1000, 3100.0), due_job(3, 1000, 3100.0), gpus=1)
    assert accepted(candidates(seen), seen) == {2, 3}
    assert gpus_of(seen)[1] == 0


def test_what_was_accepted_stays_so_when_a_longer_job_comes() -> None:
    first = running(1, 0, total=1000, profile=SLOW, deadline=1100.0, step=0, step_at=0.0)
    seen = due_view(first, due_job(2, 1050, 1150.0), gpus=1)
    assert accepted(candidates(seen), seen) == {1}
    assert gpus_of(seen) == {1: 1, 2: 0}


def test_a_job_with_less_to_do_takes_its_place() -> None:
    first = running(1, 0, total=4000, profile=SLOW, deadline=4005.0, step=0, step_at=0.0)
    seen = due_view(first, due_job(2, 300, 400.0), due_job(3, 300, 900.0), gpus=1)
    assert accepted(candidates(seen), seen) == {2, 3}
    assert gpus_of(seen)[1] == 0


def test_a_job_that_will_be_late_is_told_so_with_what_it_needs() -> None:
    seen = due_view(due_job(1, 9000, 3600.0))
    reason = decide(Adaptive(), seen).by_job()[1].reason
    assert "cannot meet its deadline at " in reason
    assert "needs 1 h 00 min on 4 GPUs" in reason


def test_a_job_of_unknown_length_is_told_so() -> None:
    reason = (
        decide(Adaptive(), due_view(due_job(1, 100, 3600.0), replace(due_job(2, 1, 3600.0), total=None)))
        .by_job()[2]
        .reason
    )
    assert "how long it takes is not known" in reason


def test_one_that_waits_is_told_when_it_must_start() -> None:
    jobs = [due_job(number, 1000, 1040.0) for number in range(1, 5)]
    reason = decide(Adaptive(), due_view(*jobs, due_job(5, 1000, 9000.0))).by_job()[5].reason
    assert "waits, and is on time if it starts by " in reason


@pytest.mark.parametrize("alone", [1, 2, 3])
def test_a_job_that_fits_nowhere_is_passed_over(alone: int) -> None:
    jobs = [due_job(number, 1000, 1040.0, **({"gpus_min": 8} if number == alone else {})) for number in (1, 2, 3)]
    seen = due_view(*jobs)
    assert accepted(candidates(seen), seen) == {1, 2, 3} - {alone}
    assert {number for number, gpus in gpus_of(seen).items() if gpus} == {1, 2, 3} - {alone}


def test_jobs_without_a_deadline_get_what_is_left() -> None:
    jobs = [due_job(number, 1000, 1040.0) for number in (1, 2, 3)]
    got = gpus_of(due_view(*jobs, due_job(4, 100, None), due_job(5, 5000, None)))
    assert [got[number] for number in (1, 2, 3)] == [1, 1, 1]
    assert got[4] + got[5] == 1


def test_gpus_are_kept_for_who_has_waited_longest() -> None:
    old = [due_job(number, 5000, 10.0, submitted_at=float(number)) for number in (1, 2)]
    now = AGE_S + 5000.0 * AGE_RUNS + 100.0
    fresh = [due_job(number, 1000, now + 1040.0, submitted_at=now) for number in (3, 4, 5, 6)]
    seen = due_view(*old, *fresh, now=now)
    got = gpus_of(seen)
    assert got[1] >= 1
    assert got[2] == 0
    assert "GPUs are kept for it" in decide(Adaptive(), seen).by_job()[1].reason


def test_nobody_overtakes_on_the_kept_gpus() -> None:
    jobs = (
        due_job(1, 5000, 10.0, submitted_at=1.0, gpus_min=2, gpus_max=2),
        due_job(2, 5000, 10.0, submitted_at=0.0),
    )
    when = AGE_S + 5000.0 * AGE_RUNS + 50.0
    found = candidates(due_view(*jobs, gpus=16, now=when))
    assert [each.job.id for each in aged(found.candidates, when, 16)] == [2]
    assert [each.job.id for each in aged(found.candidates, when, 48)] == [2, 1]
    assert aged(found.candidates, when - 51.0, 16) == ()


def test_a_gpu_is_kept_free_while_jobs_come_that_cannot_wait() -> None:
    hasty = due_job(1, 1000, 1031.0)
    plain = [due_job(number, 5000, 100000.0) for number in range(2, 20)]
    assert sum(gpus_of(due_view(hasty, *plain, gpus=16)).values()) == 15
    assert sum(gpus_of(due_view(*plain, gpus=16)).values()) == 16


def test_it_is_asked_again_when_someone_has_to_start() -> None:
    jobs = [due_job(number, 1000, 1040.0) for number in range(1, 5)]
    seen = due_view(*jobs, due_job(5, 1000, 9000.0))
    choice = choose(seen, candidates(seen))
    assert choice.wake_at is not None
    assert seen.now < choice.wake_at <= 9000.0 - 1000.0


def test_uncertain_rates_are_taken_with_caution() -> None:
    sure = due_job(1, 1000, 1050.0)
    unsure = replace(sure, profile=replace(SLOW, spread=0.1))
    assert outlook(due_view(sure), candidates(due_view(sure))).prospects[0].cheapest.units == 1
    assert outlook(due_view(unsure), candidates(due_view(unsure))).prospects[0].cheapest.units == 2


@settings(max_examples=seeds(5), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    late=st.lists(st.integers(300, 2000), min_size=1, max_size=4),
    stream=st.integers(200, 900),
    gpus=st.sampled_from([1, 2, 4]),
)
def test_rejected_jobs_wait_no_longer_than_the_bound(late: list[int], stream: int, gpus: int) -> None:
    """However many jobs with deadlines keep coming, half as many again as the GPUs can do."""
    age_s = 1200.0
    hopeless = [SimJob(0.0, f"late{at}", SLOW, steps, gpus_max=1, deadline_s=1.0) for at, steps in enumerate(late)]
    bound = age_s + sum(steps + 90.0 for steps in late) + stream
    gap = stream / gpus / 1.5
    coming = [
        SimJob(gap * at, f"c{at}", SLOW, stream, gpus_max=1, deadline_s=gap * at + 2.0 * stream)
        for at in range(int((bound + 1000.0) / gap))
    ]
    jobs = tuple(sorted([*hopeless, *coming], key=lambda each: each.submit_s))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline, "AGE_S", age_s)
        patch.setattr(deadline, "AGE_RUNS", 0.0)
        conditions = Conditions(objective="deadline", until_s=bound + max(late) + 1000.0)
        run = simulate(Workload("stream", jobs, cluster(1, gpus)), "adaptive", all_policies(), conditions)
    for number, told in run.jobs.items():
        if told.name.startswith("late"):
            started, ended = run.world.jobs[number].first_start_at, run.world.jobs[number].finished_at
            assert started is not None
            assert ended is not None
            assert started <= bound
            assert ended <= bound + told.steps
