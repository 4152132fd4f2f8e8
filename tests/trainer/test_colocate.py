"""benchmarks/colocate.py without a GPU: the rungs of its ladder, its tables, and what it says then."""

import itertools
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import colocate

ROOT = Path(__file__).resolve().parents[2]


def test_each_rung_adds_one_mechanism() -> None:
    rungs = [asdict(each) for each in colocate.ladder()]
    assert [each["name"] for each in rungs] == [
        "foreground alone",
        "+ CUDA graphs",
        "+ a second training",
        "+ stream priorities",
        "+ launch pacing",
        "+ slowdown loop",
        "+ smaller background batch",
    ]
    for before, after in itertools.pairwise(rungs):
        assert len({name for name in before if before[name] != after[name]} - {"name"}) == 1


def test_the_ladder_is_in_shares_of_the_foreground_alone() -> None:
    rows = colocate.ladder_rows([("alone", 200.0, 0.0), ("both", 150.0, 130.0)])
    assert rows[0]["total_share"] == rows[0]["foreground_share"] == 1.0
    assert rows[1] == {
        "rung": "both",
        "foreground": 150.0,
        "background": 130.0,
        "total": 280.0,
        "foreground_share": 0.75,
        "total_share": 1.4,
    }


def test_the_matrix_is_in_shares_of_each_kernel_alone() -> None:
    beside = {("a", "a"): 5.0, ("a", "b"): 2.0, ("b", "a"): 4.0, ("b", "b"): 1.0}
    found = colocate.matrix_rows({"a": 10.0, "b": 4.0}, beside)
    assert found == {"a": {"a": 0.5, "b": 0.2}, "b": {"a": 1.0, "b": 0.25}}


@pytest.mark.long
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    pytest.importorskip("torch")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, str(ROOT / "benchmarks" / "colocate.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", colocate.NO_GPU + "\n")
