"""Many who call at once, and a crowd that only connects: whoever shows a token gets in."""

import asyncio
import os
import socket
import ssl
import time
from pathlib import Path

import pytest

from hpcdl.daemon.api.admission import STRANGERS, Admission, SocketPeers, is_stranger
from hpcdl.wire.tls import client_context, make_certificate, server_context
from tests.support.waiting import until_async

PATIENCE_S = 180.0


class Server(asyncio.Protocol):
    """Takes whatever it is sent for a token, and says so."""

    def __init__(self, door: Admission) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._door.proven(self._transport.get_extra_info("peername"))
        self._transport.write(b"welcome")


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder: Path = tmp_path_factory.mktemp("tls", numbered=True)
    certificate, key = make_certificate([], now=time.time())
    for name, content in (("certificate", certificate), ("key", key)):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return server_context(folder / "certificate", folder / "key"), client_context(certificate.decode())


async def call(port: int, context: ssl.SSLContext) -> bytes:
    """Connects, shows a token, and stays for the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"token")
    answer = await reader.readexactly(len(b"welcome"))
    writer.transport.abort()
    return answer


def serve(door: Admission, context: ssl.SSLContext) -> int:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    door.open(listener, lambda: Server(door), context)
    return int(listener.getsockname()[1])


def test_many_who_call_at_once_get_in_one_after_another(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = contexts

    async def run() -> list[bytes]:
        door = Admission(pending=2, prove_s=PATIENCE_S, fair_s=PATIENCE_S)
        port = serve(door, server)
        found = await asyncio.wait_for(asyncio.gather(*(call(port, client) for _ in range(12))), PATIENCE_S)
        door.close()
        await door.wait_closed()
        return found

    assert asyncio.run(run()) == [b"welcome"] * 12


def test_what_is_sent_in_parts_does_not_wait_for_the_client(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = contexts
    options: list[int] = []

    class Looking(Server):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            connection = transport.get_extra_info("socket")
            options.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def run() -> None:
        door = Admission()
        listener = socket.create_server(("127.0.0.1", 0))
        door.open(listener, lambda: Looking(door), server)
        await asyncio.wait_for(call(listener.getsockname()[1], client), PATIENCE_S)
        door.close()
        await door.wait_closed()

    asyncio.run(run())
    assert options == [1]


@pytest.mark.parametrize("silent", [True, False])
def test_a_crowd_without_a_token_keeps_nobody_out(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], silent: bool
) -> None:
    server, client = contexts

    async def run() -> bytes:
        door = Admission(pending=4, prove_s=PATIENCE_S * 10, fair_s=PATIENCE_S * 10 if silent else 0.05)
        port = serve(door, server)
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(6 if silent else 20)]
        try:
            for each in () if silent else crowd:
                each.send(b"\x16\x03\x01")  # as a handshake begins
            found = await asyncio.wait_for(call(port, client), PATIENCE_S)
        finally:
            for each in crowd:
                each.close()
        assert door.pending <= 4
        door.close()
        await door.wait_closed()
        return found

    assert asyncio.run(run()) == b"welcome"


def test_ours_do_not_wait_for_other_users(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """However many those are, and whatever they have begun; each of them would have all its time."""
    server, client = contexts
    strange = set[int]()

    async def run() -> tuple[bytes, int]:
        door = Admission(
            pending=80,
            prove_s=PATIENCE_S * 10,
            fair_s=PATIENCE_S * 10,
            stranger=lambda connection: connection.getpeername()[1] in strange,
        )
        port = serve(door, server)
        crowd = [socket.socket() for _ in range(200)]
        for each in crowd:
            each.bind(("127.0.0.1", 0))
            strange.add(each.getsockname()[1])
            each.connect(("127.0.0.1", port))
            each.send(b"\x16\x03\x01")
        found = await asyncio.wait_for(call(port, client), PATIENCE_S)
        pending = door.pending
        for each in crowd:
            each.close()
        door.close()
        await door.wait_closed()
        return found, pending

    found, pending = asyncio.run(run())
    assert found == b"welcome"
    assert 0 < pending <= STRANGERS


def test_the_kernel_tells_whose_a_connection_is() -> None:
    peers = SocketPeers()
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.create_server((address, 0), family=family)
        except OSError:
            continue  # no IPv6 here
        with listener, socket.create_connection(listener.getsockname()[:2]) as caller:
            taken, _ = listener.accept()
            with taken:
                assert peers.uid_of(taken) in (os.geteuid(), None)  # None: a kernel that cannot be asked
                caller.close()
                assert peers.uid_of(taken) is None
    peers.close()
    assert [is_stranger(uid) for uid in (None, 0, os.geteuid(), os.geteuid() + 1)] == [False, False, False, True]


def test_a_connection_that_is_closed_already_can_be_dropped(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Without a word in the log: strangers could fill it."""
    server, client = contexts
    told: list[dict[str, object]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        door = Admission(prove_s=0.3)
        port = serve(door, server)
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            writer.close()
            await writer.wait_closed()
        await until_async(lambda: not door.pending, "a door without anybody at it")
        door.close()
        await door.wait_closed()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert told == []


def test_what_came_to_nothing_takes_no_place(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = contexts

    async def run() -> bytes:
        door = Admission(pending=2, prove_s=PATIENCE_S, fair_s=PATIENCE_S)
        port = serve(door, server)
        for _ in range(6):  # no TLS at all
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            writer.transport.abort()
        found = await asyncio.wait_for(call(port, client), PATIENCE_S)
        door.close()
        await door.wait_closed()
        return found

    assert asyncio.run(run()) == b"welcome"
