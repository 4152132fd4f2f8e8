"""When a job stalls: decided from what agents measured, and only while it could have made progress."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ce
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import StallMeasurement
from hpcdl.core.model.incarnation import NO_OUTPUT, NO_STEP, NOT_READY, Cause, IncarnationState, Purpose, StopRequest
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import Job, JobState, World
from hpcdl.core.rules.intake import Settings
from hpcdl.core.rules.stalls import LEAST_S, UNKNOWN_S, limit_s, stall_events
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", steps=100_000, profile="plain")


def training(spec: JobSpec = SPEC, stall_s: float | None = None) -> Cluster:
    """A job that has trained for 100 s, a step a second."""
    model = Cluster({"n1": 1}, settings=Settings(agent_lease_s=300.0, stall_s=stall_s))
    model.submit(spec)
    model.run_until(lambda: model.job(1).running is not None and model.job(1).running.progress is not None)
    model.run(100.0)
    agent = model.agents["n1"]
    model._report(agent, ev.Progressed(1, 1, 1, "n1", step=100))
    model.run(1.0)
    return model


def still(seconds: float | None, idle_s: float | None = None, started_s: float = 1e6) -> StallMeasurement:
    return StallMeasurement(1, 1, ("n1",), seconds, idle_s, started_s)


def told(model: Cluster, *kinds: type[ev.Event]) -> list[Any]:
    return [record.event for record in model.journal.records if isinstance(record.event, kinds)]


def test_a_job_stalls_once_and_goes_on() -> None:
    model = training(replace(SPEC, stall_s=60.0))
    model.run(59.0)
    model.send(cmd.Tick((still(59.0),)))
    assert told(model, ce.JobStalled) == []
    model.run(61.0)
    since = model.now - 120.0
    model.send(cmd.Tick((still(120.0),)))
    model.send(cmd.Tick((still(120.0),)))
    assert told(model, ce.JobStalled) == [ce.JobStalled(1, 1, since, NO_STEP, 100)]
    assert model.job(1).running.stall.text(100, model.now) == "no step for 2 min 00 s; at step 100"
    assert model.job(1).running.state is IncarnationState.RUNNING
    model.send(cmd.Tick((still(1.0),)))
    assert told(model, ce.StallOver) == [ce.StallOver(1, 1)]
    assert model.job(1).running.stall is None
    model.check_replay()


def test_nothing_is_concluded_from_silence() -> None:
    model = training(replace(SPEC, stall_s=60.0))
    model.run(1000.0)
    for _ in range(3):
        model.send(cmd.Tick())
        model.run(1000.0)
    assert told(model, ce.JobStalled) == []
    model.disconnect("n1")
    model.send(cmd.Tick((still(5000.0),)))  # a heartbeat from before
    assert told(model, ce.JobStalled) == []


def test_a_report_that_came_after_the_measurement_counts() -> None:
    model = training(replace(SPEC, stall_s=60.0))
    model.send(cmd.Tick((still(3000.0),)))
    assert told(model, ce.JobStalled) == [], "a step was reported a second ago"


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": StopRequest(1.0, Purpose.PREEMPT), "state": IncarnationState.SAVING},
        {"stop": StopRequest(1.0, cause=Cause.PREEMPTED)},
        {"rescale_at": 1.0},
        {"broken_at": 1.0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_under_way_is_no_stall(changes: dict[str, Any]) -> None:
    world, now = stuck(**changes)
    assert stall_events(world, [still(500.0)], now, 60.0) == []
    world, now = stuck()
    assert [type(each) for each in stall_events(world, [still(500.0)], now, 60.0)] == [ce.JobStalled]
    assert stall_events(world, [structs.replace(still(500.0), nodes=("n2",))], now, 60.0) == [], (
        "its own node measured nothing"
    )


def stuck(**changes: Any) -> tuple[World, float]:
    """A world whose job made its last step 1000 s ago."""
    model = training()
    world, job = model.world, model.job(1)
    running = replace(job.running, **changes)
    world.jobs[1] = replace(job, live=(running,))
    return world, model.now + 1000.0


def limits(job: Job, what: str, setting: float | None, **changes: Any) -> float | None:
    world = World()
    running = training().job(1).running
    running = replace(running, progress=replace(running.progress, **changes))
    return limit_s(world, job, running, what, setting)


def test_patience_where_nothing_is_set() -> None:
    job = Job(1, SPEC, 0.0)
    assert limits(job, NO_STEP, None) == LEAST_S, "a step takes a second"
    assert limits(job, NO_STEP, None, step=1) == pytest.approx(2000.0, rel=0.1), "20 times 100 s"
    assert limits(job, NO_STEP, None, step=0) == UNKNOWN_S, "before the first step"
    assert limits(job, NOT_READY, None) == UNKNOWN_S
    assert limits(job, NO_OUTPUT, None) is None, "it may just be quiet"
    assert limits(job, NO_STEP, 0.0) is None
    never = Job(1, replace(SPEC, stall_s=0.0), 0.0)
    assert limits(never, NO_STEP, 60.0) is None
    own = Job(1, replace(SPEC, stall_s=90.0), 0.0)
    assert [limits(own, what, 60.0) for what in (NO_STEP, NO_OUTPUT, NOT_READY)] == [90.0, 90.0, 90.0]
    printed = Job(1, replace(SPEC, progress_regex="step ([0-9]+)"), 0.0)
    running = replace(training().job(1).running, attached=False)
    assert limit_s(World(), printed, running, NO_STEP, None) == UNKNOWN_S, "it need not print every step"


def test_a_start_that_takes_long_as_ever_is_no_stall() -> None:
    model = training(replace(SPEC, stall_s=5.0))
    running = model.job(1).running
    limit = limit_s(model.world, model.job(1), running, NOT_READY, None)
    assert limit == pytest.approx(9.0), "starts of such jobs take 3 s"


def test_a_start_that_hangs_and_a_program_that_shows_no_steps() -> None:
    world, now = stuck(progress=None, attached=True)
    (found,) = stall_events(world, [still(None, 10.0, started_s=1e6)], now, 60.0)
    assert isinstance(found, ce.JobStalled)
    assert found.what == NOT_READY
    assert stall_events(world, [still(None, 10.0, started_s=10.0)], now, 60.0) == [], "its agent has just come"
    world, now = stuck(progress=None, attached=False)
    assert stall_events(world, [still(None, 59.0)], now, 60.0) == []
    (found,) = stall_events(world, [still(None, 61.0)], now, 60.0)
    assert isinstance(found, ce.JobStalled)
    assert found.what == NO_OUTPUT


def test_a_restart_costs_no_retry_and_resumes() -> None:
    model = training(replace(SPEC, stall_s=60.0, stall_restart=True))
    model.durable[1] = 80.0
    model._report(model.agents["n1"], ev.Saved(1, 1, 1, "n1", step=80))
    model.run(100.0)
    model.send(cmd.Tick((still(100.0),)))
    model.run(20.0)
    job = model.job(1)
    assert (job.last.cause, job.failures.retries_used, job.failures.total) == (Cause.STALLED, 0, 1)
    assert job.last.detail == "no step for 1 min 40 s; at step 100"
    assert job.last_incarnation == 2
    assert job.running.progress.ready_step == 80
    assert job.running.stall is None
    model.check_replay()


def test_one_that_always_hangs_at_the_same_step_is_given_up() -> None:
    model = training(replace(SPEC, stall_s=60.0, stall_restart=True))
    for number in (1, 2, 3):
        model.run_until(lambda n=number: model.job(1).running is not None and model.job(1).running.number == n)  # type: ignore[misc]
        model.run_until(lambda: model.job(1).running.progress is not None)
        model._report(model.agents["n1"], ev.Progressed(1, number, 1, "n1", step=400))
        model.run(100.0)
        model.send(cmd.Tick((StallMeasurement(1, number, ("n1",), 100.0, None, 1e6),)))
    model.run_to_end()
    job = model.job(1)
    assert job.outcome is JobState.FAILED
    assert job.last.detail.startswith("poison guard: 3 times the same at step 400: no step for")
    assert job.failures.retries_used == 0
