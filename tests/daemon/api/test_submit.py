"""`POST /v1/jobs` and `POST /v1/jobs/verb` over a controller in memory: arrays, tries, verbs for many jobs."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from starlette.requests import Request

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import GpuInfo, JobEnd, JobState
from hpcdl.core.rules.jobs import again_text
from hpcdl.daemon.api import jobs
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.http import ApiProblem
from hpcdl.daemon.api.rows import events_of
from hpcdl.daemon.api.submit import BadSubmit, submit_of
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.policies import all_policies
from tests.support.model_parts import PLAIN


class Api:
    """The routes about jobs, and what they are asked."""

    def __init__(self) -> None:
        profiles = Profiles({"plain": PLAIN})
        self.controller = Controller(MemoryJournal(), all_policies(), profiles)
        clock = WallClock(0.0)
        self.loop = ControllerLoop(self.controller, clock, 0.005, lambda _: None, lambda _: None, lambda _: None)
        self.loop.start()
        self.waits = asyncio.new_event_loop()
        changes = Changes(self.waits)
        about = DaemonStatus(1, "h", 0.0, "0", "/home/jo/.hpcdl", ("marble",))
        self.context = ApiContext(self.loop, cast(Any, None), changes, profiles, about)

    def ask(self, handler: str, body: dict[str, Any], query: str = "", **path: Any) -> dict[str, Any]:
        async def answered() -> dict[str, Any]:
            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

            about = {"query_string": query.encode(), "headers": [], "path_params": path}
            scope = {"type": "http", "method": "POST", **about}
            answer = await getattr(jobs, handler)(self.context, Request(scope, receive))
            return dict(json.loads(answer.content)) if hasattr(answer, "content") else dict(answer)

        return asyncio.run(answered())

    def submit(self, *jobs: dict[str, Any], request_id: str = "r", **more: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask("submit", {"request_id": request_id, "jobs": list(jobs), **more})["jobs"]
        return rows

    def verb(self, verb: str, *ids: int, **more: Any) -> dict[str, Any]:
        return self.ask("verbs", {"verb": verb, **({"ids": list(ids)} if ids else {}), **more})

    def node(self, gpus: int) -> None:
        found = tuple(GpuInfo(n, f"GPU-{n}") for n in range(gpus))
        self.loop.send(cmd.Hello("n1", "a")).result(60)
        self.loop.send(cmd.Inventory("n1", found, 8, 1, 1, "b", "a", False)).result(60)


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.loop.stop()
    api.waits.close()


def job(*command: str, **more: Any) -> dict[str, Any]:
    return {"command": list(command) or ["train"], "name": "j", "held": True, **more}


def test_an_array_is_one_event_and_its_rows_are_those_of_ls(api: Api) -> None:
    array = {"indices": "1-40", "sweep": {"lr": ["0.1", "\u00e9"]}, "max_parallel": 3}
    rows = api.submit(job("train", "{lr}", array=array), job(), job("train", array={"indices": [5, 2]}))
    assert [row["id"] for row in rows] == list(range(1, 84))
    told = api.ask("list_jobs", {})["jobs"]
    assert sorted(rows, key=lambda row: row["id"]) == [{key: row[key] for key in rows[0]} for row in told]
    assert (rows[79]["name"], rows[79]["array"], rows[79]["array_index"], rows[79]["max_parallel"]) == (
        "j[40,lr=\u00e9]", 1, 40, 3
    )  # fmt: skip
    assert (rows[80]["array"], rows[82]["array"], rows[82]["array_index"]) == (None, 82, 2)
    assert api.submit(job(), request_id="r") == rows  # it is a repetition of the first
    world, journal = api.loop.world, api.controller.journal
    assert [record.event.kind for record in journal.read()] == [
        "ArraySubmitted", "JobSubmitted", "JobHeld", "ArraySubmitted"
    ]  # fmt: skip
    assert [record.seq for record in events_of(journal, world, 0, 10, 7)] == [1]
    assert events_of(journal, world, 1, 10, 7) == []
    assert [record.seq for record in events_of(journal, world, 0, 10, 1)] == [1]
    assert [record.seq for record in events_of(journal, world, 0, 10, 81)] == [2, 3]


BAD = [
    ({"array": 7}, "array must be an object"),
    ({"array": {"index": "1"}}, "array has no 'index'"),
    ({"array": {}}, "needs indices or a sweep"),
    ({"array": {"indices": "x"}}, "'x' is not an index"),
    ({"array": {"indices": [1.5]}}, "indices must be a list of whole numbers"),
    ({"array": {"indices": [-1]}}, "must go up"),
    ({"array": {"indices": [1, 1]}}, "twice"),
    ({"array": {"sweep": {"a": [1]}}}, "must be a list of strings"),
    ({"array": {"sweep": []}, "held": False}, "needs indices or a sweep"),
    ({"array": {"indices": "1", "max_parallel": True}}, "max_parallel a whole number"),
    ({"held": 1}, "held must be true or false"),
    ({"after_entries": ["0"]}, "after_entries must be"),
    ({"priority": 2000}, "the priority must be from -1000 to 1000"),
    ({"priority": "1"}, "JobSpec.priority: expected int"),
]


@pytest.mark.parametrize("more, why", BAD)
def test_bad_entries(more: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSubmit, match=why):
        submit_of({"request_id": "r", "jobs": [{"command": ["x"], "name": "j", **more}]})
    assert submit_of({"request_id": "r", "jobs": [job(array_most=3, sweep=[["a", "b"]], array_index=4)]}).specs


def test_a_try_records_nothing(api: Api) -> None:
    api.node(2)
    seq = api.loop.world.seq
    spec = {"command": ["train", "{index}"], "name": "j", "profile": "plain", "steps": 100, "gpus_max": 1}
    rows = api.submit(spec | {"array": {"indices": "1-4"}}, spec | {"gpus_min": 3, "gpus_max": 3}, dry_run=True)
    assert (api.loop.world.seq, api.loop.world.jobs) == (seq, {})
    assert [row["would_start"] for row in rows] == [True, True, False, False, False]
    assert rows[0]["placement"]["n1"]
    assert [row["id"] for row in rows] == [None] * 5
    assert rows[2]["starts_at"] > rows[0]["starts_at"]
    assert rows[0]["ends_at"] > rows[0]["starts_at"]
    assert rows[4]["warnings"] == [
        "it needs 3 GPUs on a node, and the largest has 2: it waits for a larger one (hpcdl nodes)"
    ]
    with pytest.raises(CommandRefused, match="no profile 'p'"):
        api.submit(job(profile="p"), dry_run=True)
    with pytest.raises(CommandRefused, match="refused by --strict: it needs 3 GPUs"):
        api.submit(spec | {"gpus_min": 3, "gpus_max": 3}, strict=True)
    with pytest.raises(
        CommandRefused, match="refused by --strict: it needs 2 nodes with 1 GPU each, and 1 has so many"
    ):
        api.submit(spec | {"nodes": 2}, strict=True)
    assert api.submit(spec | {"nodes": 2}, request_id="s")[0]["warnings"]


def test_a_try_says_why_as_why_does(api: Api) -> None:
    api.node(0)
    tried = api.submit(job(held=False), dry_run=True)[0]["reason"]
    assert tried.startswith("needs 1 GPU; no GPU was found on n1 (hpcdl daemon start --emulate-gpus N")
    assert tried == api.submit(job(held=False))[0]["reason"]
    held = api.submit(job(held=True), dry_run=True, request_id="s")[0]
    assert held["reason"] == "held by its user, until hpcdl release"


def test_verbs_for_many(api: Api) -> None:
    api.submit(job(array={"indices": "1-3"}), job(held=False), job(after=[]), job(held=False))
    answer = api.verb("cancel", 2, 99, 4)
    assert [row["id"] for row in answer["jobs"]] == [2, 4]
    assert answer["errors"] == [
        {"job": 99, "error": "there is no job 99: hpcdl ls --all lists them", "code": "unknown-job"}
    ]
    errors = api.verb("hold", 1, 2)["errors"]
    assert [(each["job"], each["code"], each["state"]) for each in errors] == [(2, "finished", "CANCELLED")]
    assert [row["state"] for row in answer["jobs"]] == ["CANCELLED", "CANCELLED"]
    assert [row["id"] for row in api.verb("release", array=3)["jobs"]] == [1, 3]  # what is finished is left out
    assert api.verb("release", array=3)["unheld"] == [1, 3], "once is enough"
    assert [row["held"] for row in api.verb("hold", array=1)["jobs"]] == [True, True]
    answer = api.verb("retry", array=1)
    assert ([row["id"] for row in answer["jobs"]], answer["unfinished"]) == ([2], [])
    assert api.loop.world.jobs[2].outcome is None
    answer = api.verb("retry", 2, 5)
    assert [row["state"] for row in answer["jobs"]] == ["QUEUED", "QUEUED"]
    assert answer["unfinished"] == [2, 5], "they need none"
    for body, why in (
        ({"verb": "boil", "ids": [1]}, "jobs can be told to cancel, suspend"),
        ({"verb": "cancel"}, "ids or array must name a job"),
        ({"verb": "cancel", "ids": "1"}, "ids must be a list"),
        ({"verb": "cancel", "array": 5}, "job 5 is in no array"),
        ({"verb": "cancel", "failed": True}, "goes with retry"),
        ({"verb": "retry", "failed": True, "since": "x"}, "since must be"),
    ):
        with pytest.raises(ApiProblem, match=why):
            api.ask("verbs", body)


def test_a_retry_of_what_failed_stays_with_the_jobs_that_are_named(api: Api) -> None:
    api.submit(job(), job(), job(), job(array={"indices": "1-2"}))
    api.verb("cancel", 3)
    failed = {number: replace(api.loop.world.jobs[number], end=JobEnd(JobState.FAILED, 1.0)) for number in (1, 2, 5)}
    world = replace(api.loop.world, jobs={**api.loop.world.jobs, **failed})

    def retried(**body: Any) -> list[int]:
        return jobs.chosen(world, "retry", body | {"failed": True})

    assert retried(ids=[1]) == [1]
    assert retried(ids=[3, 2]) == [2]
    assert retried(ids=[3, 4]) == []
    assert retried(ids=[99, 1]) == [99, 1]  # that there is no such job is said
    assert retried(ids=[1], array=4) == [1, 5]
    assert retried(ids=[1], since=2.0) == []
    assert retried() == retried(ids=[]) == [1, 2, 5]


def test_waits_for_ranges_and_arrays(api: Api) -> None:
    api.submit(job(array={"indices": "1-3"}), job(), job())
    api.verb("cancel", 1, 2, 3, 5)

    def waited(query: str) -> tuple[list[int], bool]:
        answer = api.ask("wait", {}, f"{query}&timeout=0")
        return [row["id"] for row in answer["jobs"]], answer["done"]

    assert waited("ids=5,1-2,1") == ([5, 1, 2], True)
    assert waited("array=2") == ([1, 2, 3], True)
    assert waited("ids=4-5&array=3") == ([4, 5, 1, 2, 3], False)
    for query, why in (
        ("x=1", "ids or array must name a job"),
        ("ids=3-6", "there is no job 6"),
        ("ids=1-x", "ids must be a whole number, got 'x'"),
        ("ids=1-99999999999", "a request names 100000 jobs at most"),
        ("array=4", "job 4 is in no array: hpcdl show 4"),
        ("array=9", "there is no job 9"),
    ):
        with pytest.raises(ApiProblem, match=why):
            waited(query)


def test_a_retry_and_those_who_waited(api: Api) -> None:
    api.submit(job(), job(after_entries=[0]), job(after_entries=[1]), job(after_entries=[0, 1]))
    api.verb("cancel", 1)
    assert {each.outcome for each in api.loop.world.jobs.values()} == {"CANCELLED"}
    answer = api.verb("retry", 3)
    assert "hpcdl retry 2 --with-dependents" in answer["errors"][0]["error"]
    answer = api.verb("retry", 1)
    assert ([row["id"] for row in answer["jobs"]], answer["cancelled"]) == ([1], [2, 3, 4])
    api.verb("cancel", 1)
    answer = api.verb("retry", 1, with_dependents=True)
    assert ([row["id"] for row in answer["jobs"]], answer["cancelled"]) == ([1, 2, 3, 4], [])
    api.verb("cancel", 1)
    assert api.verb("retry", 1, 2, with_dependents=True)["unfinished"] == [], "the first one retried the second"
    assert list(api.loop.world.active) == [1, 2, 3, 4]
    api.verb("cancel", 2)
    assert api.loop.world.jobs[4].outcome == "CANCELLED"
    assert api.verb("retry", failed=True)["jobs"] == []
    with pytest.raises(ApiProblem, match="ids or array"):
        api.verb("hold")


def test_one_that_can_never_start_says_why_and_what_runs_it(api: Api) -> None:
    def lines(number: int) -> list[str]:
        details: list[str] = api.ask("why", {}, job=number)["details"]
        return [line for line in details if "hpcdl retry" in line or "hpcdl submit" in line]

    api.submit(job(), job(after_entries=[0]), job())
    api.verb("cancel", 1)
    step = "hpcdl retry 1 --with-dependents retries it, after what it waits for"
    assert (lines(1), lines(2)) == (["hpcdl retry 1 runs it again"], [step])
    (row,) = api.submit(job(after=[2]), request_id="s")
    assert row["state"] == "CANCELLED"
    gone = "cancelled, since it can never start: job 2, which it waited for, is CANCELLED: "
    assert (row["warnings"], lines(4)) == ([gone + step], [step])
    api.verb("cancel", 3)
    members = api.submit(job(after=[1, 3], array={"indices": "1-2"}), request_id="a")
    (warning,) = {each for member in members for each in member["warnings"]}  # one line, however many there are
    assert warning.endswith("hpcdl retry 1,3 --with-dependents retries it, after what it waits for")
    assert {each["id"] for each in api.verb("retry", 1, 3, with_dependents=True)["jobs"]} == {1, 2, 3, 4, 5, 6}
    assert "warnings" not in api.submit(job(after=[2]), request_id="s")[0], "it may start now"
    api.verb("cancel", 4)
    api.verb("cancel", 2)
    assert lines(4) == ["hpcdl retry 2, and then hpcdl retry 4, runs it again"], "its user's wish ends with another"
    assert api.verb("retry", 4)["errors"], "which is refused alone"
    api.verb("retry", 2)
    assert [row["id"] for row in api.verb("retry", 4)["jobs"]] == [4]


def test_one_that_waited_for_a_failure_that_is_over_is_to_be_submitted_again(api: Api) -> None:
    api.submit(job())
    (row,) = api.submit(job(conditions=[[{"kind": "failed", "job": 1}]]), request_id="s")
    assert "warnings" not in row
    world = api.loop.world
    done = replace(world, jobs={**world.jobs, 1: replace(world.jobs[1], end=JobEnd(JobState.DONE, 1.0))})
    cancelled = replace(world.jobs[2], end=JobEnd(JobState.CANCELLED, 2.0))
    assert again_text(done, cancelled) == "hpcdl submit --like 2 submits it again, without what it waited for"


def test_annotations_are_written_changed_and_removed(api: Api) -> None:
    api.submit(job(), job())

    def annotate(**annotations: Any) -> dict[str, Any]:
        return api.verb("annotate", 1, 2, annotations=annotations)

    rows = annotate(lr="0.1", note="first try")["jobs"]
    assert [row["annotations"] for row in rows] == [{"lr": "0.1", "note": "first try"}] * 2
    assert annotate(lr="0.2", note="")["jobs"][0]["annotations"] == {"lr": "0.2"}
    assert annotate(lr="")["jobs"][0]["annotations"] is None
    for wrong in ({"1x": "y"}, {"k": "y" * 201}, {"k": "a\nb"}, {f"k{each}": "y" for each in range(33)}):
        errors = annotate(**wrong)["errors"]
        assert [error["code"] for error in errors] == ["annotation"] * 2, wrong
    assert [error["code"] for error in api.verb("annotate", 99, annotations={"k": "y"})["errors"]] == ["unknown-job"]
    for body in ({}, {"annotations": ["k"]}, {"annotations": {"k": 1}}):
        with pytest.raises(ApiProblem, match="annotations must be an object of texts"):
            api.ask("verbs", {"verb": "annotate", "ids": [1], **body})
    plans = [record for record in api.controller.journal.read() if record.event.kind == "PlanAdopted"]
    api.verb("annotate", 1, annotations={"k": "y"})
    assert [each for each in api.controller.journal.read() if each.event.kind == "PlanAdopted"] == plans


def test_another_priority_counts_and_is_shown(api: Api) -> None:
    api.submit(job(), job(), job())
    rows = api.verb("priority", 1, 3, priority=7)["jobs"]
    assert [(row["id"], row["priority"]) for row in rows] == [(1, 7), (3, 7)]
    assert [job.spec.priority for job in api.loop.world.jobs.values()] == [7, 0, 7]
    before = list(api.controller.journal.read())
    api.verb("priority", 1, priority=7)
    assert list(api.controller.journal.read()) == before, "what it has already is no event"
    assert api.verb("priority", 1, priority=0)["jobs"][0]["priority"] == 0
    for wrong in (1001, -1001):
        (error,) = api.verb("priority", 2, priority=wrong)["errors"]
        assert error["error"] == f"the priority must be from -1000 to 1000, got {wrong}"
    (unknown,) = api.verb("priority", 99, priority=1)["errors"]
    assert unknown["code"] == "unknown-job"
    for body in ({}, {"priority": "7"}, {"priority": True}, {"priority": 1.5}):
        with pytest.raises(ApiProblem, match="priority must be a whole number"):
            api.ask("verbs", {"verb": "priority", "ids": [1], **body})
    api.verb("cancel", 2)
    (over,) = api.verb("priority", 2, priority=1)["errors"]
    assert (over["code"], over["state"]) == ("finished", "CANCELLED")


def test_like_another_job(api: Api) -> None:
    """Its environment, under the entry's own, and its destinations never leave the daemon."""
    api.submit({"command": ["a"], "name": "a", "env": [["K", "1"], ["SECRET", "s"]], "notify": ["mail me"]})
    (row,) = api.submit({"command": ["b"], "name": "b", "env": [["K", "2"], ["L", "3"]], "like": 1}, request_id="r2")
    spec = api.loop.world.jobs[row["id"]].spec
    assert (spec.command, spec.notify) == (("b",), ("mail me",))
    assert spec.env == (("K", "2"), ("SECRET", "s"), ("L", "3"))
    (row,) = api.submit({"command": ["c"], "name": "c", "like": 1, "notify": []}, request_id="r3")
    spec = api.loop.world.jobs[row["id"]].spec
    assert (spec.env, spec.notify) == ((("K", "1"), ("SECRET", "s")), ())
    for like, env, told in (
        (77, [], "no job 77"), ("1", [], "like must be"), (1, {}, "env must be"), (1, [["K"]], "env must be"),
    ):  # fmt: skip
        with pytest.raises(ApiProblem, match=told):
            api.submit({"command": ["c"], "name": "c", "like": like, "env": env}, request_id="r4")
    with pytest.raises(BadSubmit, match="like"):
        submit_of({"request_id": "r5", "jobs": [{"command": ["c"], "name": "c", "like": 1}]})
