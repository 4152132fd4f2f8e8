"""A ledger that is put back from a backup, emptied, removed, or cut: no id is given twice, and no loss goes unseen."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpcdl.client import Client
from hpcdl.ledger.high_water_mark import NAME, NOW
from tests.support.extent import one_of
from tests.system.cluster import Cluster

MakeCluster = Callable[..., Cluster]

ACCEPT = "--accept-loss"


def held(cluster: Cluster, number: int) -> list[int]:
    """So many jobs that never start."""
    answer = cluster.cli("submit", "--json", "--hold", "--array", f"1-{number}", "--", "true")
    return [int(row["id"]) for row in answer["jobs"]]


def submit_held(cluster: Cluster) -> int:
    spec = {"command": ["true"], "name": "true", "held": True}
    answer = cluster.client.request("POST", "/v1/jobs", {"request_id": uuid.uuid4().hex, "jobs": [spec]})
    return int(answer["jobs"][0]["id"])


def ids(cluster: Cluster) -> list[int]:
    return sorted(int(row["id"]) for row in cluster.client.get("/v1/jobs?all=1")["jobs"])


def raised(cluster: Cluster) -> list[dict[str, Any]]:
    return [event["body"] for event in cluster.events() if event["kind"] == "IdsRaised"]


def tried(cluster: Cluster, *args: str) -> tuple[int, str]:
    """Exit code and stderr of a command that may fail."""
    argv = [sys.executable, "-m", "hpcdl", *args]
    done = subprocess.run(argv, capture_output=True, text=True, env=cluster.environment, timeout=300)
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines(keepends=True) if "is not ready yet, after" not in line]
    return done.returncode, "".join(said)  # without what a start says that takes long, as on a loaded machine


def back_up(cluster: Cluster) -> Path:
    folder = cluster.home.parent / "backup"
    cluster.cli("ledger", "backup", str(folder))
    return folder


def restore(cluster: Cluster, folder: Path) -> None:
    """As docs/operations.md says."""
    for path in cluster.home.glob("ledger*"):
        path.unlink()
    for path in folder.glob("ledger*"):
        shutil.copy2(path, cluster.home)


def files(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.iterdir() if path.name.startswith(("ledger", "mark"))}


def refused(cluster: Cluster) -> str:
    """What is said by a start that is refused and changes nothing; and by verify and backup."""
    before = files(cluster.home)
    code, said = tried(cluster, "daemon", "start", "--emulate-gpus", str(cluster.gpus))
    assert code == 1
    assert said.count("\n") == 1
    assert f"hpcdl daemon start {ACCEPT}" in said
    assert "restore a backup" in said
    code, verified = tried(cluster, "ledger", "verify")
    assert code == 1
    assert "has lost events" in verified
    target = cluster.home.parent / "worse"
    assert tried(cluster, "ledger", "backup", str(target))[0] == 1
    assert not list(target.glob("ledger*"))
    after = files(cluster.home)
    assert after.get("mark.json") == before.get("mark.json")
    return said


def accept(cluster: Cluster) -> None:
    cluster.cli("daemon", "start", "--emulate-gpus", str(cluster.gpus), ACCEPT)
    cluster.daemon_pid = cluster.status()["daemon"]["pid"]


def test_a_job_after_a_restore_is_not_one_of_before(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=2).start()
    first = submit_held(cluster)
    folder = back_up(cluster)
    alice = cluster.submit(steps=60)
    cluster.until_done(alice)
    cluster.cli("daemon", "stop")
    restore(cluster, folder)
    code, said = tried(cluster, "daemon", "start", "--emulate-gpus", "2")
    assert code == 0
    assert f"job {alice} is not known" in said
    bob = cluster.submit("--save-every", "7", steps=50)
    assert (first, alice, bob) == (1, 2, 3)
    cluster.until_done(bob)
    cluster.check_weights(bob, 50)
    assert (cluster.home / "checkpoints" / str(alice) / "final").exists()
    assert len(list((cluster.home / "logs" / str(bob)).glob("*.log"))) == 1
    assert ids(cluster) == [first, bob]
    code, said = tried(cluster, "show", str(alice))
    assert code == 1
    assert "job 2 is not known: " in said
    assert "checkpoints/2 and logs/2" in said
    assert [event["why"] for event in raised(cluster)] == ["backup"]
    assert cluster.cli("ledger", "verify", "--json")["ok"]
    # It is told once, and the same backup may be put back again.
    cluster.cli("daemon", "stop")
    assert tried(cluster, "daemon", "start", "--emulate-gpus", "2") == (0, "")
    cluster.cli("daemon", "stop")
    restore(cluster, folder)
    code, said = tried(cluster, "daemon", "start", "--emulate-gpus", "2")
    assert code == 0
    assert "jobs 2 to 3 are not known" in said
    assert submit_held(cluster) == 4


@pytest.mark.long
def test_attempts_after_a_restore_have_numbers_of_their_own(make_cluster: MakeCluster) -> None:
    """Else the claims that later attempts left in the checkpoint folder stop the job for good."""
    cluster = make_cluster(gpus=1).start()
    cluster.hold()
    job = cluster.submit(steps=80)
    cluster.until_step(job, 5)
    folder = back_up(cluster)
    for _ in range(2):
        cluster.cli("suspend", str(job))
        cluster.until_state(job, "SUSPENDED")
        cluster.cli("resume", str(job))
        cluster.until(lambda: cluster.job(job)["state"] == "RUNNING" and bool(cluster.job(job)["step"]))
    assert cluster.job(job)["incarnation"] == 3
    cluster.kill_daemon()  # the third attempt runs on, and the restored ledger knows of the first only
    restore(cluster, folder)
    cluster.start()
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 80)
    assert cluster.job(job)["incarnation"] == 4
    assert "Stale" not in cluster.logs()


@pytest.mark.parametrize("kept", one_of("ledger and checkpoints", "all but tls"))
def test_jobs_go_on_where_only_what_must_not_be_lost_was_kept(make_cluster: MakeCluster, kept: str) -> None:
    """As docs/operations.md says: a new instance, and maybe a new machine, but the jobs and their work are the same."""
    cluster = make_cluster(gpus=1).start()
    cluster.hold()
    job = cluster.submit(steps=80)
    cluster.until_step(job, 5)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    folder = back_up(cluster)
    cluster.cli("daemon", "stop")
    shutil.rmtree(cluster.home / "tls")
    if kept != "all but tls":
        keep = {"checkpoints", "config.yaml"}
        for path in cluster.home.iterdir():
            if path.name not in keep:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        restore(cluster, folder)
    cluster.client.close()
    cluster.client = Client(cluster.home, patience_s=20.0)  # what it knew is another instance
    cluster.start()
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 80)
    ready = [event["body"]["step"] for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    assert ready[-1] >= 5, "it went on from its checkpoint"


@pytest.mark.parametrize("made", one_of("beside a daemon", "at rest"))
def test_a_daemon_of_a_copy_leaves_what_the_original_runs(make_cluster: MakeCluster, made: str) -> None:
    original = make_cluster(gpus=1).start()
    original.hold()
    copy = make_cluster(gpus=1)
    shutil.rmtree(copy.home)
    if made == "at rest":
        original.cli("daemon", "stop")
        shutil.copytree(original.home, copy.home)
        original.start()
    job = original.submit(steps=10_000)
    original.until_step(job, 30)  # where it stands: no checkpoint goes while it is copied
    if made != "at rest":  # its daemon goes meanwhile, so that no holder of the lease that was copied is left
        os.kill(original.daemon_pid, signal.SIGSTOP)  # what it writes between two files would be a loss to the copy
        try:
            shutil.copytree(original.home, copy.home, ignore=lambda folder, names: {"s"} & {*names})
        finally:
            os.kill(original.daemon_pid, signal.SIGCONT)
        code, said = tried(copy, "daemon", "start", "--emulate-gpus", "1")
        assert code == 1
        assert f"is a copy of {original.home}" in said
        assert f"remove {copy.home}/lease.*" in said
        for lease in copy.home.glob("lease.*"):
            lease.unlink()
    trainer = original.trainer_pid(job)
    copy.start()
    if made != "at rest":
        there = copy.job(job)
        assert (there["held"], there["held_after"]) == (True, f"this home was copied from {original.home}")
        assert there["reason"].endswith(f"hpcdl resume {job} tries again")
    copy.cli("cancel", "--all", "--yes")
    own = copy.submit(steps=20)
    copy.until_done(own)
    copy.cli("daemon", "stop", "--now")
    assert original.trainer_pid(job) == trainer
    assert original.job(job)["incarnation"] == 1
    original.cli("cancel", str(job))


@pytest.mark.long
def test_a_copy_does_not_take_the_folder_of_a_job_that_the_original_runs(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    original = make_cluster(gpus=1).start()
    original.hold()
    copy = make_cluster(gpus=1)
    shutil.rmtree(copy.home)
    job = original.submit(steps=10_000, options=("--checkpoint-dir", str(tmp_path / "c")))
    original.until_step(job, 5)
    shutil.copytree(original.home, copy.home, ignore=lambda folder, names: {each for each in names if each == "s"})
    for lease in copy.home.glob("lease.*"):
        lease.unlink()
    copy.start()
    copy.cli("resume", str(job))  # its user wants it all the same

    def resumed() -> list[dict[str, Any]]:
        return copy.events(job)[copy.kinds(job).index("JobReleased") :]

    def ends() -> list[dict[str, Any]]:
        return [event["body"] for event in resumed() if event["kind"] == "IncarnationEnded"]

    def ready() -> bool:
        return "TrainerReady" in [event["kind"] for event in resumed()]

    copy.until(lambda: len(ends()) > 1)  # it tries again, and waits
    for end in ends():
        assert end["cause"] == "infrastructure"
        assert f":{job}:1:n1) lives in the checkpoint folder {tmp_path / 'c'}: nothing was loaded" in end["detail"]
    assert not ready()
    assert (original.job(job)["state"], original.job(job)["incarnation"]) == ("RUNNING", 1)
    original.cli("cancel", str(job))
    original.until_state(job, "CANCELLED")
    copy.until(ready)
    copy.cli("cancel", str(job))


@pytest.mark.parametrize("how", one_of("emptied", "removed", "wal deleted", "wal cut"))
def test_a_ledger_that_shrank_is_refused(make_cluster: MakeCluster, how: str) -> None:
    cluster = make_cluster(gpus=1).start()
    held(cluster, 20)
    for _ in range(3):
        submit_held(cluster)
    cluster.kill_daemon()
    ledger, wal = cluster.home / "ledger.sqlite", cluster.home / "ledger.sqlite-wal"
    if how == "emptied":
        os.truncate(ledger, 0)
        wal.unlink()
    elif how == "removed":
        ledger.unlink()
        wal.unlink()
    elif how == "wal deleted":
        wal.unlink()
    else:
        os.truncate(wal, wal.stat().st_size - 4096)
    said = refused(cluster)
    assert "job 23" in said
    accept(cluster)
    assert submit_held(cluster) == 24
    events = raised(cluster)
    assert [event["why"] for event in events] == ["loss"]
    assert "has lost events" in events[0]["detail"]
    left = ids(cluster)
    cluster.cli("daemon", "stop")
    assert tried(cluster, "daemon", "start", "--emulate-gpus", "1") == (0, "")
    assert ids(cluster) == left
    assert submit_held(cluster) == 25
    assert len(raised(cluster)) == 1


@pytest.mark.long
def test_a_backup_whose_continuation_is_lost_is_no_backup_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1).start()
    submit_held(cluster)
    folder = back_up(cluster)
    submit_held(cluster)
    cluster.cli("daemon", "stop")
    restore(cluster, folder)
    cluster.start()
    assert submit_held(cluster) == 3
    cluster.kill_daemon()
    (cluster.home / "ledger.sqlite-wal").unlink()
    assert "job 3" in refused(cluster)
    restore(cluster, folder)
    cluster.start()
    assert submit_held(cluster) == 4


@pytest.mark.long
def test_a_backup_that_lost_events_itself_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1).start()
    held(cluster, 3)
    folder = back_up(cluster)
    held(cluster, 3)
    cluster.cli("daemon", "stop")
    restore(cluster, folder)
    with closing(sqlite3.connect(cluster.home / "ledger.sqlite")) as connection:
        last = connection.execute("SELECT max(seq) FROM event").fetchone()[0]
        connection.execute("DELETE FROM event WHERE seq = ?", (last,))
        connection.commit()
    assert f"event {last - 1}" in refused(cluster)


def test_what_runs_of_forgotten_jobs_is_ended(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1).start()
    cluster.hold()
    lost = cluster.submit(steps=10_000)
    cluster.until_step(lost, 5)
    trainer = cluster.trainer_pid(lost)
    cluster.kill_daemon()
    (cluster.home / "ledger.sqlite").write_bytes(b"")
    assert "ledger.sqlite is empty" in refused(cluster)
    assert Path(f"/proc/{trainer}").exists()
    accept(cluster)
    job = cluster.submit(steps=50)
    assert job == lost + 1
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 50)
    cluster.until(lambda: not Path(f"/proc/{trainer}").exists())


@pytest.mark.long
def test_a_home_of_before_marks_gets_one(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1).start()
    done = cluster.submit(steps=2)
    cluster.until_done(done)
    cluster.cli("daemon", "stop")
    for name in (NAME, NOW):
        (cluster.home / name).unlink()
    (cluster.home / "checkpoints" / "7").mkdir()
    code, said = tried(cluster, "daemon", "start", "--emulate-gpus", "1")
    assert code == 0
    assert "jobs 2 to 7 are not known" in said
    assert submit_held(cluster) == 8
    assert (cluster.home / NAME).stat().st_mode & 0o777 == 0o600
    assert (cluster.home / NOW).stat().st_mode & 0o777 == 0o600
    cluster.cli("daemon", "stop")
    for name in (NAME, NOW):
        (cluster.home / name).unlink()
    os.truncate(cluster.home / "ledger.sqlite", 0)
    assert "folders of jobs up to job 7" in refused(cluster)
    accept(cluster)
    assert submit_held(cluster) == 8  # that one had no folder


@pytest.mark.long
def test_what_only_looks_like_a_loss(make_cluster: MakeCluster) -> None:
    """Care of a ledger, a moved home, a copied one, kills: nothing is refused, and ids follow each other."""
    cluster = make_cluster(gpus=1, keep_events=0, snapshot_every=10).start()
    held(cluster, 5)
    cluster.cli("ledger", "verify")
    cluster.kill_daemon()
    cluster.cli("ledger", "verify")
    cluster.start()
    assert submit_held(cluster) == 6
    cluster.cli("daemon", "stop")
    cluster.cli("ledger", "rebuild")
    cluster.cli("ledger", "vacuum", "--keep-days", "0", "--logs-after", "0")
    with closing(sqlite3.connect(cluster.home / "ledger.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (0,)
    cluster.start()
    assert submit_held(cluster) == 7
    cluster.cli("daemon", "stop")
    copied, moved = cluster.home.with_name("copied"), cluster.home.with_name("moved")
    shutil.copytree(cluster.home, copied)
    cluster.home.rename(moved)
    for home in (copied, moved):
        other = Cluster(home, 1)
        assert tried(other, "ledger", "verify", "--quiet")[0] == 0, "before a daemon runs there, too"
        code, said = tried(other, "daemon", "start", "--emulate-gpus", "1")
        assert (code, "is a copy of" in said, "lost" in said) == (0, home == copied, False)
        assert submit_held(other) == 8
        assert not raised(other)
        other.stop()
    moved.rename(cluster.home)


def test_kills_between_commits_and_marks_are_no_loss(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1).start()
    clients = []
    for _ in range(3):
        known = len(ids(cluster))

        def recorded(before: int = known) -> bool:
            return bool(cluster.status()["jobs"].get("QUEUED", 0) > before)

        argv = [sys.executable, "-m", "hpcdl", "submit", "--hold", "--quiet", "--", "true"]
        clients.append(subprocess.Popen(argv, env=cluster.environment, stdout=subprocess.DEVNULL))
        cluster.until(recorded)
        cluster.kill_daemon()
        cluster.start()
    for client in clients:
        assert client.wait(300) == 0
    assert ids(cluster) == [1, 2, 3]
    assert not raised(cluster)


@pytest.mark.long
def test_a_site_says_where_ids_begin(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1, site="ours")
    site = cluster.home / "sites" / "ours.yaml"
    site.parent.mkdir(mode=0o700)
    site.write_text("first_job_id: 0\n")
    site.chmod(0o600)
    code, said = tried(cluster, "daemon", "start", "--emulate-gpus", "1")
    assert code == 1
    assert "ours.yaml:1: first_job_id: must be a whole number from 1 to" in said
    site.write_text("first_job_id: 700001\n")
    assert tried(cluster, "daemon", "start", "--emulate-gpus", "1") == (0, "")
    assert submit_held(cluster) == 700_001
    assert tried(cluster, "show", "1")[0] == 1
    cluster.cli("daemon", "stop")
    site.write_text("first_job_id: 5\n")  # never lower
    cluster.start()
    assert submit_held(cluster) == 700_002
