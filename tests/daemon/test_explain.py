"""What `hpcdl why` and the tables say of a job, from values alone."""

from dataclasses import replace

import pytest

from hpcdl.core.model import (
    Cause,
    GpuInfo,
    Incarnation,
    IncarnationState,
    Job,
    JobSpec,
    JobState,
    Node,
    Part,
    Placement,
    Purpose,
    Share,
    World,
)
from hpcdl.core.plan import Profiles
from hpcdl.core.views import can_suspend
from hpcdl.daemon.explain import eta_s, explain, retries_used
from hpcdl.daemon.rows import Rows

SPEC = JobSpec(("python", "train.py"), "train", steps=1000)
RUNNING = Incarnation(
    1, IncarnationState.RUNNING, (Part("n1", started=True),), Placement((Share("n1", (0,)),)), ready_at=100.0
)
NONE = Profiles({})
HERE = World(nodes={"n1": Node("n1", connected=True)})


def job(**changes: object) -> Job:
    return replace(Job(1, SPEC, 90.0), **changes)  # type: ignore[arg-type]


def details(found: Job, now: float = 100.0) -> str:
    return "\n".join(explain(HERE, found, {}, NONE, now).details)


def test_an_estimate_needs_half_a_minute_of_training() -> None:
    running = job(live=(RUNNING,), first_start_at=95.0, step=60, total=1000)
    assert eta_s(HERE, running, NONE, 102.0) is None
    assert eta_s(HERE, running, NONE, 130.0) == pytest.approx(470.0)
    assert "about 7 min 50 s to go" in details(running, 130.0)
    assert "to go" not in details(running, 102.0)
    away = World(nodes={"n1": Node("n1", connected=False)})
    assert eta_s(away, running, NONE, 130.0) is None
    saving = replace(running, live=(replace(RUNNING, state=IncarnationState.SAVING),))
    assert eta_s(HERE, saving, NONE, 130.0) is None


def test_the_wait_is_told_only_of_jobs_that_never_ran() -> None:
    assert "has waited 10 s since its submission" in details(job())
    suspended = job(first_start_at=95.0, suspended=True, held=True, last_cause=Cause.SUSPENDED, saved_step=4)
    assert "waited" not in details(suspended)


def test_work_that_is_lost_is_told() -> None:
    ended = job(
        first_start_at=95.0, last_incarnation=1, last_cause=Cause.PREEMPTED, last_detail="no checkpoint in time"
    )
    assert "no checkpoint: it starts over" in details(ended)
    again = replace(ended, live=(replace(RUNNING, number=2),), last_incarnation=2)
    assert "no checkpoint yet: it started from the beginning" in details(again)
    assert "no checkpoint" not in details(replace(ended, last_detail="", saved_step=3))


def test_nodes_without_gpus_are_told() -> None:
    said = {1: "needs 1 GPU; no node is connected"}
    assert explain(HERE, job(), said, NONE, 100.0).reason.startswith("needs 1 GPU; no GPU was found on n1 (")
    some = World(nodes={"n1": Node("n1", (GpuInfo(0, "GPU-0"),), connected=True)})
    assert explain(some, job(), {1: "needs 1 GPU, 0 free"}, NONE, 100.0).reason == "needs 1 GPU, 0 free"
    away = World(nodes={"n1": Node("n1", connected=False)})
    assert explain(away, job(), said, NONE, 100.0).reason == said[1]


def test_who_wants_a_suspend_is_told() -> None:
    def told(purpose: Purpose, held: bool = False, stopping: bool = False) -> str:
        saving = replace(RUNNING, state=IncarnationState.SAVING, purpose=purpose)
        said = {1: "will move to 4 GPUs"}
        return explain(World(stopping=stopping), job(live=(saving,), held=held), said, NONE, 100.0).reason

    begin = "is to save its checkpoint and free its GPUs: "
    assert told(Purpose.HOLD, held=True) == begin + "its user suspended it"
    assert told(Purpose.HOLD) == begin + "its user suspended it, and lifted that since; it resumes then"
    assert told(Purpose.RESCALE, stopping=True) == begin + "the daemon is stopping"
    assert told(Purpose.STOP) == begin + "the daemon was stopped; its agent has not told how that ended"
    assert told(Purpose.RESCALE, held=True) == begin + "its user holds it"
    assert told(Purpose.RESCALE) == begin + "will move to 4 GPUs"


def test_no_more_retries_are_used_than_there_are() -> None:
    spec = replace(SPEC, retries=2)
    failed = job(spec=spec, outcome=JobState.FAILED, failures=3, retries_used=3)
    assert retries_used(failed) == 2
    assert "3 failures; 2 of 2 retries used" in details(failed)
    none = job(outcome=JobState.FAILED, failures=1, retries_used=1)
    assert details(none) == "1 failure"
    assert Rows(World(), NONE, {}, 100.0).job(none)["retries_used"] == 0


@pytest.mark.parametrize(
    "signal, attached, expected",
    [("hpcdl", False, False), ("hpcdl", True, True), ("hf", False, True), ("none", True, False)],
)
def test_who_can_be_suspended(signal: str, attached: bool, expected: bool) -> None:
    found = job(spec=replace(SPEC, signal=signal), can_suspend=attached)
    assert can_suspend(found) is expected
    assert Rows(World(), NONE, {}, 100.0).job(found)["can_suspend"] is expected
