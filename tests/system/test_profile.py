"""`hpcdl profile run` with a real script on a real daemon, and a profile of what it measured."""

import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdl.config.profiles import read_profiles
from tests.system.cluster import Cluster

# On n GPUs n b / (b + 12) x 1000 samples/s, of which two GPUs lose a tenth. It never ends by itself.
SCRIPT = """
import os, sys, time
import hpcdl.trainer as hpcdl
hpcdl.attach()
batch, gpus = int(sys.argv[1]), int(os.environ["HPCDL_GPU_COUNT"])
assert os.environ["HPCDL_PROFILE_BATCH"] == sys.argv[1]
share = batch / gpus
rate = gpus * (0.9 if gpus > 1 else 1.0) * 1000 * share / (share + 12)
began = time.monotonic()
for step in hpcdl.steps(10**6, save=lambda folder: None, load=lambda folder: None):
    time.sleep(max(0.0, began + (step + 1) * batch / rate - time.monotonic()))
"""


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def jobs_of(cluster: Cluster, before: int = 0) -> list[dict[str, Any]]:
    """Those with higher ids."""
    return [job for job in cluster.client.get("/v1/jobs?all=1")["jobs"] if job["id"] > before]


@pytest.mark.flaky(reruns=2, reason="it measures a rate, which a loaded machine may not keep for half a second")
def test_light_profiling_of_a_script(cluster: Cluster, tmp_path: Path) -> None:
    before = len(jobs_of(cluster))
    script, runs, made = tmp_path / "train.py", tmp_path / "runs.csv", tmp_path / "mine.yaml"
    script.write_text(SCRIPT)
    told = cluster.cli(
        "profile", "run", "--light", "--batches", "16,32,64", "--gpus", "1,2", "--steps", "20", "-o", str(runs),
        "--json", "--", sys.executable, str(script), "{batch}",
    )  # fmt: skip
    settings = [(run["batch"], run["nodes"], run["gpus"]) for run in told["runs"]]
    assert settings == [(16, 1, 1), (32, 1, 1), (64, 1, 1), (64, 1, 2)]
    for run in told["runs"]:
        share = run["batch"] / run["gpus"]
        rate = run["gpus"] * (0.9 if run["gpus"] > 1 else 1.0) * 1000 * share / (share + 12)
        assert run["samples_per_s"] == pytest.approx(rate, rel=0.25)  # a loaded machine
        assert run["startup_s"] > 0
    assert [job["state"] for job in jobs_of(cluster, before)] == ["CANCELLED"] * 4
    assert cluster.cli("profile", "fit", str(runs), "--name", "mine", "-o", str(made)).startswith(f"wrote {made}")
    (profile,) = read_profiles(made)
    assert profile.rate(2) == pytest.approx(told["runs"][3]["steps_per_s"], rel=0.2)


def test_a_script_that_fails_stops_the_profiling(cluster: Cluster, tmp_path: Path) -> None:
    before, runs = len(jobs_of(cluster)), tmp_path / "runs.csv"
    cluster.cli("profile", "run", "--batches", "16,32", "-o", str(runs), "--", "false", "{batch}", code=1)
    (job,) = jobs_of(cluster, before)
    assert job["state"] == "FAILED"
    assert not runs.exists()


def test_a_run_that_never_reports_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    before, runs = len(jobs_of(cluster)), tmp_path / "runs.csv"
    cluster.cli("profile", "run", "--batches", "16", "--limit", "1", "-o", str(runs), "--", "sleep", "300", code=1)
    (job,) = jobs_of(cluster, before)
    assert job["state"] == "CANCELLED"
