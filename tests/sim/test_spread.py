"""Jobs whose start-ups, saves and lengths differ from what their workload says: drawn, and told to no policy."""

import math
from dataclasses import replace
from statistics import mean, median, pstdev

import pytest

from hpcdl.core.model import events as ev
from hpcdl.core.model.plan import Plan, View
from hpcdl.core.model.world import JobState, Target, validate
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate
from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.trainers import drawn
from tests.sim.runs import COSTS, Calls, ends, happened, jobs_of, on, run

JOB = SimJob(0.0, "j", COSTS, 1000)


def journal(ran: SimulatedRun) -> list[str]:
    return [repr(record) for record in ran.records]


def test_nothing_is_drawn_unless_asked_for() -> None:
    assert drawn(JOB, 1, Conditions()) is JOB
    assert drawn(JOB, 1, Conditions(jitter=0.5)) is JOB


def test_a_job_is_as_long_as_its_workload_says_give_or_take_the_spread() -> None:
    conditions = Conditions(seed=3, spread=0.4)
    jobs = [drawn(JOB, number, conditions) for number in range(1, 800)]
    for sizes in (
        [job.steps / JOB.steps for job in jobs],
        [job.profile.startup_s / COSTS.startup_s for job in jobs],
        [job.profile.save_s / COSTS.save_s for job in jobs],
    ):
        assert median(sizes) == pytest.approx(1.0, abs=0.1)
        assert pstdev(math.log(each) for each in sizes) == pytest.approx(0.4, rel=0.1)
    one = jobs[0].profile
    starts = {getattr(one, name) / getattr(COSTS, name) for name in ("startup_s", "gate_s", "resume_s", "move_s")}
    assert max(starts) == pytest.approx(min(starts))  # what is slow to start is slow to resume
    assert (one.points, one.join_s) == (COSTS.points, None)
    assert drawn(JOB, 1, conditions) == jobs[0]
    assert drawn(JOB, 1, replace(conditions, seed=4)) != jobs[0] != jobs[1]


def test_runs_take_what_was_drawn_and_the_same_seed_the_same() -> None:
    jobs = jobs_of(100, 100)
    ran = run(jobs, cluster(2, 1), "marble", seed=5, spread=0.5)
    truth = [drawn(job, number, Conditions(seed=5, spread=0.5)) for number, job in enumerate(jobs, 1)]
    assert [ran.jobs[number] for number in (1, 2)] == truth
    assert [happened(ran, ev.TrainerReady, number) for number in (1, 2)] == [
        [pytest.approx(each.profile.startup_s, abs=1e-5)] for each in truth
    ]
    assert ends(ran) == [pytest.approx(each.profile.startup_s + each.steps, abs=1e-5) for each in truth]
    assert journal(ran) == journal(run(jobs, cluster(2, 1), "marble", seed=5, spread=0.5))
    assert journal(ran) != journal(run(jobs, cluster(2, 1), "marble", seed=6, spread=0.5))


def test_policies_see_what_trainers_have_shown_and_nothing_else() -> None:
    views: list[View] = []

    def decide(view: View) -> Plan:
        """One job after another, and the third is suspended while it trains."""
        views.append(view)
        first = min(job.id for job in view.jobs) if view.jobs else 0
        stops = first == 3 and 1500 <= view.now < 1600
        places = {first: on("n1", 0)} if not stops else {}
        wake_at = next((at for at in (1500.0, 1600.0) if at > view.now), None)
        return Plan(tuple(Target(job.id, places.get(job.id), "as written") for job in view.jobs), (), wake_at)

    how = {"seed": 2, "spread": 0.5, "progress_s": 50.0, "exempt_starts": 3.0}
    ran = run(jobs_of(400, 400, 4000), cluster(1, 1), Calls(decide), **how)
    assert [job.state for job in ran.history.jobs] == [JobState.DONE] * 3
    truth = ran.jobs
    assert all(job.total is None for view in views for job in view.jobs)
    assert {job.profile for view in views for job in view.jobs if view.now < 10.0} == {COSTS}  # as the workload says
    assert all(job.usual is None for job in views[0].jobs)
    alone = [view.jobs[-1].usual for view in views if [job.id for job in view.jobs] == [3] and view.now < 1500]
    last = alone[0]  # before the third has shown anything
    assert last is not None
    assert last.steps == pytest.approx(mean(truth[number].steps for number in (1, 2)), rel=0.05)
    starts = [ran.world.jobs[number].costs.start_s or 0.0 for number in (1, 2)]
    assert last.start_s == pytest.approx(mean(starts), rel=0.15)  # rounded
    assert starts[0] == pytest.approx(truth[1].profile.startup_s)
    saved = [record.event for record in ran.records if isinstance(record.event, ev.Saved)]
    assert [each.seconds for each in saved if each.final] == [pytest.approx(truth[3].profile.save_s)]
    assert ran.world.jobs[3].costs.save_s == pytest.approx(truth[3].profile.save_s)


@pytest.mark.parametrize("name", all_policies().names())
def test_every_policy_ends_jobs_of_which_it_is_told_nothing(name: str) -> None:
    jobs = tuple(replace(job, submit_s=40.0 * place) for place, job in enumerate(jobs_of(*range(100, 700, 100))))
    workload = Workload("drawn", (*jobs, replace(jobs[-1], told=False)), cluster(1, 2))
    ran = simulate(workload, name, all_policies(), Conditions(seed=1, spread=0.6, progress_s=20.0))
    validate(ran.world)
    assert ran.problems == ()
    assert [job.state for job in ran.history.jobs] == [JobState.DONE] * len(workload.jobs)
