"""A daemon for the agent's tests: a WebSocket server over TLS that records what comes, and real agent processes."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from hpcdl.agent.supervisor import processes
from hpcdl.core.model.commands import ExpectedIncarnation, Request
from hpcdl.core.model.events import Event, GpusFreed, decode
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.wire import messages as msg
from hpcdl.wire.access import AccessFile, write_access
from hpcdl.wire.tls import make_certificate, server_context
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
TRAINER = Path(__file__).with_name("trainer.py")
DEADLINE_S = 180.0
TOKEN = "t" * 43


@dataclass
class Daemon:
    """`acknowledge` false: reports are taken and not recorded."""

    home: Path
    fence: int = 1
    lease_s: float = 600.0
    interval_s: float = 0.2
    acknowledge: bool = True
    instance: str = "i-test"
    expected: list[ExpectedIncarnation] = field(default_factory=list)
    pending: list[msg.RequestMessage] = field(default_factory=list)
    reports: list[tuple[int, Event]] = field(default_factory=list)
    recorded: int = 0
    log_id: str = ""
    taken: list[int] = field(default_factory=list)
    hellos: list[msg.HelloMessage] = field(default_factory=list)
    inventories: list[msg.InventoryMessage] = field(default_factory=list)
    heartbeats: list[msg.HeartbeatMessage] = field(default_factory=list)
    leavings: list[msg.LeavingMessage] = field(default_factory=list)
    ended: int = 0
    requests: int = 0

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: Server | None = None
        self._connection: ServerConnection | None = None
        certificate, key = make_certificate(["127.0.0.1"], now=time.time())
        tls = self.home / "tls"
        tls.mkdir(mode=0o700, parents=True)
        for name, content in (("c.pem", certificate), ("k.pem", key)):
            (tls / name).write_bytes(content)
            (tls / name).chmod(0o600)
        self._context = server_context(tls / "c.pem", tls / "k.pem")
        self._certificate = certificate.decode()

    # --- running it ------------------------------------------------------------------------------------------------

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    def start(self) -> Daemon:
        self._call(self._start(self._context))
        return self

    async def _start(self, context: ssl.SSLContext) -> None:
        self._server = await serve(self._serve, "127.0.0.1", 0, ssl=context, max_size=msg.MAX_MESSAGE)
        port = next(iter(self._server.sockets)).getsockname()[1]
        access = AccessFile(
            instance=self.instance,
            host="127.0.0.1",
            port=port,
            certificate=self._certificate,
            token=TOKEN,
            pid=os.getpid(),
            fence=self.fence,
        )
        write_access(self.home, access)

    def stop(self) -> None:
        """As kill -9 does: no word, the connection is cut."""
        self._call(self._stop())

    async def _stop(self) -> None:
        if self._server is not None:
            if self._connection is not None:
                self._connection.transport.abort()
            self._server.close(close_connections=False)
            self._server = None
            self._connection = None

    def close(self) -> None:
        self.stop()
        self._call(self._cancel_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_rest(self) -> None:
        rest = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    # --- what the agent meets --------------------------------------------------------------------------------------

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.path == "/v1/agent"
        assert socket.request.headers["Authorization"] == f"Bearer {TOKEN}"
        try:
            hello = msg.decode_message(await socket.recv())
            assert isinstance(hello, msg.HelloMessage)
            self.hellos.append(hello)
            if self.log_id != hello.log_id:
                self.log_id, self.recorded = hello.log_id, 0
            waiting = {(m.request.job, m.request.incarnation) for m in self.pending if m.request.kind == "start"}
            expected = tuple(
                structs.replace(each, taken=each.taken and (each.job, each.incarnation) not in waiting)
                for each in self.expected
            )
            welcome = msg.WelcomeMessage(
                self.instance, self.fence, self.recorded, expected, self.lease_s, self.interval_s
            )
            await socket.send(msg.encode_message(welcome))
            inventory = msg.decode_message(await socket.recv())
            assert isinstance(inventory, msg.InventoryMessage)
            self.inventories.append(inventory)
            self._connection = socket
            for request in list(self.pending):
                await socket.send(msg.encode_message(request))
            while True:
                await self._take(socket, msg.decode_message(await socket.recv()))
        except ConnectionClosed:
            self.ended += 1
        finally:
            if self._connection is socket:
                self._connection = None

    async def _take(self, socket: ServerConnection, message: msg.Message) -> None:
        match message:
            case msg.TakenMessage():
                self.taken.append(message.id)
                self.pending = [each for each in self.pending if each.request.id != message.id]
            case msg.HeartbeatMessage():
                self.heartbeats.append(message)
            case msg.LeavingMessage():
                self.leavings.append(message)
            case msg.ReportMessage():
                event = decode(message.kind, message.body)
                self.reports.append((message.number, event))
                if self.acknowledge:
                    self.recorded = max(self.recorded, message.number)
                    if isinstance(event, GpusFreed):
                        self.expected = [
                            each
                            for each in self.expected
                            if (each.job, each.incarnation) != (event.job, event.incarnation)
                        ]
                    await socket.send(msg.encode_message(msg.RecordedMessage(message.number)))

    # --- what a test does with it ----------------------------------------------------------------------------------

    def say(self, message: msg.Message) -> None:
        async def send() -> None:
            try:
                if self._connection is not None:
                    await self._connection.send(msg.encode_message(message))
            except ConnectionClosed:
                self._connection = None

        self._call(send())

    def ask(self, kind: str, job: int, incarnation: int = 1, **keys: Any) -> int:
        """Sends a request now if the agent is there, and again at its next call until it is taken; its id."""
        self.requests += 1
        spec, checkpoints = keys.pop("spec", None), keys.pop("checkpoint_dir", "")
        gpus = keys.pop("gpus", None)
        placement = None if gpus is None else Placement((Share("n1", tuple(gpus)),))
        request = Request(kind, "n1", job, incarnation, placement=placement, id=self.requests, **keys)
        path = self.home / "logs" / str(job) / f"{incarnation}.n1.log"
        message = msg.RequestMessage(self.fence, request, spec, str(path) if spec else "", checkpoints)
        if kind == "start":
            self.expected.append(ExpectedIncarnation(job, incarnation, 1, True))
        self.pending.append(message)
        if self._connection is not None:
            self.say(message)
        return request.id

    def hang(self, seconds: float) -> None:
        """Does nothing at all for so long."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def kinds(self, job: int, incarnation: int = 1) -> list[str]:
        """The reports of an incarnation without progress, each number once, in order."""
        seen: dict[int, Event] = dict(self.reports)
        mine = [
            e
            for _, e in sorted(seen.items())
            if (getattr(e, "job", 0), getattr(e, "incarnation", 0)) == (job, incarnation)
        ]
        return [event.kind for event in mine if event.kind != "Progressed"]

    def of(self, kind: str, job: int | None = None) -> list[Any]:
        return [e for _, e in list(self.reports) if e.kind == kind and job in (None, getattr(e, "job", None))]

    def wait(self, kind: str, job: int | None = None, count: int = 1) -> Any:
        """The report of that kind that came as number `count`."""
        until(lambda: len(self.of(kind, job)) >= count, f"{kind} of job {job}, came: {self.reports}")
        return self.of(kind, job)[count - 1]


@dataclass
class Agents:
    """Real agent processes on one home."""

    home: Path
    gpus: int = 2
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.home / "run" / "n1"

    def start(self, *more: str, patch: str = "") -> subprocess.Popen[str]:
        """`patch`: Python to run in the agent before it starts."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
        program = [sys.executable, "-m", "hpcdl.agent"]
        if patch:
            program = [
                sys.executable,
                "-c",
                f"{patch}\nfrom hpcdl.agent.__main__ import _main\nraise SystemExit(_main())",
            ]
        arguments = more or ("--emulate-gpus", str(self.gpus))
        process = subprocess.Popen(
            [*program, "--home", str(self.home), "--node", "n1", *arguments],
            env=environ | {"PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "1"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()

    def close(self, instance: str) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for record in self.run.glob("*/record.jsonl"):
            self._end_supervisor(record)

        def swept() -> bool:
            left = processes.tagged(instance)
            for process_left in left:
                processes.signal_process(process_left, signal.SIGKILL)
            return not left

        until(swept, "the end of all tagged processes")

    @staticmethod
    def _end_supervisor(record: Path) -> None:
        from hpcdl.agent import run_folder

        found = run_folder.read_records(record.parent)
        if found and not run_folder.is_free(record.parent):
            if (supervisor := run_folder.holder(record.parent, found[0])) is not None:
                processes.signal_process(supervisor, signal.SIGKILL)
            until(lambda: run_folder.is_free(record.parent), "the supervisor's end")


def spec_of(steps: int = 5, pause: float = 0.02, **keys: Any) -> JobSpec:
    base = JobSpec((sys.executable, str(TRAINER), str(steps), str(pause)), "test", cwd="/", steps=steps, grace_s=30.0)
    return replace(base, **keys)
