"""The agent's connection to its daemon: made again and again, one session each.

It passes messages on to the agent (agent.py), and the reports of its log to the daemon; it decides nothing. A request
is carried out only once it is in the log (report_log.py). The messages are in wire/messages.py.
"""

import asyncio
import logging
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from hpcdl.wire import messages as msg
from hpcdl.wire.access import NAME, AccessError, AccessFile, read_access
from hpcdl.wire.tls import client_context

if TYPE_CHECKING:
    from hpcdl.agent.agent import Agent

log = logging.getLogger("hpcdl.agent")

PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
LOOK_S = 0.1
OPEN_S = 10.0
ANSWER_S = 30.0
BEAT_PAUSE_S = 0.2
"""Seconds between two heartbeats, at least."""
PING_S, PONG_S = 10.0, 10.0
"""How often the daemon is asked whether it is there, and how long it has to answer."""


def until_stroke(seconds: float, stroke_at: float) -> float:
    """Seconds to wait so as to end on a stroke of the daemon's clock: `seconds` from now, or up to `STROKE_S` sooner.
    Short waits are as long as they are. `stroke_at`: a monotonic time at which it strikes."""
    if seconds < 2 * msg.STROKE_S:
        return max(0.0, seconds)
    return seconds - (time.monotonic() + seconds - stroke_at) % msg.STROKE_S


class Rejected(Exception):
    """The daemon that answers is not ours to obey; one line says why."""


class DaemonConnection:
    """The connection to the daemon, made again whenever it breaks. `run` never returns, and survives whatever the
    network or the daemon does."""

    def __init__(self, home: Path, agent: "Agent") -> None:
        """`home`: where the access file is."""
        self._home = home
        self._agent = agent
        self._said = ""
        self._called: tuple[int, int] | None = None
        self._stroke_at = 0.0

    async def run(self) -> None:
        """Calls, serves the session, and after a pause that grows calls again."""
        pause = PAUSE_S
        while True:
            joined = False
            try:
                joined = await self._call()
            except (AccessError, Rejected, msg.BadMessage) as error:
                self._say(str(error))
            except (OSError, TimeoutError, WebSocketException, ValueError) as error:
                self._say(f"no daemon: {type(error).__name__}: {error}")
            except Exception:
                log.exception("the session failed")
            pause = PAUSE_S if joined else min(pause * 2, PAUSE_MAX_S)
            await self._pause(pause * random.uniform(0.5, 1.0))  # not all nodes at once

    async def _pause(self, seconds: float) -> None:
        """So long, or until there is a new access file: a daemon has just started, and may be waiting for us."""
        end = time.monotonic() + seconds
        while self._written() in (None, self._called):
            left = end - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, LOOK_S))
        await asyncio.sleep(min(seconds, random.uniform(0.0, PAUSE_S)))

    def _written(self) -> tuple[int, int] | None:
        """What distinguishes one access file from the next."""
        try:
            found = os.stat(self._home / NAME)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
        self._said = text

    async def _call(self) -> bool:
        """One connection; whether it came to the inventory."""
        self._called = self._written()
        access = await asyncio.to_thread(read_access, self._home)
        if access.instance != self._agent.instance:
            raise Rejected(f"{self._home} belongs to another instance now: end this agent")
        socket = await self._dial(access)
        joined = False
        try:
            self._agent.dialled(str(socket.local_address[0]))
            await self._greet(socket)
            joined = True
            self._said = ""
            log.info("joined the daemon at %s:%d", access.host, access.port)
            self._agent.joined()
            await self._serve(socket)
        except ConnectionClosed as closed:
            self._say(f"the connection ended: {closed}")
        finally:
            self._agent.parted()
            socket.transport.abort()  # whoever still has something to say says it in the next session
        return joined

    async def _dial(self, access: AccessFile) -> ClientConnection:
        host = f"[{access.host}]" if ":" in access.host else access.host
        return await connect(
            f"wss://{host}:{access.port}/v1/agent",
            ssl=client_context(access.certificate),
            additional_headers={"Authorization": f"Bearer {access.token}"},
            max_size=msg.MAX_MESSAGE,
            open_timeout=OPEN_S,
            close_timeout=1.0,
            ping_interval=None,  # `_ping` below: its answers are what the lease counts from
            compression=None,
            proxy=None,
        )

    async def _greet(self, socket: ClientConnection) -> None:
        await socket.send(msg.encode_message(self._agent.hello()))
        welcome = msg.decode_message(await asyncio.wait_for(socket.recv(), ANSWER_S))
        if not isinstance(welcome, msg.WelcomeMessage):
            raise Rejected("the daemon's first message is no welcome")
        self._stroke_at = time.monotonic() + welcome.stroke_in_s
        inventory = await self._agent.welcomed(welcome)
        await socket.send(msg.encode_message(inventory))

    async def _serve(self, socket: ClientConnection) -> None:
        """Until the connection ends; the first part that fails ends the others."""
        taken: asyncio.Queue[msg.RequestMessage] = asyncio.Queue()
        await msg.until_first(
            self._receive(socket, taken),
            self._take(socket, taken),
            self._report(socket),
            self._beat(socket),
            self._ping(socket),
            self._leave(socket),
            self._pass_on(socket),
        )

    async def _receive(self, socket: ClientConnection, taken: "asyncio.Queue[msg.RequestMessage]") -> None:
        agent = self._agent
        while True:
            message: msg.Message = msg.decode_message(await socket.recv())
            agent.heard()
            match message:
                case msg.RequestMessage():
                    taken.put_nowait(message)
                case msg.RecordedMessage():
                    agent.reports.recorded(message.number)
                case msg.ShellOpenMessage():
                    agent.open_shell(message)
                case msg.ShellDataMessage() | msg.ShellTakenMessage() | msg.ShellToldMessage() | msg.ShellEndMessage():
                    agent.shells.take(message)
                case msg.LookMessage():
                    agent.changed.set()
                case msg.DrillMessage():
                    agent.drill(message)
                case msg.ForgetMessage():
                    agent.forget(message)
                case msg.ByeMessage():
                    agent.bye(message)
                case _:
                    log.warning("the daemon sent a %s, which is not for agents", type(message).__name__)

    async def _take(self, socket: ClientConnection, taken: "asyncio.Queue[msg.RequestMessage]") -> None:
        """Acknowledges requests once they are in the log. Carried out even when the acknowledgement fails."""
        reports = self._agent.reports
        while True:
            batch = [await taken.get()]
            while not taken.empty():
                batch.append(taken.get_nowait())
            valid = [message for message in batch if message.fence >= reports.fence]
            if len(valid) < len(batch):
                log.warning("%d requests of a daemon that was replaced were ignored", len(batch) - len(valid))
            await asyncio.gather(*(reports.take(message) for message in valid))
            for message in valid:
                self._agent.carry_out(message)
            for message in valid:
                await socket.send(msg.encode_message(msg.TakenMessage(message.request.id)))

    async def _report(self, socket: ClientConnection) -> None:
        reports, sent = self._agent.reports, 0
        while True:
            reports.fresh.clear()
            for message in reports.pending(sent):
                await socket.send(msg.encode_message(message))
                sent = message.number
            await reports.fresh.wait()

    async def _beat(self, socket: ClientConnection) -> None:
        while True:
            self._agent.changed.clear()
            await socket.send(msg.encode_message(await self._agent.heartbeat()))
            await asyncio.sleep(min(BEAT_PAUSE_S, self._agent.interval_s))
            try:
                rest_s = until_stroke(self._agent.interval_s - BEAT_PAUSE_S, self._stroke_at)
                await asyncio.wait_for(self._agent.changed.wait(), rest_s)
            except TimeoutError:
                pass

    async def _pass_on(self, socket: ClientConnection) -> None:
        """What commands beside trainers say: never so much that reports would wait for it."""
        outgoing = self._agent.shells.outgoing
        while True:
            await socket.send(msg.encode_message(await outgoing.get()))

    async def _leave(self, socket: ClientConnection) -> None:
        """Each session anew: the daemon may be another one."""
        await socket.send(msg.encode_message(await self._agent.goes()))
        await asyncio.Event().wait()

    async def _ping(self, socket: ClientConnection) -> None:
        while True:
            answer = await socket.ping()
            try:
                await asyncio.wait_for(asyncio.shield(answer), PONG_S)
            except TimeoutError:
                raise Rejected(f"the daemon has not answered for {PONG_S:.0f} s") from None
            self._agent.heard()
            await asyncio.sleep(until_stroke(PING_S, self._stroke_at))
