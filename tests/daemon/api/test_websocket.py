"""Who is asked whether they are there, in a real server of uvicorn without TLS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from hpcdl.daemon.api.server import PingedProtocol
from tests.support.waiting import until_async

PING_S = 0.2


class Counting(PingedProtocol):
    """Notes what it does about each time that it might ask."""

    looks: ClassVar[list[bool]] = []

    def send_keepalive_ping(self) -> None:
        super().send_keepalive_ping()
        self.looks.append(self.pong_timer is not None)


@asynccontextmanager
async def connected(ended: "asyncio.Future[int]", patience_s: float = 60.0) -> AsyncIterator[ClientConnection]:
    """Both ends are in this loop: where it stands still between a ping and its answer, `patience_s` goes by too."""

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        try:
            while True:
                await socket.send_text(await socket.receive_text())
        except WebSocketDisconnect as end:
            ended.set_result(end.code)

    Counting.looks.clear()
    config = uvicorn.Config(
        Starlette(routes=[WebSocketRoute("/", echo)]),
        port=0,
        ws=Counting,
        ws_ping_interval=PING_S,
        ws_ping_timeout=patience_s,
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    await until_async(lambda: server.started, "the server")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with connect(f"ws://127.0.0.1:{port}/", ping_interval=None, open_timeout=60, close_timeout=1) as socket:
            yield socket
    finally:
        server.should_exit = True
        await serving


def test_who_talks_is_not_asked() -> None:
    async def run() -> None:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        async with connected(ended) as socket:
            while False not in Counting.looks:  # a slow machine may find it silent at first
                await socket.send("still here")
                assert await socket.recv() == "still here"
            assert not ended.done()

    asyncio.run(asyncio.wait_for(run(), 180))


def test_who_is_silent_is_asked_and_may_stay() -> None:
    async def run() -> None:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        async with connected(ended) as socket:
            # It was asked, has answered, and was asked again.
            await until_async(lambda: Counting.looks.count(True) >= 2, "two questions")
            await socket.send("still here")
            assert await socket.recv() == "still here"
            assert not ended.done()

    asyncio.run(asyncio.wait_for(run(), 180))


def test_who_does_not_answer_is_dropped() -> None:
    async def run() -> None:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        async with connected(ended, PING_S) as socket:
            socket.transport.pause_reading()  # so that no pong is sent
            assert await ended in (1005, 1006)
            assert True in Counting.looks

    asyncio.run(asyncio.wait_for(run(), 180))
