"""A training that stopped early, killed in the end of its script: the next attempt trains and validates nothing, leaves
the best model alone, and comes to the end with the same weights."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.trained import HERE, PYTHON, ROOT

HELPERS = ["steps", "epochs", "accelerate", "hf", "lightning", "keras"]
STEPS = 12


def run(helper: str, folder: Path, *more: str, **env: str) -> "subprocess.CompletedProcess[str]":
    argv = [str(PYTHON), str(HERE / "early_end.py"), helper, str(folder), *more]
    known = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""} | env
    return subprocess.run(argv, env=known, capture_output=True, text=True, timeout=300)


def told(folder: Path) -> dict[str, int]:
    lines = (folder / "log").read_text().splitlines()
    return {what: lines.count(what) for what in sorted(set(lines))}


@pytest.mark.parametrize("helper", HELPERS)
def test_nothing_is_trained_after_an_early_stop(helper: str, tmp_path: Path) -> None:
    folder = tmp_path / "early"
    killed = run(helper, folder, TEST_KILL="end")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = told(folder)
    assert before["step"] == STEPS
    again = run(helper, folder)
    assert again.returncode == 0, again.stderr
    assert told(folder) == before
    assert (folder / "weights").read_text() == (folder / "before").read_text()
    more = run(helper, folder, "9")
    assert more.returncode == 0, more.stderr
    assert told(folder)["step"] > STEPS, "a larger total trains on"


@pytest.mark.parametrize("helper", HELPERS)
def test_a_training_that_went_to_its_last_step_is_complete(helper: str, tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    killed = run(helper, folder, "2", TEST_KILL="end")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = told(folder)
    assert before["step"] == 8
    again = run(helper, folder, "2")
    assert again.returncode == 0, again.stderr
    assert told(folder) == before
    assert (folder / "weights").read_text() == (folder / "before").read_text()
