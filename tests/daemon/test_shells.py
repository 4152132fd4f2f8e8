"""The daemon between a client and an agent: whom it lets through, to whom it passes what, and how it ends."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs
from starlette.websockets import WebSocket

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec
from hpcdl.daemon.shells import Sessions
from hpcdl.wire import messages as msg
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", steps=4000, profile="plain", gpus_min=2, gpus_max=2, nodes=2)
OPEN = msg.ShellOpenMessage(("ls", "-l"), term="xterm")


class Socket:
    """A client's connection, as starlette shows it."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[msg.Message] = []
        self.closed: list[int] = []

    async def accept(self) -> None:
        return None

    async def receive(self) -> dict[str, Any]:
        return await self.frames.get()

    async def send_text(self, text: str) -> None:
        self.sent.append(msg.decode_message(text))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed.append(code)

    def say(self, message: msg.Message) -> None:
        self.frames.put_nowait({"type": "websocket.receive", "text": msg.encode_message(message)})

    def leave(self) -> None:
        self.frames.put_nowait({"type": "websocket.disconnect", "code": 1006})


class Stage:
    """Sessions over a modelled cluster whose job 1 runs on n1 and n2. `told`: what went to agents."""

    def __init__(self) -> None:
        self.model = Cluster({"n1": 2, "n2": 2})
        self.model.submit(SPEC)
        self.model.run(20.0)
        self.away: set[str] = set()
        self.told: list[tuple[str, Any]] = []
        self.sessions = Sessions(self._tell, lambda: self.model.world)
        self.socket = Socket()

    def _tell(self, node: str, message: msg.Message) -> bool:
        if node in self.away:
            return False
        self.told.append((node, message))
        return True

    def serve(self, talk: Callable[[], Awaitable[object]], job: int = 1) -> list[Any]:
        """One client's connection from its beginning to its end; what it was told."""

        async def run() -> None:
            serving = asyncio.create_task(self.sessions.serve(cast_socket(self.socket), job))
            await talk()
            await asyncio.wait_for(serving, 60.0)

        asyncio.run(run())
        return self.socket.sent

    async def opened(self) -> str:
        """The id under which the agent knows the session."""
        self.socket.say(OPEN)
        while not self.told:
            await asyncio.sleep(0)
        identifier: str = self.told[0][1].id
        return identifier


def cast_socket(socket: Socket) -> WebSocket:
    return socket  # type: ignore[return-value]


def test_it_passes_on_what_both_say_under_the_agents_number() -> None:
    stage = Stage()

    async def talk() -> None:
        number = await stage.opened()
        stage.socket.say(msg.ShellDataMessage("whatever", 0, "aGk="))
        stage.socket.say(msg.ShellToldMessage("", "INT", 30, 90))
        stage.socket.say(msg.ShellTakenMessage("", 1, 3))
        while len(stage.told) < 4:
            await asyncio.sleep(0)
        stage.sessions.heard("n2", msg.ShellDataMessage(number, 1, "bm8="))  # not its node
        stage.sessions.heard("n1", msg.ShellDataMessage("another", 1, "bm8="))
        stage.sessions.heard("n1", msg.ShellDataMessage(number, 1, "eWVz"))
        stage.sessions.heard("n1", msg.ShellEndMessage(number, 3, ""))

    sent = stage.serve(talk)
    number = stage.told[0][1].id
    assert stage.told[0] == ("n1", structs.replace(OPEN, id=number, job=1, incarnation=1, node="n1"))
    assert [message for _, message in stage.told[1:]] == [
        msg.ShellDataMessage(number, 0, "aGk="),
        msg.ShellToldMessage(number, "INT", 30, 90),
        msg.ShellTakenMessage(number, 1, 3),
    ]
    assert sent == [msg.ShellDataMessage(number, 1, "eWVz"), msg.ShellEndMessage(number, 3, "")]
    assert stage.socket.closed == [1000]


@pytest.mark.parametrize(("rank", "node"), [(0, "n1"), (1, "n1"), (2, "n2"), (3, "n2")])
def test_the_node_of_a_rank(rank: int, node: str) -> None:
    stage = Stage()

    async def talk() -> None:
        stage.socket.say(structs.replace(OPEN, rank=rank))
        while not stage.told:
            await asyncio.sleep(0)
        stage.socket.leave()

    stage.serve(talk)
    assert (stage.told[0][0], stage.told[0][1].node, stage.told[0][1].rank) == (node, node, -1)


@pytest.mark.parametrize("away", [False, True])
def test_a_node_of_ones_own_choice(away: bool) -> None:
    stage = Stage()
    stage.away = {"n2"} if away else set()

    async def talk() -> None:
        stage.socket.say(structs.replace(OPEN, node="n2"))
        while not (stage.told or stage.socket.sent):
            await asyncio.sleep(0)
        stage.socket.leave()

    sent = stage.serve(talk)
    if away:
        assert [message.why for message in sent] == [
            "the agent of n2 is away: again once hpcdl nodes shows it connected"
        ]
    else:
        assert [(node, type(message).__name__) for node, message in stage.told] == [
            ("n2", "ShellOpenMessage"),
            ("n2", "ShellEndMessage"),
        ]
        assert stage.told[1][1].why == "the client went away"


@pytest.mark.parametrize(
    ("job", "before", "first", "why"),
    [
        (9, [], OPEN, "there is no job 9: hpcdl ls --all lists them"),
        (1, [], structs.replace(OPEN, node="n9"), "job 1 is not on 'n9', but on n1, n2: choose with --node"),
        (1, [], structs.replace(OPEN, rank=4), "rank 4 of job 1 is not there: n1 has 0 to 1, n2 has 2 to 3"),
        (
            1,
            [cmd.Hold(1)],
            OPEN,
            "job 1 is SUSPENDING, so nothing can run beside it: once it runs, run this again (hpcdl why 1)",
        ),
        (
            1,
            [cmd.Cancel(1)],
            OPEN,
            "job 1 is RUNNING, so nothing can run beside it: once it runs, run this again (hpcdl why 1)",
        ),
        (1, [], msg.ShellEndMessage("", 0, ""), "the first message must say what to run"),
    ],
)
def test_what_cannot_be_opened(job: int, before: list[cmd.Command], first: msg.Message, why: str) -> None:
    stage = Stage()
    stage.model.send(*before)

    async def talk() -> None:
        stage.socket.say(first)

    assert stage.serve(talk, job) == [msg.ShellEndMessage("", None, why)]
    assert stage.told == []


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([{"type": "websocket.receive", "text": "{"}], "a frame is not JSON"),
        ([{"type": "websocket.receive", "bytes": b"x"}], "a frame is not text"),
        ([msg.ShellDataMessage("", 1, "")], "a ShellDataMessage is not for a session"),
        ([msg.ByeMessage(True, "")], "a ByeMessage is not for a session"),
        (
            [msg.ShellDataMessage("", 0, base64.b64encode(b"x" * msg.SHELL_CHUNK).decode())] * 12,
            "more input came than was asked for",
        ),
    ],
)
def test_a_client_that_breaks_the_rules_is_told_and_its_command_ended(frames: list[Any], why: str) -> None:
    stage = Stage()

    async def talk() -> None:
        await stage.opened()
        for frame in frames:
            if isinstance(frame, dict):
                stage.socket.frames.put_nowait(frame)
            else:
                stage.socket.say(frame)

    sent = stage.serve(talk)
    assert sent[-1].why == why
    assert isinstance(stage.told[-1][1], msg.ShellEndMessage)


def test_an_agent_that_goes_away_ends_it() -> None:
    stage = Stage()

    async def talk() -> None:
        await stage.opened()
        stage.sessions.parted("n2")
        stage.sessions.parted("n1")

    assert [message.why for message in stage.serve(talk)] == ["the agent of n1 went away"]


def test_a_client_that_says_it_takes_what_it_does_not_read() -> None:
    stage = Stage()

    async def talk() -> None:
        number = await stage.opened()
        chunk = msg.ShellDataMessage(number, 1, "x" * msg.SHELL_CHUNK)
        for _ in range(8 * msg.SHELL_WINDOW // msg.SHELL_CHUNK + 1):
            stage.sessions.heard("n1", chunk)

    stage.serve(talk)
    assert stage.told[-1][1].why == "more came than the client reads"
