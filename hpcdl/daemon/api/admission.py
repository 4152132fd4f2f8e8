"""Who may stay connected: the listener's connections, until each has shown a token.

Anybody on the machine can connect to a port. Those that have not shown this daemon's token are few at a time and not
for long: when there are too many, the oldest that has sent nothing goes after SILENT_S, any after FAIR_S, so that a
crowd which sends nothing, or half a handshake, or half a request, keeps nobody else out and takes no more than PENDING
descriptors. Until then the others wait to be accepted: a thousand agents that call at once after a restart get in one
after another. Those of other users of this machine are known by their uid, and never wait in front of ours: there are
STRANGERS of them, and who is one too many is sent away at once. `hpcdl web` lets none of them in.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("hpcdl.daemon")

PENDING = 256
"""Connections without a token, at most."""

STRANGERS = 64
"""Of other users of this machine, at most; viewers may be among them."""

PROVE_S = 15.0
"""Seconds from the connection to the token, handshake included."""

SILENT_S, FAIR_S = 1.0, 5.0
"""No connection is dropped for a newer one before it has had so long: to send anything at all, to show its token."""

TCP_INFO, TCP_INFO_BYTES, RECEIVED = 11, 136, slice(128, 136)
"""Linux's struct tcp_info, up to tcpi_bytes_received."""

AT_ONCE = 64
"""Connections that are accepted before anything else gets its turn."""

AGAIN_S = 0.1
"""The pause after a connection could not be accepted: too many that have shown nothing, no descriptors, no memory."""

BREATH_S = 0.005
"""The pause after as many of strangers were sent away as are accepted at once: they shall not take a whole core."""

Caller = tuple[str, int]


@dataclass(eq=False, slots=True)
class _Pending:
    connection: socket.socket
    since: float
    stranger: bool = False
    timer: asyncio.TimerHandle | None = None
    greeting: "asyncio.Task[None] | None" = None
    transport: asyncio.BaseTransport | None = None


class Admission:
    """Accepts on one listener; with the methods of `asyncio.Server` that uvicorn calls."""

    def __init__(
        self,
        pending: int = PENDING,
        prove_s: float = PROVE_S,
        fair_s: float = FAIR_S,
        strangers: int = STRANGERS,
        stranger: Callable[[socket.socket], bool] | None = None,
    ) -> None:
        """`fair_s`: see FAIR_S; who is silent has no longer than that either. `strangers`: so many of them at most.
        `stranger`: whether a connection is of another user; by default the kernel is asked."""
        self._peers = SocketPeers()
        self._is_stranger = stranger or (lambda connection: is_stranger(self._peers.uid_of(connection)))
        self._most = pending
        self._strangers = strangers
        self._prove_s = prove_s
        self._fair_s = fair_s
        self._pending: dict[Caller, _Pending] = {}  # the oldest first
        self._listener: socket.socket | None = None
        self._greetings: set[asyncio.Task[None]] = set()

    def open(self, listener: socket.socket, factory: Callable[[], asyncio.Protocol], context: ssl.SSLContext) -> None:
        """From now on `factory` makes a protocol for each connection whose TLS handshake is done."""
        listener.setblocking(False)
        # Its connections have it too. Else the body of an answer, which is sent after the headers, waits until the
        # client has acknowledged those: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener, self._factory, self._context = listener, factory, context
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener, self._accept)

    def proven(self, caller: Caller | None) -> None:
        """This one has shown the owner's token, and may stay as long as it wants."""
        known = self._pending.pop(caller, None) if caller is not None else None
        if known is not None and known.timer is not None:
            known.timer.cancel()

    @property
    def pending(self) -> int:
        """Connections that have shown nothing yet, or are gone since without."""
        return len(self._pending)

    def _accept(self) -> None:
        listener = self._listener
        if listener is None:
            return
        for _ in range(AT_ONCE):
            if self._full():
                self._pause(listener, AGAIN_S)
                return
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted: %s", error.strerror)
                self._drop_oldest()
                self._pause(listener, AGAIN_S)
                return
            connection.setblocking(False)
            stranger = self._is_stranger(connection)
            if stranger and self._too_many(
                [each for each in self._pending.items() if each[1].stranger], self._strangers
            ):
                connection.close()
            else:
                self._greet(connection, (str(address[0]), int(address[1])), stranger)
        self._pause(listener, BREATH_S)

    def _full(self) -> bool:
        """Whether there are too many, none of which has had its time."""
        return self._too_many(self._pending.items(), self._most)

    def _too_many(self, known: Collection[tuple[Caller, _Pending]], most: int) -> bool:
        """Whether there are `most` of these, none of which has had its time; one that has makes room."""
        if len(known) < most:
            return False
        late = next((caller for caller, entry in known if self._had_its_time(entry)), None)
        if late is not None:
            self._drop(late)
        return late is None

    def _had_its_time(self, entry: _Pending) -> bool:
        age_s = self._loop.time() - entry.since
        if age_s >= self._fair_s or (entry.transport is not None and entry.transport.is_closing()):
            return True
        return age_s >= SILENT_S and _silent(entry.connection)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listener)
        self._loop.call_later(seconds, self._listen_again)

    def _listen_again(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept)

    def _greet(self, connection: socket.socket, caller: Caller, stranger: bool) -> None:
        self._drop(caller)  # the port is used again: that one is gone
        while len(self._pending) >= self._most:
            self._drop_oldest()
        entry = _Pending(connection, self._loop.time(), stranger)
        self._pending[caller] = entry
        entry.timer = self._loop.call_later(self._prove_s, self._drop, caller)
        entry.greeting = self._loop.create_task(self._handshake(entry))
        self._greetings.add(entry.greeting)
        entry.greeting.add_done_callback(lambda greeting: self._greeted(entry, greeting, caller))

    async def _handshake(self, entry: _Pending) -> None:
        try:
            entry.transport, _ = await self._loop.connect_accepted_socket(
                self._factory, entry.connection, ssl=self._context, ssl_handshake_timeout=self._prove_s
            )
        except OSError as error:  # not TLS, another TLS, gone, or too slow
            log.debug("a connection came to nothing: %s", error)

    def _greeted(self, entry: _Pending, greeting: "asyncio.Task[None]", caller: Caller) -> None:
        self._greetings.discard(greeting)
        if entry.transport is None:
            entry.connection.close()  # also where it was dropped before anything was done about it
            if self._pending.get(caller) is entry:
                self._drop(caller)

    def _drop_oldest(self) -> None:
        caller = next(iter(self._pending), None)
        if caller is not None:
            self._drop(caller)

    def _drop(self, caller: Caller) -> None:
        entry = self._pending.pop(caller, None)
        if entry is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        transport: Any = entry.transport
        if transport is not None:
            # On a connection that is closed already asyncio's fails (as late as Python 3.11.2, Debian's).
            with contextlib.suppress(AttributeError):
                transport.abort()
        elif entry.greeting is not None:
            entry.greeting.cancel()

    def close(self) -> None:
        """Accepts nobody any more; who has come in stays."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
        self._peers.close()

    async def wait_closed(self) -> None:
        """Ends what is not in yet."""
        for caller in list(self._pending):
            self._drop(caller)
        await asyncio.gather(*self._greetings, return_exceptions=True)


def _silent(connection: socket.socket) -> bool:
    """Whether nothing has come from there yet, by the kernel's count."""
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return True  # closed
    return len(found) == TCP_INFO_BYTES and not any(found[RECEIVED])


# --- whose socket is at the other end, where that is on this machine too ----------------------------------------------

_SOCK_DIAG, _BY_FAMILY = 4, 20
"""Linux's NETLINK_SOCK_DIAG and SOCK_DIAG_BY_FAMILY."""

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr

_REQUEST = struct.Struct("=BBBBI")  # struct inet_diag_req_v2, up to the addresses

_PORTS = struct.Struct("!HH")

_ANY = struct.pack("=I2I", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # on any interface, with any cookie

_ANSWER = struct.Struct("=4B48x5I")  # struct inet_diag_msg: the last two are uid and inode


class SocketPeers:
    """Asks the kernel who owns the other end of a TCP connection; where it does not answer, nothing is known."""

    def __init__(self) -> None:
        self._number = 0
        self._kernel: socket.socket | None = None
        try:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
            self._kernel.setblocking(False)  # it answers before send returns
            self._kernel.connect((0, 0))
        except OSError:
            self.close()

    def uid_of(self, connection: socket.socket) -> int | None:
        """The uid of the process at the other end; None where that is elsewhere, gone, or not to be known."""
        if self._kernel is None:
            return None
        try:
            there, here = connection.getpeername(), connection.getsockname()
            self._number = (self._number + 1) & 0xFFFFFFFF
            addresses = b"".join(
                socket.inet_pton(connection.family, each[0]).ljust(16, b"\0") for each in (there, here)
            )
            body = _REQUEST.pack(connection.family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
            body += _PORTS.pack(there[1], here[1]) + addresses + _ANY
            self._kernel.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, 1, self._number, 0) + body)
            while True:
                answer = self._kernel.recv(4096)
                _, kind, _, number, _ = _HEADER.unpack_from(answer)
                if number == self._number:  # not to a question before, whose answer did not come in time
                    break
            if kind != _BY_FAMILY:
                return None
            *_, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
        except (OSError, ValueError, struct.error):
            return None
        return int(uid) if inode else None  # without one nobody has the socket open, and the uid says nothing

    def close(self) -> None:
        """Asks no more."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None


def is_stranger(uid: int | None) -> bool:
    """Whether this is surely neither us nor root."""
    return uid is not None and uid not in (0, os.geteuid())
