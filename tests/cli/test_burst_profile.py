"""`hpcdl burst profile`: the command around what the trainer library measures."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

NET = Path(__file__).parents[1] / "trainer" / "profiled_net.py"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_script_is_measured(tmp_path: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from where hpcdl is: the trainer library comes along."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    measured = hpcdl("burst", "profile", "-o", "problem.json", "--gpus", "2", "--", sys.executable, NET, "-x")
    assert (measured.code, measured.out) == (0, ""), measured.err
    assert measured.err == "a step of ['-x']\n7 layers measured: problem.json\n"
    assert json.loads(Path("problem.json").read_text())["global_batch"] == 10
    planned = hpcdl("burst", "plan", "problem.json", "--json")
    assert len(json.loads(planned.out)["layers"]) == 7
    assert not Path("trained").exists()


def test_what_cannot_be_measured(tmp_path: Path, hpcdl: Run) -> None:
    refused = hpcdl("burst", "profile", "--", "bash", "x.sh")
    assert refused.code == 2
    assert "burst profile is for python SCRIPT and python -m MODULE: bash is no Python interpreter" in refused.err
    missing = hpcdl("burst", "profile", "--", tmp_path / "python", "x.py")
    assert missing.code == 1
    assert "cannot start" in missing.err
