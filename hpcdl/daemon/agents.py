"""Connections of node agents: one WebSocket a node, requests out, reports and heartbeats in.

Runs in the asyncio thread, and decides nothing: what an agent reports becomes a command for the Controller, and is
acknowledged once it is in the ledger. A request goes to an agent again at each connection until that has taken it.
Neighbours: `message_socket` has the frames, `shells` the sessions of `hpcdl exec`, `core/rules/stalls` the verdicts.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import Request, StallMeasurement
from hpcdl.core.model.events import Event, Exited, GpusFreed
from hpcdl.core.model.frozen import CodecError
from hpcdl.core.model.world import World, beginning_of, folder_within
from hpcdl.core.rules.interruptions import mean_time_between_s
from hpcdl.core.rules.resumes import required_step
from hpcdl.core.rules.stalls import LEAST_S
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.message_socket import MessageSocket
from hpcdl.daemon.shells import Sessions
from hpcdl.ledger.samples import GpuTelemetry
from hpcdl.wire import messages as msg
from hpcdl.wire.messages import HeartbeatMessage, TrainerLine, until_first

log = logging.getLogger("hpcdl.daemon")

HELLO_S = 15.0
"""A connection that has not said who it is by then is closed."""

SEND_S = 20.0
"""A frame that does not go out in this time means that the agent is away."""

CLOSE_REPLACED, CLOSE_BAD, CLOSE_AGAIN = 4000, 4001, 4002


@dataclass(slots=True, eq=False)
class _AgentConnection:
    """A connected agent."""

    node: str
    socket: MessageSocket
    log_id: str  # of the agent's log of reports, whose numbers it counts
    ready: bool = False  # its inventory is recorded: requests may go out
    outgoing: "asyncio.Queue[msg.Message | None]" = field(default_factory=asyncio.Queue)  # None: end the connection
    early: list[Request] = field(default_factory=list)  # made before it was ready
    heartbeat: msg.HeartbeatMessage | None = None  # the newest; None before the first
    looks: bool = False  # it understands LookMessage
    looked: list[asyncio.Event] = field(default_factory=list)  # set by the next heartbeat


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What the welcome of an agent says, and where jobs' files go."""

    instance: str  # the daemon's name, which its agents must know
    home: Path
    lease_s: float  # an agent that has not heard of a daemon for so long ends its trainers
    interval_s: float  # between two heartbeats
    hold_missing: bool = True  # a job that had saved does not begin at step 0


class Hub:
    """Knows which agent is connected; everything durable is the Controller's."""

    def __init__(
        self, loop: ControllerLoop, settings: HubSettings, on_heartbeat: Callable[[str, msg.HeartbeatMessage], None]
    ) -> None:
        """`loop`: where commands go. `on_heartbeat(node, message)`: telemetry, in the asyncio thread; must not wait."""
        self._loop = loop
        self._on_heartbeat = on_heartbeat
        self._settings = settings
        self._connections: dict[str, _AgentConnection] = {}
        self._over: msg.ByeMessage | None = None  # once the daemon stops: what agents that still come hear
        self.arrived = asyncio.Event()
        self.sessions = Sessions(self.tell, lambda: loop.world)

    def nodes(self) -> tuple[str, ...]:
        """Nodes whose agents are connected and have given their inventory."""
        return tuple(name for name, connection in self._connections.items() if connection.ready)

    def heartbeats(self) -> dict[str, msg.HeartbeatMessage]:
        """The newest heartbeat of each connected node."""
        return {name: each.heartbeat for name, each in self._connections.items() if each.heartbeat is not None}

    async def look(self, within_s: float) -> None:
        """Asks the agents with trainers how things are now; returns when they have answered, or after that time."""
        world, asked = self._loop.world, []
        names = {name for number in world.live for each in world.jobs[number].live for name in each.nodes}
        for connection in [self._connections[name] for name in names if name in self._connections]:
            if connection.ready and connection.looks:
                event = asyncio.Event()
                connection.looked.append(event)
                connection.outgoing.put_nowait(msg.LookMessage())
                asked.append(asyncio.ensure_future(event.wait()))
        if asked:
            _, late = await asyncio.wait(asked, timeout=within_s)
            for each in late:
                each.cancel()

    def dispatch(self, requests: Iterable[Request]) -> None:
        """Sends requests to the agents that are there; the others get theirs when they come."""
        for request in requests:
            connection = self._connections.get(request.node)
            if connection is None:
                continue
            if connection.ready:
                connection.outgoing.put_nowait(self._message(request))
            else:
                connection.early.append(request)

    def tell(self, node: str, message: msg.Message) -> bool:
        """Sends what is not repeated to a node's agent; False where that is away."""
        connection = self._connections.get(node)
        if connection is None or not connection.ready:
            return False
        connection.outgoing.put_nowait(message)
        return True

    def report_absent(self) -> None:
        """Reports again to the Controller which agents are gone: a full disk may have kept it from recording that."""
        for name, node in self._loop.world.nodes.items():
            if node.connected and name not in self._connections:
                self._loop.send(cmd.AgentGone(name, "the connection ended"))

    def bye(self, why: str) -> None:
        """Has every agent end once it has nothing left to report, those too that come from now on."""
        self._over = msg.ByeMessage(end=True, why=why)
        for connection in self._connections.values():
            connection.outgoing.put_nowait(self._over)

    async def serve(self, socket: WebSocket) -> None:
        """One agent's connection, from hello to its end."""
        agent = MessageSocket(socket)
        await agent.accept()
        connection: _AgentConnection | None = None
        why = "the connection ended"
        try:
            connection, inventory = await self._greet(agent)
            await self._join(connection, inventory)
            await self._run(connection)
            await agent.close(CLOSE_REPLACED, "the agent called again")
        except WebSocketDisconnect as gone:
            why = f"the connection ended: {gone.reason}" if gone.reason else "the connection ended"
        except (msg.BadMessage, cmd.CommandRefused, TimeoutError) as error:
            why = str(error) or "it did not answer in time"
            log.warning("agent %s: %s", connection.node if connection else "?", why)
            await agent.close(CLOSE_BAD, why)
        except JournalError as error:
            why = str(error)
            await agent.close(CLOSE_AGAIN, "not recorded, call again")
        finally:
            # A connection that was replaced says nothing about the node; one that failed to join replaced another.
            if connection is not None and self._connections.get(connection.node) is connection:
                del self._connections[connection.node]
                self.sessions.parted(connection.node)
                self._loop.send(cmd.AgentGone(connection.node, why))

    def _at(self, left_s: float | None) -> float | None:
        """The time that an agent says is so far ahead: its clock may be another one."""
        return None if left_s is None or not math.isfinite(left_s) else self._loop.now() + max(0.0, left_s)

    async def _greet(self, agent: MessageSocket) -> tuple[_AgentConnection, msg.InventoryMessage]:
        hello = await agent.receive(HELLO_S)
        if not isinstance(hello, msg.HelloMessage):
            raise msg.BadMessage("the first message must be a hello")
        if hello.instance != self._settings.instance:
            raise msg.BadMessage(f"the agent belongs to {hello.instance[:40]!r}, this is {self._settings.instance!r}")
        name = hello.node
        if not 1 <= len(name) <= 255 or not name.isprintable() or "/" in name or name in (".", ".."):
            raise msg.BadMessage("a node's name must have 1 to 255 printable characters, no slash, and not be . or ..")
        welcome = await asyncio.wrap_future(self._loop.send(cmd.Hello(hello.node, hello.log_id)))
        if hello.fence > welcome.fence:
            raise msg.BadMessage(f"fence {welcome.fence} was replaced: the agent has seen {hello.fence}")
        message = msg.WelcomeMessage(
            self._settings.instance,
            welcome.fence,
            welcome.reports_seen,
            welcome.expected,
            self._settings.lease_s,
            self._settings.interval_s,
            -self._loop.now() % msg.STROKE_S,
        )
        await agent.send(message)
        inventory = await agent.receive(HELLO_S * 4)
        if not isinstance(inventory, msg.InventoryMessage):
            raise msg.BadMessage("the second message must be an inventory")
        return _AgentConnection(hello.node, agent, hello.log_id, looks=inventory.looks), inventory

    async def _join(self, connection: _AgentConnection, inventory: msg.InventoryMessage) -> None:
        replaced = self._connections.get(connection.node)
        # From here on requests for the node are kept for this connection, before and after the inventory is recorded.
        self._connections[connection.node] = connection
        if replaced is not None:
            self.sessions.parted(connection.node)
            replaced.outgoing.put_nowait(None)  # ends it when it can: its agent may be stopped
        joined = await asyncio.wrap_future(
            self._loop.send(
                cmd.Inventory(
                    connection.node,
                    inventory.gpus,
                    inventory.cpus,
                    inventory.memory_mib,
                    inventory.pid,
                    inventory.boot_id,
                    connection.log_id,
                    inventory.emulated,
                    self._at(inventory.left_s),
                    inventory.place,
                    inventory.allocation,
                    inventory.address,
                )
            )
        )
        known = {request.id for request in joined.pending}
        late = [request for request in connection.early if request.id not in known]
        for request in (*joined.pending, *late):
            connection.outgoing.put_nowait(self._message(request))
        if self._over is not None:
            connection.outgoing.put_nowait(self._over)
        connection.ready = True
        self.arrived.set()

    def _message(self, request: Request) -> msg.RequestMessage:
        world = self._loop.world
        job = world.jobs[request.job]
        attempt = job.incarnation(request.incarnation)
        joins = attempt is not None and attempt.progress is not None  # a training that runs, whose state it takes over
        saved_step = required_step(job) if self._settings.hold_missing and not joins else None
        if request.kind != "start":
            return msg.RequestMessage(world.fence, request, saved_step=saved_step)
        home = self._settings.home
        folder = job.spec.checkpoint_dir or str(home / "checkpoints" / str(job.id))
        folder = folder_within(folder, beginning_of(world, job))
        path = home / "logs" / str(job.id) / f"{request.incarnation}.{request.node}.log"
        between_s = mean_time_between_s(world, job, self._loop.now())
        nonces = ("" if attempt is None else attempt.nonce, job.nonces)
        return msg.RequestMessage(
            world.fence,
            request,
            job.spec,
            str(path),
            folder,
            job.identity,
            between_s,
            job.costs.save_s,
            *nonces,
            saved_step=saved_step,
        )

    async def _run(self, connection: _AgentConnection) -> None:
        """Sends and receives until one of the two ends; the first error ends both."""
        reports: asyncio.Queue[tuple[int, Event | None, Future[Any]]] = asyncio.Queue()
        await until_first(
            self._send(connection), self._receive(connection, reports), self._acknowledge(connection, reports)
        )

    async def _send(self, connection: _AgentConnection) -> None:
        while (message := await connection.outgoing.get()) is not None:
            await connection.socket.send(message, SEND_S)

    async def _receive(
        self, connection: _AgentConnection, reports: "asyncio.Queue[tuple[int, Event | None, Future[Any]]]"
    ) -> None:
        while True:
            message = await connection.socket.receive()
            if isinstance(message, msg.ReportMessage):
                event: Event | None = None
                try:
                    event = message.event()
                    command: cmd.Command = cmd.AgentReport(connection.node, connection.log_id, message.number, event)
                except CodecError as error:
                    log.warning("report %d not understood: %s", message.number, error)
                    why = f"its report is not understood: {message.kind[:60]}"
                    command = cmd.Trouble(f"agent {connection.node}", why)
                reports.put_nowait((message.number, event, self._loop.send(command)))
            elif isinstance(message, msg.ShellMessage):
                self.sessions.heard(connection.node, message)
            elif isinstance(message, msg.TakenMessage):
                self._loop.send(cmd.Taken(message.id))
            elif isinstance(message, msg.LeavingMessage):
                until = self._at(message.left_s)
                self._loop.send(cmd.Drain(connection.node, until, True, message.reason[:200]))
            elif isinstance(message, msg.HeartbeatMessage):
                connection.heartbeat = message
                while connection.looked:
                    connection.looked.pop().set()
                self._on_heartbeat(connection.node, message)

    async def _acknowledge(
        self, connection: _AgentConnection, reports: "asyncio.Queue[tuple[int, Event | None, Future[Any]]]"
    ) -> None:
        """Acknowledges to the agent what is in the ledger, in order; what fails is sent again after a reconnect."""
        while True:
            number, event, answer = await reports.get()
            await asyncio.wrap_future(answer)
            if reports.empty() or isinstance(event, GpusFreed | Exited):
                connection.outgoing.put_nowait(msg.RecordedMessage(number))
            if isinstance(event, GpusFreed):
                connection.outgoing.put_nowait(msg.ForgetMessage(event.job, event.incarnation))


# --- GPU telemetry ----------------------------------------------------------------------------------------------------

GATHER_S = 1.0
"""Samples go to the ledger this often: a thousand agents must not wake its thread each."""


class Telemetry:
    """GPU samples from heartbeats that wait for the ledger. For the event loop's thread."""

    def __init__(self, now: Callable[[], float], keep: Callable[[Sequence[GpuTelemetry]], object]) -> None:
        """`now`: seconds since the epoch. `keep` is called in the event loop and must not wait."""
        self._now = now
        self._keep = keep
        self._waiting: list[GpuTelemetry] = []

    def heard(self, node: str, heartbeat: HeartbeatMessage) -> None:
        """Takes what a heartbeat says of GPUs that say anything."""
        at = self._now()
        lines = [line for line in heartbeat.gpus if line.util is not None or line.memory_mib is not None]
        try:
            samples = [GpuTelemetry(at, node, line.index, line.util, line.memory_mib, line.power_w) for line in lines]
        except ValueError as error:
            log.warning("samples of %s are dropped: %s", node, error)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_later(GATHER_S, self._hand_over)
        self._waiting += samples

    def _hand_over(self) -> None:
        samples, self._waiting = self._waiting, []
        self._keep(samples)


# --- stalls: what agents measured; `core/rules/stalls` decides --------------------------------------------------------


def measured(
    world: World, beats: Mapping[str, HeartbeatMessage], setting: float | None
) -> tuple[StallMeasurement, ...]:
    """Attempts that stand still for so long that the core should look, or that are known to stall.

    What moves on one node moves. `setting`: seconds without progress for jobs that have none of their own; 0: never.
    """
    attempts: dict[tuple[int, int], list[tuple[str, TrainerLine]]] = {}
    for name, beat in beats.items():
        for line in beat.trainers:
            attempts.setdefault((line.job, line.incarnation), []).append((name, line))
    found = []
    for (number, incarnation), lines in attempts.items():
        job = world.jobs.get(number)
        live = None if job is None else job.incarnation(incarnation)
        if job is None or live is None:
            continue
        step_s = min((line.step_s for _, line in lines if line.step_s is not None), default=None)
        idle_s = min((line.idle_s for _, line in lines if line.idle_s is not None), default=None)
        started_s = min(line.started_s for _, line in lines)
        wanted = setting if job.spec.stall_s is None else job.spec.stall_s
        quiet_s = max(idle_s or 0.0, started_s if step_s is None else step_s)
        if live.stall is not None or (wanted != 0 and quiet_s >= (LEAST_S if wanted is None else wanted)):
            nodes = tuple(name for name, _ in lines)
            found.append(StallMeasurement(number, incarnation, nodes, step_s, idle_s, started_s))
    return tuple(found)
