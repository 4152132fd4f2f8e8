"""The table at the end of the frameworks' tests is the same whoever runs them, and says what was not selected."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks import held

CONFTEST = """
from pathlib import Path

from held import Held

def pytest_configure(config):
    config.addinivalue_line("markers", "holds(framework, claim...): of the table")
    config.addinivalue_line("markers", "smoke: selected")
    config.pluginmanager.register(Held(Path(__file__).parent))
"""
TESTS = """
import pytest

@pytest.mark.smoke
@pytest.mark.holds("Torch", "suspends")
def test_one():
    pass

@pytest.mark.smoke
@pytest.mark.holds("Torch", "is killed")
def test_two():
    pytest.skip("nobody kills")

@pytest.mark.holds("Torch", "suspends")
@pytest.mark.holds("Jax", "suspends")
def test_three():
    pass

@pytest.mark.smoke
def test_four():
    assert False

def test_five():
    pass
"""
WHOLE = """
it                           1 of 2 tests passed
Jax    jax not installed     suspends
Torch  torch not installed   suspends
                             not run: is killed
                             nobody kills
"""
SMOKE = """
it                           0 of 1 tests passed
                             not selected: 1 test
Jax    jax not installed     not selected: suspends
Torch  torch not installed   suspends
                             not run: is killed
                             nobody kills
"""


@pytest.mark.parametrize(
    ("workers", "selected", "table"), [("0", "", WHOLE), ("0", "smoke", SMOKE), ("2", "smoke", SMOKE)]
)
def test_the_table(tmp_path: Path, workers: str, selected: str, table: str) -> None:
    shutil.copy(held.__file__, tmp_path)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-p", "xdist", "-m", selected, "--numprocesses", workers]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # we may be a worker
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take seconds to load
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=env)
    said = done.stdout.partition(" what holds ")[2].partition("\n")[2].partition("\n=")[0]
    assert [line.split() for line in said.splitlines()] == [line.split() for line in table.strip().splitlines()], (
        done.stdout + done.stderr
    )
