"""What is handed on to this agent when who had started it died: a supervisor that was killed, or a shell.

The agent is a subreaper: a process that hides from its supervisor (another session, no environment) becomes the agent's
child when the supervisor dies. Every child that the agent did not start itself is such an orphan, and is ended.
"""

import logging
import os
import subprocess
import threading
from collections.abc import Callable

from hpcdl.agent import launch, processes
from hpcdl.agent.processes import Process

log = logging.getLogger("hpcdl.agent")

KILL_S = 0.3
"""Seconds of one attempt to end them all."""


class Orphans:
    """All methods may be called in any thread. Without a subreaper there are none."""

    def __init__(self) -> None:
        """Of this process, and from here on."""
        self._lock = threading.Lock()
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._session = os.getsid(0)
        self._any = launch.is_subreaper()

    def start(self, make: "Callable[[], subprocess.Popen[bytes]]") -> "subprocess.Popen[bytes]":
        """Starts a child in a session of its own: it is no orphan. Raises what `make` raises."""
        with self._lock:
            process = make()
            self._started[process.pid] = process
        return process

    def find(self) -> list[Process]:
        """Those that are there now; none while a child is being started."""
        if not self._any or not self._lock.acquire(blocking=False):
            return []
        try:
            self._reap()
            found = [processes.look(pid) for pid in processes.children_of(os.getpid()) if not self._is_ours(pid)]
        finally:
            self._lock.release()
        return [each for each in found if each is not None]

    def end(self) -> int:
        """Kills them; how many are left: they are on their way, or hang in a driver."""
        if not self._any:
            return 0
        with self._lock:
            self._reap()
            processes.kill_own_children(self._is_ours, self._reap, KILL_S)
            return sum(not self._is_ours(pid) for pid in processes.children_of(os.getpid()))

    def _is_ours(self, pid: int) -> bool:
        # What we start otherwise, a tool that tells of GPUs, stays in our session; no orphan ever was in it.
        return pid in self._started or processes.session_of(pid) in (self._session, None)

    def _reap(self) -> None:
        for pid, process in list(self._started.items()):
            if process.poll() is not None:
                del self._started[pid]
        for pid in processes.children_of(os.getpid()):
            if not self._is_ours(pid):
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass
