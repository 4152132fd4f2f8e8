"""The demo's trainer as a process: its weights, however often it is stopped, and its emulated GPUs."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import read_profiles
from hpcdl.demo.trainer import granted, reference, trained
from hpcdl.trainer import emulated
from tests.support.waiting import until
from tests.trainer.supervisor import ROOT, supervisor

MODEL, STEPS, SEED = "VGG-16", 400, 5


def argv(scale: float, *more: str) -> list[str]:
    profile = str(conf_folder() / "profiles" / "summit-v100.yaml")
    given = ["--model", MODEL, "--steps", str(STEPS), "--profile-file", profile, "--seed", str(SEED)]
    return ["-m", "hpcdl.demo.trainer", *given, "--scale", f"{scale:g}", *more]


def test_uninterrupted_outside_hpcdl(tmp_path: Path) -> None:
    command = [sys.executable, *argv(1000, "--checkpoint-dir", str(tmp_path))]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "speed is emulated" in done.stdout
    assert "1000" in done.stdout
    said = json.loads((tmp_path / "final.json").read_text())
    assert said == {"steps": STEPS, "sha256": reference(MODEL, STEPS, SEED)}
    assert trained(tmp_path, MODEL, STEPS, SEED) == said["sha256"]
    assert not list(tmp_path.glob(".tmp-*"))


def test_suspended_and_resumed_on_other_gpus_is_bit_identical(tmp_path: Path) -> None:
    checkpoints = tmp_path / "ckpt"
    with supervisor(tmp_path / "run", checkpoints) as parent:
        child = parent.start(argv(10), 1, HPCDL_GPUS="EMU-a", HPCDL_GPU_COUNT="1")
        parent.wait("ready", step=0)
        parent.wait("progress", 2)
        child.send_signal(signal.SIGTSTP)
        assert parent.end(child) == 0
        step = parent.of("saved")[-1]["step"]
        assert 0 < step < STEPS
        assert trained(checkpoints, MODEL, STEPS, SEED) is None
        again = parent.start(argv(1000), 2, HPCDL_GPUS="EMU-a,EMU-b,EMU-c", HPCDL_GPU_COUNT="3")
        assert parent.end(again) == 0
        assert parent.of("ready")[-1]["step"] == step
        assert parent.of("done")[-1]["step"] == STEPS
    assert trained(checkpoints, MODEL, STEPS, SEED) == reference(MODEL, STEPS, SEED)


def test_suspended_while_it_starts(tmp_path: Path) -> None:
    """The start-up would take a minute here; a suspend does not wait for it."""
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(argv(0.5), 1)
        parent.wait("attach")
        began = time.monotonic()
        child.send_signal(signal.SIGTSTP)
        assert parent.end(child) == 0
        assert time.monotonic() - began < 50
        assert parent.of("saved")[-1]["step"] == 0
        again = parent.start(argv(1000), 2)
        assert parent.end(again) == 0
    assert trained(tmp_path / "ckpt", MODEL, STEPS, SEED) == reference(MODEL, STEPS, SEED)


def test_an_emulated_gpu_that_is_held_is_refused(tmp_path: Path) -> None:
    gpus = tmp_path / "emulated"
    gpus.mkdir()
    for name in ("EMU-a", "EMU-b"):
        (gpus / f"{name}.lock").touch()
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        with emulated.hold(str(gpus), ["EMU-b"], 10, 100):
            child = parent.start(argv(1000), 1, HPCDL_GPUS="EMU-a,EMU-b", HPCDL_EMULATED=str(gpus))
            assert parent.end(child) != 0
            assert "EMU-b is held" in (child.stdout.read() if child.stdout else "")
            assert parent.of("ready") == []
        again = parent.start(argv(1000), 2, HPCDL_GPUS="EMU-a,EMU-b", HPCDL_EMULATED=str(gpus))
        assert parent.end(again) == 0


def test_each_step_takes_what_the_profile_says(tmp_path: Path) -> None:
    """From the first step to the last on one schedule: late sleeps do not add up."""
    profile = next(
        each for each in read_profiles(conf_folder() / "profiles" / "summit-v100.yaml") if each.name == "vgg-16"
    )
    scale = 40.0
    due_s = STEPS / (profile.rate(2) * scale)
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(argv(scale), 1, HPCDL_GPUS="EMU-a,EMU-b")
        looks = [time.monotonic()]

        def ready() -> bool:
            looks.append(time.monotonic())
            return bool(parent.of("ready"))

        until(ready, "the first step")
        parent.wait("done")
        ended = time.monotonic()
        assert parent.end(child) == 0
    assert ended - looks[-2] > due_s * 0.9  # it was not ready yet at the last look but one
    assert ended - looks[-1] < due_s + 60


def test_the_number_of_gpus() -> None:
    assert granted({}) == (1, 1)
    assert granted({"HPCDL_GPUS": "a,b", "HPCDL_NODES": "n1,n2"}) == (2, 2)
    assert granted({"HPCDL_GPU_COUNT": "4"}) == (1, 4)


def test_models_and_seeds_differ() -> None:
    assert len({reference("a", 3, 1), reference("b", 3, 1), reference("a", 3, 2), reference("a", 4, 1)}) == 4


@pytest.mark.parametrize("damage", ["final", "weights", "none"])
def test_what_a_trainer_left_is_really_looked_at(tmp_path: Path, damage: str) -> None:
    command = [sys.executable, *argv(1000, "--checkpoint-dir", str(tmp_path))]
    subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, timeout=180)
    found = next(tmp_path.glob("step-*"))
    if damage == "final":
        (tmp_path / "final.json").write_text(json.dumps({"steps": STEPS, "sha256": "0" * 64}))
    elif damage == "weights":
        content = bytearray((found / "arrays.npz").read_bytes())
        content[len(content) // 3] ^= 1
        (found / "arrays.npz").write_bytes(content)
    same = trained(tmp_path, MODEL, STEPS, SEED) == reference(MODEL, STEPS, SEED)
    assert same == (damage == "none")
