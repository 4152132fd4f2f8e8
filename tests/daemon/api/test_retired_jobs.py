"""What the API answers about jobs that have left the world: the same as before, but for what would change them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.controller.journal import Stamped
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import JobState
from hpcdl.ledger import SqliteJournal
from tests.security.test_fuzz_api import VIEWER, Scene

LONG_AGO = 1_700_000_000.0
JOBS = "/v1/jobs"


def history() -> list[Stamped]:
    """Jobs 1 to 3 of ada's are DONE, FAILED and DONE; 4 to 6 an array of bob's; 7 is submitted by nobody yet."""
    found: list[Stamped] = []
    for number, state in ((1, JobState.DONE), (2, JobState.FAILED), (3, JobState.DONE)):
        spec = JobSpec(("train",), f"j{number}", "ada", env=(("KEY", "secret"),))
        found.append((LONG_AGO, ev.JobSubmitted(number, spec, f"r{number}")))
        found.append((LONG_AGO + 60, ev.JobEnded(number, state, "exit code 1" if state is JobState.FAILED else "")))
    found.append((LONG_AGO, ev.ArraySubmitted(4, JobSpec(("train",), "swept", "bob"), "r4", ((1, 3, 1),))))
    found += [(LONG_AGO + 60, ev.JobEnded(number, JobState.DONE)) for number in (4, 5, 6)]
    return found


class Past:
    """An API whose job 7 is queued, before (`told`) and after the others have left the world."""

    def __init__(self, home: Path) -> None:
        self.journal = SqliteJournal(home / "ledger.sqlite")
        self.journal.append(history())
        self.scene = Scene(home, self.journal)
        self.told: dict[str, Any] = {}

    def get(self, path: str, query: str = "", status: int = 200) -> Any:
        found, answer = self.scene.ask("GET", path, query)
        assert found == status, answer
        return answer

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        found: tuple[int, Any] = self.scene.ask("POST", path, "", json.dumps(body).encode())
        return found

    def ids(self, query: str) -> list[int]:
        return [row["id"] for row in self.get(JOBS, query)["jobs"]]


SAME = [
    (JOBS, "all=1"),
    (JOBS, "state=done,queued"),
    (JOBS, "state=failed&user=ada"),
    (JOBS, "all=1&name=swept*"),
    (JOBS, "all=1&last=3"),
    (JOBS, "all=1&last=2&user=bob"),
    (JOBS, "all=1&last=0"),
    (JOBS, "ids=5,7,2,99,5"),
    (JOBS, "all=1&fields=id,state,cause&by=column"),
    (JOBS, "all=1&fields=id,exit_code"),
    (JOBS, ""),
    *((f"{JOBS}/{number}", "") for number in (1, 2, 5)),
    *((f"{JOBS}/{number}/why", "") for number in (1, 2, 5)),
    *(("/v1/events", f"job={number}") for number in (1, 5)),
    ("/v1/wait", "ids=1-6"),
    ("/v1/wait", "array=5"),
]


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    found = Past(tmp_path_factory.mktemp("past"))
    try:
        found.told = {f"{path}?{query}": found.get(path, query) for path, query in SAME}
        found.told["status"] = found.get("/v1/status")["jobs"]
        assert found.scene.send(cmd.Retire(0)) == 6
        yield found
    finally:
        found.scene.close()
        found.journal.close()


def test_they_are_out_of_the_world(past: Past) -> None:
    assert list(past.scene.world.jobs) == [7]
    assert past.get("/v1/status")["jobs"] == past.told["status"] == {"DONE": 5, "FAILED": 1, "QUEUED": 1}


@pytest.mark.parametrize(("path", "query"), SAME)
def test_answers_are_what_they_were(past: Past, path: str, query: str) -> None:
    told, now = past.told[f"{path}?{query}"], past.get(path, query)
    if path == "/v1/events":
        told = told["events"]
        now = now["events"]
    assert now == told
    assert now


def test_what_is_listed(past: Past) -> None:
    assert past.ids("all=1") == [1, 2, 3, 4, 5, 6, 7]
    assert past.ids("ids=5,7,2,99") == [5, 7, 2]
    assert past.ids("all=1&last=2&user=bob") == [5, 6]
    assert past.ids("state=failed") == [2]
    assert past.ids("all=1&last=0") == []
    assert past.ids("") == [7]
    status, answer = past.scene.ask("GET", JOBS, "all=1", token=VIEWER)
    assert (status, [row["id"] for row in answer["jobs"]]) == (200, [1, 2, 3, 4, 5, 6, 7])


def test_their_environment_stays_in_the_ledger(past: Past) -> None:
    job = past.get(f"{JOBS}/1")["job"]
    assert job["spec"]["env"] == ["KEY"]
    assert "secret" not in json.dumps(job)


@pytest.mark.parametrize("verb", ["retry", "cancel", "hold", "suspend", "resume", "release"])
def test_they_are_changed_no_more(past: Past, verb: str) -> None:
    seq = past.scene.world.seq
    status, answer = past.post(f"{JOBS}/2/{verb}")
    assert (status, answer["code"]) == (409, "finished")
    assert answer["error"].startswith("job 2 ended long ago and is kept as history only (hpcdl show 2)")
    status, answer = past.post(f"{JOBS}/verb", verb=verb, ids=[2])
    assert (status, [each["code"] for each in answer["errors"]], answer["jobs"]) == (200, ["finished"], [])
    status, answer = past.post(f"{JOBS}/verb", verb=verb, array=5)
    assert (status, answer["code"]) == (409, "finished")
    assert past.scene.world.seq == seq


def test_what_else_is_refused(past: Past) -> None:
    seq = past.scene.world.seq
    for path in (f"{JOBS}/2/preempt", f"{JOBS}/2/drill"):
        status, answer = past.post(path)
        assert (status, answer["code"]) == (409, "finished")
    status, answer = past.post(JOBS, request_id="new", jobs=[{"command": ["x"], "name": "n", "after": [1]}])
    assert (status, answer["code"]) == (409, "finished")
    assert "submit this one without waiting for it" in answer["error"]
    assert past.get("/v1/wait", "ids=8", 404)["error"].startswith("there is no job 8")
    assert past.get("/v1/wait", "array=1", 404)["error"].startswith("job 1 is in no array")
    assert past.get(f"{JOBS}/8", status=404)["code"] == "unknown-job"
    assert past.post(f"{JOBS}/verb", verb="retry", failed=True)[1]["jobs"] == []
    assert past.scene.world.seq == seq


def test_a_submit_that_is_repeated_is_answered_as_before(past: Past) -> None:
    status, answer = past.post(JOBS, request_id="r2", jobs=[{"command": ["train"], "name": "j2"}])
    assert (status, [(row["id"], row["state"]) for row in answer["jobs"]]) == (200, [(2, "FAILED")])
