"""What `GET /v1/overview` answers, and that its size is bounded."""

import asyncio
import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.series import Point
from hpcdl.core.model.world import JobEnd, JobState, LastAttempt
from hpcdl.daemon.api import overview
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.http import ApiProblem
from hpcdl.daemon.series import SeriesKeeper
from hpcdl.report.live import PageState, Recent, now_page
from hpcdl.wire.messages import GpuLine, HeartbeatMessage, MetricLine
from tests.support.stage import Stage, running


class Scene:
    """The route over a modelled cluster."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        hub = cast(Any, SimpleNamespace(heartbeats=self._heartbeats, nodes=lambda: ("n1",)))
        self.threads: set[str] = set()
        """Those in which the hub was asked."""
        about = DaemonStatus(1, "h", 0.0, "0", "/home/jo/.hpcdl", ("wanted",))
        self.api = ApiContext(cast(Any, self), hub, cast(Any, None), stage.profiles, about)
        self.reads = 0

    def _heartbeats(self) -> dict[str, HeartbeatMessage]:
        self.threads.add(threading.current_thread().name)
        return {"n1": HeartbeatMessage((GpuLine(0, 75, 2048, 100.0),), ())}

    @property
    def world(self) -> Any:
        return self.stage.world

    @property
    def reasons(self) -> Any:
        return self.stage.controller.reasons

    def now(self) -> float:
        return self.stage.now

    def call(self, function: Any) -> Any:
        self.reads += 1
        done: Future[Any] = Future()
        done.set_result(function(self.stage.controller))
        return done

    def ask(self, **query: object) -> Any:
        given = {name: str(value) for name, value in query.items()}
        request = cast(Any, SimpleNamespace(query_params=given))
        return json.loads(json.dumps(asyncio.run(overview.overview(self.api, request))))


def submit(stage: Stage, number: int, **more: Any) -> None:
    known: dict[str, Any] = {"gpus_min": 64, "gpus_max": 64}
    specs = tuple(JobSpec(("secret-command",), f"waits-{n}", **(known | more)) for n in range(number))
    stage.send(cmd.Submit(specs, f"{number} {stage.now}"))


def test_what_is_in_it() -> None:
    stage = running(3, "12")
    submit(stage, 1)
    stage.send(cmd.Avoid("n3", 1, 600.0, "hot", False))
    stage.run(50.0)
    scene = Scene(stage)
    told = scene.ask()
    assert scene.threads == {threading.current_thread().name}, "agents come and go in the loop's thread"
    node, _, other = told["nodes"]
    assert node["name"] == "n1"
    index, state, job, incarnation, util, used, _, _, since = node["gpus"][0]
    assert (index, state, job, incarnation, util, used) == (0, "ok", 1, 1, 75, 2048)
    assert 0.0 <= since < told["at"]
    assert [(gpu[1], gpu[7]) for gpu in other["gpus"]] == [("ok", ""), ("avoided", "hot")]
    (first,) = told["running"]
    assert (first["id"], first["gpus"], first["on"], first["state"]) == (1, 4, ["n1", "n2"], "RUNNING")
    (second,) = told["waiting"]
    assert second["name"] == "waits-0"
    assert second["reason"]
    assert told["names"] == {"1": "j"}
    assert "agents" not in told["status"]
    assert "secret-command" not in json.dumps(told), "nothing of it needs the command"
    kinds = {event["kind"] for event in told["events"]}
    assert "StartRequested" in kinds
    assert not kinds & {"Progressed", "JobSubmitted", "NodeJoined"}


def test_each_answer_has_what_is_new() -> None:
    stage = running(2, "12")
    scene, recent = Scene(stage), Recent(3600.0)
    first = scene.ask()
    recent.take(first)
    stage.send(cmd.Hold(1))
    stage.run(60.0)
    second = scene.ask(after=recent.after)
    assert second["after"] == first["last"]
    assert {event["seq"] for event in second["events"]}.isdisjoint(event["seq"] for event in first["events"])
    recent.take(second)
    page = now_page(second, recent.history(second), recent.names, PageState(None, datetime.fromtimestamp))
    assert "No job holds a GPU." in page
    again = Recent(3600.0)
    again.take(scene.ask())
    assert again.history(second) == recent.history(second)
    assert scene.ask(after=10**9)["after"] == 0, "of another ledger"
    with pytest.raises(ApiProblem):
        scene.ask(after="x")


def test_its_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = running(3, "123")
    submit(stage, 30)
    stage.run(20.0)
    for name, value in {"MOST_JOBS": 5, "MOST_NODES": 2, "MOST_EVENTS": 12, "LOOK": 5}.items():
        monkeypatch.setattr(overview, name, value)
    scene = Scene(stage)
    told = scene.ask()
    assert (len(told["waiting"]), told["waiting_more"]) == (5, 25)
    assert (len(told["nodes"]), told["nodes_more"]) == (2, 1)
    assert len(told["events"]) <= 12
    assert scene.reads == 3
    monkeypatch.setattr(overview, "BANDS_S", -1.0)
    assert "eta_low_s" not in scene.ask()["running"][0]


def test_what_failed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = running(1, "1")
    submit(stage, 4)
    for number, at in ((2, 30.0), (3, 50.0), (5, 40.0)):
        last = LastAttempt(Cause.OUT_OF_MEMORY, exit_code=137)
        stage.world.jobs[number] = replace(stage.job(number), end=JobEnd(JobState.FAILED, at), last=last)
    found = overview._failed(stage.world)
    assert [job.id for job in found] == [3, 5, 2]
    monkeypatch.setattr(overview, "MOST_FAILED", 2)
    assert [job.id for job in overview._failed(stage.world)] == [3, 5]
    monkeypatch.setattr(overview, "NEWEST", 1)
    assert [job.id for job in overview._failed(stage.world)] == [5]


def test_it_has_some_curves_of_the_jobs_that_run() -> None:
    stage = running(2, "12")
    scene = Scene(stage)

    async def nothing(job: int) -> dict[str, list[Point]]:
        return {}

    keeper = SeriesKeeper(lambda: stage.world, lambda: 7.0, lambda changes: None, nothing, {})
    names = [f"m{number}" for number in range(9)]
    points = tuple((0.0, step, 1.0, 1.0, 1.0, 1.0, 1, 0) for step in range(200))

    async def heard() -> None:
        lines = tuple(MetricLine(1, stage.world.jobs[1].last_incarnation, name, points) for name in names)
        keeper.heard("n1", HeartbeatMessage((), (), (), lines))
        while not keeper.recent(1):
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(heard(), 60))
    assert scene.ask()["curves"] == {}
    scene.api.series = keeper
    curves = scene.ask()["curves"]
    assert list(curves) == ["1"]
    assert [each["name"] for each in curves["1"]] == names[: overview.MOST_CURVES]
    for each in curves["1"]:
        steps = each["points"]["step"]
        assert (steps[0], steps[-1], len(steps) <= overview.POINTS) == (0, 199, True)
