"""`--cpus`, `--mem` and `--time` of real jobs."""

import os
import sys

import pytest

from tests.system.cluster import Cluster


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def submit(cluster: Cluster, *argv: str) -> int:
    return int(cluster.cli("submit", "--json", *argv)["jobs"][0]["id"])


def test_a_job_has_the_processors_that_it_asked_for(cluster: Cluster) -> None:
    shown = "import os; print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    job = submit(cluster, "--cpus", "1", "--", sys.executable, "-c", shown)
    cluster.until_state(job, "DONE", "FAILED")
    assert cluster.cli("logs", str(job)).split() == ["1", "1"]
    many = len(os.sched_getaffinity(0))
    other = submit(cluster, "--", sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))")
    cluster.until_state(other, "DONE", "FAILED")
    assert cluster.cli("logs", str(other)).split() == [str(many)], "emulated GPUs are near no processor"


def test_a_job_that_takes_too_much_memory_is_ended(cluster: Cluster) -> None:
    fills = "held = []\nwhile True: held.append(bytearray(b'x' * (4 << 20)))"
    job = submit(cluster, "--mem", "200M", "--", sys.executable, "-c", fills)
    cluster.until_state(job, "FAILED", "DONE")
    row = cluster.job(job)
    assert (row["state"], row["cause"]) == ("FAILED", "out of memory")
    why = cluster.cli("why", str(job))
    assert "200 MiB" in why
    assert f"hpcdl submit --like {job} --mem SIZE" in why
    assert cluster.kinds(job).count("StartRequested") == 1, "another attempt would take as much"


def test_a_job_whose_time_is_over_has_saved(cluster: Cluster) -> None:
    job = cluster.submit(options=("--time", "8"), steps=100_000)
    cluster.until_state(job, "FAILED", "DONE")
    row, kinds = cluster.job(job), cluster.kinds(job)
    assert row["state"] == "FAILED"
    assert kinds.count("TimeLimitReached") == 1
    assert "its time is over (--time 8.0 s)" in cluster.cli("why", str(job))
    if "TrainerReady" in kinds[: kinds.index("TimeLimitReached")]:
        assert row["saved_step"] is not None
        assert f"saved at step {row['saved_step']}" in cluster.cli("why", str(job))
    assert "suspended 1 time: 1 at its time limit" in cluster.cli("why", str(job))
    assert "suspends: 1 at its time limit" in cluster.cli("report", str(job))
    cluster.cli("retry", str(job))
    cluster.until(lambda: cluster.kinds(job).count("StartRequested") == 2)
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")
