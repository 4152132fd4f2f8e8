"""`hpcdl profile run` with a real script on a real daemon, and a profile of what it measured."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli.profile.light_runs import read_runs, runs_text
from hpcdl.config.profiles import read_profiles
from tests.support.waiting import until
from tests.system.cluster import Cluster

STEPS_AT = "steps_at"
CLOCKS_S = 1.0
"""The daemon read the time of day once, and its monotonic clock a moment later."""

# On n GPUs n b / (b + 12) x 1000 samples/s, of which two GPUs lose a tenth. It never ends by itself, and notes when it
# was at which step.
SCRIPT = """
import os, sys, time
import hpcdl.trainer as hpcdl
hpcdl.attach()
batch, gpus = int(sys.argv[1]), int(os.environ["HPCDL_GPU_COUNT"])
assert os.environ["HPCDL_PROFILE_BATCH"] == sys.argv[1]
share = batch / gpus
rate = gpus * (0.9 if gpus > 1 else 1.0) * 1000 * share / (share + 12)
began = time.monotonic()
with open(f"{sys.argv[2]}.{os.environ['HPCDL_JOB']}", "w", buffering=1) as note:
    for step in hpcdl.steps(10**6, save=lambda folder: None, load=lambda folder: None):
        note.write(f"{step} {time.time()}\\n")
        time.sleep(max(0.0, began + (step + 1) * batch / rate - time.monotonic()))
"""


def rate_of(batch: int, gpus: int) -> float:
    """Of SCRIPT, in samples/s."""
    share = batch / gpus
    return gpus * (0.9 if gpus > 1 else 1.0) * 1000 * share / (share + 12)


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def jobs_of(cluster: Cluster, before: int = 0) -> list[dict[str, Any]]:
    """Those with higher ids."""
    return [job for job in cluster.client.get("/v1/jobs?all=1")["jobs"] if job["id"] > before]


def test_light_profiling_of_a_script(cluster: Cluster, tmp_path: Path) -> None:
    """A machine that does other things makes it slower; what is measured is what was, and never from before it was."""
    before = len(jobs_of(cluster))
    script, runs, made = tmp_path / "train.py", tmp_path / "runs.csv", tmp_path / "mine.yaml"
    script.write_text(SCRIPT)
    told = cluster.cli(
        "profile", "run", "--light", "--batches", "16,32,64", "--gpus", "1,2", "--steps", "20", "-o", str(runs),
        "--json", "--", sys.executable, str(script), "{batch}", str(tmp_path / STEPS_AT),
    )  # fmt: skip
    settings = [(run["batch"], run["nodes"], run["gpus"]) for run in told["runs"]]
    assert settings == [(16, 1, 1), (32, 1, 1), (64, 1, 1), (64, 1, 2)]
    jobs = jobs_of(cluster, before)
    assert [job["state"] for job in jobs] == ["CANCELLED"] * 4
    for run, job in zip(told["runs"], sorted(job["id"] for job in jobs), strict=True):
        reports = progress_of(cluster, job)
        notes = (tmp_path / f"{STEPS_AT}.{job}").read_text().splitlines()
        at_step = {int(step): float(at) for step, at in map(str.split, notes)}
        assert all(at > at_step[step] - CLOCKS_S for at, step in reports if step in at_step)
        (began, first), *later = reports
        speeds = [(step - first) / (at - began) for at, step in later if step - first >= 20]
        assert min(abs(run["steps_per_s"] / speed - 1) for speed in speeds) < 1e-6
        assert run["samples_per_s"] == pytest.approx(run["steps_per_s"] * run["batch"])
        assert run["startup_s"] > 0
    kept = read_runs(runs)
    assert [each.samples_per_s for each in kept] == pytest.approx([run["samples_per_s"] for run in told["runs"]], 1e-5)
    # As a machine measures it that does nothing else.
    ideal = [replace(each, samples_per_s=rate_of(each.setting.batch, each.setting.gpus)) for each in kept]
    runs.write_text(runs_text(ideal))
    assert cluster.cli("profile", "fit", str(runs), "--name", "mine", "-o", str(made)).startswith(f"wrote {made}")
    (profile,) = read_profiles(made)
    assert profile.rate(2) == pytest.approx(rate_of(64, 2) / 64, rel=0.1)


def progress_of(cluster: Cluster, job: int) -> list[tuple[float, int]]:
    """When the job was at which step, by its events."""
    bodies = [(event["at"], event["body"]) for event in cluster.events(job) if event["kind"] == "Progressed"]
    return [(at - body["age_s"], body["step"]) for at, body in bodies]


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


MODEL = 'hpcdl.attach().send("model", layers=[["Linear", 2], ["ReLU", 1]], parameters=1000, activation_bytes=4000)\n'


def test_runs_that_are_left_to_the_daemon_make_way_and_are_measured(cluster: Cluster, tmp_path: Path) -> None:
    before = max([job["id"] for job in jobs_of(cluster)], default=0)
    script = tmp_path / "idle.py"
    script.write_text(SCRIPT.replace("batch, gpus", f"{MODEL}batch, gpus", 1))
    told = cluster.cli(
        "profile", "run", "--when-idle", "--model", "net", "--batches", "16,32,64", "--steps", "20", "--json", "--",
        sys.executable, str(script), "{batch}", str(tmp_path / STEPS_AT),
    )  # fmt: skip
    runs = [before + 1, before + 2, before + 3]
    assert (told["jobs"], told["known"]) == (runs, 0)
    until(lambda: any(job["state"] == "RUNNING" for job in jobs_of(cluster, before)), "a run")
    gpus = sum(len(node["gpus"]) for node in cluster.client.get("/v1/nodes")["nodes"])
    other = cluster.cli("submit", "--quiet", "--gpus", f"{gpus}", "--", "true")
    until(
        lambda: cluster.client.get(f"/v1/jobs/{int(other)}")["job"]["state"] == "DONE", "the other job, which has all"
    )
    until(lambda: all(job["state"] == "CANCELLED" for job in jobs_of(cluster, before) if job["id"] in runs), "the runs")
    for number in runs:
        row = cluster.client.get(f"/v1/jobs/{number}")["job"]
        assert row["reason"].startswith("measured over "), row["reason"]
        assert "ModelReported" in {event["kind"] for event in cluster.events(number)}
    rows = {row["name"]: row for row in cluster.client.get("/v1/profiles")["profiles"]}
    assert rows["net @ idle.py"]["batches"] == [16, 32, 64]
    answer = cluster.cli(
        "submit", "--hold", "--json", "--model", "net", "--batch", "24", "--steps", "100", "--", "python", "idle.py"
    )
    number = answer["jobs"][0]["id"]
    why = cluster.client.get(f"/v1/jobs/{number}/why")["details"]
    assert "its rate at batch size 24 is predicted by GENIE's model from batch sizes 16,32,64" in why
    other_type = cluster.cli(
        "submit", "--hold", "--json", "--model", "other", "--batch", "24", "--steps", "100", "--", "python", "x.py"
    )
    why = cluster.client.get(f"/v1/jobs/{other_type['jobs'][0]['id']}/why")["details"]
    assert any("no trainer of its type has said what its model is made of" in line for line in why)
    again = cluster.cli(
        "profile", "run", "--when-idle", "--model", "net", "--batches", "16,32,64", "--json", "--",
        sys.executable, str(script), "{batch}",
    )  # fmt: skip
    assert (again["jobs"], again["known"]) == ([], 3)
