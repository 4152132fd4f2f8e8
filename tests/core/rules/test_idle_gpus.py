"""When a job is said to leave GPUs idle: once of each attempt, by what agents measured, and never from silence."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import IdleMeasurement
from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.incarnation import Cause, Incarnation, IncarnationState, Purpose, StopRequest
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeKind, NoticeRules
from hpcdl.core.model.units import GpuRef
from hpcdl.core.rules.idle_gpus import idle_gpu_events, idle_text
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "resnet", gpus_min=4, gpus_max=4, steps=100_000, profile="plain")
TO = "mailto:me@example.org"


def training(kinds: frozenset[str] = frozenset(NoticeKind)) -> Cluster:
    """A job that trains on four GPUs."""
    model = Cluster({"n1": 4}, settings=Settings(300.0, notices=NoticeRules((TO,), kinds)))
    model.submit(SPEC)
    model.run_until(lambda: model.job(1).running is not None and model.job(1).running.training_start is not None)
    return model


def idle(*gpus: int, incarnation: int = 1) -> IdleMeasurement:
    return IdleMeasurement(1, incarnation, tuple(GpuRef("n1", gpu) for gpu in gpus))


def told(model: Cluster) -> list[ev.Event]:
    return [each.event for each in model.journal.records if isinstance(each.event, ev.GpusIdle)]


def notified(model: Cluster) -> list[str]:
    return [each.text for each in model.world.notices.values() if each.what is NoticeKind.IDLE]


def test_it_is_notified_once_of_each_attempt() -> None:
    model = training()
    model.send(cmd.Tick(idle=(idle(1, 2, 3),)))
    model.send(cmd.Tick(idle=(idle(1, 2, 3),)), cmd.Tick(idle=(idle(2, 3),)))
    assert told(model) == [ev.GpusIdle(1, 1, 4, ("n1:1", "n1:2", "n1:3"))]
    (text,) = notified(model)
    assert text.startswith("job 1 (resnet) leaves GPUs idle: uses 1 of its 4 GPUs: nothing runs on n1:1, n1:2, n1:3; ")
    (batch,) = [each for each in model.journal.commits if "GpusIdle" in each]
    assert batch[batch.index("GpusIdle") + 1] == "NoticeDue"
    model.send(cmd.Preempt(1))
    model.run_until(lambda: (run := model.job(1).running) is not None and run.number > 1 and run.training_start)
    again = model.job(1).last_incarnation
    model.send(cmd.Tick(idle=(idle(3),)))
    assert told(model)[1:] == [], "that was the attempt before"
    model.send(cmd.Tick(idle=(idle(3, incarnation=again),)))
    assert told(model)[1:] == [ev.GpusIdle(1, again, 4, ("n1:3",))]
    assert len(notified(model)) == 2
    model.check_replay()


def test_a_daemon_that_starts_again_does_not_tell_it_again() -> None:
    model = training()
    model.send(cmd.Tick(idle=(idle(3),)))
    model.restart_daemon()
    model.run_until(lambda: model.world.nodes["n1"].connected)
    model.send(cmd.Tick(idle=(idle(3),)))
    assert len(told(model)) == len(notified(model)) == 1


def test_who_does_not_want_it_is_not_told() -> None:
    model = training(frozenset({"end"}))
    model.send(cmd.Tick(idle=(idle(3),)))
    assert (len(told(model)), notified(model)) == (1, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": StopRequest(1.0, Purpose.PREEMPT), "state": IncarnationState.SAVING},
        {"stop": StopRequest(1.0, cause=Cause.PREEMPTED)},
        {"rescale_at": 1.0},
        {"training_start": None},
        {"placement": None},
        {"idle_noted": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_does_not_train_is_left_alone(changes: dict[str, Any]) -> None:
    world = training().world
    assert idle_gpu_events(world, [idle(3)]) != []
    job = world.jobs[1]
    changed = replace(job, live=(replace(job.live[0], **changes),))
    assert idle_gpu_events(replace(world, jobs={1: changed}), [idle(3)]) == []


def test_nothing_is_concluded_from_what_is_gone_or_silent() -> None:
    model = training()
    strange = (IdleMeasurement(9, 1, (GpuRef("n1", 0),)), idle(), idle(7), idle(0, 1, 2, 3), idle(3, incarnation=2))
    assert idle_gpu_events(model.world, strange) == []
    model.disconnect("n1")
    assert idle_gpu_events(model.world, [idle(3)]) == []


def test_attempts_recorded_before_open() -> None:
    body = to_json(training().job(1).running)
    assert body.pop("idle_noted", False) is False
    assert from_json(Incarnation, body).idle_noted is False


def test_of_many_gpus_some_are_named() -> None:
    assert idle_text(8, [f"n1:{index}" for index in range(2, 8)]) == (
        "uses 2 of its 8 GPUs: nothing runs on n1:2, n1:3, n1:4, n1:5, ...; --gpus 2 does as well, or its program has "
        "to use them all"
    )
