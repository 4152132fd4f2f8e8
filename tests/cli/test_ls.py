"""`hpcdl ls` as it is without options, `show`, `why` and `nodes`."""

import json
import re
import time
from pathlib import Path

import pytest

from hpcdl.cli.job_row import moment_text
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row


def test_ls(jobs: FakeDaemon, hpcdl: Run) -> None:
    jobs.world.jobs[1] |= {"started_at": time.time() - 5400.0 - 20.0, "metric": 0.0312}
    jobs.world.jobs[2]["note"] = "2nd in queue, starts in 46s"
    lines = hpcdl("ls").out.splitlines()
    assert lines[0].split() == [
        "ID", "NAME", "STATE", "GPUS", "ELAPSED", "PROGRESS", "METRIC", "ETA", "NOTE"
    ]  # fmt: skip
    assert lines[1:] == [
        " 1  resnet          RUNNING  4/2x1:6    1h30m   120/900  0.0312  3m20s",
        " 2  vgg\\x1b[31m\\nx  QUEUED      0/1:        -         -       -      -  2nd in queue, starts in 46s",
    ]
    assert [job["id"] for job in hpcdl("ls", "--json").value["jobs"]] == [1, 2]
    assert [job["id"] for job in hpcdl("ls", "--all", "--json").value["jobs"]] == [1, 2, 3]
    assert hpcdl("ls", "-aq").out == "1\n2\n3\n"


def test_ls_of_nothing(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("ls")
    assert (done.code, done.out, done.err) == (0, "", "hpcdl: no jobs (finished ones: hpcdl ls --all)\n")
    assert hpcdl("ls", "--json").out == '{"schema": 1, "jobs": []}\n'
    assert hpcdl("ls", "--quiet").out == ""


def attempt(number: int, **more: object) -> dict[str, object]:
    """As the API answers one that trained for a minute on two GPUs, and was killed."""
    return {
        "number": number, "nodes": ["n1", "n2"], "gpus": 2, "started_at": 1000.0, "ready_at": 1010.0,
        "ended_at": 1070.0, "purpose": None, "cause": "infrastructure", "detail": "killed from outside",
        "exit_code": None, "first_step": 20, "last_step": 57, "saved_step": 40, "gpu_s": 140.0, "lost_steps": 17,
        "lost_s": 24.0, "lost_gpu_s": 48.0,
    } | more  # fmt: skip


def test_show_has_the_attempts_of_a_job(jobs: FakeDaemon, hpcdl: Run) -> None:
    jobs.world.attempts[3] = [
        attempt(1),
        attempt(2, gpus=1, nodes=["n1"], first_step=None, last_step=None, lost_steps=0, lost_s=0.0, lost_gpu_s=48.0),
        attempt(3, cause="done", detail="", first_step=57, last_step=90, lost_steps=0, lost_s=0.0, lost_gpu_s=0.0),
        attempt(4, ended_at=None),
    ]
    lines = hpcdl("show", 3).out.splitlines()
    start = lines.index(next(line for line in lines if line.startswith("ATTEMPT")))
    at = moment_text(1000.0).partition(" ")[2]
    assert [re.split("  +", line.strip()) for line in lines[start : start + 5]] == [
        ["ATTEMPT", "STARTED", "TOOK", "GPUS", "STEPS", "LOST", "ENDED BY"],
        ["1", at, "1 min 10 s", "2 of n[1-2]", "20-57", "17 steps", "infrastructure, killed from outside"],
        ["2", at, "1 min 10 s", "1 of n1", "-", "48 s", "infrastructure, killed from outside"],
        ["3", at, "1 min 10 s", "2 of n[1-2]", "57-90", "-", "done"],
        [""],
    ]
    assert len(hpcdl("show", 3, "--json").value["job"]["attempts"]) == 4
    jobs.world.attempts[3] = [attempt(1), attempt(2, started_at=86_400.0 * 3, ended_at=86_400.0 * 3 + 1.0)]
    assert moment_text(1000.0) in hpcdl("show", 3).out, "on two days the day is said"
    jobs.world.attempts[3] = [attempt(number) for number in range(1, 26)]
    done = hpcdl("show", 3)
    shown = [line.split()[0] for line in done.out.splitlines() if line.endswith("killed from outside")]
    assert (shown[0], shown[-1]) == ("6", "25")
    assert done.err == "hpcdl: 5 earlier attempts: --json has all\n"


def test_show_says_in_the_users_words_why_a_job_is_being_suspended(jobs: FakeDaemon, hpcdl: Run) -> None:
    going = {"number": 1, "state": "SAVING", "nodes": ["n1"], "purpose": "hold"}
    jobs.answers["/v1/jobs/1"] = (200, json.dumps({"schema": 1, "job": {**row(1), "incarnations": [going]}}).encode())
    lines = hpcdl("show", 1).out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("ATTEMPT"))
    title, line = lines[at : at + 2]
    assert re.split("  +", title) == ["ATTEMPT", "STATE", "NODES", "STARTED", "TRAINS SINCE", "SUSPENDED"]
    assert re.split("  +", line.strip()) == ["1", "SAVING", "n1", "-", "-", "by its user"]


def test_show(jobs: FakeDaemon, hpcdl: Run) -> None:
    logs = jobs.home / "logs" / "1"
    logs.mkdir(parents=True)
    (logs / "1.n1.log").write_text("x")
    shown = hpcdl("show", 1).out
    for text in ("resnet", "RUNNING", "n1:0,1 n2:0,1", "120/900", "3 min 20 s", "ATTEMPT", str(logs / "1.n1.log")):
        assert text in shown
    jobs.world.jobs[1]["role"] = "primary"
    (placement,) = [line for line in hpcdl("show", 1).out.splitlines() if line.startswith("placement ")]
    assert placement.endswith("n1:0,1 n2:0,1")
    jobs.world.jobs[1]["role"] = "secondary"
    assert "n1:0,1 n2:0,1 as secondary" in hpcdl("show", 1).out
    assert hpcdl("show", 1, "--json").value["job"]["id"] == 1
    assert hpcdl("show", 1, "--quiet").out == "1\n"
    done = hpcdl("show", 9)
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: there is no job 9: hpcdl ls --all lists them\n")


def test_why(jobs: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("why", 2).out.splitlines() == [
        "job 2  QUEUED: needs 1 GPU, 0 free",
        "   job 1 holds n1:0",
    ]
    assert hpcdl("why", 2, "--json").value["details"] == ["job 1 holds n1:0"]
    assert hpcdl("why", 2, "--quiet").out == "2\n"


def test_nodes(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("nodes").out.splitlines() == [
        "NODE  AGENT      GPU  STATE  JOB  NAME  DETAIL",
        "n1    connected    0  ok     1.2  V100",
        "n1    connected    1  lost     -  V100  Xid 79",
    ]
    assert hpcdl("nodes", "--json").value["nodes"][0]["gpus"][1]["state"] == "lost"
    assert hpcdl("nodes", "--quiet").out == "n1\n"
    assert hpcdl("nodes").err == ""
    away = {"name": "n2", "connected": False, "lost": False, "reason": "the connection ended", "gpus": []}
    fake.answers["/v1/nodes"] = (200, json.dumps({"schema": 1, "nodes": [away]}).encode())
    assert hpcdl("nodes").err.startswith("hpcdl: no agent is connected on n2; trainers there go on for a while")


@pytest.mark.parametrize("form", ["--json", "--quiet"])
def test_ls_nodes_tells_programs_what_nodes_tells(fake: FakeDaemon, hpcdl: Run, form: str) -> None:
    assert hpcdl("ls", "nodes", *form.split()) == hpcdl("nodes", *form.split())
    assert hpcdl("ls", *form.split(), "nodes").out
    assert hpcdl("ls", "jobs", *form.split()) == hpcdl("ls", *form.split())


def test_ls_without_a_daemon_says_how_much_is_spooled(home: Path, hpcdl: Run) -> None:
    assert "spooled" not in hpcdl("ls").err
    for _ in range(2):
        assert hpcdl("submit", "true").code == 0
    done = hpcdl("ls")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.endswith(f": hpcdl daemon start; it takes in 2 submits spooled in {home / 'spool'}\n")
    assert "spooled" not in hpcdl("nodes").err


def test_a_step_is_shown_only_where_one_was_reported(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {1: row(1, total=100), 2: row(2, step=0, total=100), 3: row(3, step=7)}
    assert [line.split()[5] for line in hpcdl("ls").out.splitlines()[1:]] == ["-", "0/100", "7"]


def test_show_says_what_limits_the_job(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("submit", "--mem", "2G", "--time", "90m", "--", "true").code == 0
    (asked,) = [line for line in hpcdl("show", "1").out.splitlines() if line.startswith("asked ")]
    assert "memory 2 GiB" in asked
    assert "time 1 h 30 min" in asked


def test_show_tells_the_last_ending_from_the_end(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {
        1: row(1, state="RUNNING", cause="suspended", detail="saved at step 4", exit_code=0),
        2: row(2, state="FAILED", cause="user error", detail="exit code 3", exit_code=3, finished_at=9.0),
    }
    running, failed = hpcdl("show", 1).out, hpcdl("show", 2).out
    assert "last ended by  suspended, saved at step 4" in running
    assert "exit code" not in running
    assert "ended by   user error, exit code 3" in failed
    assert "last ended by" not in failed
    assert "1 GPU, grace period" in running


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        (
            {"meets": True, "since": 5.0, "probability": 0.97, "ends_at": 90.0},
            " (expected to be met since {5}: 97 %, done by {90} if nothing else comes)",
        ),
        (
            {"meets": False, "since": 5.0, "probability": 0.12, "slipped": True},
            " (slipped: expected to be missed since {5}: 12 %)",
        ),
    ],
)
def test_show_says_what_is_expected_of_a_deadline(
    fake: FakeDaemon, hpcdl: Run, more: dict[str, object], said: str
) -> None:
    known = {"at": 100.0, "meets": None, "since": None, "probability": None, "ends_at": None, "slipped": False}
    fake.world.jobs = {1: row(1, deadline=known | more)}
    for at in (5, 90):
        said = said.replace(f"{{{at}}}", moment_text(at))
    assert f"deadline   {moment_text(100.0)}{said}\n" in hpcdl("show", 1).out
    fake.world.jobs = {1: row(1, state="DONE", finished_at=99.0, deadline=known | more)}
    assert f"{moment_text(100.0)} (met)\n" in hpcdl("show", 1).out
    fake.world.jobs = {1: row(1, state="DONE", finished_at=101.0, deadline=known)}
    assert f"{moment_text(100.0)} (passed)\n" in hpcdl("show", 1).out
