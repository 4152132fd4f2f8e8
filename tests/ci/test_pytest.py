"""`.ci/pytest`: what failed runs once more, alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "pytest"

TESTS = """
import os

import pytest

ALONE = "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.parametrize("number", range(RACES))
def test_race(number):
    assert ALONE

def test_right():
    pass

@pytest.mark.skipif(not WRONG, reason="all is right")
def test_wrong():
    assert False
"""


def run(folder: Path, races: int, wrong: bool) -> tuple[int, str]:
    """Exit code and output."""
    (folder / ".ci").mkdir()
    shutil.copy(SCRIPT, folder / ".ci")
    (folder / "test_it.py").write_text(f"RACES, WRONG = {races}, {wrong}\n{TESTS}")
    argv = [str(folder / ".ci" / "pytest"), sys.executable, "-q", "--rootdir", str(folder), "--numprocesses", "1"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # we may be a worker
    done = subprocess.run([*argv, "test_it.py"], capture_output=True, text=True, cwd="/", env=env)
    return done.returncode, done.stdout


def test_a_race_is_named_and_refuses_nothing(tmp_path: Path) -> None:
    code, said = run(tmp_path, races=1, wrong=False)
    assert code == 0, said
    assert said.endswith("please mend it, or report it):\ntest_it.py::test_race[0]\n")


def test_what_fails_alone_is_an_error(tmp_path: Path) -> None:
    code, said = run(tmp_path, races=1, wrong=True)
    assert code == 1
    assert "1 failed, 1 passed" in said.rpartition("once more, alone:")[2]


@pytest.mark.parametrize(("races", "code"), [(0, 0), (4, 1)])
def test_nothing_runs_again(tmp_path: Path, races: int, code: int) -> None:
    """Where all passed, and where too many failed for these to be races."""
    found, said = run(tmp_path, races, wrong=False)
    assert found == code
    assert "once more" not in said
