"""`benchmarks/torture.py` finds nothing, in a run that is short."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture.py"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_torture_finds_nothing() -> None:
    argv = [sys.executable, str(TORTURE), "--kills", "100", "--seed", "5", "--gpus", "3", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result.keys() >= {"schema", "seed", "kills", "by_kind", "jobs", "lost", "twice", "orphans", "seconds"}
    assert (result["schema"], result["seed"], result["wrong"]) == (1, 5, [])
    assert (result["lost"], result["twice"], result["orphans"]) == (0, 0, 0)
    assert result["kills"] == sum(result["by_kind"].values()) >= 100
    assert result["jobs"] > 0
