"""`submit --burst-plan`, `--burst-limit`: a job brings the plans for all the GPUs that it may get."""

import json
from pathlib import Path
from typing import Any

import pytest

from hpcdl.deeppool.planner import plan_burst
from hpcdl.deeppool.problem import read_problem
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


def problem(**more: Any) -> dict[str, Any]:
    layers = [
        {
            "name": name,
            "inputs": inputs,
            "compute_ms": {"1": 1.0, "16": 16.0 * scales},
            "parameter_bytes": size,
            "activation_bytes_per_sample": 1000,
        }
        for name, inputs, scales, size in (("a", [], 1.0, 1000), ("b", ["a"], 0.2, 40_000_000))
    ]
    network = {"bytes_per_s": 1e10, "latency_s": 1e-5}
    return {"schema": 1, "gpus": 8, "global_batch": 16, "limit": None, "network": network, "layers": layers, **more}


def burst_of(fake: FakeDaemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fake.requests[-1][2]["jobs"][0]["burst"]
    return found


def test_a_plan_for_every_number_of_gpus(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem()))
    assert hpcdl("submit", "--burst-plan", path, "--gpus", "1:4", "--", "python", "x.py").code == 0
    plans = burst_of(fake)
    assert [plan["gpus"] for plan in plans] == [1, 2, 4]
    for plan in plans:
        made = plan_burst(read_problem(problem(gpus=plan["gpus"])))
        assert plan["time_ms"] == made.time_ms
        assert plan["widths"] == [layer.gpus for layer in made.layers]
    assert plans[-1]["widths"] == [4, 1]
    # By its limit, and as many GPUs as its nodes have; those that make nothing faster are left out.
    assert hpcdl("submit", "--burst-plan", path, "--burst-limit", "1", "--", "python", "x.py").code == 0
    assert [plan["widths"] for plan in burst_of(fake)] == [[1, 1]]
    spec = fake.requests[-1][2]["jobs"][0]
    assert (spec["gpus_min"], spec["gpus_max"]) == (1, None)
    assert hpcdl("submit", "--burst-plan", path, "-g", "4", "-N", "2", "--", "python", "x.py").code == 0
    assert [plan["gpus"] for plan in burst_of(fake)] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (problem(limit=0.5), "layer 'a': no number of GPUs keeps it within 0.5 x"),
        (problem(global_batch=0), "global_batch"),
        ([], "the problem must be a JSON object"),
    ],
)
def test_what_has_no_plan(document: Any, why: str, fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document))
    refused = hpcdl("submit", "--burst-plan", path, "--", "python", "x.py")
    assert refused.code in (1, 2)
    assert why in refused.err
    assert not [each for each in fake.requests if each[0] == "POST"]


def test_branches_are_no_stages(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    document = problem()
    document["layers"].append({**document["layers"][1], "name": "c", "inputs": ["a"]})
    (tmp_path / "p.json").write_text(json.dumps(document))
    refused = hpcdl("submit", "--burst-plan", tmp_path / "p.json", "--", "python", "x.py")
    assert refused.code == 2
    assert "'c' does not read the one before it: burst.run trains a chain of stages" in " ".join(refused.err.split())


def test_without_a_file_the_layers_are_measured(fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measure(*args: Any) -> str:
        asked.append(args)
        return json.dumps(problem())

    monkeypatch.setattr("hpcdl.cli.burst.profile.measure", measure)
    command = ["python", "-m", "hpcdl.trainer.ranks", "gpu", "--", "python", "x.py", "--lr", "1"]
    assert hpcdl("submit", "--burst-limit", "2", "-g", "2", "--", *command).code == 0
    assert asked[0][0] == ("python", "x.py", "--lr", "1")
    assert asked[0][2] == ["--gpus", "2"]
    assert [plan["gpus"] for plan in burst_of(fake)] == [1, 2]
    assert fake.requests[-1][2]["jobs"][0]["command"] == command
