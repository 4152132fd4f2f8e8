"""A speed-up that nobody has measured: on which jobs it is tried, and that it is taken back where it was wrong."""

import pytest

from hpcdl.adaptive import Adaptive, options
from hpcdl.core.model.plan import JobView
from hpcdl.core.model.profile import Profile, UsualJob
from hpcdl.estimators.scaling import learner
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate
from hpcdl.sim.conditions import Conditions
from tests.adaptive.views import counts, decide, node, running, view

FLAT = Profile("flat", ((1, 1, 2.0), (1, 4, 2.0)), startup_s=2.0, save_s=1.0, resume_s=2.0)
SCALES = Profile("scales", ((1, 1, 2.0), (1, 2, 3.8), (1, 4, 7.0)), startup_s=2.0, save_s=1.0, resume_s=2.0)
BESIDE = Profile("beside", ((1, 1, 1.0),), startup_s=2.0, save_s=1.0, resume_s=2.0)
TWO = (node("n1", 2),)


def begun(seconds: float, **more: object) -> JobView:
    """A job without a profile that holds one of two GPUs since so many seconds."""
    known: dict[str, object] = {"profile": None, "step": 0, "step_at": None, "held_since": 1000.0 - seconds}
    return running(1, 0, total=None, **(known | more))  # type: ignore[arg-type]


def widths(profile: Profile, steps: int, beside: int) -> list[int]:
    """GPUs of each attempt of a job of which policies are told nothing; another one holds the other GPU first."""
    job = SimJob(0.0, "job", profile, steps, gpus_max=2, told=False)
    other = SimJob(0.0, "other", BESIDE, beside, gpus_max=1, told=False)
    ran = simulate(
        Workload("pair", (other, job), tuple(cluster(1, 2))),
        "adaptive",
        all_policies(),
        Conditions(progress_s=5.0),
        learner(2),
    )
    assert ran.problems == ()
    found = next(each for each in ran.history.jobs if each.name == "job")
    return [len(attempt.placement.gpus) for attempt in found.attempts]


def test_a_job_that_has_only_begun_is_not_moved_for_a_speedup_that_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found: 20 s of work, moved from 1 to 2 GPUs 3 s after its start for an assumed 1.7 x."""
    seen = view(begun(3.0), nodes=TWO)
    assert counts(decide(Adaptive(), seen)) == [1]
    monkeypatch.setattr(options, "LONG", 0.0)
    assert counts(Adaptive().decide(view(begun(3.0), nodes=TWO))) == [2], "without the rule it was"


def test_it_is_tried_on_a_job_that_has_trained_for_long_or_whose_like_did() -> None:
    assert counts(decide(Adaptive(), view(begun(100.0), nodes=TWO))) == [1]
    assert counts(decide(Adaptive(), view(begun(900.0), nodes=TWO))) == [2]
    short, long = (UsualJob(2.0, 1.0, length_s, 0.3, None, 0.0, "5 jobs of train.py") for length_s in (10.0, 3600.0))
    assert counts(decide(Adaptive(), view(begun(100.0, usual=short), nodes=TWO))) == [1]
    assert counts(decide(Adaptive(), view(begun(30.0, usual=long), nodes=TWO))) == [2]


def test_a_short_job_stays_on_its_gpu_when_another_is_free() -> None:
    assert widths(FLAT, 16, beside=8) == [1]


def test_a_speedup_that_is_wrong_is_taken_back_and_not_tried_again() -> None:
    assert widths(FLAT, 4000, beside=100) == [1, 2, 1]


def test_a_speedup_that_is_right_is_kept() -> None:
    assert widths(SCALES, 4000, beside=100) == [1, 2]


def test_more_gpus_that_were_measured_to_gain_nothing_are_not_offered_again() -> None:
    flat = Profile("flat", ((1, 1, 2.0), (1, 2, 2.05)), 2.0, 1.0, 2.0, measured=(("", 1, 1), ("", 1, 2)))
    seen = view(running(1, 0, 1, profile=flat, total=9000), nodes=TWO)
    assert counts(decide(Adaptive(), seen)) == [1]
    ends = view(running(1, 0, 1, profile=flat, total=20), nodes=TWO)
    assert counts(decide(Adaptive(), ends)) == [2], "what is left is not worth the change"
    told = Profile("told", flat.points, 2.0, 1.0, 2.0)
    assert counts(decide(Adaptive(), view(running(1, 0, 1, profile=told, total=9000), nodes=TWO))) == [2]
