"""Homes that were moved, copied and put back: no job trains in two of them at once, and each says what it takes itself
for."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdl.client import Client
from hpcdl.daemon.birth_time import birth_time_ns
from tests.system.cluster import Cluster
from tests.system.test_losses import raised, tried

MakeCluster = Callable[..., Cluster]
START = ("daemon", "start", "--emulate-gpus", "1")


def copy(source: Path, to: Path) -> None:
    """As people do it."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(to)], check=True)


def suspended(cluster: Cluster, folder: Path) -> int:
    """A job that has trained, and is suspended; its daemon is stopped."""
    cluster.hold()
    job = cluster.submit(steps=10_000, options=("--checkpoint-dir", str(folder)))
    cluster.until_step(job, 30)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    cluster.cli("daemon", "stop")
    cluster.client.close()
    return job


def instance_of(cluster: Cluster) -> str:
    return (cluster.home / "tls" / "instance").read_text()


def renamed(cluster: Cluster) -> None:
    """What its client knew is another instance."""
    cluster.client.close()
    cluster.client = Client(cluster.home, patience_s=20.0)


def ends(cluster: Cluster, job: int, after: int = 1) -> list[dict[str, Any]]:
    """Of attempts above that number."""
    bodies = [event["body"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded"]
    return [body for body in bodies if body["incarnation"] > after]


def ready(cluster: Cluster, job: int) -> list[int]:
    """The attempts that came to their training loops."""
    return [event["body"]["incarnation"] for event in cluster.events(job) if event["kind"] == "TrainerReady"]


def elsewhere(home: Path) -> None:
    """The last daemon of this home ran on another host."""
    place = home / "tls" / "place.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"host": "login9"}))


def test_a_copy_and_a_moved_home_do_not_train_one_job(make_cluster: MakeCluster, tmp_path: Path) -> None:
    first = make_cluster(gpus=1).start()
    instance = instance_of(first)
    job = suspended(first, tmp_path / "checkpoints")
    copied, moved = make_cluster(gpus=1), make_cluster(gpus=1)
    copy(first.home, copied.home)
    shutil.rmtree(moved.home)
    first.home.rename(moved.home)
    assert tried(moved, *START) == (0, ""), "it goes on unasked"
    code, said = tried(copied, *START)
    assert code == 0
    assert f"{copied.home} is a copy of {first.home}, and begins apart from it: " in said.replace("; ", ": ", 1)
    assert "hpcdl daemon start --moved" in said
    assert instance_of(moved) == instance != instance_of(copied)
    moved.cli("resume", str(job))
    moved.until(lambda: ready(moved, job) == [1, 2])
    copied.cli("resume", str(job))
    copied.until(lambda: ends(copied, job))
    assert ready(copied, job) == [1]
    assert ":2:n1) lives in the checkpoint folder" in ends(copied, job)[0]["detail"]
    copied.cli("cancel", str(job))
    assert not ends(moved, job)
    moved.cli("cancel", str(job))


def test_homes_that_both_go_on_do_not_train_one_job(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """One was put back in the place of another, which was moved away: they have one name, and draw the same numbers."""
    put_back, moved = make_cluster(gpus=1).start(), make_cluster(gpus=1)
    job = suspended(put_back, tmp_path / "checkpoints")
    kept = tmp_path / "kept"
    copy(put_back.home, kept)
    shutil.rmtree(moved.home)
    put_back.home.rename(moved.home)
    copy(kept, put_back.home)
    code, said = tried(put_back, *START)
    assert (code, said) == (0, f"hpcdl: {raised(put_back)[0]['detail']}\n")
    assert said.startswith(f"hpcdl: {put_back.home} was put back from a copy: its ledger ends with event ")
    assert tried(moved, *START) == (0, "")
    assert instance_of(moved) == instance_of(put_back)
    moved.cli("resume", str(job))
    moved.until(lambda: len(ready(moved, job)) == 2)
    put_back.cli("resume", str(job))
    put_back.until(lambda: len(ends(put_back, job)) > 1)  # it tries again, and waits
    assert ready(put_back, job) == [1]
    assert not ends(moved, job), "what one home ends is its own"
    for end in ends(put_back, job):
        assert end["cause"] == "infrastructure"
        assert "of this job, started from another copy of this HPCDL_HOME (" in end["detail"]
        assert f") lives in the checkpoint folder {tmp_path / 'checkpoints'}: nothing was loaded" in end["detail"]
    moved.cli("suspend", str(job))
    moved.until_state(job, "SUSPENDED")
    put_back.cli("resume", str(job))
    put_back.until(lambda: len(ready(put_back, job)) == 2)
    notes = [event["body"]["text"] for event in put_back.events(job) if event["kind"] == "Noted"]
    assert [note for note in notes if "the ledger has no record of that start" in note]
    for each in (put_back, moved):
        each.cli("cancel", str(job))
        each.cli("daemon", "stop")


def test_a_home_on_another_host_begins_apart_until_it_is_said_to_be_moved(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    home, kept = make_cluster(gpus=1).start(), tmp_path / "kept"
    job = suspended(home, tmp_path / "checkpoints")
    instance = instance_of(home)
    home.home.rename(kept)
    copy(kept, home.home)  # by rsync, to the same path
    elsewhere(home.home)
    code, said = tried(home, *START)
    assert code == 0
    assert f"is a copy of {home.home} on login9, and begins apart from it" in said
    assert instance_of(home) != instance
    renamed(home)
    assert home.job(job)["held"]
    home.cli("daemon", "stop")
    assert tried(home, *START) == (0, ""), "it is its own from here on"
    home.cli("daemon", "stop")
    shutil.rmtree(home.home)
    copy(kept, home.home)
    elsewhere(home.home)
    assert tried(home, *START, "--moved") == (0, "")
    assert instance_of(home) == instance
    renamed(home)
    home.cli("resume", str(job))
    home.until(lambda: ready(home, job) == [1, 2])


def test_what_was_held_in_a_copy_goes_on_once_it_is_said_to_be_moved(make_cluster: MakeCluster, tmp_path: Path) -> None:
    first, moved = make_cluster(gpus=1).start(), make_cluster(gpus=1)
    waiting = first.submit(steps=40, gpus="2")  # longer than there are GPUs
    mine = first.submit(steps=40, gpus="2")
    first.cli("hold", str(mine))
    first.cli("daemon", "stop")
    copy(first.home, moved.home)
    shutil.rmtree(first.home)  # as mv does to another file system
    assert "and begins apart from it; 1 unfinished job is held" in tried(moved, *START)[1]
    assert moved.job(waiting)["held"]
    moved.cli("daemon", "stop")
    assert tried(moved, *START, "--moved") == (0, "")
    assert not moved.job(waiting)["held"]
    assert moved.job(mine)["held"], "that was its user"


def test_a_start_that_was_recorded_and_not_made_is_made_once(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Its home was copied in between."""
    first = make_cluster(gpus=1).start()
    first.hold()
    first.cli("daemon", "stop")
    first.cli("daemon", "start", "--emulate-gpus", "1")
    os.kill(first.agent_pid(), 19)
    job = first.submit(steps=10_000, options=("--checkpoint-dir", str(tmp_path / "checkpoints")))
    first.until(lambda: "StartRequested" in first.kinds(job))
    agent = first.agent_pid()
    first.daemon_pid = first.status()["daemon"]["pid"]
    first.kill_daemon()
    os.kill(agent, 9)
    first.client.close()
    copied, moved = make_cluster(gpus=1), make_cluster(gpus=1)
    copy(first.home, copied.home)
    shutil.rmtree(moved.home)
    first.home.rename(moved.home)
    assert tried(copied, *START)[0] == 0
    copied.until(lambda: ends(copied, job, 0))
    assert "Started" not in copied.kinds(job)
    assert tried(moved, *START) == (0, "")
    moved.until(lambda: ready(moved, job) == [1])
    assert "Started" not in copied.kinds(job)
    moved.cli("cancel", str(job))


def test_another_boot_is_the_same_home(make_cluster: MakeCluster, tmp_path: Path) -> None:
    home = make_cluster(gpus=1).start()
    job = suspended(home, tmp_path / "checkpoints")
    place = json.loads((home.home / "tls" / "place.json").read_text())
    assert place["host"] == socket.gethostname()
    assert "boot" not in place
    elsewhere(home.home)  # the next allocation of a chain is on another node
    assert tried(home, *START) == (0, "")
    assert not home.job(job)["held_after"]
    assert not raised(home)


def trains(cluster: Cluster, folder: Path) -> int:
    """A job that trains on, as far as it may."""
    cluster.hold()
    job = cluster.submit(steps=10_000, options=("--checkpoint-dir", str(folder)))
    cluster.until_step(job, 30)
    return job


def test_a_chmod_of_all_of_a_home_loses_nothing(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """It changes the times of all its files, and `hpcdl doctor` says to run one."""
    home = make_cluster(gpus=1).start()
    if birth_time_ns(home.home) is None:
        pytest.skip("this file system does not tell when a file was made")
    job = trains(home, tmp_path / "checkpoints")
    trainer = home.trainer_pid(job)
    home.kill_daemon()
    subprocess.run(["chmod", "-R", "go=", str(home.home)], check=True)
    assert tried(home, *START) == (0, "")
    assert home.trainer_pid(job) == trainer
    assert not raised(home)
    assert not ends(home, job, 0)


def test_a_copy_without_what_is_secret_ends_nothing(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Copied while its daemon runs, as `rsync --exclude tls` does."""
    first, copied = make_cluster(gpus=1).start(), make_cluster(gpus=1)
    job = trains(first, tmp_path / "checkpoints")
    trainer = first.trainer_pid(job)
    shutil.rmtree(copied.home)
    ignored = shutil.ignore_patterns("tls", "lease.*", "s")  # sockets are none of it
    shutil.copytree(first.home, copied.home, ignore=ignored)
    code, said = tried(copied, *START)
    assert (code, said.split(";")[0]) == (
        0,
        f"hpcdl: {copied.home} is a copy of {first.home}, and begins apart from it",
    )
    copied.until(lambda: ends(copied, job, 0))
    assert copied.job(job)["held"]
    assert first.trainer_pid(job) == trainer
    assert not ends(first, job, 0)
    first.cli("cancel", str(job))
    copied.cli("cancel", str(job))
