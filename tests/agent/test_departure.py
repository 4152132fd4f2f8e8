"""Agents in a batch job: its signals, which come to supervisors and trainers as well, mean that the node goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.departure import TURN_S, Departure, EnclosingJob
from hpcdl.agent.emulation import emulated, granted, has_driver
from hpcdl.agent.supervisor import processes
from hpcdl.core.model.incarnation import Cause
from tests.agent.conftest import ATTACH, Agent
from tests.agent.daemon import Agents, Daemon, spec_of
from tests.support.extent import one_of
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

INSIDE = ("--emulate-gpus", "2", "--allocation", "77", "--left", "3000", "--place", "top", "--place", "leaf")


def begin(daemon: Daemon, **keys: Any) -> None:
    folder = str(daemon.home / "checkpoints" / "1")
    daemon.ask("start", 1, gpus=(0,), spec=spec_of(**keys), checkpoint_dir=folder)


def training(daemon: Daemon, **keys: Any) -> int:
    """Starts a job that trains for long; the trainer's process, once it does."""
    begin(daemon, steps=100_000, **keys)
    daemon.wait("TrainerReady", 1)
    until(lambda: daemon.of("Progressed", 1), "progress")
    return int(daemon.wait("Started", 1).pid)


def in_time(agents: Agents, agent: subprocess.Popen[str]) -> None:
    """The agent ends with 0, and before its grace is over: then it kills what is left, and says so."""
    assert agent.wait(180) == 0
    log = agents.run / "agent.log"
    assert not log.exists() or "the grace is over" not in log.read_text()


@pytest.mark.parametrize(
    "number", one_of(signal.SIGTERM, signal.SIGUSR1, signal.SIGTSTP), ids=lambda number: number.name
)
def test_the_daemon_is_told_and_has_the_trainer_suspended(
    number: signal.Signals, daemon: Daemon, agents: Agents
) -> None:
    agent = agents.start(*INSIDE)
    training(daemon)
    told = daemon.inventories[-1]
    assert (told.allocation, told.place) == ("77", ("top", "leaf"))
    assert 2900 < (told.left_s or 0) <= 3000
    agent.send_signal(number)
    until(lambda: daemon.leavings, "the agent to say that it leaves")
    agent.send_signal(signal.SIGTERM)  # a second one changes nothing
    daemon.ask("suspend", 1, grace_s=30.0)
    in_time(agents, agent)
    (leaving,) = daemon.leavings
    assert leaving.reason == f"{number.name} in batch job 77"
    assert 20 < (leaving.left_s or 0) <= 25
    assert daemon.of("Saved", 1)[-1].final
    assert daemon.kinds(1)[-2:] == ["Exited", "GpusFreed"]
    assert daemon.wait("Exited", 1).ended_by == "suspend"
    assert not processes.tagged(daemon.instance)


def test_what_the_daemon_says_nothing_of_is_suspended_by_the_agent(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start(*INSIDE, "--grace", "12")
    training(daemon)
    agent.send_signal(signal.SIGINT)
    assert agent.wait(180) == 0
    assert daemon.of("Saved", 1)[-1].final
    assert daemon.kinds(1)[-2:] == ["Exited", "GpusFreed"]


def test_without_a_daemon_at_once_and_the_next_agent_tells(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start(*INSIDE)
    training(daemon)
    daemon.stop()
    log = agents.run / "agent.log"
    until(lambda: "connection ended" in log.read_text() or "no daemon" in log.read_text(), "the loss of the daemon")
    agent.send_signal(signal.SIGUSR2)
    in_time(agents, agent)
    assert not processes.tagged(daemon.instance)
    assert not daemon.of("Exited", 1)
    daemon.start()
    agents.start(*INSIDE)
    assert daemon.wait("Exited", 1).ended_by == "suspend"
    assert daemon.of("Saved", 1)[-1].final
    daemon.wait("GpusFreed", 1)


EARLY = """
import os, signal
import hpcdl.agent.run as run
known = run.folder.{where}
def signalled(*a, **k):
    os.kill(os.getpid(), signal.SIGTERM)
    return known(*a, **k)
run.folder.{where} = signalled
"""


@pytest.mark.parametrize("where", one_of("run_folder", "write_about"))
def test_an_agent_in_place_of_a_lost_one_saves_what_it_finds(where: str, daemon: Daemon, agents: Agents) -> None:
    lost = agents.start(*INSIDE)
    training(daemon)
    agents.kill(lost)
    in_time(agents, agents.start(*INSIDE, patch=EARLY.format(where=where)))
    assert not processes.tagged(daemon.instance)
    assert daemon.of("Saved", 1)[-1].final


@pytest.mark.parametrize("where", ["run_folder", "write_about"])
def test_a_signal_before_there_is_anything_ends_the_agent(where: str, daemon: Daemon, agents: Agents) -> None:
    assert agents.start(*INSIDE, patch=EARLY.format(where=where)).wait(180) == 0
    assert not daemon.inventories


def test_a_signal_that_comes_to_every_process_costs_no_step(daemon: Daemon, agents: Agents) -> None:
    """As slurmstepd sends it; the trainer is in its own session, and still in the step."""
    agent = agents.start(*INSIDE)
    trainer = training(daemon)
    (supervisor,) = [line.supervisor for line in until(lambda: daemon.heartbeats[-1].trainers, "the trainer")]
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU, signal.SIGCONT):
        os.kill(trainer, number)
        os.kill(supervisor, number)
    seen = max(event.step for event in daemon.of("Progressed", 1))
    until(lambda: max(event.step for event in daemon.of("Progressed", 1)) > seen + 5, "training to go on")
    for pid in (agent.pid, supervisor, trainer):
        os.kill(pid, signal.SIGTERM)
    assert agent.wait(180) == 0
    exited = daemon.wait("Exited", 1)
    assert (exited.code, exited.signal) == (0, None)
    saved = daemon.of("Saved", 1)[-1]
    assert saved.final
    assert saved.step > seen


def test_a_program_that_dies_of_the_batch_systems_signal_has_not_failed(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start(*INSIDE)
    begin(daemon, command=("sleep", "1000"), signal="none")
    trainer = int(daemon.wait("Started", 1).pid)
    os.kill(agent.pid, signal.SIGUSR2)
    until(lambda: daemon.leavings, "the agent to say that it leaves")
    os.kill(trainer, signal.SIGUSR2)
    assert agent.wait(180) == 0
    exited = daemon.wait("Exited", 1)
    assert (exited.signal, exited.hint) == ("SIGUSR2", Cause.PREEMPTED)
    assert exited.detail == "its node is wanted back: SIGUSR2 in batch job 77"


def test_at_the_end_of_the_grace_nothing_is_left(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start(*INSIDE, "--grace", "3")
    ignored = "import signal, time\nfor n in (15, 20): signal.signal(n, signal.SIG_IGN)\n"
    script = ignored + "print('on', flush=True)\ntime.sleep(300)"
    begin(daemon, command=(sys.executable, "-c", script))
    path = daemon.home / "logs" / "1" / "1.n1.log"
    until(lambda: path.exists() and "on" in path.read_text(), "the trainer")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(180) == 0
    assert not processes.tagged(daemon.instance)


def test_an_agent_without_a_daemon_gives_its_node_back(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start(*INSIDE, "--alone", "4", "--grace", "8")
    training(daemon)
    daemon.stop()
    assert agent.wait(180) == 0
    assert not processes.tagged(daemon.instance)
    daemon.start()
    agents.start(*INSIDE)
    assert daemon.wait("Exited", 1).ended_by == "suspend"


def test_a_stopped_batch_job_goes_on(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start(*INSIDE)
    training(daemon)
    agent.send_signal(signal.SIGSTOP)
    daemon.stop()
    daemon.start()
    agent.send_signal(signal.SIGCONT)
    until(lambda: len(daemon.inventories) > 1, "the agent to call again")
    seen = len(daemon.of("Progressed", 1))
    until(lambda: len(daemon.of("Progressed", 1)) > seen, "progress")
    assert not daemon.leavings


def test_a_trainer_knows_its_batch_job_and_no_more_of_it(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start(*INSIDE)
    script = "import os\nprint(os.environ['HPCDL_ALLOCATION'], [n for n in os.environ if n.startswith('SLURM')])"
    begin(daemon, command=(sys.executable, "-c", script))
    daemon.wait("GpusFreed", 1)
    assert (home / "logs" / "1" / "1.n1.log").read_text() == "77 []\n"


def test_wrong_options_are_told(daemon: Daemon, agents: Agents) -> None:
    agent = agents.start(*INSIDE[2:], "--emulate-gpus", "some")
    assert agent.wait(180) == 2
    assert agent.stdout is not None
    assert "auto or a number up to 1024, not 'some'" in agent.stdout.read()


# --- supervisor and trainer alone ------------------------------------------------------------------------------------


def test_a_supervisor_leaves_a_sigterm_to_its_agent_while_there_is_one(agent: Agent) -> None:
    agent.start(ATTACH + "print('on')\nwhile not asked: time.sleep(0.01)\nsaved(5)", batch=True)
    client = agent.connect()
    agent.printed("on")
    assert agent.supervisor is not None
    agent.supervisor.send_signal(signal.SIGTERM)
    agent.supervisor.send_signal(signal.SIGUSR2)
    client.send("rescale", membership=1, nodes=["n1"], ranks=[1], address="")  # any packet: it has had its turn
    until(lambda: processes.process_of(agent.supervisor.pid) is not None and client.poll(), "records")  # type: ignore[union-attr]
    assert not agent.of("suspending")
    client.close()
    record = agent.exit()
    assert (record["code"], record["ended_by"]) == (0, "suspend")


def test_a_rank_that_is_to_end_is_told_before_its_sigterm(agent: Agent) -> None:
    ends = "signal.signal(signal.SIGTERM, lambda n, f: print('heard', hear(1.0)['type']))"
    agent.start(ATTACH + ends + "\nprint('on')\nwhile True: time.sleep(0.01)", batch=True, grace_s=2.0)
    client = agent.connect()
    agent.printed("on")
    client.send("end", grace_s=2.0)
    agent.printed("heard end")
    assert agent.exit()["ended_by"] == "end"


LIBRARY = """
import os, signal, sys, time
import hpcdl.trainer as hpcdl
session = hpcdl.attach()
{before}
print("on", flush=True)
while not session.should_suspend():
    time.sleep(0.01)
print("asked", flush=True)
while True:
    time.sleep(0.01)
"""


def library(agent: Agent, before: str = "", rescale: str = "restart") -> int:
    """A trainer with the library, in a batch job; its process."""
    env = {"PATH": os.environ["PATH"], "HPCDL_ALLOCATION": "77", "PYTHONPATH": str(Path(__file__).parents[2])}
    env |= {"HPCDL_RESCALE": rescale, "HPCDL_INCARNATION": "2", "HPCDL_MEMBERSHIP": "1", "PYTHONUNBUFFERED": "1"}
    path = agent.base / "trainer.py"
    path.write_text(LIBRARY.format(before=before))
    agent.start(None, argv=(sys.executable, "-u", str(path)), batch=True, rescale=rescale, env=env, grace_s=5.0)
    agent.connect()
    agent.printed("on")
    return int(agent.wait("started")["pid"])


def test_the_library_takes_a_sigterm_for_a_wish_to_suspend(agent: Agent) -> None:
    os.kill(library(agent), signal.SIGTERM)
    agent.printed("asked")
    assert "Traceback" not in agent.output()


def test_ranks_that_may_go_on_without_their_node_wait_for_what_the_agent_says(agent: Agent) -> None:
    pid = library(agent, rescale="in-process")
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGUSR1)
    until(lambda: processes.process_of(pid) is not None, "the trainer")
    agent.clients[0].send("end", grace_s=5.0)
    record = agent.exit()
    assert "asked" not in agent.output()
    assert (record["signal"], record["ended_by"]) == ("SIGTERM", "end")


def test_handlers_of_the_script_and_its_children_are_left_alone(agent: Agent) -> None:
    before = """
signal.signal(signal.SIGUSR1, lambda n, f: print("mine", flush=True))
ready, told = os.pipe()
child = os.fork()
if child == 0:
    os.write(told, b"x")  # Python forgets signals that come while it forks
    while True:
        time.sleep(0.01)  # not one long sleep, which a signal just before it would not end
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    pid = library(agent, before)
    agent.printed("child -15")
    os.kill(pid, signal.SIGUSR1)
    agent.printed("mine")
    assert "asked" not in agent.output()


# --- the values ------------------------------------------------------------------------------------------------------


def test_time_in_which_the_agent_was_stopped_does_not_count() -> None:
    leaving = Departure(EnclosingJob("1", left_s=100.0, grace_s=20.0), now=0.0)
    leaving.look(1.0, True)
    assert not leaving.begun
    assert leaving.begin("TERM")
    assert not leaving.begin("USR1")
    leaving.look(1.25, True)
    assert (leaving.left_s, leaving.patient) == (19.75, True)
    leaving.look(90.0, True)  # stopped by the batch system for a minute and a half
    assert leaving.left_s == 19.75 - TURN_S
    message = leaving.message(95.0)
    assert (message.left_s, message.reason) == (5.0, "TERM")
    for turn in range(100):
        leaving.look(95.0 + turn * 0.2, True)
    assert not leaving.patient
    assert (leaving.left_s, leaving.trainers_s) == (0.0, 0.0)


def test_alone_for_too_long() -> None:
    leaving = Departure(EnclosingJob("1", alone_s=2.0), now=0.0)
    for turn in range(40):
        leaving.look(turn * 0.25, connected=turn % 6 == 5)
    assert not leaving.begun
    for turn in range(9):
        leaving.look(10.0 + turn * 0.25, connected=False)
    assert leaving.reason == "no daemon for 2 s"


@pytest.mark.parametrize("keys", [{"grace_s": -1.0}, {"alone_s": 0.0}, {"left_s": float("nan")}])
def test_a_stay_has_finite_times(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"grace|seconds left"):
        EnclosingJob("1", **keys)


@pytest.mark.parametrize(
    ("environ", "number"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,3"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "SLURM_GPUS_ON_NODE": "8"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"SLURM_JOB_GPUS": "0-3,6"}, 5),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "many"}, 0),
        ({}, 0),
    ],
)
def test_how_many_gpus_were_granted(environ: dict[str, str], number: int) -> None:
    assert granted(environ) == number


def test_auto_emulates_what_was_granted_where_there_is_no_driver(tmp_path: Path) -> None:
    four = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert emulated("auto", four, tmp_path) == (4, True)
    assert emulated("auto", {}, tmp_path) == (None, True)
    assert emulated(None, four, tmp_path) == (None, False)
    assert emulated(None, {**four, "HPCDL_EMULATE_GPUS": "auto"}, tmp_path) == (4, True)
    assert emulated("2", {"HPCDL_EMULATE_GPUS": "auto"}, tmp_path) == (2, True)
    with pytest.raises(ValueError, match="not '2000'"):
        emulated("2000", {}, tmp_path)
    (tmp_path / "dev").mkdir()
    assert not has_driver(tmp_path)
    (tmp_path / "dev" / "nvidia0").touch()
    assert has_driver(tmp_path)
    assert emulated("auto", four, tmp_path) == (None, True)


@pytest.fixture
def agents(home: Path, daemon: Daemon) -> Iterator[Agents]:
    """As everywhere, in an environment of a batch job."""
    made = Agents(home)
    yield made
    made.close(daemon.instance)
