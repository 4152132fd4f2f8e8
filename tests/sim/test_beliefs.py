"""What policies are told where it is not the truth, and that trainers train as the truth has it."""

import math
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest

from hpcdl.core.model import events as ev
from hpcdl.core.model.plan import JobView, Plan, Policies, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import Target
from hpcdl.sim import Conditions, SimJob, SimulatedRun, Workload, WorkloadError, cluster, simulate
from hpcdl.sim.beliefs import Beliefs, believe, learner_of, parse_beliefs
from tests.sim.runs import on

NET = Profile("Net", ((1, 1, 1.0), (1, 2, 1.8)), startup_s=40.0, resume_s=50.0, save_s=9.0, gate_s=4.0)


class Looker:
    """A policy that gives each job a GPU of its own, and keeps what it saw."""

    name = "looker"

    def __init__(self) -> None:
        self.seen: dict[int, list[JobView]] = {}

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        for job in view.jobs:
            self.seen.setdefault(job.id, []).append(job)
        targets = tuple(Target(job.id, on("n1", job.id - 1), "its own GPU") for job in view.jobs)
        return Plan(targets, (), view.now + 200.0)


def workload(*submits_s: float, steps: int = 2000, **more: Any) -> Workload:
    jobs = tuple(SimJob(at, f"j{number}", NET, steps, **more) for number, at in enumerate(submits_s, 1))
    return Workload("made", jobs, cluster(1, 4))


def looked(work: Workload, beliefs: Beliefs, seed: int = 0) -> tuple[dict[int, list[JobView]], SimulatedRun]:
    policies, looker = Policies(), Looker()
    policies.register("looker", lambda: looker)
    told = believe(work, beliefs, seed)
    learn = learner_of(told, beliefs.unknown) if "curves" in beliefs.unknown else None
    ran = simulate(told, "looker", policies, Conditions(progress_s=100.0), learn)
    assert ran.problems == ()
    return looker.seen, ran


@pytest.mark.parametrize("pieces", ["", "curves", "steps", "startup", "save", "curves,startup,save", "steps,startup"])
def test_what_is_hidden_is_never_told_and_the_rest_is(pieces: str) -> None:
    beliefs = parse_beliefs(pieces, [])
    seen, ran = looked(workload(0.0, 900.0), beliefs)
    first, views = seen[1][0], [view for views in seen.values() for view in views]
    hidden = beliefs.unknown
    assert (first.profile is None) == ("curves" in hidden)
    assert {view.total for view in views} == ({None} if "steps" in hidden else {2000})
    if "curves" not in hidden:
        assert all(view.profile is not None and view.profile.points == NET.points for view in views)
    if first.profile is not None:
        assert (first.profile.startup_s, first.profile.resume_s) == ((0, 0) if "startup" in hidden else (40, 50))
        assert first.profile.save_s == (0 if "save" in hidden else 9)
    ends = [round(job.finished_at or 0.0, 3) for job in ran.history.jobs]
    assert ends == [2036.0 + 4.0, 2940.0], "the truth stays: 2,000 s after a start of 40 s"


def test_without_curves_a_policy_learns_what_trainers_show_with_the_costs_that_are_told() -> None:
    seen, _ = looked(workload(0.0, 900.0), parse_beliefs("curves", []))
    learnt = seen[2][0].profile
    assert learnt is not None, "of the first job's reports"
    assert learnt.rate(1) == pytest.approx(1.0, rel=0.05)
    assert (learnt.save_s, learnt.resume_s) == (9.0, 50.0)
    seen, _ = looked(workload(0.0, 900.0), parse_beliefs("curves,save", []))
    assert seen[2][0].profile is not None
    assert seen[2][0].profile.save_s != 9.0


def test_a_start_that_is_hidden_is_learnt_once_it_was_seen() -> None:
    seen, _ = looked(workload(0.0, 900.0), parse_beliefs("startup", []))
    assert [view.profile.startup_s for view in (seen[1][0], seen[2][0]) if view.profile] == [0.0, 40.0]


def test_curves_are_wrong_by_one_draw_for_a_profile() -> None:
    many = replace(NET, points=tuple((1, number, float(number)) for number in range(1, 401)), kinds=())
    other = replace(many, name="Other")
    jobs = tuple(SimJob(0.0, "j", profile, 9) for profile in (many, many, other))
    believed = [job.believed for job in believe(Workload("w", jobs), Beliefs(wrong_curves=0.3), 5).jobs]
    assert believed[0] is believed[1]
    assert all(job.profile is true for job, true in zip(jobs, (many, many, other), strict=True))
    logs = [[math.log(rate / n) for _, n, rate in profile.points] for profile in believed if profile is not None]
    assert logs[0] != logs[2]
    assert fmean(logs[0]) == pytest.approx(0.0, abs=0.05)
    assert stdev(logs[0]) == pytest.approx(0.3, abs=0.04)
    again, others = (believe(Workload("w", jobs), Beliefs(wrong_curves=0.3), seed).jobs[0].believed for seed in (5, 6))
    assert again == believed[0] != others


def test_steps_are_wrong_by_a_factor_for_each_job() -> None:
    told = believe(workload(*[0.0] * 300), Beliefs(wrong_steps=(0.5, 2.0)), 3)
    logs = [math.log((job.believed_steps or 0) / job.steps) for job in told.jobs]
    assert min(logs) >= math.log(0.5) - 1e-3
    assert max(logs) <= math.log(2) + 1e-3
    assert stdev(logs) == pytest.approx(2 * math.log(2) / math.sqrt(12), abs=0.03)
    assert fmean(logs) == pytest.approx(0.0, abs=0.08)


def test_a_job_that_told_too_few_steps_trains_all_of_them_and_its_trainer_tells_no_total() -> None:
    seen, ran = looked(workload(0.0), Beliefs(wrong_steps=(0.25, 0.25)))
    assert {view.total for view in seen[1]} == {500}
    assert ran.history.jobs[0].finished_at == 2040.0
    totals = {record.event.total for record in ran.records if isinstance(record.event, ev.Progressed)}
    assert totals == {None}


@pytest.mark.parametrize(
    ("unknown", "wrong", "says"),
    [
        ("curve", (), "nothing is called 'curve' that could be unknown; did you mean curves?"),
        ("", ("curves",), "expected curves:SIGMA or steps:A..B, got 'curves'"),
        ("", ("curves:nan",), "sigma of wrong curves must be from 0 to 5, got nan"),
        ("", ("curves:9",), "sigma of wrong curves must be from 0 to 5, got 9"),
        ("", ("steps:2",), "expected curves:SIGMA or steps:A..B, got 'steps:2'"),
        ("", ("steps:2..1",), "wrong steps need 0 < A <= B, got 2..1"),
        ("", ("steps:0..1",), "wrong steps need 0 < A <= B, got 0..1"),
        ("", ("steps:1..2,steps:1..3",), "wrong steps are there twice"),
        ("curves", ("curves:0.1",), "curves are told wrong or not at all: leave one of the two out"),
    ],
)
def test_beliefs_that_make_no_sense(unknown: str, wrong: tuple[str, ...], says: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_beliefs(unknown, wrong)
    assert says in str(caught.value)
