"""The trainer's end of the side channel: one connected SOCK_SEQPACKET socket, one JSON object a packet.

Nothing here raises once the connection stands: a channel that fails is `gone`, and the trainer goes on to its next
step boundary. Times are seconds on the monotonic clock.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

VERSION = 1
LIMIT = 65536  # bytes in a packet


class Refused(RuntimeError):
    """The supervisor does not take this process as one of its ranks, or is not what it should be."""


class Channel:
    """A connection to the supervisor whose socket has this path; raises OSError if there is none, Refused if the
    peer runs as another user."""

    def __init__(self, path: str, timeout_s: float = 5.0) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pidfd = -1
        self.gone = False
        try:
            self._socket.settimeout(timeout_s)
            where = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Unix socket names end at 107 bytes; this one is short whatever the folder is.
                self._socket.connect(f"/proc/self/fd/{where}/{name}")
            finally:
                os.close(where)
            self._socket.setblocking(False)
            raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self.peer, uid, _ = struct.unpack("3i", raw)
            check_peer(uid)
            try:
                self._pidfd = os.pidfd_open(self.peer)  # novm
            except (AttributeError, OSError):
                pass  # an old Python or kernel, or a peer that has just died: see notify
        except BaseException:
            self._socket.close()
            raise

    def send(self, kind: str, body: Mapping[str, object], wait_s: float = 0.0) -> bool:
        """Send one packet; when the channel is full, wait at most `wait_s` and then drop it. True if it was sent."""
        if self.gone:
            return False
        packet = json.dumps({"v": VERSION, "type": kind, **body}, separators=(",", ":")).encode()
        if len(packet) > LIMIT:
            return False
        until = time.monotonic() + wait_s
        while True:
            try:
                self._socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return True
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._wait(select.POLLOUT, min(left, 0.1))
            except OSError:
                self.gone = True
                return False

    def receive(self, wait_s: float = 0.0) -> dict[str, Any] | None:
        """The next packet of a version that we speak, or None when none came within `wait_s`."""
        until = time.monotonic() + wait_s
        while not self.gone:
            try:
                raw = self._socket.recv(LIMIT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._wait(select.POLLIN, min(left, 0.1))
                continue
            except OSError:
                raw = b""
            if not raw:
                self.gone = True
                return None
            message = _parse(raw)
            if message is not None:
                return message
        return None

    def _wait(self, event: int, wait_s: float) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        poll.poll(wait_s * 1000)

    def notify(self) -> None:
        """SIGUSR1 to the peer of this socket, and to nobody else: it is a mere hint that a packet has come."""
        try:
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)  # novm: there is one
            else:
                self.receive()  # without a pidfd the number is trusted only while the peer holds the socket
                if not self.gone:
                    os.kill(self.peer, signal.SIGUSR1)
        except OSError:
            pass

    def close(self, shared: bool = False) -> None:
        """Close this end; `shared`: another process still uses the connection."""
        if not self.gone and not shared:
            # A Unix socket that is closed with packets unread resets the connection, and the peer then meets an error
            # where our last packets should be. So nothing more is let in, and what is there is read.
            try:
                self._socket.shutdown(socket.SHUT_RD)
                while self._socket.recv(LIMIT, socket.MSG_DONTWAIT):
                    pass
            except OSError:
                pass
        self.gone = True
        self._socket.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def check_peer(uid: int) -> None:
    """Raises Refused unless the peer is our own user."""
    if uid != os.geteuid():
        raise Refused(f"the supervisor's socket belongs to uid {uid}, not to uid {os.geteuid()}")


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("v") != VERSION or not isinstance(message.get("type"), str):
        return None
    return message
