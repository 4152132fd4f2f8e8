"""Batch jobs of hpcdl on this machine: real daemons, agents and trainers under a batch system that only starts them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, kill

ROOT = Path(__file__).parents[2]


class BatchJobs(Cluster):
    """One HPCDL_HOME, and the batch jobs that run hpcdl on it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, node_name=None, listen_host="127.0.0.1", batch="none", leave_margin_s=1)
        self.jobs: list[subprocess.Popen[str]] = []

    def begin(self, id_: str, nodes: str = "n1,n2", seconds: float = 3600, *options: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "tests.allocation.batchjob", str(self.home), id_, nodes, str(seconds), *options]
        job = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.jobs.append(job)
        return job

    def up(self, *nodes: str) -> None:
        """Returns when the agents of exactly these nodes are connected."""
        self.until(lambda: [a["node"] for a in self.status()["agents"] if a["connected"]] == list(nodes))

    def started(self, job: int) -> int:
        """How often its trainer was started."""
        return self.kinds(job).count("Started")

    def saved(self, job: int) -> list[int]:
        """The steps at which its incarnations ended with a checkpoint."""
        return [event["body"]["step"] for event in self.events(job) if event["kind"] == "IncarnationEnded"]

    def resumed(self, job: int) -> list[int]:
        """The steps at which its incarnations began, but the first one's."""
        return [event["body"]["step"] for event in self.events(job) if event["kind"] == "TrainerReady"][1:]

    def output(self, job: "subprocess.Popen[str]", code: int = 0) -> str:
        """What it printed, once it has ended with this code."""
        out, _ = job.communicate(timeout=180)
        assert job.returncode == code, f"{out}\n{self.logs()}"
        assert "Traceback" not in out, out
        return out

    @property
    def asked(self) -> list[str]:
        path = self.home.parent / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def stop(self) -> None:
        for job in self.jobs:
            if job.poll() is None:
                job.terminate()
            job.communicate(timeout=180)
        super().stop()


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[BatchJobs]:
    made = BatchJobs(tmp_path / "home")
    try:
        yield made
    finally:
        made.stop()


def test_a_signal_saves_all_and_the_next_allocation_goes_on(batch: BatchJobs) -> None:
    first = batch.begin("11")
    batch.up("n1", "n2")
    nodes = {row["name"]: row for row in batch.client.get("/v1/nodes")["nodes"]}
    assert [len(row["gpus"]) for row in nodes.values()] == [2, 2]
    assert {row["allocation"] for row in nodes.values()} == {"11"}
    jobs = [batch.submit("--step-s", "0.02", steps=100_000) for _ in range(3)]
    for job in jobs:
        batch.until_step(job, 20)
    assert {node for job in jobs for node in batch.job(job)["placement"]} == {"n1", "n2"}
    first.send_signal(signal.SIGUSR1)
    first.send_signal(signal.SIGTERM)  # a second one does not start over
    out = batch.output(first)
    assert out.count("came: everything is saved") == 1
    assert "killed" not in out
    assert "batch job 11: 2 nodes (n[1-2]), 2 GPUs each" in out
    assert "SIGUSR1 came: everything is saved" in out
    batch.until(lambda: not batch.ours())
    batch.begin("12", "n2,n3")
    batch.up("n2", "n3")
    batch.until(lambda: all(batch.resumed(job) == batch.saved(job)[:1] != [] for job in jobs))
    assert all(batch.saved(job)[0] >= 20 for job in jobs)
    batch.cli("cancel", *map(str, jobs))


def test_what_is_lost_is_started_again_and_a_second_one_waits(batch: BatchJobs) -> None:
    first = batch.begin("21", "n1")
    batch.up("n1")
    job = batch.submit("--step-s", "0.02", steps=100_000)
    batch.until_step(job, 10)
    refused = batch.output(batch.begin("22", "n2"), code=1)
    assert "a daemon already runs on" in refused
    agent = batch.agent_pid("n1")
    kill(agent)
    batch.until(lambda: batch.agent_pid("n1") != agent and batch.status()["agents"][0]["connected"])
    daemon = batch.status()["daemon"]["pid"]
    kill(daemon)
    batch.until(lambda: batch.status()["daemon"]["pid"] != daemon and batch.status()["agents"][0]["connected"])
    assert batch.job(job)["state"] == "RUNNING"
    assert batch.started(job) == 1, "its supervisor outlived both"
    waiting = batch.begin("23", "n2", 3600, "--wait")
    assert waiting.stdout is not None
    assert "batch job 23" in waiting.stdout.readline()
    assert "waiting for the lease: a daemon already runs on" in waiting.stdout.readline()
    first.send_signal(signal.SIGTERM)
    out = batch.output(first)
    assert "n1: its agent ended by signal 9; it is started again in 1 s" in out
    assert "the daemon had ended by signal 9, and was started again" in out
    batch.up("n2")
    batch.until(lambda: batch.resumed(job) == batch.saved(job)[:1] != [])
    batch.cli("cancel", str(job))
    waiting.send_signal(signal.SIGINT)
    assert "SIGINT came" in batch.output(waiting)


def test_a_node_without_an_agent_is_listed_with_the_reason(batch: BatchJobs) -> None:
    first = batch.begin("26", "n1,n2", 3600, "--without", "n2")
    batch.up("n1")
    batch.until(lambda: "no agent there" in batch.cli("ls", "nodes"))
    assert batch.cli("ls", "nodes", "--json")["without_agent"] == [
        {"name": "n2", "allocation": "26", "reason": "no agent there"}
    ]
    assert "none could be started on n2 of batch job 26: no agent there" in batch.cli("doctor")
    first.send_signal(signal.SIGTERM)
    out = batch.output(first)
    assert "n2: no agent there: this node is left alone" in out
    assert "SIGTERM came: everything is saved; no next allocation was submitted: sbatch jobscripts/hpcdl.slurm" in out
    assert not (batch.home / "without-agent.json").exists()


def test_nothing_outlives_a_batch_job_that_is_killed(batch: BatchJobs) -> None:
    first = batch.begin("25", "n1")
    batch.up("n1")
    job = batch.submit("--step-s", "0.02", steps=100_000)
    batch.until_step(job, 10)
    assert batch.tagged()
    assert batch.ours()
    first.kill()
    first.wait()
    batch.until(lambda: not batch.tagged() and not batch.ours())


def test_before_the_walltime_ends_everything_is_saved(batch: BatchJobs) -> None:
    job = batch.begin("31", "n1,n2")
    batch.up("n1", "n2")
    number = batch.submit("--step-s", "0.02", "--save-every", "20", steps=100_000, options=("--grace", "3"))
    batch.until_step(number, 40)
    batch.until(lambda: batch.status()["daemon"]["leave_s"] < 4)  # by the measured save, not by the grace
    later = batch.home.parent / "later"
    later.with_suffix(".new").write_text("3592")
    later.with_suffix(".new").rename(later)
    assert "the walltime ends in" in batch.output(job)
    later.unlink()
    with_next = batch.begin("32", "n1", 3600)
    batch.up("n1")
    batch.until(lambda: batch.resumed(number) == batch.saved(number)[:1] != [])
    batch.cli("cancel", str(number))
    with_next.send_signal(signal.SIGTERM)
    batch.output(with_next)


def test_a_queue_that_runs_empty_ends_the_allocation_and_its_chain(batch: BatchJobs, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nexec hpcdl allocation\n")
    out = batch.output(batch.begin("4711", "n1", 3600, "--idle-exit", "1", "--chain", "2", "--script", str(script)))
    assert "batch job 4712 is to go on after this one (1 more may follow)" in out
    assert "there was nothing to do for 1" in out
    assert "batch job 4712 has nothing to do, and was cancelled" in out
    sbatch = next(line for line in batch.asked if line.startswith("sbatch"))
    assert sbatch == (
        "sbatch --parsable --dependency=afterany:4711 --job-name=hpcdl --partition=normal --time=01:00:00 --nodes=2 "
        "< ['#!/bin/bash']"
    )
    assert batch.asked[-1] == "cancel 4712"


@pytest.mark.long
def test_a_pilot_gives_its_nodes_back(batch: BatchJobs) -> None:
    """At a signal, when its daemon is stopped, and when there is none for too long."""
    batch.begin("51", "n1")
    batch.up("n1")
    first = batch.begin("52", "n2,n3", 3600, "--pilot")
    batch.up("n1", "n2", "n3")
    jobs = [batch.submit("--step-s", "0.02", steps=100_000) for _ in range(5)]
    for job in jobs:
        batch.until_step(job, 5)
    first.send_signal(signal.SIGTERM)
    out = batch.output(first)
    assert "SIGTERM came: the nodes are given back" in out
    assert "all nodes are given back" in out
    batch.until(lambda: sum(batch.job(job)["state"] == "SUSPENDED" for job in jobs) == 3)
    batch.cli("cancel", *map(str, jobs))
    second = batch.begin("53", "n2", 3600, "--pilot")
    batch.up("n1", "n2")
    batch.cli("daemon", "stop")
    assert "all nodes are given back" in batch.output(second)
    assert "the daemon was stopped" in batch.output(batch.jobs[0])
    third = batch.begin("54", "n2", 3600, "--pilot", "--alone", "2")
    assert "n2: its agent has given the node back" in batch.output(third)
