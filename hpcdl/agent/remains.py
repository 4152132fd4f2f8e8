"""What is left of a part whose supervisor is gone: by its tag, by what was recorded below the supervisor, and by what
came to the agent itself. Nothing is signalled that is not one of these very processes."""

import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdl.agent import processes, processfile, start
from hpcdl.agent.orphans import Orphans
from hpcdl.agent.processes import Process

log = logging.getLogger("hpcdl.agent")

KILL_S = 0.5
"""Seconds of one attempt to end them all."""


class Remains:
    """Of one part. All methods may be called in any thread."""

    def __init__(self, folder: Path, tag: str, orphans: Orphans) -> None:
        self._folder = folder
        self._tag = tag
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
        return start.holder(self._folder, record or {}) or start.supervisor_in(self._folder)

    def find(self) -> list[Process]:
        """What lives of it, without its supervisor."""
        known = processes.kin([*self._seen, *processfile.read(self._folder).below])
        found = {each.pid: each for each in [*known, *processes.tagged(self._tag)]}
        return [each for pid, each in sorted(found.items()) if pid != os.getpid()]

    def end(self) -> int:
        """Once nobody supervises it: kills what lives of it; how much there was, or is still."""
        # Its lock is free, and its socket closed, before what it leaves is handed on: only then all of it can be found.
        dying = self._dying()
        hit = processes.kill_all(self.find, KILL_S)
        return len(hit) + self._orphans.end() + dying

    def end_within(self, seconds: float) -> None:
        """The same, until nothing is left, or the time is over."""
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
        recorded = processfile.read(self._folder).supervisor
        return recorded is not None and processes.lives(recorded)
