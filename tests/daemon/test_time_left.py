"""One estimate of a running job's end in every answer, and what is said of deadlines that nothing is done for."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.cli.show import deadline_text
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec, StagePlan
from hpcdl.core.model.profile import Observations, Profile
from hpcdl.core.model.world import JobProgress, World
from hpcdl.daemon.api import jobs
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.estimates import when, when_text
from hpcdl.daemon.api.http import Encoded
from hpcdl.daemon.api.overview import overview
from hpcdl.daemon.time_left import measured_rate, remaining
from hpcdl.policies import all_policies
from tests.support.model_cluster import Cluster
from tests.support.stage import Stage, running


class Scene:
    """The routes over a modelled cluster."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.world: World = stage.world
        self.reasons, self.solver = stage.controller.reasons, ""
        about = DaemonStatus(1, "h", 0.0, "0", "/home/jo/.hpcdl", ("wanted",))
        hub = SimpleNamespace(heartbeats=dict, nodes=tuple)
        self.api = ApiContext(cast(Any, self), cast(Any, hub), cast(Any, None), stage.profiles, about)

    def now(self) -> float:
        return self.stage.now

    def call(self, function: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(function(self.stage.controller))
        return done

    def send(self, command: Any) -> Any:
        done: Future[Any] = Future()
        (answer,) = self.stage.send(command)
        done.set_result(answer)
        self.world = self.stage.world
        return done

    def answer(self, handler: Coroutine[Any, Any, Any]) -> Any:
        found = asyncio.run(handler)
        return json.loads(found.content if isinstance(found, Encoded) else json.dumps(found))

    def get(self, route: str, job: int = 1) -> Any:
        request = cast(Any, SimpleNamespace(query_params={}, path_params={"job": job}))
        handler = overview if route == "overview" else getattr(jobs, route)
        return self.answer(handler(self.api, request))

    def submit(self, **more: Any) -> Any:
        entry = {"command": ["train"], "name": "due", "gpus_min": 1, "deadline": self.now() + 180.0, "steps": 300}

        body = json.dumps({"request_id": f"r{more}", "jobs": [entry | more.pop("entry", {})]} | more).encode()

        async def stream() -> AsyncIterator[bytes]:
            yield body

        return self.answer(jobs.submit(self.api, cast(Any, SimpleNamespace(stream=stream))))["jobs"]


@pytest.mark.parametrize("rescale", ["restart", "in-process"])
@pytest.mark.parametrize("trained_s", [0.0, 12.0, 33.0, 70.0, 133.0])
def test_every_answer_has_the_same_estimate(rescale: str, trained_s: float) -> None:
    stage = Stage(1)
    stage.start("1", rescale=rescale, nodes_max=1 if rescale == "restart" else 6)
    stage.run(1.0 + trained_s)
    scene = Scene(stage)
    ((listed,), shown, why, overview) = (
        scene.get("list_jobs")["jobs"],
        scene.get("show")["job"],
        scene.get("why"),
        scene.get("overview")["running"][0],
    )
    assert listed["eta_s"] is not None
    assert listed["eta_s"] == shown["eta_s"] == why["eta_s"] == overview["eta_s"]
    assert why["eta_low_s"] <= why["eta_s"] <= why["eta_high_s"]


def test_a_job_at_its_last_step_has_nothing_left() -> None:
    stage = running(1, "1")
    total = stage.job(1).progress.total
    job = replace(stage.job(1), progress=JobProgress(total, total))
    found = remaining(stage.world, job, stage.profiles, stage.now)
    assert found is not None
    assert found.seconds == 0.0
    world = replace(stage.world, jobs={**stage.world.jobs, 1: job})
    eta = when(world, job, stage.profiles, stage.now)
    assert eta is not None
    assert eta.ends.expected_s == 0.0
    assert when_text(eta, "adaptive") == "has made its last step; it finishes"


def test_a_job_that_is_slower_than_its_plans_has_steps_left() -> None:
    # Planned are 1,000 steps/s; it makes 50.
    burst = JobSpec(("train",), "burst", burst=(StagePlan(1, 1.0, (1,), (1.0,)),), steps=3_000)
    truth = Profile("plain", ((1, 1, 50.0),), 5.0, 1.0, 5.0)
    model = Cluster({"n1": 1}, profiles={"plain": truth}, watched=True)
    (number,) = model.submit(burst)
    model.run_until(lambda: model.job(number).running is not None, within_s=10.0)
    model.run_until(lambda: model.job(number).running.progress is not None, within_s=30.0)
    job = model.job(number)
    assert not model.world.observed.get(job.spec.learns_as, Observations()).rates
    late = model.now + 20.0  # no step was reported since: by its plans all are done
    eta = when(model.world, job, model.profiles, late)
    assert eta is not None
    assert when_text(eta, "adaptive").startswith("done in ")
    model.run_to_end()
    assert model.world.observed[burst.learns_as].rates
    (number,) = model.submit(burst)
    model.run_until(lambda: model.job(number).running is not None, within_s=10.0)
    model.run_until(lambda: model.job(number).running.progress is not None, within_s=30.0)
    job = model.job(number)
    assert measured_rate(job, model.now) is None, "it has not trained for long enough"
    found = remaining(model.world, job, model.profiles, model.now)
    assert found is not None
    assert found.seconds == pytest.approx(60.0, rel=0.2)


UNHEEDED = {
    ("adaptive", "jct"): "",
    ("harvest", "jct"): "under the objective jct: hpcdl config objective deadline does",
    ("harvest", "fair"): "under the objective fair: hpcdl config objective deadline does",
    (
        "fifo",
        "deadline",
    ): "under the policy fifo: hpcdl config policy adaptive with hpcdl config objective deadline does",
    ("adaptive", "deadline"): "",
    ("adaptive-fifo", "deadline"): "",
    ("genie", "jct"): "",
}


@pytest.mark.parametrize("chosen, words", UNHEEDED.items(), ids=str)
def test_a_deadline_that_nothing_is_done_for_is_said_to_be_one(chosen: tuple[str, str], words: str) -> None:
    stage = Stage(1)
    for name in all_policies().names():
        if name == chosen[0] and name not in stage.policies.names():
            stage.policies.register(name, lambda: all_policies().make(chosen[0]))
    stage.send(cmd.ChoosePolicy(chosen[0]), cmd.ChooseObjective(chosen[1]))
    scene = Scene(stage)
    text = f"deadlines are not scheduled for {words}; this one is only watched"
    told = [text] if words else []
    (tried,) = scene.submit(dry_run=True)
    assert tried.get("warnings", []) == told
    (row,) = scene.submit()
    assert row.get("warnings", []) == told
    array = scene.submit(entry={"array": {"indices": [1, 2, 3]}})
    assert [each.get("warnings", []) for each in array] == [told] * 3
    (ect,) = scene.submit(entry={"deadline": None, "ect": "normal", "profile": "plain"})
    assert ect.get("warnings", []) == told
    (without,) = scene.submit(entry={"deadline": None})
    assert "warnings" not in without
    scene = Scene(stage)
    assert (text in scene.get("why", row["id"])["details"]) is bool(words)
    shown = scene.get("show", row["id"])["job"]
    assert shown["deadline"]["warning"] == (text if words else "")
    assert deadline_text(shown).endswith(text) is bool(words)
    assert not any("not scheduled" in each for each in scene.get("why", without["id"])["details"])


def test_an_own_policy_says_what_it_does_for_deadlines() -> None:
    stage = Stage(1)
    stage.start("1", deadline=9_000.0)
    assert "under the policy wanted" in Scene(stage).get("show")["job"]["deadline"]["warning"]
    stage.wanted.deadlines = "any"  # type: ignore[attr-defined]
    assert Scene(stage).get("show")["job"]["deadline"]["warning"] == ""
