"""Real agents, supervisors and daemons that die, hang or are replaced: what goes on, and who says what."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from hpcdl.agent import run_folder
from hpcdl.agent.supervisor import processes
from hpcdl.core.model.commands import ExpectedIncarnation
from hpcdl.core.model.incarnation import Cause
from tests.agent.daemon import Agents, Daemon, spec_of
from tests.agent.start_requests import begin, checkpoints, supervisor_of
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


def test_an_agent_killed_while_training_is_followed_by_one_that_adopts(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    agents.kill(agent)
    pid = daemon.wait("Started", 1).pid
    assert processes.process_of(pid) is not None
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


@pytest.mark.long
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
    assert kinds == ["Started", "Attached", "TrainerReady", "Saved", "TrainingDone", "Exited", "GpusFreed"]


WAITS = """
import os, sys, time
import hpcdl.trainer as hpcdl
hpcdl.attach()
hpcdl.ready(0)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
with hpcdl.checkpoint(5) as folder: (folder / "state").write_text("5")
hpcdl.done(5)
"""


def test_a_trainer_that_ended_without_an_agent_is_reported_later(daemon: Daemon, agents: Agents, home: Path) -> None:
    agent = agents.start()
    begin(daemon, command=(sys.executable, "-c", WAITS, str(home / "go")))
    daemon.wait("TrainerReady", 1)
    agents.kill(agent)
    (home / "go").touch()
    folder = agents.run / "1.1"
    until(lambda: run_folder.is_free(folder), "the end of the trainer")
    agents.start()
    daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1) == ["Started", "Attached", "TrainerReady", "Saved", "TrainingDone", "Exited", "GpusFreed"]
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
    assert processes.process_of(pid) is None
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
    daemon.lease_s = 4.0
    agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    daemon.stop()
    until(lambda: run_folder.is_free(agents.run / "1.1"), "the suspend")
    daemon.start()
    daemon.wait("GpusFreed", 1)
    assert daemon.wait("Exited", 1).ended_by == "suspend"
    assert daemon.of("Saved", 1)[-1].final


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


@pytest.mark.parametrize("known", [True, False])
def test_a_supervisor_that_hangs_is_ended_in_the_end(daemon: Daemon, agents: Agents, known: bool) -> None:
    """Also one that hung before it had told the agent who it is."""
    unheard = (
        "; heard = a.AgentPart._absorb"
        "; a.AgentPart._absorb = lambda self, record: record['type'] == 'supervisor' or heard(self, record)"
    )
    agents.start(patch="import hpcdl.agent.part as a; a.HUNG_AFTER_S = 0.5" + ("" if known else unheard))
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
    agents.start(patch="import hpcdl.agent.daemon_link as c; c.PING_S = 0.1; c.PONG_S = 0.5")
    until(lambda: daemon.heartbeats, "the call")
    daemon.hang(2.0)
    until(lambda: len(daemon.inventories) >= 2, "the next call")
    log = (agents.run / "agent.log").read_text()
    assert "has not answered" in log


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
    daemon.expected = [ExpectedIncarnation(7, 3, 1, True), ExpectedIncarnation(8, 1, 1, False)]
    agents.start()
    daemon.wait("GpusFreed", 7)
    exited = daemon.wait("Exited", 7)
    assert (exited.incarnation, exited.hint) == (3, Cause.INFRASTRUCTURE)
    assert "no trace" in exited.detail
    assert not daemon.of("Exited", 8), "its start has not been taken: it is still to come"


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
    until(lambda: [r for r in run_folder.read_records(folder) if r["type"] == "opened"], "the gate to open")
    daemon.ask("end", 1, grace_s=5.0)
    daemon.wait("GpusFreed", 1)
    assert daemon.kinds(1).count("AtGate") == 1


def test_sigterm_leaves_the_trainers(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start()
    begin(daemon, steps=100_000)
    daemon.wait("TrainerReady", 1)
    agent.terminate()
    assert agent.wait(180) == 0
    assert processes.process_of(daemon.wait("Started", 1).pid) is not None
    agents.start()
    until(lambda: len(daemon.inventories) == 2, "the next agent")
    daemon.ask("end", 1, grace_s=5.0)
    daemon.wait("GpusFreed", 1)
