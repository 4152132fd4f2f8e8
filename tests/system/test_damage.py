"""Checkpoints whose content is not what was written: the right size, another byte."""

from pathlib import Path

import pytest

from tests.system.cluster import Cluster


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def saved(cluster: Cluster, folder: Path) -> tuple[int, list[Path]]:
    """A job that was cancelled with two checkpoints, and these, the newest first."""
    cluster.hold()
    job = cluster.submit("--save-every", 10, steps=60, options=("--checkpoint-dir", str(folder)))
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 30)  # where it stands: no save is under way
    cluster.until(lambda: len(list(folder.glob("step-*"))) == 2)
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")
    cluster.release()
    found = sorted(folder.glob("step-*"), reverse=True)
    assert len(found) == 2
    return job, found


def test_the_one_before_is_used_and_it_is_told(cluster: Cluster, tmp_path: Path) -> None:
    job, (newest, before) = saved(cluster, tmp_path / "ck")
    flip(newest / "state.json")
    cluster.cli("retry", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    told = [event["body"] for event in cluster.events(job) if event["kind"] == "CheckpointDamaged"]
    kept = newest.with_name(f"damaged-{newest.name}")
    assert [(each["step"], each["path"]) for each in told] == [(int(newest.name[5:17]), str(kept))]
    assert told[0]["why"] == "the content of state.json is not what was written"
    ready = [event["body"]["step"] for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    assert ready[-1] == int(before.name[5:17])
    assert kept.is_dir()


def test_where_both_are_damaged_the_job_says_what_to_do(cluster: Cluster, tmp_path: Path) -> None:
    job, found = saved(cluster, tmp_path / "ck")
    for each in found:
        flip(each / "state.json")
    cluster.cli("retry", str(job))
    cluster.until_state(job, "FAILED")
    row = cluster.job(job)
    assert "no checkpoint is left that is whole" in row["detail"]
    assert f"hpcdl retry {job} --from-start" in row["detail"]
    assert row["incarnation"] == 2, "no retry is spent on it"
    aside = sorted(each.name for each in (tmp_path / "ck").glob("damaged-*"))
    assert aside == sorted(f"damaged-{each.name}" for each in found)
    cluster.cli("retry", str(job), "--from-start")
    cluster.until_done(job)
