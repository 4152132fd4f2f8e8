"""`hpcdl cancel`, `suspend`, `resume`, `hold`, `release`, `retry` and `wait`."""

import json

import pytest

from hpcdl.cli.jobs import PROMISES
from hpcdl.daemon.api import jobs as api
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row

VERBS = [(verb, "QUEUED") for verb in ("resume", "hold", "release", "retry")]


@pytest.mark.parametrize("verb, state", [("cancel", "CANCELLED"), ("suspend", "SUSPENDED"), *VERBS])
def test_verbs(jobs: FakeDaemon, hpcdl: Run, verb: str, state: str) -> None:
    promises = {
        "resume": "may run again", "hold": "is held", "release": "may start", "retry": "is tried again"
    }  # fmt: skip
    said = f"{promises[verb]} (QUEUED now)" if verb in promises else state
    assert hpcdl(verb, 1, 1).out == f"job 1 {said}: resnet\n"
    assert [job["state"] for job in hpcdl(verb, "--json", 1, 2).value["jobs"]] == [state, state]
    assert hpcdl(verb, "--quiet", 2, 1).out == "2\n1\n"


def test_ranges_go_in_one_request(jobs: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("cancel", "--quiet", "1-2", "3,2").out == "1\n2\n3\n"
    assert jobs.requests[-1] == ("POST", "/v1/jobs/verb", {"verb": "cancel", "ids": [1, 2, 3]})
    for wrong in ("0", "3-1", "1-", "1-900000"):
        done = hpcdl("cancel", wrong)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), wrong
    assert hpcdl("cancel").err.startswith(
        "hpcdl: say which jobs: hpcdl cancel 3-7 12, a NAME, --array ID, --tag TAG, --state STATE or --all"
    )
    assert len(jobs.requests) == 1
    for name in ("x", "٣"):
        done = hpcdl("cancel", name)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), name


def test_an_array_and_a_retry(jobs: FakeDaemon, hpcdl: Run) -> None:
    jobs.world.jobs[2]["array"] = 2
    assert hpcdl("hold", "--array", 2, "--quiet").out == "2\n"
    assert jobs.requests[-1][2] == {"verb": "hold", "ids": [], "array": 2}
    jobs.world.left = [7, 8]
    done = hpcdl("retry", 1, "--json")
    assert done.value["cancelled"] == [7, 8]
    assert done.err == (
        "hpcdl: 2 jobs that waited for what is retried stay cancelled (7, 8): --with-dependents retries them too\n"
    )
    done = hpcdl("retry", "--failed", "--since", "2026-01-02T03:04:05+00:00", "--with-dependents")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("hpcdl: no job FAILED since then\nhpcdl: 2 jobs that waited")
    assert jobs.requests[-1][2] == {
        "verb": "retry", "ids": [], "failed": True, "since": 1767323045.0, "with_dependents": True
    }  # fmt: skip
    jobs.world.left = [7]
    assert "1 job that waited for what is retried stays cancelled (7)" in hpcdl("retry", "--failed").err
    assert hpcdl("retry", 1, "--failed").code == 0
    assert jobs.requests[-1][2] == {"verb": "retry", "ids": [1], "failed": True}
    assert hpcdl("retry", 1, "--since", "-2h").code == 2
    assert hpcdl("retry", "--failed", "--since", "soon").code == 2


def test_a_retry_of_what_is_not_finished_says_what_lets_it_run(jobs: FakeDaemon, hpcdl: Run) -> None:
    rows = [row(1, state="SUSPENDED", held=True), row(2, state="QUEUED", held=True), row(3, state="RUNNING"), row(4)]
    told = {"schema": 1, "jobs": rows, "errors": [], "cancelled": [], "unfinished": [1, 2, 3]}
    jobs.answers["/v1/jobs/verb"] = (200, json.dumps(told).encode())
    done = hpcdl("retry", "1-4")
    assert (done.code, done.err) == (0, "")
    held, queued, running, retried = [line.partition(": ")[0] for line in done.out.splitlines()]
    assert held == "job 1 is held (SUSPENDED), and was not retried; hpcdl resume 1 lets it run"
    assert queued == "job 2 is held (QUEUED), and was not retried; hpcdl release 2 lets it run"
    assert running == "job 3 is RUNNING, and there is nothing to retry"
    assert retried == "job 4 is tried again (QUEUED now)"


def test_a_release_of_what_was_not_held_promises_nothing(jobs: FakeDaemon, hpcdl: Run) -> None:
    told = {"schema": 1, "jobs": [row(1), row(2, state="RUNNING")], "errors": [], "cancelled": [], "unheld": [2]}
    jobs.answers["/v1/jobs/verb"] = (200, json.dumps(told).encode())
    done = hpcdl("release", "1-2")
    first, second = [line.partition(": ")[0] for line in done.out.splitlines()]
    assert (first, second) == ("job 1 may start (QUEUED now)", "job 2 is RUNNING, and was not held")


def test_a_retry_from_the_start_says_what_becomes_of_checkpoints(jobs: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("retry", 1, "--from-start")
    assert jobs.requests[-1][2] == {"verb": "retry", "ids": [1], "from_start": True}
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert done.err.startswith("hpcdl: nothing is removed: new checkpoints go into a folder from-start-N in the ")
    jobs.world.jobs = {1: row(1, beginning=2), 2: row(2, beginning=0), 3: row(3, spec={"checkpoint_dir": "/c"})}
    shown = [line for job in (1, 2, 3) for line in hpcdl("show", job).out.splitlines() if "checkpoints" in line]
    assert [line.split()[1] for line in shown] == ["$HPCDL_HOME/checkpoints/1/from-start-2", "/c"]


def test_a_range_without_jobs_is_told_in_a_line(jobs: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("cancel", "1", "50-52,60", "70")
    assert (done.code, done.out) == (1, "job 1 CANCELLED: resnet\n")
    assert done.err == "hpcdl: there are no jobs 50-52,60,70: hpcdl ls --all lists those that are\n"


def test_finished_ones_of_several_are_left_out(jobs: FakeDaemon, hpcdl: Run) -> None:
    told = {"schema": 1, "jobs": [jobs.world.jobs[1]], "errors": [], "cancelled": []}

    def answer(*states: str | None, **more: object) -> None:
        errors = [{"job": 2 + at, "error": f"job {2 + at} is over", "code": "finished"} for at in range(len(states))]
        known = [each | ({"state": state} if state else {}) for each, state in zip(errors, states, strict=True)]
        jobs.answers["/v1/jobs/verb"] = (200, json.dumps({**told, "errors": known, **more}).encode())

    for verb in ("cancel", "suspend", "resume", "hold", "release"):
        answer("DONE", "FAILED", None)
        done = hpcdl(verb, "1-4")
        assert (done.code, done.out.count("\n")) == (0, 1)
        assert done.err == "hpcdl: jobs 2-4 are finished already, and left as they are\n"
    done = hpcdl("cancel", "1,2-4", "--json")
    assert (done.value["errors"], [each["job"] for each in done.value["skipped"]]) == ([], [2, 3, 4])
    answer("DONE", jobs=[])
    done = hpcdl("cancel", 2, 3)
    assert (done.code, done.out, done.err) == (0, "", "hpcdl: job 2 is finished already, and left as it is\n")
    done = hpcdl("cancel", 2)
    assert (done.code, done.err) == (1, "hpcdl: job 2 is over\n"), "whoever names one job means that one"
    answer("DONE", "FAILED", None)
    done = hpcdl("retry", "1-4")
    assert done.code == 1
    assert done.err == ("hpcdl: job 2 is DONE already, and left as it is\nhpcdl: job 3 is over\nhpcdl: job 4 is over\n")


def test_a_verb_does_what_it_can_and_tells_the_rest(jobs: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("cancel", "--json", 9, 1)
    assert done.code == 1
    assert done.err == "hpcdl: there is no job 9: hpcdl ls --all lists them\n"
    assert [job["id"] for job in done.value["jobs"]] == [1]
    assert [(each["job"], each["code"]) for each in done.value["errors"]] == [(9, "unknown-job")]


@pytest.mark.parametrize(
    "changes, code, line",
    [
        ({"state": "DONE", "exit_code": 0}, 0, "job 5 DONE: job5"),
        (
            {"state": "FAILED", "exit_code": 3, "detail": "user error"},
            3,
            "job 5 FAILED (exit code 3): job5: user error",
        ),
        ({"state": "FAILED", "exit_code": None}, 1, "job 5 FAILED: job5"),
        ({"state": "FAILED", "exit_code": 0}, 1, "job 5 FAILED (exit code 0): job5"),
        ({"state": "CANCELLED"}, 130, "job 5 CANCELLED: job5"),
    ],
)
def test_wait_exits_with_the_jobs_code(
    fake: FakeDaemon, hpcdl: Run, changes: dict[str, object], code: int, line: str
) -> None:
    fake.world.jobs[5] = row(5, **changes)
    done = hpcdl("wait", 5)
    assert (done.code, done.out) == (code, f"{line}\n")
    assert hpcdl("wait", "--json", 5).value["done"] is True
    done = hpcdl("wait", "--quiet", 5)
    assert (done.code, done.out) == (code, "5\n")


def test_wait_for_several_gives_the_first_that_is_not_zero(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {
        1: row(1, state="DONE"), 2: row(2, state="FAILED", exit_code=7), 3: row(3, state="CANCELLED")
    }  # fmt: skip
    assert hpcdl("wait", 1, 2, 3).code == 7
    assert hpcdl("wait", 3, 2, 1).code == 130
    assert hpcdl("wait", 1, 9).code == 1
    done = hpcdl("wait", "2-3", 1, "--json")
    assert (done.code, [each["id"] for each in done.value["jobs"]]) == (7, [2, 3, 1])
    assert fake.requests[-1][1].startswith("/v1/wait?ids=2-3%2C1&timeout="), fake.requests[-1]


def test_wait_times_out(jobs: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("wait", 1, "--timeout", 0.2)
    assert (done.code, done.out) == (124, "job 1 RUNNING: resnet\n")
    assert done.err == "hpcdl: not finished after 0.2 s: hpcdl why 1 says what is missing\n"
    done = hpcdl("wait", 1, "--timeout", 0, "--json")
    assert (done.code, done.value["done"]) == (124, False)


def test_wait_says_that_a_job_waits_for_its_user(fake: FakeDaemon, hpcdl: Run) -> None:
    why = "held after 50 failures without a checkpoint, at last: ended by SIGKILL: hpcdl resume 5 tries again"
    fake.world.jobs[5] = row(5, state="SUSPENDED", held=True, held_after="50 failures", reason=why)
    done = hpcdl("wait", 5, "--timeout", 0)
    said, more = done.err.splitlines()
    assert (done.code, said) == (124, f"hpcdl: job 5 is {why}")
    assert "not finished" in more


def test_a_verb_that_takes_time_says_so(jobs: FakeDaemon, hpcdl: Run) -> None:
    still = {"schema": 1, "jobs": [jobs.world.jobs[1]], "errors": [], "cancelled": []}
    jobs.answers["/v1/jobs/verb"] = (200, json.dumps(still).encode())
    assert hpcdl("suspend", 1).out == "job 1 is being suspended (RUNNING now): resnet\n"
    assert hpcdl("cancel", 1).out == "job 1 is being cancelled (RUNNING now): resnet\n"
    waits = still | {"jobs": [row(1, state="QUEUED", name="resnet")]}
    jobs.answers["/v1/jobs/verb"] = (200, json.dumps(waits).encode())
    assert hpcdl("suspend", 1).out == "job 1 is held (QUEUED now): resnet\n"


def test_a_suspend_that_loses_work_is_told(fake: FakeDaemon, hpcdl: Run) -> None:
    told = {"state": "RUNNING", "gpus": 1}
    fake.world.jobs = {
        1: row(1, **told, can_suspend=False),
        2: row(2, **told, can_suspend=True),
        3: row(3, **told, can_suspend=False, saved_step=4),
        4: row(4, can_suspend=False),
    }
    done = hpcdl("suspend", 1, 2, 3, 4)
    assert done.code == 0
    assert done.err.count("\n") == 1
    assert "job 1 has shown no way to checkpoint" in done.err
    assert "starts over" in done.err
    assert hpcdl("cancel", 1).err == ""


def test_every_verb_of_the_api_says_what_it_did() -> None:
    assert PROMISES.keys() == api.VERBS.keys()


def test_priority(jobs: FakeDaemon, hpcdl: Run) -> None:
    jobs.world.jobs[1]["priority"] = jobs.world.jobs[2]["priority"] = -10
    said = hpcdl("priority", "1-2", "-10").out
    assert said.startswith("job 1 has priority -10 (QUEUED now): resnet\njob 2 has priority -10 (QUEUED now): vgg")
    assert jobs.requests[-1][2] == {"verb": "priority", "ids": [1, 2], "priority": -10}
    assert ", priority -10" in hpcdl("show", "1").out
    for words, number in ((("1", "0"), 0), (("--yes", "1", "-5", "-q"), -5), (("1", "--", "-7"), -7), (("1", "+3"), 3)):
        assert hpcdl("priority", *words).code == 0
        assert jobs.requests[-1][2] == {"verb": "priority", "ids": [1], "priority": number}, words
    assert hpcdl("priority", "--state", "queued", "9", "-q").code == 0
    assert jobs.requests[-1][2]["priority"] == 9
    for line, wrong in (
        ("", "say which jobs, and behind them the priority: hpcdl priority 3-7 12 100"),
        ("12", "say which jobs, and behind them the priority"),
        ("resnet", "say which jobs, and behind them the priority"),
        ("1 high", "say which jobs, and behind them the priority"),
        ("1 1001", "the priority must be from -1000 to 1000, got 1001"),
        ("1 -1001", "the priority must be from -1000 to 1000, got -1001"),
        ("1 5 --jsn", "No such option '--jsn': did you mean --json"),
    ):
        done = hpcdl("priority", *line.split())
        assert (done.code, done.err.startswith(f"hpcdl: {wrong}")) == (2, True), (line, done.err)


def test_annotate(jobs: FakeDaemon, hpcdl: Run) -> None:
    said = hpcdl("annotate", "1-2", "lr=0.1", "note=a=b", "old=").out
    assert said.startswith("job 1 is annotated (QUEUED now): resnet\njob 2 is annotated (QUEUED now): vgg")
    changes = {"lr": "0.1", "note": "a=b", "old": ""}
    assert jobs.requests[-1][2] == {"verb": "annotate", "ids": [1, 2], "annotations": changes}
    assert hpcdl("annotate", "1").err.startswith("hpcdl: say what to write: hpcdl annotate 3 KEY=VALUE")
    assert hpcdl("annotate", "a=b").err.startswith("hpcdl: say which jobs: hpcdl annotate 3-7 12")
    jobs.world.jobs[1]["annotations"] = {"lr": "0.1", "note": "a=b"}
    assert "annotations  lr=0.1 note=a=b" in hpcdl("show", "1").out
    assert hpcdl("ls", "--columns", "id,annotations").out.splitlines()[:2] == ["ID  ANNOTATIONS", " 1  lr=0.1 note=a=b"]
