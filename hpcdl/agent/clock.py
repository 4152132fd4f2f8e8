"""The supervisor's time: monotonic, without the time in which it was stopped itself."""

from __future__ import annotations

import time

STALL_S = 5.0


class Clock:
    """A batch system that suspends a job stops the supervisor with its trainer. That time spends no grace, no absence
    and no patience: everything due is put off by it."""

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
