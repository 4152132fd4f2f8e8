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

from hpcdl.trainer.group.step_counters import StepCounters

IDLE, REQUEST = 0, 2**64 - 1  # what the server says in place of a boundary: nothing is requested; say yours
WORD = 8  # bytes of a number in a message
KEY = 32  # bytes, of the key, of what each end draws for a connection, and of a seal
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


class Seal:
    """One direction of one connection: what is said is followed by a proof that one knows the key. It holds for this
    place of this connection only, so that what somebody has overheard says nothing elsewhere."""

    SIZE = WORD + KEY

    def __init__(self, key: bytes, drawn: bytes, direction: bytes) -> None:
        """`drawn`: by both ends for this connection, the client's first."""
        self._key = hmac.new(key, direction + drawn, "sha256").digest()
        self._count = 0

    def put(self, number: int) -> bytes:
        """The message."""
        word = number.to_bytes(WORD, "big")
        return word + self._proof(word)

    def get(self, message: bytes) -> int:
        """The number. Raises ConnectionError for one that was not sealed for this place."""
        word, proof = message[:WORD], message[WORD:]
        if not hmac.compare_digest(proof, self._proof(word)):
            raise ConnectionError("another program speaks there, which does not know the key")
        return int.from_bytes(word, "big")

    def _proof(self, word: bytes) -> bytes:
        self._count += 1
        return hmac.new(self._key, self._count.to_bytes(WORD, "big") + word, "sha256").digest()


def seals(key: bytes, drawn: bytes) -> tuple[Seal, Seal]:
    """Of what the client says, and of what the server does."""
    return Seal(key, drawn, b"client"), Seal(key, drawn, b"server")


class StopServer:
    """Serves the tally to clients that know its key, in a thread, for as long as the process lives."""

    def __init__(self, address: str, nodes: int) -> None:
        """Listens at this address of ours. Raises OSError."""
        self._tally = StopTally(nodes)
        self._key = secrets.token_bytes(KEY)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.endpoint: Endpoint = (address, self._socket.getsockname()[1], self._key.hex())
        self._clients: dict[int, tuple[asyncio.StreamWriter, Seal]] = {}
        threading.Thread(target=lambda: asyncio.run(self._run()), name="hpcdl-stop-server", daemon=True).start()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._socket)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            drawn = secrets.token_bytes(KEY)
            writer.write(drawn)
            theirs, ours = seals(self._key, await asyncio.wait_for(reader.readexactly(KEY), CONNECT_S) + drawn)
            node = theirs.get(await asyncio.wait_for(reader.readexactly(Seal.SIZE), CONNECT_S))
            self._clients[node] = writer, ours
            writer.write(ours.put(self._tally.word))
            while True:
                boundary = theirs.get(await reader.readexactly(Seal.SIZE))
                before = self._tally.word
                self._tally.take(node, boundary)
                if self._tally.word != before:
                    for each, seal in self._clients.values():
                        each.write(seal.put(self._tally.word))
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # it calls again, if it lives
        finally:
            writer.close()  # a later one of the same node has taken its place, if it lives


Connection = Tuple[socket.socket, Seal, Seal]
"""To the server, with the seals of what is said there and of what is heard."""


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

    def _connect(self, endpoint: Endpoint) -> Connection:
        (host, port), key = endpoint[:2], bytes.fromhex(endpoint[2])
        connection = socket.create_connection((host, port), CONNECT_S)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            drawn = secrets.token_bytes(KEY)
            connection.sendall(drawn)
            ours, theirs = seals(key, drawn + _receive(connection, KEY))
            connection.sendall(ours.put(self._node))
            self.heed(theirs.get(_receive(connection, Seal.SIZE)))
        except BaseException:
            connection.close()
            raise
        return connection, ours, theirs

    def _run(self, endpoint: Endpoint, connection: Connection) -> None:
        while True:
            try:
                with connection[0]:
                    self._converse(connection)
                return
            except OSError:
                pass
            while True:
                time.sleep(RETRY_S)
                if self._counters.stopped:
                    return  # there is nothing left to ask
                try:
                    connection = self._connect(endpoint)
                    break
                except OSError:
                    pass

    def _converse(self, connection: Connection) -> None:
        """Until the boundary to stop at is known. Raises OSError where the connection breaks."""
        end, ours, theirs = connection
        said = False
        poll = select.poll()  # select() has no room for the descriptors of a process with many files
        poll.register(end, select.POLLIN)
        while not self._counters.stopped:
            if not said and self.boundary():
                end.sendall(ours.put(self.boundary()))
                said = True
            if poll.poll(1000 * POLL_S):
                self.heed(theirs.get(_receive(end, Seal.SIZE)))


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the server has ended")
        data += piece
    return data
