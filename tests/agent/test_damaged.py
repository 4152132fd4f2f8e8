"""Run folders that were damaged: each costs at most itself, and what runs in one is neither lost nor forgotten."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.agent import run_folder
from hpcdl.agent.supervisor import processes
from hpcdl.core.model.incarnation import Cause
from tests.agent.daemon import Agents, Daemon
from tests.agent.start_requests import begin, supervisor_of
from tests.support.extent import one_of
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


def written(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(content)

    return damage


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def with_grace(path: Path) -> None:
    body = json.loads(path.read_bytes())
    path.write_text(json.dumps(body | {"grace_s": 0}).replace('"grace_s": 0', '"grace_s": 1' + "0" * 400))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nested": written(b"[" * 200_000),
    "deeper": written(b'{"v": 1, "env": ' + b"[" * 200_000),
    "grace": with_grace,
    "empty": written(b""),
    "binary": written(b"\x00\xff\xfe" * 100),
    "list": written(b"[1]"),
    "nan": written(b'{"v": 1, "grace_s": NaN}'),
    "large": written(b" " * (9 << 20)),
    "gone": Path.unlink,
    "folder": replaced(Path.mkdir),
    "fifo": replaced(os.mkfifo),
    "dangling": replaced(lambda path: path.symlink_to("nowhere")),
    "device": replaced(lambda path: path.symlink_to("/dev/zero")),
    "open": lambda path: path.chmod(0o666),
}


def kept(agents: Agents) -> list[str]:
    return [Path(each).name.rsplit(".", 1)[0] for each in run_folder.kept(agents.run)]


def test_start_files_beside_trainers_that_run(daemon: Daemon, agents: Agents) -> None:
    """One job a damage, all at once; each costs at most itself."""
    agents.gpus = len(DAMAGES) + 1
    jobs = dict(enumerate(DAMAGES, 1))
    agent = agents.start()
    for job in jobs:
        begin(daemon, job, gpus=(job,), steps=100_000)
    for job in jobs:
        daemon.wait("TrainerReady", job)
    agents.kill(agent)
    for job, how in jobs.items():
        DAMAGES[how](agents.run / f"{job}.1" / "start.json")
    agents.start()
    begin(daemon, 98)
    daemon.wait("GpusFreed", 98)
    begin(daemon, 99, gpus=tuple(jobs))
    detail = daemon.wait("Exited", 99).detail
    assert "held by job 1.1" in detail, detail
    for job in jobs:
        daemon.ask("suspend", job, grace_s=60.0)
    for job, how in jobs.items():
        daemon.wait("GpusFreed", job)
        assert daemon.wait("Exited", job).ended_by == "suspend", how
    assert len(daemon.inventories) == 2
    troubles = [event.detail for event in daemon.of("TroubleSeen")]
    assert len(troubles) == len(jobs)
    for job, how in jobs.items():
        (told,) = [each for each in troubles if f"/{job}.1" in each]
        assert "start.json" in told, how
        assert "it is kept in" in told, how


@pytest.mark.parametrize("how", one_of("gone", "nested", "grace", "fifo"))
def test_a_start_file_of_which_nothing_runs(daemon: Daemon, agents: Agents, how: str) -> None:
    agent = agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    supervisor = supervisor_of(agents, 1)["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    agents.kill(agent)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: processes.process_of(supervisor) is None, "its end")
    DAMAGES[how](agents.run / "1.1" / "start.json")
    agents.start()
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert exited.hint is Cause.INFRASTRUCTURE
    assert "its run folder is damaged: " in exited.detail
    assert "start.json" in exited.detail
    assert not processes.tagged(daemon.instance)
    daemon.expected.clear()
    daemon.stop()
    daemon.start()
    until(lambda: kept(agents) == ["1.1"], "the folder to be set aside")
    until(lambda: [beat for beat in daemon.heartbeats if beat.damaged], "a heartbeat that tells of it")
    assert daemon.heartbeats[-1].damaged == run_folder.kept(agents.run)


@pytest.mark.parametrize("name", one_of("record.jsonl", "lock", "s", "processes"))
def test_another_file_of_trainers_that_run(daemon: Daemon, agents: Agents, name: str) -> None:
    jobs = dict(enumerate(("nested", "binary", "empty", "folder", "fifo", "gone", "open"), 1))
    agents.gpus = len(jobs) + 1
    agent = agents.start()
    for job in jobs:
        begin(daemon, job, gpus=(job,), steps=100_000)
    for job in jobs:
        daemon.wait("TrainerReady", job)
    trainers = {job: daemon.wait("Started", job).pid for job in jobs}
    agents.kill(agent)
    for job, how in jobs.items():
        path = agents.run / f"{job}.1" / name
        if name == "s" and how != "gone":
            path.unlink()
            path.touch()
        DAMAGES[how](path)
    agents.start()
    begin(daemon, 98)
    daemon.wait("GpusFreed", 98)
    for job, trainer in trainers.items():
        daemon.ask("end", job, grace_s=0.0)
        if name == "s":  # nobody can tell its supervisor anything: it is ended when it is overdue
            os.kill(processes.process_of(trainer).pid, signal.SIGKILL)  # type: ignore[union-attr]
    for job, trainer in trainers.items():
        daemon.wait("GpusFreed", job)
        assert processes.process_of(trainer) is None, jobs[job]
    assert len(daemon.inventories) == 2


def test_what_is_no_run_folder(daemon: Daemon, agents: Agents) -> None:
    agents.run.mkdir(parents=True, mode=0o700)
    agents.run.parent.chmod(0o700)
    (agents.run / "2.1").write_bytes(b"\x00")
    os.mkfifo(agents.run / "3.1")
    (agents.run / "4.1").symlink_to("nowhere")
    (agents.run / "5.1").mkdir(mode=0o700)
    (agents.run / "6.1").mkdir(mode=0o000)
    (agents.run / ("1" * 200 + ".1")).mkdir(mode=0o700)
    agents.start()
    begin(daemon)
    daemon.wait("GpusFreed", 1)
    assert daemon.wait("Exited", 1).code == 0
    assert len(daemon.inventories) == 1
    shutil.rmtree(agents.run / "6.1", ignore_errors=True)


@pytest.mark.parametrize("how", one_of("nested", "binary", "empty", "nan", "list"))
def test_files_of_the_agent_itself(daemon: Daemon, agents: Agents, how: str) -> None:
    agents.kill(agents.start())
    agents.run.mkdir(parents=True, exist_ok=True, mode=0o700)
    agents.run.parent.chmod(0o700)
    for name in ("agent.json", "heard", "reports.jsonl"):
        (agents.run / name).touch(0o600)
        DAMAGES[how](agents.run / name)
    agents.start()
    begin(daemon)
    daemon.wait("GpusFreed", 1)
    assert daemon.wait("Exited", 1).code == 0
