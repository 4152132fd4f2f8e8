"""Real PyTorch trainers through the whole chain: suspended and resumed, the final weights are the same bit for bit."""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.system.cluster import Cluster
from tests.trainer.preloaded import PLAIN, ROOT, Preloaded, preloaded

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]
TRAINER = ROOT / "jobscripts" / "trainers" / "pytorch_ddp.py"
STEPS = 80
SLOW_S = 180.0
"""Several processes import PyTorch at once, on a machine that may have much else to do."""


def submit(cluster: Cluster, ranks: int, out: Path, *more: str) -> int:
    command = [sys.executable]
    if ranks > 1:
        group = ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", free_port()]
        command += ["-m", "torch.distributed.run", *group]
    command += [str(TRAINER), "--steps", str(STEPS), "--every", "30", "--out", str(out), *more]
    options = ["--gpus", str(ranks), "--steps", str(STEPS), "--grace", "120", "--env", "OMP_NUM_THREADS=1"]
    answer = cluster.cli("submit", "--json", *options, "--", *command)
    return int(answer["jobs"][0]["id"])


@pytest.fixture(scope="module")
def origin() -> Iterator[Preloaded]:
    with preloaded() as made:
        yield made


def train_without_us(origin: Preloaded, ranks: int, out: Path) -> None:
    """What nothing ever happens to, and nobody watches."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")} | PLAIN
    plain |= {"PYTHONPATH": str(ROOT), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    argv = [str(TRAINER), "--steps", str(STEPS), "--out", str(out)]
    with out.with_suffix(".log").open("wb") as log:
        children = [origin.start(argv, plain | {"RANK": str(rank)}, log) for rank in range(ranks)]
    assert [child.wait(SLOW_S) for child in children] == [0] * ranks, out.with_suffix(".log").read_text()


@pytest.mark.parametrize("ranks", [1, 2])
def test_suspended_in_the_middle(cluster: Cluster, origin: Preloaded, tmp_path: Path, ranks: int) -> None:
    import torch

    job = submit(cluster, ranks, tmp_path / "parts.pt", "--pace", "0.1")
    cluster.until(lambda: (cluster.job(job)["step"] or 0) >= 5, SLOW_S)
    # The run folder goes once its end is recorded; what is open stays readable.
    with (cluster.home / "run" / "n1" / f"{job}.1" / "record.jsonl").open() as file:
        cluster.cli("suspend", str(job))
        cluster.until_state(job, "SUSPENDED", seconds=SLOW_S)
        records = [json.loads(line) for line in file]
    train_without_us(origin, ranks, tmp_path / "whole.pt")
    between = cluster.job(job)["saved_step"]
    assert 5 <= between < STEPS
    attached = {record["rank"]: record for record in records if record["type"] == "attached"}
    assert sorted(attached) == list(range(ranks))
    assert all(record["handler"] for record in attached.values())
    signalled = [record for record in records if record["type"] == "signalled"]
    pids = {record["pid"] for record in attached.values()}
    assert (signalled[0]["signal"], set(signalled[0]["pids"])) == ("SIGTSTP", pids)
    assert set(signalled[0]["handled"]) == pids
    final = [record for record in records if record["type"] == "saved" and record["final"]]
    assert [record["step"] for record in final] == [between], "rank 0 saves, and once"
    assert records[-1]["type"] == "exit"
    assert (records[-1]["code"], records[-1]["ended_by"]) == (0, "suspend")

    cluster.cli("resume", str(job))
    cluster.until_done(job, seconds=SLOW_S)
    ready = [event for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    assert [event["body"]["step"] for event in ready] == [0, between]
    ended = [event["body"]["cause"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded"]
    assert ended == ["suspended", "done"]
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "parts.pt"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
