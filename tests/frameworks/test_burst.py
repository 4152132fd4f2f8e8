"""A burst-parallel job under a daemon: its plans come with it, and each attempt trains by the one for its GPUs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.trained import ENDED, PATIENCE_S, PYTHON, ROOT
from tests.system.cluster import Cluster

FIT = Path(__file__).parents[1] / "trainer" / "burst_fit.py"


@pytest.mark.timeout(900)
def test_by_the_plan_for_its_gpus(tmp_path: Path, cluster: Cluster) -> None:
    layers = [
        {"name": name, "inputs": inputs, "compute_ms": {"1": 1.0, "11": 11.0 * scales},
         "parameter_bytes": 0, "activation_bytes_per_sample": 0}
        for name, inputs, scales in (("a", [], 1.0), ("b", ["a"], 0.1), ("c", ["b"], 1.0), ("d", ["c"], 0.1))
    ]  # fmt: skip
    problem = tmp_path / "problem.json"
    network = {"bytes_per_s": 1e10, "latency_s": 1e-5}
    problem.write_text(
        json.dumps({"schema": 1, "gpus": 4, "global_batch": 11, "limit": 1.5, "network": network, "layers": layers})
    )
    where = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--cwd", "/", "--env", f"PYTHONPATH={ROOT}")
    options = ("--burst-plan", str(problem), "--steps", "1000000", "--grace", "60", *where)
    command = (PYTHON, "-m", "hpcdl.trainer.ranks", "gpu", "--", PYTHON, str(FIT), "--job-plan", "--pace", "0.05")

    def train(gpus: int, *more: str) -> tuple[int, list[str]]:
        """Trains some steps on so many GPUs, and is suspended; the first step that was done, and the plans."""
        answer: dict[str, Any] = cluster.cli("submit", "--json", "-g", str(gpus), *options, *more, "--", *command)
        job = int(answer["jobs"][0]["id"])

        def steps() -> list[int]:
            assert cluster.job(job)["state"] not in ENDED, cluster.cli("logs", str(job))
            return [int(step) for step in re.findall(r"^step (\d+) ", str(cluster.cli("logs", str(job))), re.MULTILINE)]

        cluster.until(lambda: len(steps()) > 3, PATIENCE_S)
        cluster.cli("suspend", str(job))
        cluster.until_state(job, "SUSPENDED", *ENDED, seconds=PATIENCE_S)
        done, said = steps(), str(cluster.cli("logs", str(job)))
        cluster.cli("cancel", str(job))
        cluster.until_state(job, "CANCELLED", seconds=PATIENCE_S)
        assert done == list(range(done[0], done[0] + len(done)))
        return done[0], sorted(set(re.findall(r"^plan (.*)$", said, re.MULTILINE)))

    assert train(4) == (1, ["[4, 1, 4, 1]"])
    first, plans = train(2, "--continue-from", "any")
    assert first > 4  # it goes on from where four ranks were suspended
    assert plans == ["[2, 1, 2, 1]"]
