"""Ranks that fail under a real torchrun: hpcdl's own, which starts them again, and one that a job brings itself."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, kill

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

SCRIPT = Path(__file__).parents[2] / "jobscripts" / "trainers" / "elastic_train.py"
TRAINS = """
import hpcdl.trainer as hpcdl
hpcdl.attach()
import sys, time
import torch
import hpcdl.trainer.torch as suspendable
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
for step in suspendable.steps(int(sys.argv[1]), every=5, model=model):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
"""


def submit(cluster: Cluster, *argv: str) -> int:
    return int(cluster.cli("submit", "--json", *argv)["jobs"][0]["id"])


def ranks_of(cluster: Cluster, number: int) -> list[int]:
    """The processes that torchrun calls by this rank."""
    found = []
    for pid in cluster.tagged():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"RANK={number}".encode() in environment:
                found.append(pid)
    return found


def until_other(cluster: Cluster, killed: int) -> None:
    cluster.until(lambda: bool(found := ranks_of(cluster, 1)) and killed not in found)


def useful(cluster: Cluster) -> float:
    return float(cluster.cli("report", "--json")["total"]["useful_gpu_h"])


@pytest.mark.parametrize(
    "command,said",
    [
        (("not_there.py",), "can't open file '{folder}/not_there.py': [Errno 2] No such file or directory"),
        (("-m", "no_such_module"), "No module named no_such_module"),
        (("-c", "import hpcdl.trainer; hpcdl.trainer.attach(); import gone"), "No module named 'gone'"),
    ],
)
def test_what_fails_alike_three_times_before_its_first_step_has_failed(
    make_cluster: Callable[..., Cluster], tmp_path: Path, command: tuple[str, ...], said: str
) -> None:
    cluster = make_cluster(gpus=2, policy="bftrainer").start()
    options = ("--nodes", "1:8", "--gpus", "2", "--retries", "5", "--cwd", str(tmp_path))
    job = submit(cluster, *options, "--", sys.executable, *command)
    cluster.until_state(job, "FAILED", "DONE")
    row = cluster.job(job)
    assert row["state"] == "FAILED"
    assert said.format(folder=tmp_path) in " ".join(cluster.cli("why", str(job)).split())
    assert cluster.kinds(job).count("StartRequested") == 1, "no retry finds it either"
    assert "Reformed" not in cluster.kinds(job)
    assert useful(cluster) == 0


def test_a_rank_that_is_killed_costs_no_retry(cluster: Cluster, tmp_path: Path) -> None:
    """torchrun in a plain job ends with 1 whatever its ranks died of."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    job = submit(
        cluster, "--gpus", "2", "--steps", "9999", "--cwd", str(tmp_path), "--", *launcher, str(script), "9999"
    )
    cluster.until_step(job, 12)
    kill(ranks_of(cluster, 1)[0])
    cluster.until(lambda: cluster.kinds(job).count("StartRequested") == 2)
    ended = next(event["body"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded")
    assert ended["cause"] == "infrastructure"
    assert "killed from outside" in ended["detail"]
    assert "SIGKILL" in ended["detail"]
    ready = [event["body"]["step"] for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    cluster.until(lambda: cluster.kinds(job).count("TrainerReady") == 2)
    ready = [event["body"]["step"] for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    assert ready[0] == 0
    assert ready[1] >= 10, "from its last durable checkpoint"
    assert cluster.job(job)["spec"]["retries"] == 0


def test_ranks_that_are_killed_under_our_torchrun_go_on(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(gpus=2, policy="bftrainer").start()
    command = (sys.executable, str(SCRIPT), "--every", "5", "--pace", "0.02")
    job = submit(cluster, "--nodes", "1:2", "--gpus", "2", "--steps", "100000", "--cwd", str(tmp_path), "--", *command)
    step = 5
    for _ in range(4):
        cluster.until_step(job, step)
        (killed,) = ranks_of(cluster, 1)
        kill(killed)
        until_other(cluster, killed)
        step = cluster.job(job)["step"] + 5
    cluster.until_step(job, step)
    assert cluster.kinds(job).count("StartRequested") == 1
    assert cluster.job(job)["failures"] == 0
