"""How a daemon is waited for that is being started: while it is at work, and no longer; and never ended for that."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from hpcdl.daemon import daemon, launch, local_agent
from hpcdl.daemon.daemon import Daemon
from hpcdl.daemon.launch import Activity, LaunchError
from hpcdl.daemon.local_agent import LocalAgent

SAY = "import json, os, sys, time\ndef say(**body): os.write(int(sys.argv[1]), json.dumps(body).encode() + b'\\n')\n"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for each in found:
        each.kill()
        each.wait()


def await_ready(started: list[subprocess.Popen[bytes]], script: str, home: Path) -> dict[str, Any]:
    ready, told = os.pipe()
    try:
        started.append(subprocess.Popen([sys.executable, "-c", SAY + script, str(told)], pass_fds=(told,)))
    finally:
        os.close(told)
    try:
        return launch._await_ready(ready, started[-1], home)
    finally:
        os.close(ready)


def test_one_that_takes_long_is_waited_for_and_says_what_it_does(
    started: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launch, "SLOW_S", 0.0)
    script = "say(phase='reading the ledger: event 2,000 of 9,000'); time.sleep(0.2); say(phase='more'); say(pid=7)"
    assert await_ready(started, script, tmp_path) == {"pid": 7}
    err = capsys.readouterr().err
    assert f"hpcdl: the daemon (pid {started[0].pid}) is not ready yet" in err
    assert "reading the ledger: event 2,000 of 9,000" in err


def test_one_that_is_at_work_is_waited_for_though_it_says_nothing(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LOOK_S", 0.05)
    monkeypatch.setattr(launch, "STUCK_S", 20.0)  # of no CPU time at all
    script = "end = time.process_time() + 1.0\nwhile time.process_time() < end: pass\nsay(pid=7)"
    assert await_ready(started, script, tmp_path) == {"pid": 7}


def test_one_that_hangs_is_left_as_it_is(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LOOK_S", 0.01)
    monkeypatch.setattr(launch, "STUCK_S", 3.0)  # its Python starts on a loaded machine, too
    with pytest.raises(LaunchError, match=r"has not moved for .* \(opening the ledger\) .*daemon.log; kill \d+ ends"):
        await_ready(started, "say(phase='opening the ledger'); time.sleep(600)", tmp_path)
    assert started[0].poll() is None


def test_ctrl_c_leaves_it_at_work(
    started: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcdl.daemon.launch.readable", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await_ready(started, "time.sleep(600)", tmp_path)
    assert started[0].poll() is None
    assert f"(pid {started[0].pid}) goes on starting" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script,why", [("say(phase='x'); sys.exit(1)", "ended while starting"), ("say(error='no room')", "no room")]
)
def test_one_that_ends(started: list[subprocess.Popen[bytes]], tmp_path: Path, script: str, why: str) -> None:
    with pytest.raises(LaunchError, match=why):
        await_ready(started, script, tmp_path)


def test_a_process_that_is_stopped_does_not_move() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        activity = Activity(process.pid, 0.0)
        assert activity.still_s(10.0) == 0.0  # what it had done before
        assert activity.still_s(25.0) == 15.0
        activity.moved(30.0)
        assert activity.still_s(31.0) == 1.0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("error", [psutil.AccessDenied(), FileNotFoundError(), AttributeError(), RuntimeError()])
def test_a_process_is_at_work_by_its_cpu_time_where_its_reads_are_not_known(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: psutil.Process) -> object:
        raise error

    monkeypatch.setattr(psutil.Process, "io_counters", refused)
    assert len(launch._work(os.getpid())) == 2
    activity = Activity(os.getpid(), 0.0)
    while launch._work(os.getpid()) == activity._work:
        pass  # until a tick of its CPU time is over
    assert activity.still_s(10.0) == 0.0


# --- whose agent a daemon waits for ----------------------------------------------------------------------------------


class Agents:
    """What a daemon sees of agents: those that join, one at a time; and the one that it starts."""

    def __init__(self, join: list[str], still_s: float = 0.0, words: str = "") -> None:
        self.join, self.joined, self.silent_s, self.words = join, list[str](), still_s, words
        self.arrived = asyncio.Event()

    def nodes(self) -> tuple[str, ...]:
        found = tuple(self.joined)
        self.joined += self.join[:1]
        del self.join[:1]
        return found

    def look(self, now: float) -> None:
        self.arrived.set()

    def still_s(self, now: float) -> float:
        return 0.0 if self.join else self.silent_s

    def last_words(self) -> str:
        return self.words


def waited(agents: Agents, home: Path) -> tuple[str, list[str]]:
    phases: list[str] = []
    stopping = asyncio.Event()
    daemon = SimpleNamespace(
        node="n1", hub=agents, agent=agents, local_agent=True, home=home, _stopping=stopping, _phase=phases.append
    )
    return asyncio.run(Daemon._await_agent(cast(Daemon, daemon))), phases


def test_only_this_nodes_own_agent_makes_it_ready(tmp_path: Path) -> None:
    agents = Agents(["n3", "n2", "n1"])
    assert waited(agents, tmp_path) == ("", ["waiting for the agent of n1"])
    assert agents.joined == ["n3", "n2", "n1"]


def test_an_agent_that_does_not_come_is_told_of(tmp_path: Path) -> None:
    note, _ = waited(Agents(["n2"], math.inf, "hpcdl agent: no room"), tmp_path)
    assert note == "the agent of this node (n1) has not called yet, so its GPUs are not known: hpcdl agent: no room"
    note, _ = waited(Agents([], daemon.AGENTS_S + 1), tmp_path)
    assert note.endswith(f"see {tmp_path}/run/n1/agent.log")


def test_an_agent_that_ends_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdl.daemon.local_agent.sys.executable", "/bin/false")
    agent, now = LocalAgent(tmp_path, "n1", None, lambda: False), 0.0
    (tmp_path / local_agent.OUT).write_text("hpcdl agent: of another launch\n")
    assert agent.still_s(now) == 0.0
    assert agent.last_words() == ""
    for _ in range(local_agent.FAILURES):
        assert agent.still_s(now) < math.inf
        agent.look(now)
        process = agent._process
        assert process is not None
        assert isinstance(process.args, list)
        assert process.args[-2:] == ["--daemon", str(os.getpid())]
        process.wait()
        now += 100.0
        agent.look(now)
        now += 100.0
    assert agent.still_s(now) == math.inf
    assert agent.last_words() == "hpcdl agent: of another launch"
    agent.finish()
