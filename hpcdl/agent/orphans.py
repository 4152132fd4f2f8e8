"""Processes that lost whoever started them: a supervisor that was killed, or a shell. They are found, and ended.

The agent is a subreaper: a process that hides from its supervisor (another session, no environment) becomes the agent's
child when the supervisor dies. Every child that the agent did not start itself is such an orphan (`Orphans`). What a
dead supervisor leaves of its part is found by tag and by mark, too, and by the file `processes` in its run folder
(`Remains`).
Nothing else is ever signalled.
"""

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcdl.agent import run_folder
from hpcdl.agent.supervisor import launch, process_file, processes
from hpcdl.agent.supervisor.processes import Process

log = logging.getLogger("hpcdl.agent")

ORPHANS_KILL_S = 0.3
"""Seconds of one attempt to end them all."""


class Orphans:
    """The children of this agent that it did not start. All methods may be called in any thread. Without a subreaper
    there are none."""

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
            found = [processes.process_of(pid) for pid in processes.children_of(os.getpid()) if not self._is_ours(pid)]
        finally:
            self._lock.release()
        return [each for each in found if each is not None]

    def end(self) -> int:
        """Kills them; how many are left: they are on their way, or hang in a driver."""
        if not self._any:
            return 0
        with self._lock:
            self._reap()
            processes.kill_own_children(self._is_ours, self._reap, ORPHANS_KILL_S)
            return sum(not self._is_ours(pid) for pid in processes.children_of(os.getpid()))

    def _is_ours(self, pid: int) -> bool:
        # What we start otherwise, nvidia-smi for one, stays in our session; no orphan ever was in it.
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


REMAINS_KILL_S = 0.5
"""Seconds of one attempt to end them all."""


class Remains:
    """What is left of a part whose supervisor is gone: by its tag and its mark, by what was recorded below the
    supervisor, and by what came to the agent itself. All methods may be called in any thread."""

    def __init__(self, folder: Path, tag: str, mark: int, orphans: Orphans) -> None:
        """`mark`: the limit by which its processes are known, 0: they have none."""
        self._folder = folder
        self._tag = tag
        self._mark = mark
        self._orphans = orphans
        self._seen: tuple[Process, ...] = ()

    def remember(self, record: Mapping[str, Any] | None) -> tuple[int, ...]:
        """What is below the living supervisor now, which is known from here on; its pids. `record`: by which it said
        who it is."""
        supervisor = self._supervisor(record)
        found = [] if supervisor is None else processes.descendants(supervisor.pid, tags=False)
        if found:
            self._seen = tuple(found)
        return tuple(sorted(each.pid for each in found))

    def _supervisor(self, record: Mapping[str, Any] | None) -> Process | None:
        return run_folder.holder(self._folder, record or {}) or run_folder.supervisor_in(self._folder)

    def find(self) -> list[Process]:
        """What lives of it, without its supervisor."""
        known = processes.kin([*self._seen, *process_file.read_process_file(self._folder).below])
        marked = processes.marked(self._mark)
        found = {each.pid: each for each in [*known, *marked, *processes.tagged(self._tag)]}
        return [each for pid, each in sorted(found.items()) if pid != os.getpid()]

    def end(self) -> int:
        """Once nobody supervises it: kills what lives of it; how much there was, or is still."""
        # Its lock is free, and its socket closed, before what it leaves is handed on: only then all of it can be found.
        dying = self._dying()
        hit = processes.kill_all(self.find, REMAINS_KILL_S)
        return len(hit) + self._orphans.end() + dying

    def end_within(self, seconds: float) -> None:
        """Kills what lives of it until nothing is left, or the time is over."""
        end = time.monotonic() + seconds
        while self.end() and time.monotonic() < end:
            time.sleep(0.02)

    def end_supervisor(self, record: Mapping[str, Any] | None) -> None:
        """Kills the supervisor that wrote this `supervisor` record, or that was started here, if it is still that
        process; what it has below it is known from here on."""
        found = self._supervisor(record)
        if found is not None:
            processes.signal_process(found, signal.SIGSTOP)  # it hands nothing on while we look
            self.remember(record)
            processes.signal_process(found, signal.SIGKILL)

    def _dying(self) -> bool:
        recorded = process_file.read_process_file(self._folder).supervisor
        return recorded is not None and processes.lives(recorded)
