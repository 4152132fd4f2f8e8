"""`hpcdl exec` and `attach` on their way through the daemon: a client's WebSocket on one side, an agent's on the other.

Nothing is looked into and nothing kept: each end sends no more than the other said it took.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import structs
from starlette.websockets import WebSocket, WebSocketDisconnect

from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.incarnation import Incarnation, IncarnationState
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import World
from hpcdl.core.rules.jobs import existing_job
from hpcdl.daemon.message_socket import MessageSocket
from hpcdl.wire import messages as msg
from hpcdl.wire.messages import until_first

log = logging.getLogger("hpcdl.daemon")

OPEN_S = 15.0
"""A client that has not said by then what it wants is not waited for."""
SEND_S = 60.0
"""A client that does not take a frame in this time is gone."""
MOST = 200
"""So many at once."""


class _Refused(Exception):
    """It cannot be opened; one line with the next step."""


@dataclass(slots=True, eq=False)
class _Session:
    id: str
    node: str
    frames: "asyncio.Queue[msg.ShellMessage]" = field(default_factory=asyncio.Queue)
    waiting: int = 0
    """Bytes of input that the agent has not taken yet."""
    kept: int = 0
    """Bytes of output that wait for the client."""


class Sessions:
    """The open sessions of `hpcdl exec`. For the asyncio thread.

    `tell(node, message)` sends to an agent, False where it is away; `world()`: as last committed.
    """

    def __init__(self, tell: Callable[[str, msg.Message], bool], world: Callable[[], World]) -> None:
        self._tell = tell
        self._world = world
        self._open: dict[str, _Session] = {}

    # --- agents ----------------------------------------------------------------------------------------------------

    def heard(self, node: str, message: msg.ShellMessage) -> None:
        """What an agent says of one of its sessions; of one that is over nobody wants to hear."""
        session = self._open.get(message.id)
        if session is None or session.node != node:
            return
        if isinstance(message, msg.ShellTakenMessage):
            session.waiting = max(0, session.waiting - message.size)
        elif isinstance(message, msg.ShellDataMessage):
            session.kept += len(message.data)
            if session.kept > 8 * msg.SHELL_WINDOW:  # its client says that it takes what it does not read
                self._over(session, "more came than the client reads")
                return
        session.frames.put_nowait(message)

    def parted(self, node: str) -> None:
        """The agent is away, and has ended them."""
        for session in [each for each in self._open.values() if each.node == node]:
            session.frames.put_nowait(msg.ShellEndMessage(session.id, None, f"the agent of {node} went away"))

    def _over(self, session: _Session, why: str) -> None:
        self._tell(session.node, msg.ShellEndMessage(session.id, None, why))
        session.frames.put_nowait(msg.ShellEndMessage(session.id, None, why))

    # --- clients ---------------------------------------------------------------------------------------------------

    async def serve(self, socket: WebSocket, job: int) -> None:
        """One client's connection, whose token was checked, from its first frame to its end."""
        client = MessageSocket(socket)
        await client.accept()
        session: _Session | None = None
        try:
            session = await self._begin(client, job)
            await until_first(self._down(client, session), self._up(client, session))
            await client.close()
        except (_Refused, msg.BadMessage, TimeoutError) as error:
            why = str(error) or "the client did not say what to run"
            await client.close(last=msg.ShellEndMessage("" if session is None else session.id, None, why))
        except WebSocketDisconnect:
            pass
        finally:
            if session is not None and self._open.pop(session.id, None) is not None:
                self._tell(session.node, msg.ShellEndMessage(session.id, None, "the client went away"))

    async def _begin(self, client: MessageSocket, job: int) -> _Session:
        wanted = await client.receive(OPEN_S)
        if not isinstance(wanted, msg.ShellOpenMessage):
            raise msg.BadMessage("the first message must say what to run")
        incarnation, node = _where(self._world(), job, wanted.node, wanted.rank)
        if len(self._open) >= MOST:
            raise _Refused(f"{MOST} commands and shells are open: end one of them first")
        session = _Session(secrets.token_hex(8), node)
        self._open[session.id] = session
        order = structs.replace(wanted, id=session.id, job=job, incarnation=incarnation, node=node, rank=-1)
        if not self._tell(node, order):
            del self._open[session.id]
            raise _Refused(f"the agent of {node} is away: again once hpcdl nodes shows it connected")
        log.info(
            "a %s was opened beside job %d.%d on %s", "shell" if wanted.rows else "command", job, incarnation, node
        )
        return session

    async def _down(self, client: MessageSocket, session: _Session) -> None:
        while True:
            message = await session.frames.get()
            if isinstance(message, msg.ShellDataMessage):
                session.kept -= len(message.data)
            ends = isinstance(message, msg.ShellEndMessage)
            if ends:
                self._open.pop(session.id, None)  # the agent knows
            await client.send(message, SEND_S)
            if ends:
                return

    async def _up(self, client: MessageSocket, session: _Session) -> None:
        while True:
            message = await client.receive()
            match message:
                case msg.ShellDataMessage(stream=0, data=data):
                    session.waiting += 3 * len(data) // 4
                    if session.waiting > msg.SHELL_WINDOW + msg.SHELL_CHUNK:
                        raise msg.BadMessage("more input came than was asked for")
                case msg.ShellTakenMessage() | msg.ShellToldMessage() | msg.ShellEndMessage():
                    pass
                case _:
                    raise msg.BadMessage(f"a {type(message).__name__} is not for a session")
            self._tell(session.node, structs.replace(message, id=session.id))


def _where(world: World, number: int, node: str, rank: int = -1) -> tuple[int, str]:
    """The incarnation and the node of a job's that a command is to run beside; `rank`: that of this one. Raises
    _Refused."""
    try:
        job = existing_job(world, number)
    except CommandRefused as refusal:
        raise _Refused(str(refusal)) from None
    running = job.running
    if running is None or running.state is not IncarnationState.RUNNING or running.ending is not None:
        state = state_of(job)
        step = "submit it again" if job.finished else f"once it runs, run this again (hpcdl why {number})"
        raise _Refused(f"job {number} is {state}, so nothing can run beside it: {step}")
    there = [part.node for part in running.parts if part.started and not part.gone]
    if not there:
        raise _Refused(f"job {number} is starting: again in a moment")
    if node and node not in there:
        raise _Refused(
            f"job {number} is not on {node[:100]!r}, but on {', '.join(sorted(there)[:20])}: choose with --node"
        )
    if rank >= 0 and not node:
        return running.number, _node_of(running, number, rank, there)
    first = running.writer if running.writer in there else there[0]
    return running.number, node or first


def _node_of(running: Incarnation, number: int, rank: int, there: Sequence[str]) -> str:
    """Where that rank is: each GPU has one, on the members in their order."""
    ranks, told = 0, []
    for name in running.members or running.nodes:
        part = running.part(name)
        most = ranks + max(1, 0 if part is None else len(part.gpus))
        if ranks <= rank < most and name in there:
            return name
        told.append(f"{name} has {ranks}" if most == ranks + 1 else f"{name} has {ranks} to {most - 1}")
        ranks = most
    more = f", and {len(told) - 20} more nodes" if len(told) > 20 else ""
    raise _Refused(f"rank {rank} of job {number} is not there: {', '.join(told[:20])}{more}")
