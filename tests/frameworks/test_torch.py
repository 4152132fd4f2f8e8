"""Real PyTorch trainers through the whole chain: suspended and resumed, the final weights are the same bit for bit."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.system.cluster import Cluster, kill
from tests.trainer.preloaded import PLAIN, ROOT, Preloaded, preloaded

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]
TRAINER = ROOT / "jobscripts" / "trainers" / "pytorch_ddp.py"
STEPS = 80
SLOW_S = 180.0
"""Several processes import PyTorch at once, on a machine that may have much else to do."""


def submit(cluster: Cluster, ranks: int, out: Path, pace: Path) -> int:
    """`pace`: a file that says how many seconds a step takes at least; each attempt reads it when it starts."""
    command = ["sh", "-c", 'exec "$@" --pace "$(cat "$0")"', str(pace), sys.executable]
    if ranks > 1:
        group = ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", free_port()]
        command += ["-m", "torch.distributed.run", *group]
    command += [str(TRAINER), "--steps", str(STEPS), "--every", "30", "--out", str(out)]
    options = ["--gpus", str(ranks), "--steps", str(STEPS), "--grace", "120", "--env", "OMP_NUM_THREADS=1"]
    answer = cluster.cli("submit", "--json", *options, "--", *command)
    return int(answer["jobs"][0]["id"])


@pytest.fixture(scope="module")
def origin() -> Iterator[Preloaded]:
    with preloaded() as made:
        yield made


def train_without_us(origin: Preloaded, ranks: int, out: Path, *argv: str) -> None:
    """What nothing ever happens to, and nobody watches: it writes `out`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")} | PLAIN
    plain |= {"PYTHONPATH": str(ROOT), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command = list(argv or (str(TRAINER), "--steps", str(STEPS), "--out", str(out)))
    with out.with_suffix(".log").open("wb") as log:
        children = [origin.start(command, plain | {"RANK": str(rank)}, log) for rank in range(ranks)]
    assert [child.wait(SLOW_S) for child in children] == [0] * ranks, out.with_suffix(".log").read_text()


EXACT = "suspend, resume bit-exact"


@pytest.mark.smoke
@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(1, marks=pytest.mark.holds("PyTorch, one process", EXACT)),
        pytest.param(2, marks=pytest.mark.holds("PyTorch with torchrun", EXACT)),
    ],
)
def test_suspended_in_the_middle(cluster: Cluster, origin: Preloaded, tmp_path: Path, ranks: int) -> None:
    import torch

    pace = tmp_path / "pace"
    pace.write_text("1")  # what is to be suspended does not end before, however long the command takes
    job = submit(cluster, ranks, tmp_path / "parts.pt", pace)
    cluster.until(lambda: (cluster.job(job)["step"] or 0) >= 2, SLOW_S)
    # The run folder goes once its end is recorded; what is open stays readable.
    with (cluster.home / "run" / "n1" / f"{job}.1" / "record.jsonl").open() as file:
        cluster.cli("suspend", str(job))
        cluster.until_state(job, "SUSPENDED", seconds=SLOW_S)
        records = [json.loads(line) for line in file]
    train_without_us(origin, ranks, tmp_path / "whole.pt")
    between = cluster.job(job)["saved_step"]
    assert 2 <= between < STEPS
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

    pace.write_text("0")
    cluster.cli("resume", str(job))
    cluster.until_done(job, seconds=SLOW_S)
    ready = [event for event in cluster.events(job) if event["kind"] == "TrainerReady"]
    assert [event["body"]["step"] for event in ready] == [0, between]
    ended = [event["body"]["cause"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded"]
    assert ended == ["suspended", "done"]
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "parts.pt"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.holds("PyTorch with torchrun", EXACT, "kill -9")
def test_four_ranks_end_with_all_of_their_state_after_a_kill_and_a_suspend(
    cluster: Cluster, origin: Preloaded, tmp_path: Path
) -> None:
    """Weights, schedule, scale of the losses, random states and the place in the data, at steps of no checkpoint."""
    import torch

    script = [str(Path(__file__).with_name("amp_ddp.py")), "50"]
    train_without_us(origin, 4, tmp_path / "whole.pt", *script, "", str(tmp_path), str(tmp_path / "whole.pt"))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [sys.executable, *launcher, *script, "12,31", str(tmp_path), str(tmp_path / "parts.pt")]
    options = ["--gpus", "4", "--grace", "120", "--env", "OMP_NUM_THREADS=1", "--env", f"PYTHONPATH={ROOT}"]
    job = int(cluster.cli("submit", "--json", *options, "--", *command)["jobs"][0]["id"])
    held = [tmp_path / f"at-{step}-{rank}" for step in (12, 31) for rank in range(4)]
    cluster.until(lambda: all(path.exists() for path in held[:4]), SLOW_S)
    for pid in cluster.tagged():
        with contextlib.suppress(OSError):
            if b"RANK=2" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                kill(pid)
    cluster.until(lambda: all(path.exists() for path in held), SLOW_S)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED", seconds=SLOW_S)
    assert cluster.job(job)["saved_step"] in (32, 33), "all knew of it at the boundary after step 31"
    cluster.cli("resume", str(job))
    cluster.until_done(job, seconds=SLOW_S)
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "parts.pt"))
    assert one["scale"] == other["scale"] > 1024
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    assert one["scheduler"] == other["scheduler"]
    assert all(torch.equal(one["order"][name], other["order"][name]) for name in ("random", "left"))


SPAWNED = """
import sys
import hpcdl.trainer as hpcdl
import torch
import torch.distributed as dist
import hpcdl.trainer.torch as suspendable

def train(rank, says):
    session = hpcdl.attach(rank if says else None)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://127.0.0.1:" + sys.argv[2])
    for step in suspendable.steps(2, model=torch.nn.Linear(1, 1)):
        pass
    print(f"rank {session.rank} is done\\n", end="", flush=True)

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(sys.argv[1] == "says",), nprocs=2)
"""


@pytest.mark.holds("PyTorch with ranks of its own", "outside hpcdl", "a rank that says who it is")
def test_ranks_that_the_script_starts_say_who_they_are(tmp_path: Path) -> None:
    """No launcher names them in the environment: each would take itself for rank 0, and write the checkpoints."""
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def train(how: str, **more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(script), how, free_port()]
        return subprocess.run(argv, env=environ | more, timeout=SLOW_S, capture_output=True, text=True, check=False)

    assert train("silent").returncode == 0, "without hpcdl nobody has to know"
    refused = train("silent", HPCDL_CHECKPOINT_DIR=str(tmp_path / "first"))
    assert refused.returncode != 0
    assert "2 ranks take themselves for rank 0" in refused.stderr
    done = train("says", HPCDL_CHECKPOINT_DIR=str(tmp_path / "second"))
    assert sorted(done.stdout.splitlines()) == ["rank 0 is done", "rank 1 is done"], done.stderr
