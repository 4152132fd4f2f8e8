"""Two jobs and one checkpoint folder: one after the other is fine; at once they never write both."""

from pathlib import Path

from tests.system.cluster import Cluster
from tests.system.trainer import final


def test_a_job_goes_on_from_the_folder_of_one_that_is_done(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    first = cluster.submit(steps=40, options=("--checkpoint-dir", str(folder)))
    cluster.until_done(first)
    second = cluster.submit(steps=80, options=("--checkpoint-dir", str(folder)))
    cluster.until_done(second)
    cluster.check_weights(second, 80)
    ready = [event["body"]["step"] for event in cluster.events(second) if event["kind"] == "TrainerReady"]
    assert ready == [40]
    assert cluster.job(second)["failures"] == 0


def test_a_retry_from_the_start_leaves_what_is_there(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    cluster.hold()
    job = cluster.submit("--save-every", 10, steps=60, options=("--checkpoint-dir", str(folder)))
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 20)
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
    assert f"checkpoints  {folder}/from-start-1\n" in cluster.cli("show", str(job))
    after = cluster.submit(steps=80, options=("--checkpoint-dir", str(folder)))
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
    second = cluster.submit(steps=100_000, options=("--checkpoint-dir", str(alias)))
    cluster.until(lambda: "IncarnationEnded" in cluster.kinds(second))
    ended = next(event["body"] for event in cluster.events(second) if event["kind"] == "IncarnationEnded")
    assert ended["cause"] == "infrastructure"
    assert f":{first}:1:n1) has claimed" in ended["detail"]
    for job in (second, first):
        cluster.cli("cancel", str(job))
        cluster.until_state(job, "CANCELLED", "DONE")
