"""A job's command in a container: what is bound, by a stand-in for apptainer that runs the command where it is."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.trainer import container
from tests.support.apptainer import stand_in

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, *words: str, path: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpcdl.trainer.container", *words]
    environ = {"PATH": path, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)


def test_what_the_job_needs_is_bound(tmp_path: Path) -> None:
    place = stand_in(tmp_path / "bin")
    run_folder, checkpoints, library = tmp_path / "run" / "1.1", tmp_path / "checkpoints" / "1", tmp_path / "library"
    for folder in (run_folder, library):
        folder.mkdir(parents=True)
    done = run(
        tmp_path, "/images/torch.sif", "--", "sh", "-c", "echo in the image; exit 7", path=f"{place}:{os.defpath}",
        HPCDL_SOCKET=str(run_folder / "s"), HPCDL_CHECKPOINT_DIR=str(checkpoints),
        PYTHONPATH=f"{ROOT}:{tmp_path}/missing:{library}", CUDA_VISIBLE_DEVICES="GPU-1",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "in the image\n")
    said = json.loads((place / "said.json").read_text())
    assert said["image"] == "/images/torch.sif"
    assert said["binds"] == [str(each) for each in (tmp_path, run_folder, checkpoints, ROOT, library)]
    assert (said["pwd"], said["visible"]) == (str(tmp_path), "GPU-1")
    assert stat.S_IMODE(checkpoints.stat().st_mode) == 0o700


def test_the_folder_of_a_function_is_bound(tmp_path: Path) -> None:
    command = ["python3", "-m", "hpcdl.trainer.call", str(tmp_path / "calls" / "train-1"), "--lr", "0.1"]
    assert container.bound({}, "/w", command) == ["/w", str(tmp_path / "calls" / "train-1")]


def test_gpus_are_nvidias_or_amds(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, option in (("/dev/nvidiactl", ["--nv"]), ("/dev/kfd", ["--rocm"]), ("", [])):
        monkeypatch.setattr("os.path.exists", lambda path, there=there: path == there)
        assert container.devices() == option


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    none = run(tmp_path, "a.sif", "--", "true", path=str(tmp_path))
    assert none.returncode == 127
    assert none.stderr.startswith("hpcdl: there is no apptainer or singularity on PATH of this node: module load")
    assert run(tmp_path, "a.sif", "true", path="").stderr == container.USAGE + "\n"
    place = stand_in(tmp_path / "bin")
    odd = run(tmp_path, "a.sif", "--", "true", path=f"{place}:{os.defpath}", HPCDL_CHECKPOINT_DIR=f"{tmp_path}/a:b")
    assert odd.returncode == 1
    assert "a:b cannot be bound into a container" in odd.stderr
