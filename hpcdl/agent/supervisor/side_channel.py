"""The supervisor's sockets, its clock and its signals, as its loop needs them: nothing here ever blocks.

No queue grows without bound, and nobody of another uid gets in. Who the clients are is in clients.py.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from types import FrameType

from hpcdl.agent.supervisor.packets import LIMIT

NAME = "s"  # of the socket in the run folder

BACKLOG = 64

QUEUE_LIMIT = 256  # packets to a peer that does not read

_PEER = struct.Struct("3i")  # pid, uid, gid


class Closed(Exception):
    """The peer is gone."""


class SideChannelClient:
    """One client: a rank of the trainer, or the agent."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self._socket = peer
        self._queue: deque[bytes] = deque()
        self.pid, self.uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """The next packet (one that is too large comes longer than the limit), or None. Raises Closed."""
        try:
            try:
                raw = self._socket.recv(LIMIT + 1)
            except ConnectionResetError:
                # The peer ended with packets of ours unread. That is an error once; what it had sent comes after it.
                raw = self._socket.recv(LIMIT + 1)
        except BlockingIOError:
            return None
        except OSError as error:
            raise Closed(str(error)) from None
        if not raw and self._hung_up():
            raise Closed("the peer closed the connection")
        return raw

    def _hung_up(self) -> bool:
        # An empty packet reads like the end of the connection.
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return any(events & (select.POLLHUP | select.POLLRDHUP | select.POLLERR) for _, events in poll.poll(0))

    def send(self, packet: bytes) -> None:
        """Send now, or queue behind what is queued. Raises Closed, also when the peer has not read for too long."""
        if len(self._queue) >= QUEUE_LIMIT:
            raise Closed("the peer does not read")
        self._queue.append(packet)
        self.flush()

    def flush(self) -> None:
        """Send what is queued as far as the peer takes it. Raises Closed."""
        while self._queue and self.offer(self._queue[0]):
            self._queue.popleft()

    def offer(self, packet: bytes) -> bool:
        """Send this packet now; False if the peer does not take it. Raises Closed.

        To a peer that is gone it is lost in silence: what that one sent before may still be here to be read, a final
        `saved` perhaps, and reading comes to the end soon enough.
        """
        try:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True
        except OSError as error:
            raise Closed(str(error)) from None
        return True

    @property
    def waiting(self) -> bool:
        """True while something is queued."""
        return bool(self._queue)

    def close(self) -> None:
        self._socket.close()


class Listener:
    """The listening socket `s` in the run folder."""

    def __init__(self, folder: int) -> None:
        """`folder`: a descriptor of the run folder, whose lock the caller holds. Raises OSError."""
        try:
            os.unlink(NAME, dir_fd=folder)
        except FileNotFoundError:
            pass
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Names of sockets end at 107 bytes; this one is short whatever the folder is.
        self._socket.bind(f"/proc/self/fd/{folder}/{NAME}")
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> SideChannelClient | None:
        """A client that waits, if there is one; one of another uid is dropped. Raises OSError (no descriptors left)."""
        while True:
            try:
                peer, _ = self._socket.accept()
            except (BlockingIOError, ConnectionError):
                return None
            connection = SideChannelClient(peer)
            if is_ours(connection.uid):
                return connection
            connection.close()

    def close(self) -> None:
        self._socket.close()
        try:
            os.unlink(NAME, dir_fd=self._folder)
        except OSError:
            pass


def is_ours(uid: int) -> bool:
    return uid == os.geteuid()


STALL_S = 5.0


class RunningClock:
    """The supervisor's time: monotonic, without the time in which it was stopped itself.

    A batch system that suspends a job stops the supervisor with its trainer. That time spends no grace, no absence
    and no patience: everything due is put off by it.
    """

    def __init__(self) -> None:
        self._lost = 0.0
        self._last = time.monotonic()

    def now(self) -> float:
        """Seconds, from an arbitrary beginning."""
        return time.monotonic() - self._lost

    def turn(self, expected_s: float) -> float:
        """Call it once a turn of the loop, with the longest that the turn may wait; the seconds that were lost."""
        now = time.monotonic()
        excess = now - self._last - expected_s
        self._last = now
        if excess < STALL_S:
            return 0.0
        self._lost += excess
        return excess


class Wakeup:
    """Signals as events of a selector: readable after any that is handled. SIGUSR1 and SIGCHLD only wake; SIGTERM is
    remembered."""

    def __init__(self, ignored: Iterable[signal.Signals]) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._terminate = False
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, _wake)
        signal.signal(signal.SIGTERM, self._on_terminate)

    def fileno(self) -> int:
        return self._reading.fileno()

    def clear(self) -> None:
        try:
            while self._reading.recv(4096):
                pass
        except BlockingIOError:
            pass

    @property
    def terminate(self) -> bool:
        """Whether a SIGTERM came that nobody has taken."""
        return self._terminate

    def take_terminate(self) -> bool:
        """True once for the SIGTERMs that came."""
        was, self._terminate = self._terminate, False
        return was

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminate = True


def _wake(number: int, frame: FrameType | None) -> None:
    """Waking up is all that is wanted."""
