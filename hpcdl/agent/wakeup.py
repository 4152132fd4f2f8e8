"""Signals as events of a selector: what a handler may do is set a flag, and the loop wakes up."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from types import FrameType


class Wakeup:
    """Readable after any signal that is handled. SIGUSR1 and SIGCHLD only wake; SIGTERM is remembered."""

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
