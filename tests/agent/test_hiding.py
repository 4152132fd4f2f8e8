"""Processes that hide from whoever supervises them: none outlives its job, and no GPU is given on before it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent import run_folder
from hpcdl.agent.supervisor import process_file, processes
from hpcdl.agent.supervisor.processes import Process
from hpcdl.wire import messages as msg
from tests.agent.daemon import Agents, Daemon
from tests.agent.start_requests import begin, supervisor_of
from tests.agent.test_agent_gpus import held
from tests.support.extent import one_of
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)
HIDING = Path(__file__).with_name("hiding.py")


class Hidden:
    """The process that a trainer of these tests hides."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seen: list[Process] = []

    def command(self, *how: str) -> tuple[str, ...]:
        return (sys.executable, str(HIDING), str(self.file), *how)

    def pid(self) -> int:
        pid = 0

        def written() -> bool:
            nonlocal pid  # a chain empties the file each time before it writes
            text = self.file.read_text() if self.file.exists() else ""
            pid = int(text or 0)
            return pid > 0

        until(written, "the process that hides")
        if (found := processes.process_of(pid)) is not None:
            self.seen.append(found)
        return pid

    def close(self) -> None:
        for each in self.seen:
            processes.signal_process(each, signal.SIGKILL)


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Hidden]:
    made = Hidden(tmp_path / "hidden.pid")
    yield made
    made.close()


def gone(pid: int) -> bool:
    return processes.process_of(pid) is None


def recorded(agents: Agents, pid: int, folder: str = "1.1") -> bool:
    return pid in [each.pid for each in process_file.read_process_file(agents.run / folder).below]


@pytest.mark.parametrize("how", one_of((), (("deaf",),), (("still",),), (("holds", "deaf"),)))
def test_it_ends_with_the_supervisor_that_is_killed(
    daemon: Daemon, agents: Agents, hidden: Hidden, how: tuple[str, ...]
) -> None:
    agents.start()
    begin(daemon, command=hidden.command(*how))
    pid = hidden.pid()
    assert processes.process_of(pid).tag == ""  # type: ignore[union-attr]
    assert os.getsid(pid) != os.getsid(supervisor_of(agents, 1)["pid"])
    os.kill(supervisor_of(agents, 1)["pid"], signal.SIGKILL)
    daemon.wait("GpusFreed", 1)
    assert gone(pid)
    assert "its supervisor was lost" in daemon.wait("Exited", 1).detail


def test_a_chain_that_forks_as_fast_as_it_can_ends_too(daemon: Daemon, agents: Agents, hidden: Hidden) -> None:
    agents.start()
    begin(daemon, command=hidden.command("chain"))
    hidden.pid()
    os.kill(supervisor_of(agents, 1)["pid"], signal.SIGKILL)
    daemon.wait("GpusFreed", 1)
    last = hidden.file.read_text()
    begin(daemon, job=2)
    daemon.wait("GpusFreed", 2)
    assert hidden.file.read_text() == last


def test_a_chain_ends_with_its_trainer(daemon: Daemon, agents: Agents, hidden: Hidden) -> None:
    agents.start()
    begin(daemon, command=hidden.command("chain"))
    hidden.pid()
    daemon.ask("end", 1, grace_s=0.5)
    daemon.wait("GpusFreed", 1)
    last = hidden.file.read_text()
    begin(daemon, job=2)
    daemon.wait("GpusFreed", 2)
    assert hidden.file.read_text() == last


@pytest.mark.parametrize("how", one_of(("ends",), (("ends", "deaf"),), (("ends", "still"),)))
def test_it_ends_after_a_trainer_that_ended_by_itself(
    daemon: Daemon, agents: Agents, hidden: Hidden, how: tuple[str, ...]
) -> None:
    agents.start()
    begin(daemon, command=hidden.command(*how))
    pid = hidden.pid()
    daemon.wait("GpusFreed", 1)
    assert gone(pid)
    assert daemon.wait("Exited", 1).code == 0


def test_agent_and_supervisor_are_killed_at_once(daemon: Daemon, agents: Agents, hidden: Hidden) -> None:
    agent = agents.start()
    begin(daemon, command=hidden.command("holds"))
    pid = hidden.pid()
    until(lambda: recorded(agents, pid), "the record")
    supervisor = supervisor_of(agents, 1)["pid"]
    os.kill(supervisor, signal.SIGSTOP)  # the trainer dies with it: both are to be gone before anybody looks
    agents.kill(agent)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: gone(supervisor), "the end of the supervisor")
    assert not gone(pid)
    agents.start()
    daemon.wait("GpusFreed", 1)
    assert gone(pid)


def test_the_supervisor_of_an_agent_that_adopted_it_is_killed(daemon: Daemon, agents: Agents, hidden: Hidden) -> None:
    agents.kill(agents.start())  # so that there is a folder
    agent = agents.start()
    begin(daemon, command=hidden.command())
    pid = hidden.pid()
    until(lambda: recorded(agents, pid), "the record")
    agents.kill(agent)
    agents.start()
    until(lambda: len(daemon.inventories) >= 2, "the second agent")
    os.kill(supervisor_of(agents, 1)["pid"], signal.SIGKILL)
    daemon.wait("GpusFreed", 1)
    assert gone(pid)


def test_a_run_folder_that_is_removed_while_nobody_looks(daemon: Daemon, agents: Agents, hidden: Hidden) -> None:
    agent = agents.start()
    begin(daemon, command=hidden.command())
    pid = hidden.pid()
    supervisor = supervisor_of(agents, 1)["pid"]
    daemon.wait("Started", 1)  # else the next agent has no word of it, and starts it
    agents.kill(agent)

    def removed() -> bool:  # its supervisor writes there meanwhile
        shutil.rmtree(agents.run / "1.1", ignore_errors=True)
        return not (agents.run / "1.1").exists()

    until(removed, "the run folder to go")
    agents.start()
    daemon.wait("GpusFreed", 1)
    assert gone(pid)
    assert gone(supervisor)


def test_the_heartbeat_tells_of_all(daemon: Daemon, agents: Agents, hidden: Hidden) -> None:
    agents.start()
    begin(daemon, command=hidden.command())
    pid = hidden.pid()
    supervisor = supervisor_of(agents, 1)["pid"]

    def line() -> Any:
        return [each for beat in daemon.heartbeats[-1:] for each in beat.trainers if pid in each.pids]

    until(line, "a heartbeat with it")
    assert line()[0].supervisor == supervisor
    assert line()[0].pid in line()[0].pids
    assert supervisor not in line()[0].pids


# --- what is recorded is checked before anything is signalled ---------------------------------------------------------


@contextlib.contextmanager
def sleeper() -> Iterator[Process]:
    """A process in a session of its own, and one below it in another."""
    import subprocess

    inner = "import os,time; os.setsid(); time.sleep(600)"
    code = f"import subprocess,sys,time; subprocess.Popen([sys.executable, '-c', {inner!r}]); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until(lambda: processes.descendants(process.pid), "the one below it")
    outer = processes.process_of(process.pid)
    assert outer is not None
    try:
        yield outer
    finally:
        for each in [*processes.descendants(process.pid), outer]:
            processes.signal_process(each, signal.SIGKILL)
        process.wait()


def test_kin_are_those_below_and_of_the_same_session() -> None:
    with sleeper() as first:
        below = processes.descendants(first.pid)
        assert len(below) == 1
        until(lambda: os.getsid(below[0].pid) == below[0].pid, "another session")
        assert {each.pid for each in processes.kin([first])} == {first.pid, below[0].pid}
        assert [each.pid for each in processes.kin(below)] == [below[0].pid]
        assert processes.kin([Process(first.pid, first.start_ticks + 1, "", "S")]) == []
        assert processes.kin([Process(os.getpid(), 1, "", "S")]) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"boot": "another"},
        {"v": 2},
        {"processes": 7},
        {"processes": [[1, 2, 3], "x", None, [0, 0], [1, 0], [-1, 5], [True, 1], [1 << 40, 1], [5.0, 1]]},
        {"supervisor": {"pid": 1}},
    ],
)
def test_a_record_that_is_damaged_names_nobody(tmp_path: Path, changed: dict[str, Any]) -> None:
    body = {"v": 1, "boot": processes.boot_id(), "supervisor": None, "processes": []} | changed
    (tmp_path / process_file.PROCESS_FILE).write_text(json.dumps(body))
    assert process_file.read_process_file(tmp_path) == process_file.RecordedProcesses()


@pytest.mark.parametrize("content", [b"", b"[" * 200_000, b"\x00\xff", b"[1" + b"0" * 400 + b"]"])
def test_a_record_that_is_no_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / process_file.PROCESS_FILE).write_bytes(content)
    assert process_file.read_process_file(tmp_path) == process_file.RecordedProcesses()


def test_a_record_is_written_when_something_changed(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    file = process_file.ProcessFile(folder)
    with sleeper() as first:
        file.look([first.pid], 0.0)
        found = process_file.read_process_file(tmp_path)
        assert found.supervisor is not None
        assert found.supervisor.pid == os.getpid()
        below = {each.pid for each in found.below}
        assert below == {first.pid, *(each.pid for each in processes.descendants(first.pid))}
        written = (tmp_path / process_file.PROCESS_FILE).stat().st_ino
        file.look([first.pid], 1e9)
        assert (tmp_path / process_file.PROCESS_FILE).stat().st_ino == written
    file.look([], 1e9)
    assert process_file.read_process_file(tmp_path).below == found.below, "not yet due"
    file.look([], 1e9, at_once=True)
    assert process_file.read_process_file(tmp_path).below == ()
    os.close(folder)


def test_whatever_lies_in_the_place_of_a_record(tmp_path: Path) -> None:
    (tmp_path / process_file.PROCESS_FILE).mkdir()
    assert process_file.read_process_file(tmp_path) == process_file.RecordedProcesses()
    (tmp_path / process_file.PROCESS_FILE).rmdir()
    os.mkfifo(tmp_path / process_file.PROCESS_FILE)
    assert process_file.read_process_file(tmp_path) == process_file.RecordedProcesses()
    assert run_folder.supervisors(tmp_path) == {}


# --- commands beside a trainer ---------------------------------------------------------------------------------------


def shell(daemon: Daemon, *argv: str) -> None:
    daemon.say(msg.ShellOpenMessage(argv, "x", 1, 1, "n1"))


def with_a_command(daemon: Daemon, agents: Agents, hidden: Hidden, *how: str) -> int:
    """A trainer, and beside it a command whose child hides; the child's pid."""
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    shell(daemon, *hidden.command(*how))
    return hidden.pid()


@pytest.mark.parametrize("how", [(), *one_of(("ends",), (("ends", "deaf"),), (("ends", "still"),))])
def test_what_a_command_hides_ends_with_it(
    daemon: Daemon, agents: Agents, hidden: Hidden, how: tuple[str, ...]
) -> None:
    agents.start()
    pid = with_a_command(daemon, agents, hidden, *how)
    if "ends" not in how:
        assert not gone(pid)
        daemon.say(msg.ShellEndMessage("x", None, "enough"))
    until(lambda: gone(pid), "its end")
    daemon.ask("end", 1, grace_s=0.5)
    daemon.wait("GpusFreed", 1)


def test_a_command_whose_agent_is_killed(daemon: Daemon, agents: Agents, hidden: Hidden) -> None:
    agent = agents.start()
    pid = with_a_command(daemon, agents, hidden)
    until(lambda: pid in [each.pid for each in process_file.read_process_file(agents.run).below], "the record")
    agents.kill(agent)
    assert not gone(pid)
    agents.start()
    until(lambda: gone(pid), "its end")
    daemon.ask("end", 1, grace_s=0.5)
    daemon.wait("GpusFreed", 1)


# --- GPUs that should be free ----------------------------------------------------------------------------------------


def test_who_holds_a_gpu_that_should_be_free_is_named(daemon: Daemon, agents: Agents) -> None:
    """A process that nothing ties to the incarnation any more takes its GPU while that ends."""
    agents.start(patch="import hpcdl.agent.grant as g; g.DIRTY_AFTER_S = 0.2")
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    uuid = daemon.inventories[0].gpus[0].uuid
    with held(agents, uuid, later=True) as holder:
        daemon.ask("end", 1, grace_s=0.5)
        changed = daemon.wait("GpuChanged")
        assert (changed.index, changed.state) == (0, "dirty")
        name = Path(f"/proc/{holder.pid}/comm").read_text().strip()
        assert f"process {holder.pid} ({name} of " in changed.detail
    until(lambda: daemon.of("GpuChanged")[-1].state == "ok", "the GPU to be free")
    daemon.wait("GpusFreed", 1)
