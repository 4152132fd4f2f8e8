"""The GPUs of a real agent: held by others, lost, and numbered anew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcdl.core.model.incarnation import Cause
from tests.agent.daemon import Agents, Daemon
from tests.agent.start_requests import begin
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


@contextmanager
def held(agents: Agents, uuid_of_gpu: str, later: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the emulated GPU; `later`: as soon as it is free."""
    script = (
        "import fcntl,sys\nf=open(sys.argv[1],'r+')\n"
        "print('held',flush=True) if sys.argv[2] else 0\nfcntl.lockf(f,fcntl.LOCK_EX)\n"
        "print('held',flush=True)\nsys.stdin.read()"
    )
    lock = str(agents.run / "emulated" / f"{uuid_of_gpu}.lock")
    argv = [sys.executable, "-c", script, lock, "later" if later else ""]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.communicate()


def test_gpus_that_are_not_left_are_dirty(daemon: Daemon, agents: Agents) -> None:
    agents.start(patch="import hpcdl.agent.grant as g; g.DIRTY_AFTER_S = 0.2")
    begin(daemon, steps=100_000, gpus=(0,))
    daemon.wait("TrainerReady", 1)
    with held(agents, daemon.inventories[0].gpus[0].uuid) as holder:
        daemon.ask("end", 1, grace_s=5.0)
        daemon.wait("Exited", 1)
        changed = daemon.wait("GpuChanged")
        assert (changed.index, changed.state) == (0, "dirty")
        assert str(holder.pid) in changed.detail
        assert not daemon.of("GpusFreed", 1)
    daemon.wait("GpusFreed", 1)
    until(lambda: daemon.of("GpuChanged")[-1].state == "ok", "the GPU to be free")


def test_a_gpu_that_somebody_holds_is_not_granted(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    until(lambda: daemon.inventories, "the call")
    with held(agents, daemon.inventories[0].gpus[0].uuid) as holder:
        begin(daemon, gpus=(0, 1))
        daemon.wait("GpusFreed", 1)
        exited = daemon.wait("Exited", 1)
        assert exited.hint is Cause.INFRASTRUCTURE
        assert str(holder.pid) in exited.detail
        changed = daemon.wait("GpuChanged")
        assert (changed.index, changed.state) == (0, "dirty")
        assert str(holder.pid) in changed.detail
    until(lambda: daemon.of("GpuChanged")[-1].state == "ok", "the GPU to be free")
    begin(daemon, job=2, gpus=(0, 1))
    daemon.wait("GpusFreed", 2)
    assert daemon.wait("Exited", 2).code == 0


def test_a_lost_gpu_comes_back(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    until(lambda: daemon.inventories, "the call")
    lock = agents.run / "emulated" / f"{daemon.inventories[0].gpus[1].uuid}.lock"
    lock.unlink()
    lost = daemon.wait("GpuChanged")
    assert (lost.index, lost.state) == (1, "lost")
    lock.touch(0o600)
    back = daemon.wait("GpuChanged", count=2)
    assert (back.index, back.state) == (1, "ok")


@pytest.mark.parametrize("lost", [True, False])
def test_a_gpu_lost_under_a_trainer_that_fails(daemon: Daemon, agents: Agents, home: Path, lost: bool) -> None:
    agents.start()
    until(lambda: daemon.inventories, "the call")
    script = f"import os, time\nwhile not os.path.exists({str(home / 'go')!r}): time.sleep(0.01)\nraise SystemExit(1)"
    daemon.interval_s = 600.0
    begin(daemon, command=(sys.executable, "-c", script))
    daemon.wait("Started", 1)
    uuid = daemon.inventories[0].gpus[0].uuid
    if lost:
        (agents.run / "emulated" / f"{uuid}.lock").unlink()
    (home / "go").touch()
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert exited.code == 1
    if lost:
        assert exited.hint is Cause.INFRASTRUCTURE
        assert f"GPU 0 ({uuid}) is lost" in exited.detail
        kinds = [event.kind for _, event in daemon.reports]
        assert kinds.index("GpuChanged") < kinds.index("Exited")
    else:
        assert (exited.hint, exited.detail) == (None, "")
    lines = [json.loads(line) for line in (agents.run / "grants.jsonl").read_text().splitlines()]
    assert [(line["uuid"], line["job"], line["incarnation"], line["what"]) for line in lines] == [
        (uuid, 1, 1, "granted"),
        (uuid, 1, 1, "freed"),
    ]


RENUMBERED = """
from hpcdl.agent.gpu import emulated
from hpcdl.agent.gpu.device import Gpu
from pathlib import Path
plain = emulated.EmulatedSource.list
def turned(self):
    found = plain(self)
    if not Path({flag!r}).exists():
        return found
    return tuple(Gpu(len(found) - 1 - gpu.index, gpu.uuid, gpu.name, gpu.memory_mib) for gpu in found)
emulated.EmulatedSource.list = turned
"""


def test_gpus_that_are_numbered_anew_are_announced_anew(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start(patch=RENUMBERED.format(flag=str(home / "turned")))
    begin(daemon, steps=100_000, gpus=(0,))
    daemon.wait("TrainerReady", 1)
    first = daemon.inventories[0].gpus
    (home / "turned").touch()
    until(lambda: len(daemon.inventories) > 1, "a second inventory")
    second = daemon.inventories[1].gpus
    assert [gpu.uuid for gpu in second] == [gpu.uuid for gpu in reversed(first)]
    assert [gpu.state for gpu in second] == ["ok", "dirty"]
    assert "job 1.1, which was given it as GPU 0" in second[1].detail
    daemon.ask("end", 1, grace_s=5.0)
    daemon.wait("GpusFreed", 1)
    until(lambda: [(e.index, e.state) for e in daemon.of("GpuChanged")] == [(1, "ok")], "the other GPU to be free")
