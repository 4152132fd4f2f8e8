"""The step boundary at which the ranks of several nodes stop, agreed on over TCP, without a collective.

Each node's ranks have their shared memory (step_counters.py). Where a stop is requested in one, every node says the
boundary beyond which none of its ranks goes before it knows more; the largest of those is where all stop. The process
of rank 0 keeps the server, the first rank of each node the client; both are threads, so that a rank answers from within
a collective, too. What is said may be lost, late or repeated: a node's word and the answer never change once said.
Standard library only; `peers.py` brings the ranks together.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import select
import socket
import threading
import time
from typing import Tuple

from hpcdl.trainer.step_counters import StepCounters

IDLE, REQUEST = 0, 2**64 - 1  # what the server says in place of a boundary: nothing is requested; say yours
WORD = 8  # bytes of a message, in either direction
KEY = 32  # bytes, of the key and of a proof that one knows it, with which each end begins
POLL_S = 0.01  # from a request in the memory of a node to its client's word
RETRY_S = 0.5
CONNECT_S = 10.0
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, probes

Endpoint = Tuple[str, int, str]
"""Address, port and key (hexadecimal) of a server."""


class StopTally:
    """What the nodes have said, so many of them; pure."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._boundaries: dict[int, int] = {}

    def take(self, node: int, boundary: int) -> None:
        """A node's boundary; said again, the first one counts."""
        if 0 <= node < self._nodes and 0 < boundary < REQUEST:
            self._boundaries.setdefault(node, boundary)

    @property
    def word(self) -> int:
        """What every node is to know: IDLE, REQUEST, or the boundary to stop at, once all have said theirs."""
        if len(self._boundaries) == self._nodes:
            return max(self._boundaries.values())
        return REQUEST if self._boundaries else IDLE


class StopServer:
    """Serves the tally to clients that know its key, in a thread, for as long as the process lives."""

    def __init__(self, address: str, nodes: int) -> None:
        """Listens at this address of ours. Raises OSError."""
        self._tally = StopTally(nodes)
        self._key = secrets.token_bytes(KEY)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.endpoint: Endpoint = (address, self._socket.getsockname()[1], self._key.hex())
        self._clients: dict[int, asyncio.StreamWriter] = {}
        threading.Thread(target=lambda: asyncio.run(self._run()), name="hpcdl-stop-server", daemon=True).start()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._socket)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await asyncio.wait_for(reader.readexactly(KEY + WORD), CONNECT_S)
            if not hmac.compare_digest(hello[:KEY], _proof(self._key, hello[KEY:])):
                return
            node = int.from_bytes(hello[KEY:], "big")
            self._clients[node] = writer
            writer.write(_proof(self._key, b"server") + self._tally.word.to_bytes(WORD, "big"))
            while True:
                boundary = int.from_bytes(await reader.readexactly(WORD), "big")
                before = self._tally.word
                self._tally.take(node, boundary)
                if self._tally.word != before:
                    for each in self._clients.values():
                        each.write(self._tally.word.to_bytes(WORD, "big"))
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # it calls again, if it lives
        finally:
            writer.close()  # a later one of the same node has taken its place, if it lives


class StopClient:
    """One node's: says its boundary when a stop is requested here or elsewhere, and writes the answer where its ranks
    wait for it."""

    def __init__(self, counters: StepCounters, node: int) -> None:
        """`node`: its number among those of the training."""
        self._counters = counters
        self._node = node
        self._boundary = 0  # as it was said first

    def heed(self, word: int) -> None:
        """What the server says."""
        if word == REQUEST:
            self._counters.request()
        elif word != IDLE:
            self._counters.stop(word)

    def boundary(self) -> int:
        """What is to be said, 0 where nothing is requested: each time the same."""
        if not self._boundary and self._counters.requested:
            self._boundary = self._counters.furthest()
        return self._boundary

    def start(self, endpoint: Endpoint) -> None:
        """Goes on in a thread once the server has answered. Raises OSError where it does not."""
        connection = self._connect(endpoint)
        threading.Thread(target=self._run, args=(endpoint, connection), name="hpcdl-stop-client", daemon=True).start()

    def _connect(self, endpoint: Endpoint) -> socket.socket:
        (host, port), key, mine = endpoint[:2], bytes.fromhex(endpoint[2]), self._node.to_bytes(WORD, "big")
        connection = socket.create_connection((host, port), CONNECT_S)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            connection.sendall(_proof(key, mine) + mine)
            if not hmac.compare_digest(_receive(connection, KEY), _proof(key, b"server")):
                raise ConnectionError("another program listens there")
            self.heed(int.from_bytes(_receive(connection, WORD), "big"))
        except BaseException:
            connection.close()
            raise
        return connection

    def _run(self, endpoint: Endpoint, connection: socket.socket) -> None:
        while True:
            try:
                with connection:
                    self._converse(connection)
                return
            except OSError:
                pass
            while True:
                time.sleep(RETRY_S)
                try:
                    connection = self._connect(endpoint)
                    break
                except OSError:
                    pass

    def _converse(self, connection: socket.socket) -> None:
        """Until the boundary to stop at is known. Raises OSError where the connection breaks."""
        said = False
        poll = select.poll()  # select() has no room for the descriptors of a process with many files
        poll.register(connection, select.POLLIN)
        while not self._counters.stopped:
            if not said and self.boundary():
                connection.sendall(self.boundary().to_bytes(WORD, "big"))
                said = True
            if poll.poll(1000 * POLL_S):
                self.heed(int.from_bytes(_receive(connection, WORD), "big"))


def _proof(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, "sha256").digest()


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the server has ended")
        data += piece
    return data
