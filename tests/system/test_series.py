"""The curves of a real job: over a suspend, a resume, a daemon that is killed, and its end."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster import Cluster

SCRIPT = """
import sys, time
from pathlib import Path
import hpcdl.trainer as hpcdl

hpcdl.attach()
here = Path(sys.argv[1])
total = 2000
for step in hpcdl.steps(total, save=lambda folder: (folder / "s").write_text("s"), load=lambda folder: None, every=50):
    loss = 5.0 - step / 1000 if step < 1990 else float("nan")
    hpcdl.progress(step + 1, total, loss=loss, lr=0.5)
    if not (here / "go").exists():
        time.sleep(0.01)
"""


@pytest.mark.timeout(600)
def test_curves_outlive_a_suspend_and_a_daemon(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    answer = cluster.cli("submit", "--json", "--no-git", "--", sys.executable, str(script), str(tmp_path))
    job = int(answer["jobs"][0]["id"])

    def series() -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in cluster.client.get(f"/v1/jobs/{job}/series")["series"]}

    def has(name: str, step: int) -> bool:
        found = series().get(name)
        return found is not None and (found["points"]["step"][-1] or 0) >= step

    cluster.until(lambda: has("loss", 20))
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    cluster.cli("resume", str(job))
    reached = series()["loss"]["points"]["step"][-1]
    cluster.until(lambda: has("loss", reached + 20))
    cluster.kill_daemon()
    cluster.start()
    cluster.until(lambda: has("loss", reached + 40))  # what was not written yet is lost with the daemon
    (tmp_path / "go").touch()
    cluster.until_done(job)
    cluster.until(lambda: has("loss", 2000) and "cpu" in series())
    found = series()
    loss, steps = found["loss"], found["loss"]["points"]["step"]
    assert steps == sorted(steps)
    assert loss["first"] == loss["high"] == pytest.approx(5.0 - steps[0] / 1000, abs=0.01)
    assert loss["last"] is None
    assert 3.0 <= loss["low"] < loss["high"]
    assert (found["lr"]["low"], found["lr"]["high"]) == (0.5, 0.5)
    assert found["gpu_util"]["kind"] == "use"
    said = cluster.cli("show", str(job))
    assert "not finite" in said
    assert "GPU utilisation" in said
