"""Layers of training scripts, measured: which they are, what they read, and what they cost."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcdl.deeppool.planner import plan_burst
from hpcdl.deeppool.problem import read_problem
from hpcdl.trainer import burst_profile
from tests.trainer.preloaded import PLAIN, ROOT, Preloaded

NET = Path(__file__).with_name("profiled_net.py")
FIT = Path(__file__).with_name("burst_fit.py")


def measure(origin: Preloaded, folder: Path, argv: Sequence[str]) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and the problem, {} where none was written."""
    out, log = folder / "problem.json", folder / "log"
    script = [burst_profile.__file__, "--out", str(out), *argv]
    with log.open("wb") as output:
        code = origin.start(script, {**os.environ, **PLAIN, "PYTHONPATH": str(ROOT)}, output).wait()
    return code, log.read_text(), json.loads(out.read_text()) if out.exists() else {}


def test_any_script(tmp_path: Path, origin: Preloaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, problem = measure(origin, tmp_path, ["--gpus", "4", "--batch", "12", str(NET), "-x", "1"])
    assert code == 0, said
    assert said == "a step of ['-x', '1']\n"
    assert not (tmp_path / "trained").exists()  # the script is left
    layers = problem["layers"]
    assert [(each["name"], sorted(each["inputs"])) for each in layers] == [
        ("stem Conv2d", []),
        ("blocks.0 Block", ["stem Conv2d"]),
        ("blocks.1 Block", ["blocks.0 Block"]),
        ("left Conv2d", ["blocks.1 Block"]),
        ("right Conv2d", ["blocks.1 Block"]),
        ("norm BatchNorm1d", ["left Conv2d", "right Conv2d"]),
        ("end Linear", ["norm BatchNorm1d"]),
    ]
    assert [each["parameter_bytes"] for each in layers] == [0, 624, 624, 40, 296, 512, 1300]
    assert [each["activation_bytes_per_sample"] for each in layers] == [256, 256, 256, 128, 128, 256, 20]
    for each in layers:
        least = ["2"] if each["name"] == "norm BatchNorm1d" else ["1", "2"]  # one value has no variance
        assert list(each["compute_ms"]) == [*least, "3", "6", "12"]
        assert all(ms > 0 for ms in each["compute_ms"].values())
    assert (problem["gpus"], problem["global_batch"]) == (4, 12)
    plan = plan_burst(read_problem(problem))
    assert [layer.name for layer in plan.layers] == [each["name"] for each in layers]


def test_stages_of_burst_run(tmp_path: Path, origin: Preloaded) -> None:
    code, said, problem = measure(origin, tmp_path, [str(FIT), "--steps", "5"])
    assert (code, said) == (0, "")  # no step was done
    assert [each["name"] for each in problem["layers"]] == [f"{at} Sequential" for at in range(3)] + ["3 Linear"]
    assert [len(each["inputs"]) for each in problem["layers"]] == [0, 1, 1, 1]
    assert (problem["gpus"], problem["global_batch"]) == (8, 11)
    assert list(problem["layers"][3]["compute_ms"]) == ["1", "2", "3", "6", "11"]


def test_layers_that_work_in_place(tmp_path: Path, origin: Preloaded) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import nn\n"
        "net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Linear(4, 1))\n"
        "net(torch.randn(4, 6)).sum().backward()\n"
    )
    code, said, problem = measure(origin, tmp_path, [str(script)])
    assert (code, said) == (0, "")
    assert [each["name"] for each in problem["layers"]] == ["0 Linear", "1 ReLU", "2 Dropout", "3 Linear"]
    assert [len(each["inputs"]) for each in problem["layers"]] == [0, 1, 1, 1]
    assert all(list(each["compute_ms"]) == ["1", "2", "4"] for each in problem["layers"])


def test_layers_in_a_dict_and_those_that_give_several_tensors(tmp_path: Path, origin: Preloaded) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.parts = nn.ModuleDict({'read': nn.LSTM(6, 4, batch_first=True), 'end': nn.Linear(4, 1)})\n"
        "        self.side = nn.Linear(4, 1)\n"
        "    def forward(self, x):\n"
        "        every, (last, _) = self.parts['read'](x)\n"
        "        return self.parts['end'](every).sum() + self.side(last).sum()\n"
        "Net()(torch.randn(4, 5, 6)).backward()\n"
    )
    code, said, problem = measure(origin, tmp_path, [str(script)])
    assert (code, said) == (0, "")
    assert [(each["name"], each["inputs"]) for each in problem["layers"]] == [
        ("parts.read LSTM", []),
        ("parts.end Linear", ["parts.read LSTM"]),
        ("side Linear", ["parts.read LSTM"]),
    ]
    assert problem["layers"][0]["activation_bytes_per_sample"] == 5 * 4 * 4
    assert all(list(each["compute_ms"])[-1] == "4" for each in problem["layers"])


def test_nothing_to_measure(tmp_path: Path, origin: Preloaded) -> None:
    code, said, problem = measure(origin, tmp_path, [str(NET), "nothing"])
    assert (code, problem) == (0, {})  # it left by itself
    silent = tmp_path / "silent.py"
    silent.write_text("print('no model')\n")
    code, said, problem = measure(origin, tmp_path, [str(silent)])
    assert (code, problem) == (burst_profile.NOTHING, {})
    assert said == f"no model\n{silent} ended, and no model of PyTorch was trained on a tensor\n"
