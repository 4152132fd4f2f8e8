"""What `hpcdl init` writes trains by hand, with each framework as it is."""

import os
import subprocess
from pathlib import Path

import pytest

from hpcdl.cli import main
from hpcdl.cli.init.command import FRAMEWORKS
from tests.frameworks.trained import PYTHON

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("there", [True, False], ids=["with hpcdl", "without hpcdl"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_script_trains(framework: str, tmp_path: Path, there: bool) -> None:
    assert main(["init", framework, "--dir", str(tmp_path)]) == 0
    some = ("--epochs", "1") if "--epochs" in (tmp_path / "train.py").read_text() else ("--steps", "40")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    environ |= {"PYTHONPATH": str(ROOT) if there else "", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run([PYTHON, "-c", "import hpcdl"], cwd=tmp_path, env=environ, capture_output=True)
    assert (found.returncode == 0) is there
    done = subprocess.run(
        [PYTHON, "train.py", *some], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")
