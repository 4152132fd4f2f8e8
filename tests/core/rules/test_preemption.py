"""A job that is preempted on purpose: suspended by the handshake, held by nobody, placed again at once."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.incarnation import Cause, Purpose
from hpcdl.core.model.job import Drill, JobSpec
from hpcdl.core.model.world import DrillRecord, JobState
from hpcdl.core.rules.departures import leave_s
from hpcdl.core.rules.endings import cause_of
from tests.core.model.test_transitions import NODES, PLACEMENT, draft_with
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", steps=400, profile="plain")


def training(spec: JobSpec = SPEC) -> Cluster:
    model = Cluster({"n1": 4})
    model.submit(spec)
    model.run(10.0)
    return model


def test_it_is_suspended_and_goes_on_where_it_was() -> None:
    model = training()
    assert model.send(cmd.Preempt(1), cmd.Preempt(1)) == [None, None]
    requested = [r.event for r in model.journal.records if isinstance(r.event, ev.PreemptRequested)]
    asked = [r.event for r in model.journal.records if isinstance(r.event, ev.SuspendRequested)]
    assert requested == [ev.PreemptRequested(1, 1)]
    assert [(event.incarnation, event.purpose) for event in asked] == [(1, Purpose.PREEMPT)]
    model.run_until(lambda: model.job(1).last_incarnation == 2 and model.job(1).running.progress is not None)
    job = model.job(1)
    assert not job.held
    assert job.last.cause is Cause.SUSPENDED
    assert job.running.progress.ready_step == job.progress.saved_step
    assert not job.running.preempt
    model.run_to_end()
    assert model.job(1).outcome is JobState.DONE


def test_a_daemon_that_dies_just_then_carries_it_out_and_holds_nothing() -> None:
    model = training()
    model.send(cmd.Preempt(1))
    model.restart_daemon()
    model.run_to_end()
    assert (model.job(1).outcome, model.job(1).suspends) == (JobState.DONE, 1)


@pytest.mark.parametrize(
    ("spec", "before", "message", "code"),
    [
        (SPEC, [cmd.Hold(1)], "job 1 is SUSPENDING, not training: again once it runs (hpcdl why 1)", "not-running"),
        (SPEC, [cmd.Cancel(1)], "job 1 is RUNNING, not training", "not-running"),
        (SPEC, [cmd.Stop(now=False)], "the daemon is stopping: hpcdl daemon start", "stopping"),
        (replace(SPEC, signal="none"), [], "submitted with --signal none", "no-checkpoint"),
    ],
)
def test_what_cannot_be_preempted(spec: JobSpec, before: list[cmd.Command], message: str, code: str) -> None:
    model = training(spec)
    model.send(*before)
    seq = model.world.seq
    (answer,) = model.send(cmd.Preempt(1))
    assert isinstance(answer, CommandRefused)
    assert (message in str(answer), answer.code, model.world.seq) == (True, code, seq)


def test_a_job_that_waits_cannot_be_preempted() -> None:
    model = Cluster({"n1": 1})
    model.submit(replace(SPEC, gpus_min=2, gpus_max=2))
    (answer,) = model.send(cmd.Preempt(1))
    assert isinstance(answer, CommandRefused)
    assert str(answer) == "job 1 is QUEUED, not training: again once it runs (hpcdl why 1)"


@pytest.mark.parametrize("also_asked", [None, ev.SuspendRequested(1, 1, Purpose.PREEMPT, 30.0)])
@pytest.mark.parametrize("rest", [ev.EndRequested(1, 1, Cause.INFRASTRUCTURE, 30.0, "its part on n1 ended"), None])
def test_a_kill_of_ours_is_no_failure(also_asked: ev.Event | None, rest: ev.Event | None) -> None:
    """Also where the parts on the other nodes are ended for lack of the one that was killed."""
    asked = None if also_asked is None else "suspend"
    killed = ev.Exited(1, 1, 1, "n1", signal="SIGKILL", ended_by=asked, hint=Cause.PREEMPTED, detail="by a drill")
    other = ev.Exited(1, 1, 1, "n2", signal="SIGTERM", ended_by=asked or "end")
    more: list[Any] = [also_asked, killed, rest, other]
    draft = draft_with(ev.StartRequested(1, 1, NODES, PLACEMENT))
    for event in filter(None, more):
        draft.add(event, 2.0)
    job = draft.world.jobs[1]
    assert cause_of(job, job.live[0])[0] is Cause.PREEMPTED


def test_what_a_drill_found_is_kept_and_planned_with() -> None:
    model = training()
    model.send(cmd.Preempt(1))
    model.run_until(lambda: model.job(1).last_incarnation == 2)
    before = leave_s(model.world, 30.0)
    found = Drill(True, grace_needed_s=20.0, lost_steps=4, interval_steps=10)
    assert model.send(cmd.Drilled(1, found)) == [None]
    assert model.job(1).drill == DrillRecord(found, model.now)
    assert leave_s(model.world, 30.0) == max(before, 50.0) > before
    (answer,) = model.send(cmd.Drilled(9, found))
    assert isinstance(answer, CommandRefused)
    assert answer.code == "unknown-job"


@pytest.mark.parametrize("wrong", [{"save_s": -1.0}, {"grace_needed_s": float("nan")}, {"lost_steps": -1}])
def test_a_drill_that_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"a preemption test's {next(iter(wrong))} must be"):
        Drill(True, **wrong)
