"""Checkpoints in two tiers, with a real daemon and agent: what is suspended is where every node finds it."""

from collections.abc import Callable
from pathlib import Path

from tests.system.cluster import Cluster


def test_a_suspended_job_is_in_the_shared_folder(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    disk, shared = tmp_path / "disk", tmp_path / "ck"
    disk.mkdir()
    cluster = make_cluster(local_checkpoints=str(disk), gpus=1).start()
    cluster.hold()
    job = cluster.submit("--save-every", 10, steps=60, options=("--checkpoint-dir", str(shared)))
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 30)  # where it stands
    assert list(disk.glob("hpcdl-*/*/step-*"))
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    newest = max(shared.glob("step-*"), key=lambda each: each.name)
    assert newest.name.startswith(f"step-{cluster.job(job)['saved_step']:012d}.")
    assert not list(disk.glob("hpcdl-*/*"))
    paths = [event["body"]["path"] for event in cluster.events(job) if event["kind"] == "Saved"]
    assert {Path(path).parent for path in paths} == {shared}
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    assert not list(disk.glob("hpcdl-*/*"))
