"""A fixed number of nodes (`--nodes 2`) with PyTorch's own DistributedDataParallel: the script is one for torchrun."""

import contextlib
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cluster import PATIENCE_S, Cluster, granted_twice, kill

SCRIPT = Path(__file__).parents[2] / "jobscripts" / "trainers" / "pytorch_ddp.py"
STEPS = 120
SLOW, FAST = "0.4", "0"
"""Seconds that a step takes at least: of what is to be caught before it ends by itself, and of what is not."""
PACED = ("sh", "-c", 'exec "$@" --pace "$(cat "$0")"')
"""Before a file with that number, and a command; each attempt reads it when it starts."""
LAUNCHERS: dict[str, tuple[str, ...]] = {
    "plain": (sys.executable,),
    "ranks": (sys.executable, "-m", "hpcdl.trainer.ranks", "gpu", "--", sys.executable),
    "torchrun": (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"),
}


class TwoNodes:
    """Submits the script, and reads what it trained."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._pace = folder / "pace"

    def submit(self, launcher: str, pace: str = SLOW) -> int:
        gpus = "2" if launcher == "ranks" else "1"
        self._pace.write_text(pace)
        place = self.folder / str(len(list(self.folder.iterdir())))
        place.mkdir()
        out = str(place / "weights.pt")  # PyTorch writes the file's name into it
        options = ("--nodes", "2", "--gpus", gpus, "--steps", str(STEPS), "--grace", "60", "--env", "OMP_NUM_THREADS=1")
        argv = (*LAUNCHERS[launcher], str(SCRIPT), "--steps", str(STEPS), "--every", "10", "--out", out)
        answer = self.cluster.cli("submit", "--json", *options, "--", *PACED, str(self._pace), *argv)
        return int(answer["jobs"][0]["id"])

    def suspend(self, job: int, step: int, then: str = FAST) -> None:
        self.cluster.until_step(job, step)
        # As `hpcdl suspend` asks, but at once: a command takes a loaded machine as long as the steps that are left.
        self.cluster.client.request("POST", "/v1/jobs/verb", {"verb": "suspend", "ids": [job]})
        self.cluster.until_state(job, "SUSPENDED", "DONE", "FAILED")
        assert self.cluster.job(job)["state"] == "SUSPENDED", self.cluster.story()
        self._pace.write_text(then)
        self.cluster.cli("resume", str(job))

    def kill_rank(self, job: int, step: int, rank: int) -> None:
        starts = self.cluster.kinds(job).count("StartRequested")
        self.cluster.until_step(job, step)
        found = [pid for pid in self.cluster.tagged() if environment(pid).get("RANK") == str(rank)]
        assert found
        self._pace.write_text(FAST)
        for pid in found:
            assert environment(pid).get("WORLD_SIZE", str(rank + 1)) == str(rank + 1), "the last rank is meant"
            kill(pid)
        self.cluster.until(lambda: self.cluster.kinds(job).count("StartRequested") > starts)

    def weights(self, job: int) -> str:
        self.cluster.until_done(job, seconds=PATIENCE_S * 3)
        out = next(word for word in reversed(self.cluster.job(job)["spec"]["command"]) if word.startswith("/"))
        assert granted_twice(self.cluster.home) == []
        return hashlib.sha256(Path(out).read_bytes()).hexdigest()


def environment(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        return dict(line.split("=", 1) for line in lines if "=" in line)
    return {}


@pytest.fixture
def two_nodes(make_cluster: Callable[..., Cluster], tmp_path: Path) -> TwoNodes:
    cluster = make_cluster(gpus=2).start()
    cluster.add_agent("n2", 2)
    folder = tmp_path / "out"
    folder.mkdir()
    return TwoNodes(cluster, folder)


def test_a_process_on_each_node_is_suspended_and_killed_and_loses_nothing(two_nodes: TwoNodes) -> None:
    whole = two_nodes.weights(two_nodes.submit("plain", FAST))
    job = two_nodes.submit("plain")
    two_nodes.suspend(job, 15, SLOW)
    two_nodes.kill_rank(job, 35, 1)
    assert two_nodes.weights(job) == whole
    ended = [event["body"]["cause"] for event in two_nodes.cluster.events(job) if event["kind"] == "IncarnationEnded"]
    assert ended == ["suspended", "infrastructure", "done"], two_nodes.cluster.story()
    job = two_nodes.submit("torchrun")
    two_nodes.suspend(job, 15)
    assert two_nodes.weights(job) == whole


def test_a_rank_for_each_gpu_of_two_nodes(two_nodes: TwoNodes) -> None:
    """Not bit by bit: DistributedDataParallel sums the gradients of four ranks in another order after its start."""
    job = two_nodes.submit("ranks")
    two_nodes.kill_rank(job, 25, 3)
    two_nodes.weights(job)
    ready = [event["body"]["step"] for event in two_nodes.cluster.events(job) if event["kind"] == "TrainerReady"]
    assert ready[0] == 0
    assert ready[-1] >= 20, "from its last durable checkpoint"
