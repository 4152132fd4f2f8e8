"""`hpcdl submit --container` with real containers, where podman runs: root, `apt-get install podman runc`."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.podman import IMAGE, PYTHON, Podman
from tests.system.cluster import Cluster

TRAINER = """
import json, os, sys, time
import hpcdl.trainer as hpcdl

hpcdl.attach()
state = {"step": 0}


def save(folder):
    (folder / "state").write_text(json.dumps(state))


def load(folder):
    state.update(json.loads((folder / "state").read_text()))


for _ in hpcdl.steps(4000, save=save, load=load, every=10000):
    state["step"] += 1
    time.sleep(0 if os.path.exists("go") else 0.05)
print(json.dumps({"step": state["step"], "seen": [each for each in sys.argv[1:] if os.path.exists(each)]}))
"""


@pytest.fixture
def podman() -> Iterator[Podman]:
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("no podman, or not root: apt-get install podman runc")
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="pod"))
    try:
        try:
            found = Podman(folder)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"podman runs no container here: {error.stderr.strip().splitlines()[-1:]}")
        yield found
        assert found.containers() == []
    finally:
        shutil.rmtree(folder)


def test_a_job_in_a_container_is_suspended_and_goes_on(podman: Podman, cluster: Cluster, tmp_path: Path) -> None:
    """It saves into its checkpoint folder, over the side channel, and sees of hpcdl only what is bound."""
    place = podman.as_apptainer(tmp_path / "bin")
    cluster.environment["PATH"] = f"{place}:{os.environ['PATH']}"
    work, hidden = tmp_path / "work", tmp_path / "hidden"
    work.mkdir()
    hidden.touch()
    (work / "train.py").write_text(TRAINER)
    access = str(cluster.home / "access.json")
    assert os.path.exists(access)
    command = (PYTHON, "train.py", access, str(hidden), str(work / "train.py"))
    image = ("--container", f"docker://{IMAGE}", "--cwd", str(work))
    job = int(cluster.cli("submit", "--json", *image, "--", *command)["jobs"][0]["id"])
    cluster.until_step(job, 20)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    saved = cluster.job(job)["saved_step"]
    assert saved >= 20
    assert podman.containers() == []
    (work / "go").touch()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    (last,) = (
        event["body"] for event in cluster.events(job) if event["kind"] == "TrainerReady" and event["body"]["step"]
    )
    assert last["step"] == saved, "it went on where it was"
    printed = cluster.cli("logs", str(job)).splitlines()[-1]
    assert json.loads(printed) == {"step": 4000, "seen": [str(work / "train.py")]}


@pytest.mark.long
def test_a_container_ends_with_its_job(podman: Podman, cluster: Cluster, tmp_path: Path) -> None:
    place = podman.as_apptainer(tmp_path / "bin")
    cluster.environment["PATH"] = f"{place}:{os.environ['PATH']}"
    script = "echo begun; exec sleep 600"
    words = ("--container", f"docker://{IMAGE}", "--cwd", str(tmp_path), "--", "/usr/bin/sh", "-c", script)
    job = int(cluster.cli("submit", "--json", *words)["jobs"][0]["id"])
    cluster.until(lambda: "begun" in cluster.cli("logs", str(job)))
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")
    cluster.until(lambda: podman.containers() == [])
    assert cluster.job(job)["state"] == "CANCELLED"
