"""How long a trainer has made no progress, for stalls (hpcdl/core/rules/stalls.py): steps, output, CPU time.

By a clock that stands still with the machine (CLOCK_MONOTONIC). Time in which this agent was stopped does not count,
since what a trainer said meanwhile is read after it.
"""

import os
import time

from hpcdl.agent.supervisor.processes import cpu_s

SLEEPS = 0.005
"""A trainer that uses less than this share of a CPU does nothing."""

STOOD_S = 30.0
"""More between two looks of the agent is time in which it was stopped, or the machine."""


def clock() -> float:
    """Seconds; without the time in which the machine slept."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Watchdog:
    """What moves of one trainer, from its start, or from when an agent found it. `log`: where its output goes, "" if
    not known; `sleeps`: the share of a CPU below which it does nothing."""

    def __init__(self, log: str, now: float, sleeps: float = SLEEPS) -> None:
        self._log = log
        self._sleeps = sleeps
        self._started = self._moved = self._busy = self._looked = now
        self._shows_steps = False
        self._step: int | None = None
        self._cpu_s: float | None = None
        self._bytes: int | None = None
        self.cores: float | None = None
        """What it used between the last two looks, in cores; None where that is not known."""

    def stepped(self, step: int | None, now: float) -> None:
        """The trainer has reported how many steps are done; only another number is progress."""
        if step is not None and (step != self._step or not self._shows_steps):
            self._step, self._shows_steps, self._moved = step, True, now

    def moved(self, now: float) -> None:
        """Something else happened to it: a start, a checkpoint, another membership, an order."""
        self._moved = self._busy = now

    def began(self, now: float) -> None:
        """Its processes run, or its gate was opened."""
        self._started = now
        self.moved(now)

    def stood(self, now: float) -> None:
        """Nobody has looked for a while: whatever it did is not known."""
        self._started = self._moved = self._busy = self._looked = now
        self._cpu_s = self._bytes = self.cores = None

    def look(self, supervisor: int, now: float) -> None:
        """Looks at CPU time, and at the output of one that shows no steps."""
        if not supervisor:
            return
        used, span_s, known = cpu_s(supervisor), now - self._looked, self._cpu_s
        if known is not None and used >= known and span_s > 0:
            self.cores = (used - known) / span_s
        self._cpu_s, self._looked = used, now
        if self._shows_steps:
            return
        size, seen = self._size(), self._bytes
        busy = known is None or used < known or used - known > self._sleeps * span_s
        if busy or size != seen:
            self._busy = now
        self._bytes = size

    def _size(self) -> int | None:
        try:
            return os.stat(self._log).st_size if self._log else None
        except OSError:
            return None

    def measured(self, now: float) -> tuple[float | None, float | None, float]:
        """Seconds since a step, None where it shows none; since output or CPU time, where not; since its start."""
        if self._shows_steps:
            return now - self._moved, None, now - self._started
        return None, now - self._busy, now - self._started
