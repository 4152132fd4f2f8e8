"""Real agents, supervisors and trainers, and a daemon that only listens."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent import processes, start
from hpcdl.core.commands import Expected
from hpcdl.core.model import Cause
from hpcdl.wire import messages as msg
from tests.agent.daemon import Agents, Daemon, spec_of, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def daemon(home: Path) -> Iterator[Daemon]:
    made = Daemon(home, instance=f"i-{uuid.uuid4().hex[:12]}").start()
    yield made
    made.close()


@pytest.fixture
def agents(home: Path, daemon: Daemon) -> Iterator[Agents]:
    made = Agents(home)
    yield made
    made.close(daemon.instance)


def checkpoints(home: Path, job: int) -> str:
    return str(home / "checkpoints" / str(job))


@contextmanager
def held(agents: Agents, uuid_of_gpu: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the emulated GPU."""
    script = (
        "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f,fcntl.LOCK_EX)\n"
        "print('held',flush=True)\nsys.stdin.read()"
    )
    lock = str(agents.run / "emulated" / f"{uuid_of_gpu}.lock")
    argv = [sys.executable, "-c", script, lock]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.communicate()


def begin(daemon: Daemon, job: int = 1, incarnation: int = 1, gpus: Any = (0,), **keys: Any) -> int:
    return daemon.ask(
        "start",
        job,
        incarnation,
        gpus=gpus,
        spec=spec_of(**keys),
        checkpoint_dir=checkpoints(daemon.home, job),
    )


def supervisor_of(agents: Agents, job: int, incarnation: int = 1) -> dict[str, Any]:
    folder = agents.run / f"{job}.{incarnation}"
    return until(lambda: [r for r in start.read_records(folder) if r["type"] == "supervisor"], "the supervisor")[0]


def test_from_start_to_exit(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    number = begin(daemon)
    freed = daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1) == ["Started", "Attached", "TrainerReady", "Saved", "Exited", "GpusFreed"]
    assert number in daemon.taken
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.signal, exited.attached, exited.hint, exited.step) == (0, None, True, None, 5)
    assert (freed.node, freed.membership) == ("n1", 1)
    assert daemon.of("Saved", 1)[-1].step == 5
    inventory = daemon.inventories[0]
    assert [(gpu.index, gpu.state) for gpu in inventory.gpus] == [(0, "ok"), (1, "ok")]
    assert inventory.emulated
    assert inventory.cpus >= 1
    assert not processes.tagged(daemon.instance)
    assert (agents.run / "1.1").is_dir()
    daemon.say(msg.ForgetMessage(1, 1))
    until(lambda: not (agents.run / "1.1").exists(), "the run folder to go")
    number = begin(daemon, incarnation=1)
    until(lambda: number in daemon.taken, "the second start to be taken")


def test_the_environment_of_a_trainer(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    script = "import json,os;print(json.dumps(dict(os.environ)))"
    begin(daemon, gpus=(0, 1), command=(sys.executable, "-c", script), env=(("MINE", "1"), ("SLURM_PROCID", "3")))
    daemon.wait("GpusFreed", 1)
    seen = json.loads((home / "logs" / "1" / "1.n1.log").read_text())
    uuids = [gpu.uuid for gpu in daemon.inventories[0].gpus]
    assert seen["HPCDL_TAG"] == f"{daemon.instance}:1:1:n1"
    assert seen["CUDA_VISIBLE_DEVICES"] == seen["HPCDL_GPUS"] == ",".join(uuids)
    assert (seen["HPCDL_GPU_COUNT"], seen["HPCDL_NODES"], seen["HPCDL_NODE_RANK"]) == ("2", "n1", "0")
    assert (seen["HPCDL_JOB"], seen["HPCDL_NODE"], seen["HPCDL_STEPS"], seen["MINE"]) == ("1", "n1", "5", "1")
    assert seen["HPCDL_EMULATED"] == str(agents.run / "emulated")
    assert seen["HPCDL_CHECKPOINT_DIR"] == checkpoints(home, 1)
    assert not [name for name in seen if name.startswith("SLURM")]
    assert "HPCDL_HOME" not in seen


def test_suspend_then_the_gpus_are_free(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    until(lambda: daemon.of("Progressed", 1), "progress")
    until(lambda: daemon.heartbeats and daemon.heartbeats[-1].trainers, "a heartbeat with the trainer")
    line = daemon.heartbeats[-1].trainers[0]
    assert (line.job, line.incarnation, line.pid) == (1, 1, daemon.wait("Started", 1).pid)
    assert line.supervisor == supervisor_of(agents, 1)["pid"]
    daemon.ask("suspend", 1, grace_s=30.0)
    daemon.ask("suspend", 1, grace_s=30.0)
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.ended_by) == (0, "suspend")
    assert daemon.of("Saved", 1)[-1].final
    assert daemon.kinds(1)[-2:] == ["Exited", "GpusFreed"]
    begin(daemon, incarnation=2, steps=100_000)
    ready = daemon.wait("TrainerReady", 1, 2)
    assert ready.step == daemon.of("Saved", 1)[-1].step
    daemon.ask("end", 1, 2, grace_s=5.0)
    assert daemon.wait("Exited", 1, 2).ended_by == "end"
    daemon.wait("GpusFreed", 1, 2)


def test_an_agent_killed_while_training_is_followed_by_one_that_adopts(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    agents.kill(agent)
    pid = daemon.wait("Started", 1).pid
    assert processes.look(pid) is not None
    daemon.ask("suspend", 1, grace_s=30.0)
    agents.start("--home", str(agents.home))  # the number of emulated GPUs is remembered
    daemon.wait("GpusFreed", 1)
    assert len(daemon.inventories) == 2
    assert [gpu.uuid for gpu in daemon.inventories[0].gpus] == [gpu.uuid for gpu in daemon.inventories[1].gpus]
    assert daemon.hellos[0].log_id == daemon.hellos[1].log_id
    kinds = daemon.kinds(1)
    assert kinds[:3] == ["Started", "Attached", "TrainerReady"]
    assert kinds[-2:] == ["Exited", "GpusFreed"]
    assert [kinds.count(kind) for kind in ("Started", "Attached", "TrainerReady", "Exited", "GpusFreed")] == [1] * 5
    assert daemon.wait("Exited", 1).ended_by == "suspend"


def test_agents_killed_again_and_again(daemon: Daemon, agents: Agents) -> None:
    chance = random.Random(5)
    agent = agents.start()
    begin(daemon, job=1, steps=400, gpus=(0,))
    for job in range(2, 8):
        begin(daemon, job=job, steps=10, gpus=(1,))
        pause, began = chance.uniform(0.05, 1.2), time.monotonic()
        until(lambda: time.monotonic() - began > pause, "a moment")  # noqa: B023
        agents.kill(agent)
        agent = agents.start()
        daemon.wait("GpusFreed", job)
        kinds = daemon.kinds(job)
        assert [kinds.count(kind) for kind in ("Started", "Attached", "Exited", "GpusFreed")] == [1] * 4, kinds
        assert daemon.wait("Exited", job).code == 0
    daemon.wait("GpusFreed", 1)
    kinds = daemon.kinds(1)
    assert kinds == ["Started", "Attached", "TrainerReady", "Saved", "Exited", "GpusFreed"]


def test_a_trainer_that_ended_without_an_agent_is_reported_later(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon, steps=40, pause=0.05)
    daemon.wait("TrainerReady", 1)
    agents.kill(agent)
    folder = agents.run / "1.1"
    until(lambda: start.is_free(folder), "the end of the trainer")
    agents.start()
    daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1) == ["Started", "Attached", "TrainerReady", "Saved", "Exited", "GpusFreed"]
    assert daemon.wait("Exited", 1).code == 0
    assert daemon.wait("Exited", 1).age_s > 0


def test_reports_that_are_not_recorded_come_again_with_the_same_numbers(daemon: Daemon, agents: Agents) -> None:
    daemon.acknowledge = False
    agent = agents.start()
    begin(daemon)
    daemon.wait("GpusFreed", 1)
    first = list(daemon.reports)
    agents.kill(agent)
    daemon.reports.clear()
    daemon.acknowledge = True
    agents.start()
    daemon.wait("GpusFreed", 1)
    again = daemon.reports[: len(first)]
    assert [(number, event.kind) for number, event in again] == [(number, event.kind) for number, event in first]
    assert daemon.wait("Exited", 1).age_s >= first[-1][1].age_s  # type: ignore[attr-defined]
    daemon.stop()
    daemon.reports.clear()
    daemon.start()
    until(lambda: len(daemon.inventories) == 3, "the third call")
    until(lambda: len(daemon.heartbeats) > 1, "a heartbeat")
    assert not daemon.reports, "what is recorded does not come again"


def test_what_a_new_daemon_does_not_expect_is_ended(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    pid = daemon.wait("Started", 1).pid
    daemon.stop()
    daemon.expected, daemon.fence = [], 2
    daemon.start()
    until(lambda: len(daemon.inventories) == 2, "the second call")
    state = daemon.inventories[1].gpus[0]
    assert state.state == "dirty"
    assert "job 1.1" in state.detail

    def states() -> list[str]:  # of the GPU that was held; those of all may follow an inventory
        return [event.state for event in daemon.of("GpuChanged") if event.index == state.index]

    until(lambda: states()[-1:] == ["ok"], "the GPU to be free")
    assert processes.look(pid) is None
    assert not daemon.of("GpusFreed", 1)
    until(lambda: not (agents.run / "1.1").exists(), "the run folder to go")


def test_a_daemon_that_was_replaced_is_refused(daemon: Daemon, agents: Agents) -> None:
    daemon.fence = 5
    agents.start()
    until(lambda: daemon.heartbeats, "the first call")
    daemon.stop()
    daemon.fence = 4
    daemon.start()
    until(lambda: len(daemon.hellos) >= 3, "calls")
    assert daemon.hellos[-1].fence == 5
    assert len(daemon.inventories) == 1


def test_past_its_lease_the_agent_suspends_its_trainers(daemon: Daemon, agents: Agents) -> None:
    daemon.lease_s = 1.0
    agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    daemon.stop()
    until(lambda: start.is_free(agents.run / "1.1"), "the suspend")
    daemon.start()
    daemon.wait("GpusFreed", 1)
    assert daemon.wait("Exited", 1).ended_by == "suspend"
    assert daemon.of("Saved", 1)[-1].final


def test_a_second_agent_of_a_node_is_refused(daemon: Daemon, agents: Agents) -> None:
    first = agents.start()
    until(lambda: daemon.inventories, "the first one's call")
    second = agents.start()
    assert second.wait(60) == 3
    assert second.stdout is not None
    said = second.stdout.read()
    assert said.count("\n") == 1
    assert str(first.pid) in said
    assert first.poll() is None


def test_a_start_that_is_repeated_starts_nothing(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    until(lambda: daemon.inventories, "the call")
    numbers = [begin(daemon, steps=100_000) for _ in range(3)]
    daemon.wait("TrainerReady", 1)
    until(lambda: set(numbers) <= set(daemon.taken), "all to be taken")
    assert len([each for each in processes.tagged(daemon.instance) if each.tag.endswith(":1:1:n1")]) == 1
    daemon.ask("end", 1, grace_s=5.0)
    daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1).count("Started") == 1


def test_a_supervisor_that_is_killed(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    os.kill(supervisor_of(agents, 1)["pid"], signal.SIGKILL)
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.hint) == (None, Cause.INFRASTRUCTURE)
    assert "supervisor was lost" in exited.detail
    assert not processes.tagged(daemon.instance)


def test_a_supervisor_that_hangs_is_ended_in_the_end(daemon: Daemon, agents: Agents) -> None:
    agents.start(patch="import hpcdl.agent.incarnations as i; i.HUNG_AFTER_S = 0.5")
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    os.kill(supervisor_of(agents, 1)["pid"], signal.SIGSTOP)
    daemon.ask("suspend", 1, grace_s=0.5)
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert exited.hint is Cause.INFRASTRUCTURE
    assert "hung" in exited.detail
    assert not processes.tagged(daemon.instance)


def test_a_daemon_that_does_not_answer_is_left(daemon: Daemon, agents: Agents) -> None:
    agents.start(patch="import hpcdl.agent.connection as c; c.PING_S = 0.1; c.PONG_S = 0.5")
    until(lambda: daemon.heartbeats, "the call")
    daemon.hang(2.0)
    until(lambda: len(daemon.inventories) >= 2, "the next call")
    log = (agents.run / "agent.log").read_text()
    assert "has not answered" in log


def test_gpus_that_are_not_left_are_dirty(daemon: Daemon, agents: Agents) -> None:
    agents.start(patch="import hpcdl.agent.incarnations as i; i.DIRTY_AFTER_S = 0.2")
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
    assert daemon.of("GpuChanged")[-1].state == "ok"


def test_agent_and_supervisor_killed_at_once(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    supervisor = supervisor_of(agents, 1)["pid"]
    agent.kill()
    os.kill(supervisor, signal.SIGKILL)
    agent.wait()
    agents.start()
    daemon.wait("GpusFreed", 1)
    assert daemon.wait("Exited", 1).hint is Cause.INFRASTRUCTURE
    assert not processes.tagged(daemon.instance)


def test_no_trace_of_what_is_expected(daemon: Daemon, agents: Agents) -> None:
    daemon.expected = [Expected(7, 3, 1, True), Expected(8, 1, 1, False)]
    agents.start()
    daemon.wait("GpusFreed", 7)
    exited = daemon.wait("Exited", 7)
    assert (exited.incarnation, exited.hint) == (3, Cause.INFRASTRUCTURE)
    assert "no trace" in exited.detail
    assert not daemon.of("Exited", 8), "its start has not been taken: it is still to come"


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
from hpcdl.gpu import emulated
from hpcdl.gpu.device import Gpu
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


def test_the_gate(daemon: Daemon, agents: Agents, home: Path) -> None:
    script = home / "script.py"
    script.write_text("import os\nprint(os.environ['HPCDL_GPUS'])\n")
    agents.start()
    command = (sys.executable, "-m", "hpcdl.trainer.gate", str(script))
    daemon.ask("start", 1, spec=spec_of(command=command, gate=True), checkpoint_dir=checkpoints(home, 1))
    daemon.wait("AtGate", 1)
    assert not daemon.of("Exited", 1)
    daemon.ask("open", 1, gpus=(1,))
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.hint) == (0, None)
    assert daemon.inventories[0].gpus[1].uuid in (home / "logs" / "1" / "1.n1.log").read_text()


def test_an_agent_killed_at_the_gate(daemon: Daemon, agents: Agents, home: Path) -> None:
    script = home / "script.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    agent = agents.start()
    command = (sys.executable, "-m", "hpcdl.trainer.gate", str(script))
    daemon.ask("start", 1, spec=spec_of(command=command, gate=True), checkpoint_dir=checkpoints(home, 1))
    daemon.wait("AtGate", 1)
    agents.kill(agent)
    agents.start()
    until(lambda: len(daemon.inventories) == 2, "the second call")
    daemon.ask("open", 1, gpus=(1,))
    folder = agents.run / "1.1"
    until(lambda: [r for r in start.read_records(folder) if r["type"] == "opened"], "the gate to open")
    daemon.ask("end", 1, grace_s=5.0)
    daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1).count("AtGate") == 1


def test_a_command_that_is_not_there(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    begin(daemon, command=("/nowhere/at/all",))
    daemon.wait("GpusFreed", 1)
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.hint) == (127, None)
    assert "not found" in exited.detail


def test_sigterm_leaves_the_trainers(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    agent.terminate()
    assert agent.wait(60) == 0
    assert processes.look(daemon.wait("Started", 1).pid) is not None
    agents.start()
    until(lambda: len(daemon.inventories) == 2, "the next agent")
    daemon.ask("end", 1, grace_s=5.0)
    daemon.wait("GpusFreed", 1)


def test_after_a_bye_the_agent_ends(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon)
    daemon.wait("GpusFreed", 1)
    daemon.say(msg.ByeMessage(True, "stopped"))
    assert agent.wait(60) == 0


def test_orphans_are_swept(daemon: Daemon, agents: Agents) -> None:
    tagged = {"HPCDL_TAG": f"{daemon.instance}:5:1:n1"}
    other = {"HPCDL_TAG": f"{daemon.instance}:5:1:n2"}
    orphan = subprocess.Popen(["sleep", "1000"], env=os.environ | tagged)
    neighbour = subprocess.Popen(["sleep", "1000"], env=os.environ | other)
    try:
        agents.start()
        assert orphan.wait(60) == -signal.SIGKILL
        until(lambda: daemon.inventories, "the call")
        assert neighbour.poll() is None
    finally:
        for each in (orphan, neighbour):
            each.kill()
            each.wait()


def test_an_idle_agent_uses_next_to_no_cpu(daemon: Daemon, agents: Agents) -> None:
    daemon.interval_s = 10.0
    agent = agents.start()
    until(lambda: daemon.heartbeats, "the call")

    def ticks() -> int:
        fields = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before, began = ticks(), time.monotonic()
    until(lambda: time.monotonic() - began > 3.0, "three seconds")
    assert ticks() - before <= 15, "hundredths of a second in three seconds"
