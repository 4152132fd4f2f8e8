"""Which jobs `GET /v1/jobs` answers with, and that rows which are kept are those that would be made anew."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec
from hpcdl.daemon import queue
from hpcdl.daemon.api import job_list
from hpcdl.daemon.api.http import ApiProblem, Encoded, json_answer
from hpcdl.daemon.api.job_list import JobList, JobQuery
from hpcdl.daemon.api.rows import JOB_KEYS, RowBuilder
from tests.support.stage import Stage, running


def asked(listed: JobList, rows: RowBuilder, **query: str) -> list[dict[str, Any]]:
    answer = json.loads(listed.answer(rows, JobQuery.of(query)))
    assert answer["schema"] == 1
    jobs: list[dict[str, Any]] = answer["jobs"]
    return jobs


def rows_of(stage: Stage) -> RowBuilder:
    return RowBuilder(stage.world, stage.profiles, stage.controller.reasons, stage.now)


@pytest.fixture
def stage() -> Stage:
    """Job 1 runs; 2 and 3 wait; 4 is cancelled."""
    stage = running(2, "12")
    for name, user in (("sweep-a", "ada"), ("sweep-b", "bob"), ("gone", "ada")):
        spec = JobSpec(("train",), name, user=user, gpus_min=64, gpus_max=64, tags=(user, f"{name}:1"))
        stage.send(cmd.Submit((spec,), name))
    stage.send(cmd.Cancel(4))
    stage.run(1.0)
    return stage


def test_filters(stage: Stage) -> None:
    listed, rows = JobList(), rows_of(stage)

    def ids(**query: str) -> list[int]:
        return [row["id"] for row in asked(listed, rows, **query)]

    assert ids() == [1, 2, 3]
    assert ids(all="1") == [1, 2, 3, 4]
    assert ids(ids="4,1,99") == [4, 1]
    assert ids(state="queued,running") == [1, 2, 3]
    assert ids(state="cancelled") == [4], "a finished state asks for finished jobs"
    assert ids(all="1", last="2") == [3, 4]
    assert ids(last="0") == []
    assert ids(user="ada") == [2]
    assert ids(user="ada", all="1") == [2, 4]
    assert ids(name="sweep-*") == [2, 3]
    assert ids(name="sweep-*", user="bob", state="QUEUED") == [3]
    assert ids(tag="ada") == [2]
    assert ids(tag="ada", all="1") == [2, 4]
    assert ids(tag="none,*-b:?") == [3]
    assert ids(tag="sweep") == [], "a whole tag"
    with pytest.raises(ApiProblem, match="an empty tag names no job"):
        JobQuery.of({"tag": ","})
    for key in ("name", "user"):
        with pytest.raises(ApiProblem, match=f"an empty {key} names no job"):
            JobQuery.of({key: ""})


def test_fields_and_what_is_null(stage: Stage) -> None:
    listed, rows = JobList(), rows_of(stage)
    (row,) = asked(listed, rows, ids="2", fields="id,placement,state")
    assert row == {"id": 2, "state": "QUEUED"}
    answer = json.loads(
        listed.answer(rows, JobQuery.of({"all": "1", "fields": "id,placement,state,exit_code", "by": "column"}))
    )
    assert answer == {
        "schema": 1,
        "count": 4,
        "columns": {
            "id": [1, 2, 3, 4],
            "placement": [{"n1": [0, 1], "n2": [0, 1]}, None, None, None],
            "state": ["RUNNING", "QUEUED", "QUEUED", "CANCELLED"],
        },
    }
    none = json.loads(listed.answer(rows, JobQuery.of({"user": "eve", "fields": "id", "by": "column"})))
    assert none == {"schema": 1, "count": 0, "columns": {}}
    (row,) = asked(listed, rows, ids="2")
    assert row.keys() == JOB_KEYS
    assert row == json.loads(json.dumps(rows.job(stage.job(2))))


@pytest.mark.parametrize(
    "query, words",
    [
        ({"state": "ASLEEP"}, "no state 'ASLEEP': QUEUED, STARTING"),
        ({"state": ","}, "no state"),
        ({"fields": "id,colour"}, "no 'colour': "),
        ({"fields": ""}, "a row has no"),
        ({"ids": "one"}, "ids must be a whole number"),
        ({"by": "column"}, "goes with fields"),
        ({"by": "row", "fields": "id"}, "by must be column"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(query: dict[str, str], words: str) -> None:
    with pytest.raises(ApiProblem, match=words) as raised:
        JobQuery.of(query)
    assert raised.value.status == 400


def test_kept_rows_are_as_new(stage: Stage) -> None:
    kept = JobList()
    seen = set()
    for number in range(12):
        rows = rows_of(stage)
        for query in ({"all": "1"}, {"all": "1", "fields": "id,state,reason"}):
            found = asked(kept, rows, **query)
            assert found == asked(JobList(), rows, **query)
            seen.add(json.dumps(found))
        match number:
            case 2:
                stage.send(cmd.Hold(2))
            case 4:
                stage.send(cmd.Cancel(3))
            case 6:
                stage.send(cmd.Drain("n1", None, True, "maintenance"))
            case 8:
                stage.send(cmd.Release(2))
        stage.run(0.5)
    assert len(seen) > 8, "nothing changed, so nothing was tested"


def test_rows_are_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = RowBuilder.job

    def job(self: RowBuilder, job: Any, keys: Any = None) -> Any:
        made.append(job.id)
        return whole(self, job, keys)

    monkeypatch.setattr(RowBuilder, "job", job)
    kept = JobList()
    for _ in range(3):
        asked(kept, rows_of(stage), all="1", fields="id")
    assert made == [1, 2, 3, 4, 1, 1], "only what runs changes by itself"


FIELDS = "id,name,state,reason,note,gpus,started_at,held,metric"


def test_runs_of_waiting_jobs_are_as_new(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "RUN", 4)
    monkeypatch.setattr(queue, "PLACES", 3)
    for at in range(20):
        stage.send(
            cmd.Submit((JobSpec(("train",), f"w{at}", gpus_min=1 + at % 2, gpus_max=2, steps=100 + at),), f"r{at}")
        )
    queues, kept = queue.Queues(stage.profiles, monotonic=lambda: 0.0), JobList()
    query = JobQuery.of({"fields": FIELDS, "by": "column"})
    seen = set()
    for number in range(14):
        rows = replace(rows_of(stage), queue=queues.look(stage.world, stage.now))
        monkeypatch.setattr(job_list, "MANY", 0)
        found = kept.answer(rows, query)
        again = kept.answer(rows, query)
        monkeypatch.setattr(job_list, "MANY", 1_000)
        anew = json.loads(JobList().answer(rows, query))
        assert json.loads(found) == anew, number
        assert json.loads(again) == anew, number
        seen.add(found)
        match number:
            case 1:
                stage.send(cmd.Hold(9))
            case 2:
                stage.send(cmd.Cancel(7))
            case 4:
                stage.send(cmd.Retry(7))  # now it is the last of the unfinished ones
            case 6:
                stage.send(cmd.Cancel(1))
            case 8:
                stage.send(cmd.Drain("n1", None, True, "maintenance"))
            case 10:
                stage.send(cmd.Submit((JobSpec(("train",), "late"),), "late"))
            case 11:
                stage.send(cmd.Cancel(10), cmd.Cancel(11), cmd.Cancel(12), cmd.Cancel(13))
        stage.run(0.5)
    assert len(seen) > 8, "nothing changed, so nothing was tested"


def test_a_run_is_made_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = RowBuilder.job

    def job(self: RowBuilder, job: Any, keys: Any = None) -> Any:
        made.append(job.id)
        return whole(self, job, keys)

    for at in range(8):
        stage.send(cmd.Submit((JobSpec(("train",), f"w{at}", gpus_min=64, gpus_max=64),), f"r{at}"))
    stage.run(0.5)
    monkeypatch.setattr(job_list, "MANY", 0)
    monkeypatch.setattr(job_list, "RUN", 4)
    monkeypatch.setattr(RowBuilder, "job", job)
    kept, query = JobList(), JobQuery.of({"fields": FIELDS, "by": "column"})
    kept.answer(rows_of(stage), query)
    assert sorted(made) == list(stage.world.active)
    made.clear()
    kept.answer(rows_of(stage), query)
    assert made == [1], "only what runs"
    stage.send(cmd.Hold(9))
    made.clear()
    kept.answer(rows_of(stage), query)
    assert set(made) == {1, 8, 9, 10, 11}, "and the run in which a job changed"


def test_a_written_answer_can_still_be_looked_into() -> None:
    answer = Encoded(b'{"schema":1,"jobs":[{"id":3}]}')
    assert json_answer(200, answer).body == answer.content
    assert answer["jobs"] == [{"id": 3}]
    with pytest.raises(KeyError):
        answer["nodes"]
