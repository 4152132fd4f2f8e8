"""Two jobs and one checkpoint folder: one after the other is fine; at once they never write both."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster import Cluster
from tests.system.trainer import final


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def test_a_job_goes_on_from_the_folder_of_one_that_is_done(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    first = cluster.submit(steps=40, options=("--checkpoint-dir", str(folder)))
    cluster.until_done(first)
    second = cluster.submit(steps=80, options=("--checkpoint-dir", str(folder), "--continue-from", str(first)))
    cluster.until_done(second)
    cluster.check_weights(second, 80)
    ready = [event["body"]["step"] for event in cluster.events(second) if event["kind"] == "TrainerReady"]
    assert ready == [40]
    assert cluster.job(second)["failures"] == 0


def test_a_retry_from_the_start_leaves_what_is_there(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    cluster.hold()
    job = cluster.submit("--save-every", 10, steps=60, options=("--checkpoint-dir", str(folder)))
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 30)  # where it stands: no save is under way
    cluster.until(lambda: len(list(folder.glob("step-*"))) == 2)
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")
    before = sorted(path.name for path in folder.glob("step-*"))
    assert before
    cluster.release()
    said = cluster.cli("retry", str(job), "--from-start")
    assert f"job {job} is tried again" in said
    cluster.until_done(job)
    ready = [event["body"]["step"] for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    assert (ready[0], ready[-1]) == (0, 0)
    assert sorted(path.name for path in folder.glob("step-*")) == before
    assert (folder / "from-start-1" / "final").read_text() == final(60)
    assert ["checkpoints", f"{folder}/from-start-1"] in [
        line.split() for line in cluster.cli("show", str(job)).splitlines()
    ]
    after = cluster.submit(steps=80, options=("--checkpoint-dir", str(folder), "--continue-from", str(job)))
    cluster.until_done(after)
    ready = [event["body"]["step"] for event in cluster.events(after) if event["kind"] == "TrainerReady"]
    assert ready == [60], "whoever uses the folder next goes on from there"


def test_two_names_of_one_folder(cluster: Cluster, tmp_path: Path) -> None:
    """The daemon cannot see that they are one: the second job is stale, and says whose the folder is."""
    folder, alias = tmp_path / "shared", tmp_path / "alias"
    folder.mkdir()
    alias.symlink_to(folder)
    first = cluster.submit(steps=100_000, options=("--checkpoint-dir", str(folder)))
    cluster.until_step(first, 5)
    options = ("--checkpoint-dir", str(alias), "--continue-from", str(first))
    second = cluster.submit(steps=100_000, options=options)

    def ends() -> list[dict[str, Any]]:
        return [event["body"] for event in cluster.events(second) if event["kind"] == "IncarnationEnded"]

    cluster.until(lambda: len(ends()) > 1)  # its second attempt has a higher number than the one that trains
    for ended in ends():
        assert ended["cause"] == "infrastructure"
        assert "attempt 1 of another job (" in ended["detail"]
        assert f":{first}:1:n1) lives in the checkpoint folder" in ended["detail"]
    assert cluster.kinds(first).count("Started") == 1
    cluster.cli("cancel", str(first), str(second))  # which fails for good when it has failed alike often enough
    cluster.until_state(first, "CANCELLED")
    cluster.until_state(second, "CANCELLED", "FAILED")


def test_a_default_folder_of_another_job_is_refused_by_name(cluster: Cluster) -> None:
    """As after a ledger was lost: the folder of the number is there, and another job's."""
    first = cluster.submit(steps=30)
    cluster.until_done(first)
    checkpoints = cluster.home / "checkpoints"
    before = {path.name: path.read_bytes() for path in (checkpoints / str(first)).rglob("*") if path.is_file()}
    shutil.copytree(checkpoints / str(first), checkpoints / str(first + 1))
    second = cluster.submit(steps=60, options=("--retries", "5"))
    cluster.until_state(second, "FAILED")
    row = cluster.job(second)
    assert row["incarnation"] == 1, "no retry is spent on it"
    assert f"the checkpoint folder is that of job {first}" in row["detail"]
    assert f"hpcdl retry {second} --from-start" in row["detail"]
    there = {path.name: path.read_bytes() for path in (checkpoints / str(second)).rglob("*") if path.is_file()}
    assert there == before, "nothing was changed"
    assert "TrainerReady" not in cluster.kinds(second)
    cluster.cli("retry", str(second), "--from-start")
    cluster.until_done(second)
    assert (checkpoints / str(second) / "from-start-1" / "final").read_text() == final(60)


@pytest.mark.parametrize("claim", ["another's", "gone", "damaged"])
def test_a_folder_of_another_job_with_the_same_number(cluster: Cluster, claim: str) -> None:
    first = cluster.submit(steps=30)
    cluster.until_done(first)
    folder = cluster.home / "checkpoints" / str(first + 1)
    shutil.copytree(cluster.home / "checkpoints" / str(first), folder)
    for marker in folder.glob("step-*/COMPLETE"):
        body = json.loads(marker.read_text())
        body["owner"] = f"{body['owner'].split(':')[0]}:{first + 1}"
        marker.write_text(json.dumps(body))
    body = json.loads((folder / "claim.json").read_text())
    body["tag"] = body["tag"].replace(f":{first}:", f":{first + 1}:")
    match claim:
        case "another's":
            (folder / "claim.json").write_text(json.dumps(body))
        case "gone":
            (folder / "claim.json").unlink()
        case _:
            (folder / "claim.json").write_text("{")
    second = cluster.submit(steps=60)
    cluster.until_state(second, "FAILED")
    assert f"that of another job {second}" in cluster.job(second)["detail"]
    assert "TrainerReady" not in cluster.kinds(second)


def test_what_no_job_wrote_is_gone_on_from(cluster: Cluster, tmp_path: Path) -> None:
    """Of a run by hand, or of an earlier version: the marker names nobody."""
    folder = tmp_path / "by-hand"
    first = cluster.submit(steps=30, options=("--checkpoint-dir", str(folder)))
    cluster.until_done(first)
    (folder / "claim.json").unlink()
    for marker in folder.glob("step-*/COMPLETE"):
        body = json.loads(marker.read_text())
        marker.write_text(json.dumps({name: body[name] for name in ("v", "step", "incarnation", "files")}))
    second = cluster.submit(steps=60, options=("--checkpoint-dir", str(folder)))
    cluster.until_done(second)
    cluster.check_weights(second, 60)
    ready = [event["body"]["step"] for event in cluster.events(second) if event["kind"] == "TrainerReady"]
    assert ready == [20]


def test_a_named_folder_of_another_job_is_refused_on_submit(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    first = cluster.submit(steps=30, options=("--checkpoint-dir", str(folder)))
    cluster.until_done(first)
    with pytest.raises(AssertionError, match=f"is that of job {first}: --continue-from {first} goes on from it"):
        cluster.submit(steps=60, options=("--checkpoint-dir", str(folder)))
    with pytest.raises(AssertionError, match=f"--continue-from {first} goes on from it"):
        cluster.submit(steps=60, options=("--checkpoint-dir", str(folder), "--continue-from", "99"))
    with pytest.raises(AssertionError, match="needs the folder too"):
        cluster.submit(steps=60, options=("--continue-from", str(first)))
    second = cluster.submit(steps=60, options=("--checkpoint-dir", str(folder), "--continue-from", "any"))
    cluster.until_done(second)
    cluster.check_weights(second, 60)
    assert "continues from  any\n" in cluster.cli("show", str(second))


def test_a_claim_that_is_spoiled_while_a_job_trains_is_nobodys_error(cluster: Cluster) -> None:
    """A file that nobody understands ends the attempt at its next save, and the next one claims the folder anew."""
    cluster.hold()
    job = cluster.submit(steps=200, options=("--retries", "0"))
    cluster.until_step(job, 30)
    (cluster.home / "checkpoints" / str(job) / "claim.json").write_text("{")
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 200)
    ended = next(each["body"] for each in cluster.events(job) if each["kind"] == "IncarnationEnded")
    assert (ended["cause"], ended["detail"]) == (
        "infrastructure",
        "exit code 1: its checkpoint could not be written: the claim there cannot be read",
    )
