"""Checkpoints that were put back from an older copy, or moved away, while their job was suspended."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cluster import Cluster


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def suspended(cluster: Cluster, folder: Path) -> tuple[int, int]:
    """A job that was suspended: its id, and the step that it saved."""
    cluster.hold()
    options = ("--checkpoint-dir", str(folder), "--cwd", str(folder.parent))
    job = cluster.submit("--save-every", 10, steps=60, options=options)
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 30)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    return job, cluster.job(job)["saved_step"]


def resume(cluster: Cluster, job: int) -> None:
    cluster.release()
    cluster.cli("resume", str(job))


def test_an_older_copy_that_was_put_back_is_said(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    job, saved = suspended(cluster, folder)
    newest = max(folder.glob("step-*"))
    shutil.rmtree(newest)
    older = int(max(folder.glob("step-*")).name[5:17])
    resume(cluster, job)
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    said = [event["body"] for event in cluster.events(job) if event["kind"] == "ResumedBehind"]
    assert [(each["step"], each["saved"], each["saved_by"]) for each in said] == [(older, saved, 1)]
    text = f"{saved} was saved by attempt 1"
    assert f"attempt 2 resumed at {older}; {text}" in cluster.cli("why", str(job))
    assert f"attempt 2 at {older}; {text}" in cluster.cli("show", str(job))
    first, _ = cluster.client.get(f"/v1/jobs/{job}/attempts")["attempts"]
    assert first["lost_steps"] == saved - older
    assert first["lost_gpu_s"] > 0
    rows = cluster.cli("report", "--json")["rows"]
    assert [row["lost_gpu_h"] > 0 for row in rows if row["key"] == str(job)] == [True]


def test_one_that_finds_nothing_is_held_before_it_writes_a_file(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    job, saved = suspended(cluster, folder)
    moved = folder.rename(tmp_path / "moved")
    resume(cluster, job)
    why = f"held before step 0: no checkpoint was found in {folder}, and step {saved} was saved by attempt 1"
    cluster.until(lambda: why in cluster.job(job)["reason"])
    assert cluster.job(job)["state"] == "SUSPENDED"
    assert "Started" not in cluster.kinds(job)[cluster.kinds(job).index("JobReleased") :], "no process of it began"
    assert list(folder.glob("*")) == []
    assert why in cluster.cli("why", str(job))
    assert f"held: hpcdl resume {job}" in cluster.cli("ls")
    folder.rmdir()
    moved.rename(folder)
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    assert "ResumedBehind" not in cluster.kinds(job), "all that was saved is there again"


def test_its_user_may_let_it_begin_anew(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    job, saved = suspended(cluster, folder)
    shutil.rmtree(folder)
    resume(cluster, job)
    cluster.until(lambda: "held before step 0" in cluster.job(job)["reason"])
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    said = [event["body"] for event in cluster.events(job) if event["kind"] == "ResumedBehind"]
    assert [(each["step"], each["saved"]) for each in said] == [(0, saved)]


def test_a_setting_lets_it_begin_anew_at_once(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(gpus=1, hold_missing_checkpoint=False).start()
    folder = tmp_path / "ck"
    job, saved = suspended(cluster, folder)
    shutil.rmtree(folder)
    resume(cluster, job)
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    said = [event["body"] for event in cluster.events(job) if event["kind"] == "ResumedBehind"]
    assert [(each["step"], each["saved"]) for each in said] == [(0, saved)]
