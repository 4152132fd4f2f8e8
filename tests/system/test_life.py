"""The way of a job on one machine: real daemon, agent, supervisor and trainer, emulated GPUs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cluster import ANOTHER_MODEL, Cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def test_a_job_is_submitted_runs_and_is_done(cluster: Cluster) -> None:
    job = cluster.submit(steps=60)
    cluster.cli("wait", str(job), "--timeout", "180")
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    row = cluster.job(job)
    assert (row["step"], row["gpus"], row["exit_code"], row["cause"]) == (60, 0, 0, "done")
    kinds = cluster.kinds(job)
    ordered = [
        "JobSubmitted",
        "StartRequested",
        "Started",
        "Attached",
        "TrainerReady",
        "Exited",
        "GpusFreed",
        "JobEnded",
    ]
    assert [kind for kind in kinds if kind in ordered] == ordered
    assert "resumed at 0 on 1 GPUs" in cluster.cli("logs", str(job))


def test_the_output_is_in_the_files_that_the_job_names(cluster: Cluster, tmp_path: Path) -> None:
    """With stderr apart over two attempts; what cannot be opened fails the job, and says so."""
    script = "echo out; echo err >&2; test -e again || { touch again; exit 7; }"
    options = ("--retries", "1", "--cwd", str(tmp_path), "--output", "%x.%j.%N", "--error", "%j.err")
    [row] = cluster.cli("submit", "--json", "--name", "both", *options, "--", "sh", "-c", script)["jobs"]
    job = row["id"]
    cluster.until_done(job)
    for stream, line, file in (("--stdout", "out", f"both.{job}.n1"), ("--stderr", "err", f"{job}.err")):
        lines = (tmp_path / file).read_text().splitlines()
        assert lines == [line] * len(lines)
        assert len(lines) >= 2, "of each attempt one"
        assert [each for each in cluster.cli("logs", str(job), stream).splitlines() if each[:3] != "==>"] == lines
    nowhere = ("--cwd", str(tmp_path), "--output", "%j/none")
    [row] = cluster.cli("submit", "--json", *nowhere, "--", "true")["jobs"]
    cluster.until_state(row["id"], "FAILED")
    found = cluster.job(row["id"])
    assert found["exit_code"] == 73
    assert f"cannot write its output to {tmp_path}/{row['id']}/none: No such file" in found["detail"]


def test_a_job_in_the_foreground_returns_its_exit_code(cluster: Cluster) -> None:
    assert cluster.cli("run", "--quiet", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7) == "out\nerr\n"
    cluster.cli("run", "--", "sh", "-c", "kill -SEGV $$", code=139)


def test_a_user_suspends_and_resumes(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit(steps=300, gpus="2")
    cluster.until_step(job, 15)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    saved = cluster.job(job)["saved_step"]
    assert saved >= 15
    why = cluster.cli("why", str(job), "--json")
    assert "held" in why["reason"]
    assert f"hpcdl resume {job}" in why["reason"]
    assert cluster.tagged() == []
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 300)
    assert cluster.job(job)["suspends"] == 1
    ready = [event["body"]["step"] for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    assert ready == [0, saved]


def test_cancel_ends_a_running_and_a_waiting_job(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1).start()
    running, waiting = cluster.submit(steps=5000), cluster.submit(steps=5000)
    cluster.until_step(running, 5)
    assert cluster.job(waiting)["state"] == "QUEUED"
    cluster.cli("cancel", str(running), str(waiting))
    cluster.until_state(running, "CANCELLED")
    cluster.until_state(waiting, "CANCELLED")
    cluster.cli("wait", str(running), code=130)
    assert cluster.tagged() == []


def test_a_failing_job_spends_its_retries_and_says_why(cluster: Cluster) -> None:
    job = cluster.submit("--fail-at", 5, steps=20, options=("--retries", "1"))
    cluster.until_state(job, "FAILED")
    row = cluster.job(job)
    assert (row["exit_code"], row["cause"], row["retries_used"], row["incarnation"]) == (3, "user error", 1, 2)
    assert "exit code 3" in row["reason"]
    cluster.cli("wait", str(job), code=3)


def test_a_command_that_does_not_exist_fails_at_once(cluster: Cluster) -> None:
    answer = cluster.cli("submit", "--json", "--retries", "0", "--", "/no/such/command")
    job = answer["jobs"][0]["id"]
    cluster.until_state(job, "FAILED")
    assert cluster.job(job)["exit_code"] == 127
    assert "/no/such/command" in cluster.job(job)["reason"]


def test_a_job_waits_for_another(cluster: Cluster) -> None:
    cluster.hold()
    first = cluster.submit(steps=80)
    second = cluster.submit(steps=10, options=("--after", str(first)))
    assert "waiting for job" in cluster.cli("why", str(second), "--json")["reason"]
    cluster.release()
    cluster.until_done(first, second)
    assert cluster.job(second)["started_at"] >= cluster.job(first)["finished_at"]


def test_the_same_request_id_is_the_same_job(cluster: Cluster) -> None:
    def submit() -> list[int]:
        answer = cluster.cli("submit", "--json", "--request-id", "mine", "--", "true")
        return [row["id"] for row in answer["jobs"]]

    (job,) = submit()
    assert submit() == [job]
    assert max(row["id"] for row in cluster.cli("ls", "--all", "--json")["jobs"]) == job


def test_a_second_daemon_is_refused_with_who_holds_the_first(cluster: Cluster) -> None:
    argv = [sys.executable, "-m", "hpcdl", "--home", str(cluster.home), "daemon", "start", "--emulate-gpus", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert str(cluster.daemon_pid) in done.stderr
    assert done.stderr.count("\n") == 1


def test_stop_suspends_and_the_next_start_goes_on(cluster: Cluster) -> None:
    cluster.hold()
    jobs = [cluster.submit(steps=250), cluster.submit(steps=250, gpus="1:2")]
    for job in jobs:
        cluster.until_step(job, 10)
    cluster.cli("daemon", "stop")
    assert cluster.tagged() == []
    cluster.until(lambda: cluster.ours() == [])  # supervisors may be on their way out
    cluster.start()
    cluster.release()
    cluster.until_done(*jobs)
    for job in jobs:
        cluster.check_weights(job, 250)
        assert cluster.job(job)["suspends"] == 1


def test_stop_now_leaves_the_last_checkpoints(cluster: Cluster) -> None:
    job = cluster.submit("--save-every", 10, steps=200)
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 20)
    cluster.cli("daemon", "stop", "--now")
    assert cluster.tagged() == []
    cluster.until(lambda: cluster.ours() == [])  # supervisors may be on their way out
    cluster.start()
    cluster.until_done(job)
    cluster.check_weights(job, 200)
    assert cluster.job(job)["suspends"] == 0


def test_marble_promotes_a_secondary_job(make_cluster: MakeCluster) -> None:
    """Figure 5 with the test trainer: two jobs that would take 3 of 4 GPUs; the second starts on one."""
    cluster = make_cluster(gpus=4).start()
    cluster.hold()
    stand = cluster.home.parent / "stand"  # the second one trains until it is promoted, however long that takes
    stand.touch()
    first = cluster.submit("--step-s", 0.02, steps=60, gpus="1:3", options=ANOTHER_MODEL)
    second = cluster.submit("--step-s", 0.02, "--pause", stand, steps=200, gpus="1:3")
    cluster.until_state(second, "RUNNING")
    row = cluster.job(second)
    assert (row["role"], row["gpus"]) == ("secondary", 1)
    cluster.release()
    cluster.until_done(first)
    cluster.until(lambda: cluster.kinds(second).count("StartRequested") == 2)
    stand.unlink()
    cluster.until_done(second)
    granted = [e["body"]["placement"] for e in cluster.events(second) if e["kind"] == "StartRequested"]
    assert [each["role"] for each in granted] == ["secondary", "primary"]
    before, after = (len(each["shares"][0]["gpus"]) for each in granted)
    assert before == 1 < after <= 3  # by the rates that it measured, which a loaded machine makes uneven
    cluster.check_weights(second, 200)
    assert cluster.job(second)["suspends"] == 1


def test_a_warm_start_waits_at_the_gate_for_its_gpus(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=4).start()
    cluster.cli("config", "policy", "marble-warm")
    cluster.hold()
    first = cluster.submit("--step-s", 0.02, steps=60, gpus="1:3", options=ANOTHER_MODEL)
    trainer = Path(__file__).with_name("trainer.py")
    stand = cluster.home.parent / "stand"  # it trains until its warm start has its GPUs
    stand.touch()
    argv = ["-m", "hpcdl.trainer.gate", str(trainer), "100", "--step-s", "0.02", "--save-s", "0.5"]
    argv += ["--save-every", "10000", "--pause", str(stand)]
    answer = cluster.cli("submit", "--json", "--gpus", "1:3", "--steps", "100", "--", sys.executable, *argv)
    second = answer["jobs"][0]["id"]
    cluster.until_state(second, "RUNNING")
    cluster.release()
    cluster.until_done(first)
    cluster.until(lambda: "OpenRequested" in cluster.kinds(second))
    stand.unlink()
    cluster.until_done(second)
    cluster.check_weights(second, 100)
    events = cluster.events(second)
    warm = [e["seq"] for e in events if e["kind"] == "StartRequested" and e["body"]["placement"] is None]
    opened = [e["seq"] for e in events if e["kind"] == "OpenRequested"]
    freed = [e["seq"] for e in events if e["kind"] == "GpusFreed"]
    assert warm
    assert opened
    assert warm[0] < freed[0] < opened[0]


def test_status_names_daemon_agents_and_trainers(cluster: Cluster) -> None:
    job = cluster.submit(steps=3000)
    pid = cluster.trainer_pid(job)
    status = cluster.cli("daemon", "status", "--json")
    assert status["daemon"]["pid"] == cluster.daemon_pid
    assert [agent["node"] for agent in status["agents"]] == ["n1"]
    assert [(line["pid"], line["job"]) for line in status["trainers"]] == [(pid, job)]
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    token = json.loads((cluster.home / "access.json").read_text())["token"]
    assert token.encode() not in environ
    assert Path(f"/proc/{pid}").stat().st_uid == os.getuid()


def test_two_nodes_are_one_job(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=2).start()
    cluster.add_agent("n2", 2)
    cluster.hold()
    job = cluster.submit(steps=150, gpus="2", options=("--nodes", "2"))
    cluster.until_state(job, "RUNNING")
    assert cluster.job(job)["placement"] == {"n1": [0, 1], "n2": [0, 1]}
    cluster.until_step(job, 10)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    assert len([kind for kind in cluster.kinds(job) if kind == "GpusFreed"]) == 2
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 150)


def test_a_job_without_our_library_reports_progress_and_is_ended(cluster: Cluster) -> None:
    script = "for i in $(seq 1 50); do echo step $i of 50; sleep 0.05; done"
    argv = ["--progress-regex", r"step (?P<step>\d+) of (?P<total>\d+)", "--", "sh", "-c", script]
    job = cluster.cli("submit", "--json", *argv)["jobs"][0]["id"]
    cluster.until_done(job)
    assert cluster.job(job)["step"] == 50
    assert cluster.job(job)["total"] == 50


def test_the_timeline_is_drawn(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(steps=30)
    cluster.until_done(job)
    page = tmp_path / "timeline.html"
    cluster.cli("timeline", "-o", str(page))
    assert "<svg" in page.read_text()
