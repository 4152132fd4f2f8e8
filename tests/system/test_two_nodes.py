"""Ranks on two nodes, two on each: they stop at one step without a collective, and lose nothing."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import hpcdl.trainer as hpcdl
session = hpcdl.attach()
from benchmarks.agreement import Ring, RingRanks
rank, size, total, pause = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1]), Path(sys.argv[2])
ring = Ring(rank, size, int(os.environ["MASTER_PORT"]))
ranks = RingRanks(ring, size)
state = {"sum": 0}
def save(folder): (folder / "state").write_text(json.dumps(state))
def load(folder): state.update(json.loads((folder / "state").read_text()))
for step in hpcdl.steps(total, save=save, load=load, ranks=ranks):
    state["sum"] += ring.reduce(step)
    assert state["sum"] == size * step * (step + 1) // 2, f"rank {rank} is at another step"
    assert ranks.without_collectives
    while rank == 0 and step > total // 2 and pause.exists() and not session.should_suspend():
        time.sleep(0.01)
print("trained", size, state["sum"])
"""


@pytest.mark.timeout(600)
def test_ranks_of_two_nodes_stop_at_one_step(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    total = 400
    cluster = make_cluster(gpus=2).start()
    cluster.add_agent("n2", 2)
    cluster.hold()
    options = ("--nodes", "2", "--gpus", "2", "--steps", str(total), "--env", f"PYTHONPATH={ROOT}", "--grace", "120")
    ranks = (sys.executable, "-m", "hpcdl.trainer.ranks", "2", "--", sys.executable, str(script))
    pause = (str(total), str(cluster._pause))
    job = int(cluster.cli("submit", "--json", *options, "--", *ranks, *pause)["jobs"][0]["id"])
    cluster.until_step(job, 1)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED", "DONE", "FAILED")
    assert cluster.job(job)["state"] == "SUSPENDED", cluster.story()
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    events = cluster.events(job)
    assert "suspended" in [event["body"]["cause"] for event in events if event["kind"] == "IncarnationEnded"]
    ready = [event["body"]["step"] for event in events if event["kind"] == "TrainerReady"]
    assert ready[-1] > 0, "from the step at which all stopped"
    out = cluster.cli("logs", str(job))
    assert f"trained 4 {4 * total * (total - 1) // 2}" in out, json.dumps(cluster.job(job))
