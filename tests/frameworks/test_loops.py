"""Real PyTorch and Keras trainers, suspended and resumed: the final weights are the same bit for bit."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpcdl.trainer import rng
from tests.support.ports import free_port
from tests.trainer.preloaded import Preloaded, preloaded
from tests.trainer.supervisor import EXAMPLES, Supervisor, supervisor

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
DDP = str(EXAMPLES / "pytorch_ddp.py")
KERAS = str(EXAMPLES / "keras_mnist_like.py")


@pytest.fixture(scope="module")
def origin() -> Iterator[Preloaded]:
    with preloaded(*(["keras"] if importlib.util.find_spec("keras") else [])) as made:
        yield made


def ddp(parent: Supervisor, ranks: int, incarnation: int, argv: list[str]) -> list:
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [parent.start([DDP, *argv], incarnation, RANK=str(rank), **group) for rank in range(ranks)]


def in_session(leader: int) -> list[int]:
    """The processes of this session that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def same(one: Path, other: Path) -> bool:
    import torch

    first, second = torch.load(one, weights_only=True), torch.load(other, weights_only=True)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("ranks", [1, 2])
def test_pytorch_bit_for_bit(tmp_path: Path, origin: Preloaded, ranks: int) -> None:
    argv = ["--steps", "60", "--every", "25", "--out"]
    with supervisor(tmp_path / "run0", tmp_path / "ckpt0", origin=origin) as parent:
        for child in ddp(parent, ranks, 1, [*argv, str(tmp_path / "whole.pt")]):
            assert parent.end(child) == 0
        assert len(parent.of("done")) == ranks
    with supervisor(tmp_path / "run1", tmp_path / "ckpt", origin=origin) as parent:
        children = ddp(parent, ranks, 1, [*argv, str(tmp_path / "parts.pt"), "--pace", "0.5", "--agree-every", "2"])
        parent.wait("progress", count=ranks)
        children[-1].send_signal(signal.SIGTSTP)  # one rank alone: the others must agree to its step
        for child in children:
            assert parent.end(child) == 0
        final = [each for each in parent.of("saved") if each["final"]]
        assert len(final) == 1
        assert final[0]["peer"] == children[0].pid
        assert 0 < final[0]["step"] < 60
        assert {each["rank"] for each in parent.of("attach")} == set(range(ranks))
    names = {path.name for path in Path(final[0]["path"]).iterdir()}
    assert names == {"model.pt", "optimizer.pt", "scheduler.pt", "random.json", "COMPLETE"}
    assert len(json.loads((Path(final[0]["path"]) / "random.json").read_text())) == ranks
    with supervisor(tmp_path / "run2", tmp_path / "ckpt", origin=origin) as parent:
        for child in ddp(parent, ranks, 2, [*argv, str(tmp_path / "parts.pt")]):
            assert parent.end(child) == 0
        assert {each["step"] for each in parent.of("ready")} == {final[0]["step"]}
    assert same(tmp_path / "whole.pt", tmp_path / "parts.pt")


def test_two_ranks_fall_back_together(tmp_path: Path, origin: Preloaded) -> None:
    argv = ["--steps", "20", "--every", "10", "--out"]
    with supervisor(tmp_path / "run", tmp_path / "ckpt", origin=origin) as parent:
        for child in ddp(parent, 2, 1, [*argv, str(tmp_path / "whole.pt")]):
            assert parent.end(child) == 0
    bad = tmp_path / "ckpt" / "step-000000000020.i1" / "model.pt"
    bad.write_bytes(bytes(bad.stat().st_size))
    with supervisor(tmp_path / "run2", tmp_path / "ckpt", origin=origin) as parent:
        for child in ddp(parent, 2, 2, [*argv, str(tmp_path / "again.pt")]):
            assert parent.end(child) == 0
        assert [each["step"] for each in parent.of("ready")] == [10, 10]
    assert same(tmp_path / "whole.pt", tmp_path / "again.pt")


def test_a_model_may_go_after_its_group(tmp_path: Path, origin: Preloaded) -> None:
    """PyTorch alone never returns from `train` here: the model goes last, and waits with the GIL held for gloo's
    threads, which want the GIL to let go of the tensors."""
    script = tmp_path / "order.py"
    script.write_text(
        "import os, hpcdl.trainer as hpcdl\n"
        "hpcdl.attach()\n"
        "import torch, torch.distributed as dist, hpcdl.trainer.torch as suspendable\n"
        "def train():\n"
        "    dist.init_process_group('gloo')\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
        "    for step in suspendable.steps(2, model=model):\n"
        "        model(torch.ones(1, 4)).sum().backward()\n"
        "    for _ in range(100):\n"
        "        dist.all_reduce(torch.ones(1), async_op=True)\n"
        "    dist.destroy_process_group()\n"
        "train()\n"
        "os._exit(0)\n"  # with what is still under way
    )
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    with supervisor(tmp_path / "run", tmp_path / "ckpt", origin=origin) as parent:
        children = [parent.start([script], RANK=str(rank), **group) for rank in range(2)]
        assert [parent.end(child) for child in children] == [0, 0]
        assert len(parent.of("done")) == 2


def test_suspend_leaves_no_loader_behind(tmp_path: Path, origin: Preloaded) -> None:
    script = tmp_path / "loads.py"
    script.write_text(
        "import hpcdl.trainer as hpcdl\n"
        "hpcdl.attach()\n"
        "import torch, torch.utils.data as data, hpcdl.trainer.torch as suspendable\n"
        "loader = data.DataLoader(range(10**9), num_workers=2, persistent_workers=True)\n"
        "batches = iter(loader)\n"
        "model = torch.nn.Linear(1, 1)\n"
        "for step in suspendable.steps(10**9, model=model):\n"
        "    next(batches)\n"
    )
    with supervisor(tmp_path / "run", tmp_path / "ckpt", origin=origin) as parent:
        child = parent.start([script])
        parent.wait("progress")
        assert len(in_session(child.pid)) >= 3
        child.send_signal(signal.SIGTSTP)
        assert parent.end(child) == 0
        assert parent.of("saved")[-1]["final"] is True
        assert in_session(child.pid) == []


def test_a_full_disk_is_an_oserror(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(
        "import resource, torch, hpcdl.trainer as hpcdl, hpcdl.trainer.torch as suspendable\n"
        "model = torch.nn.Linear(1000, 100)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))\n"
        "with hpcdl.checkpoint(1) as folder: suspendable.save(folder, model=model)\n"
    )
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        assert parent.end(parent.start([script])) == 1
        assert parent.of("save_failed")[0]["errno"] == 27
        assert list((tmp_path / "ckpt").iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
def test_keras_bit_for_bit(tmp_path: Path, origin: Preloaded) -> None:
    argv = [KERAS, "--epochs", "3", "--samples", "256", "--out"]
    whole = tmp_path / "whole.npz"
    with supervisor(tmp_path / "run0", tmp_path / "ckpt0") as parent:
        assert parent.end(parent.start([*argv, whole])) == 0
        assert [each["step"] for each in parent.of("saved")] == [8, 16, 24, 24], "the last says that it is complete"
    parts = tmp_path / "parts.npz"
    before = 0
    # 8 batches an epoch: in the middle of the first, in the middle of a later one, at the end of one
    for number, after in enumerate([3, 12, 16], 1):
        wrapper = tmp_path / "suspends_itself.py"  # at exactly this batch, by the real signal
        wrapper.write_text(
            "import os, runpy, signal, sys\n"
            "import hpcdl.trainer.session as session\n"
            "progress = session.Session.progress\n"
            "def at(self, step, *rest):\n"
            f"    if step == {after}: os.kill(os.getpid(), signal.SIGTSTP)\n"
            "    progress(self, step, *rest)\n"
            "session.Session.progress = at\n"
            f"sys.argv = sys.argv[1:]\nrunpy.run_path({KERAS!r}, run_name='__main__')\n"
        )
        with supervisor(tmp_path / f"run{number}", tmp_path / "ckpt", origin=origin) as parent:
            child = parent.start([wrapper, *argv, parts], number)
            assert parent.end(child) == 0
            assert parent.of("ready")[0]["step"] == before
            final = parent.of("saved")[-1]
            assert (final["final"], final["step"]) == (True, after)
        assert not parts.exists()
        before = after
    with supervisor(tmp_path / "run", tmp_path / "ckpt", origin=origin) as parent:
        assert parent.end(parent.start([*argv, parts], 4)) == 0
        assert parent.of("ready")[0]["step"] == before
        assert parent.of("done")[0]["step"] == 24
    with np.load(whole) as one, np.load(parts) as other:
        assert one.files == other.files
        assert all(np.array_equal(one[name], other[name]) for name in one.files)


def test_random_states() -> None:
    import random

    import torch

    saved = json.loads(json.dumps(rng.capture()))
    drawn = random.random(), np.random.normal(), torch.randn(3).tolist()
    assert drawn != (random.random(), np.random.normal(), torch.randn(3).tolist())
    rng.restore(saved)
    assert drawn == (random.random(), np.random.normal(), torch.randn(3).tolist())
