"""A hand-made agent for real supervisors: it makes the run folder, starts, commands, reads records, and cleans up.

And a daemon that only listens for real agents.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.start_file import Start
from tests.agent.daemon import Agents, Daemon
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0

# The trainer's half of the side channel by hand, put before every script of these tests.
CHANNEL = """
import json, os, signal, socket, sys, time
def connect():
    folder, name = os.path.split(os.environ["HPCDL_SOCKET"])
    where = os.open(folder, os.O_PATH)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(f"/proc/self/fd/{where}/{name}")
    os.close(where)
    return s
def say(kind, **body):
    channel.send(json.dumps({"v": 1, "type": kind, **body}).encode())
def hear(timeout=None):
    channel.settimeout(timeout)
    try:
        return json.loads(channel.recv(65536) or b'{"type": "gone"}')
    except TimeoutError:
        return None
def attach(rank=0, handler=True, **changed):
    body = {"pid": os.getpid(), "rank": rank, "incarnation": 2, "membership": 1, "handler": handler}
    say("attach", **{**body, **changed})
    return hear()
def saved(step, final=True, **changed):
    body = {"incarnation": 2, "membership": 1, "step": step, "path": "/c", "seconds": 0.5, "final": final}
    say("saved", **{**body, **changed})
asked = []
"""
ATTACH = """
signal.signal(signal.SIGTSTP, lambda n, f: asked.append(n))
channel = connect()
attach()
"""


def stopped(pid: int) -> bool:
    """Whether SIGSTOP or the like holds the process."""
    found = processes.process_of(pid)
    return found is not None and found.stopped


class Client:
    """One connection to a supervisor."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        where = os.open(folder, os.O_PATH)
        try:
            self.socket.connect(f"/proc/self/fd/{where}/s")
        except BaseException:
            self.socket.close()
            raise
        finally:
            os.close(where)
        self.heard: list[dict[str, Any]] = []
        self.gone = False

    def send(self, kind: str, **body: Any) -> None:
        self.raw(json.dumps({"v": 1, "type": kind, **body}).encode())

    def raw(self, packet: bytes) -> None:
        self.socket.send(packet)

    def poll(self) -> list[dict[str, Any]]:
        """Everything heard so far."""
        while not self.gone:
            try:
                raw = self.socket.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionError:
                raw = b""
            if raw:
                self.heard.append(json.loads(raw))
            else:
                self.gone = True
        return self.heard

    def numbers(self) -> list[int]:
        return [each["n"] for each in self.poll() if "n" in each]

    def close(self) -> None:
        self.gone = True
        self.socket.close()


class Agent:
    """Starts one supervisor and looks at what it does."""

    def __init__(self, folder: Path) -> None:
        self.base = folder
        self.run = folder / "7.2"
        self.tag = f"test-{uuid.uuid4()}:7:2"
        self.clients: list[Client] = []
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"
        self.program: tuple[str, ...] = ("-m", "hpcdl.agent.supervisor")

    def start(self, script: str | None, *, plain: bool = False, limits: Any = None, **order: Any) -> None:
        """Starts a supervisor for this Python script; `plain`: without the side channel by hand; None: see `order`."""
        if script is not None:
            path = self.base / "trainer.py"
            path.write_text(("" if plain else CHANNEL) + textwrap.dedent(script))
            order["argv"] = (sys.executable, "-u", "-S", str(path))
        self.write(**order)
        self.spawn(limits)

    def write(self, **order: Any) -> None:
        """The run folder with its start.json."""
        self.run.mkdir(mode=0o700)
        env = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
        standard: dict[str, Any] = {"tag": self.tag, "job": 7, "incarnation": 2, "membership": 1, "node": "n1"}
        standard |= {"cwd": str(self.base), "env": env, "log": str(self.log), "grace_s": 30.0}
        (self.run / "start.json").touch(0o600)
        (self.run / "start.json").write_bytes(Start(**(standard | order)).encode())

    def spawn(self, limits: Any = None) -> None:
        lock = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.supervisor = subprocess.Popen(
            [sys.executable, *self.program, str(self.run), "--lock-fd", str(lock)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            pass_fds=(lock,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            preexec_fn=limits,
        )
        os.close(lock)

    def connect(self, after: int | None = 0) -> Client:
        """A connection; as the agent unless `after` is None."""
        until((self.run / "s").exists, "the side channel")

        def attempt() -> Client | None:
            try:
                return Client(self.run)
            except ConnectionRefusedError:  # bound, and not listening yet
                return None

        client: Client = until(attempt, "a connection")
        self.clients.append(client)
        if after is not None:
            client.send("agent", after=after)
        return client

    def records(self) -> list[dict[str, Any]]:
        """What record.jsonl holds."""
        try:
            lines = (self.run / "record.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[:-1]]

    def of(self, kind: str, **keys: Any) -> list[dict[str, Any]]:
        found = [each for each in self.records() if each["type"] == kind]
        return [each for each in found if all(each[name] == value for name, value in keys.items())]

    def wait(self, kind: str, **keys: Any) -> dict[str, Any]:
        """The first such record."""

        def look() -> list[dict[str, Any]]:
            found = self.of(kind, **keys)
            over = [each["type"] for each in self.records()][-1:] == ["exit"]
            assert found or not over or self.of(kind, **keys), f"no {kind} {keys}: {self.records()}\n{self.output()}"
            return found

        found: list[dict[str, Any]] = until(look, f"{kind} {keys}")
        return found[0]

    def exit(self) -> dict[str, Any]:
        """The last record, when the supervisor itself has ended, too."""
        record = self.wait("exit")
        assert self.supervisor is not None
        assert self.supervisor.wait(DEADLINE_S) == 0
        assert self.records()[-1] == record
        assert [each["n"] for each in self.records()] == list(range(1, len(self.records()) + 1))
        assert processes.tagged(self.tag) == []
        return record

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def printed(self, text: str) -> None:
        until(lambda: text in self.output(), f"{text!r} in the output")

    def lock_is_free(self) -> bool:
        lock = os.open(self.run / "lock", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.supervisor is not None:
            if self.supervisor.poll() is None:
                self.supervisor.kill()
            self.supervisor.wait()

        def swept() -> bool:
            left = processes.tagged(self.tag)
            for process in left:
                processes.signal_process(process, signal.SIGKILL)
            return not left

        until(swept, "the end of all tagged processes")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    try:
        yield agent
    finally:
        agent.close()


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
