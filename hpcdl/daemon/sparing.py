"""Keeps strangers from filling the daemon's log: what libraries say of connections, anybody who connects can cause."""

import logging
import time
from collections.abc import Callable

LIBRARIES = ("asyncio", "uvicorn")
"""Whose loggers speak of connections that have shown no token."""

MOST, PERIOD_S = 20, 60.0
"""So many records of these are written in so many seconds."""


class Sparing(logging.Filter):
    """A filter for a handler: of LIBRARIES at most MOST records in PERIOD_S; the next one says how many are missing."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._since = -PERIOD_S
        self._told = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written."""
        if record.name.partition(".")[0] not in LIBRARIES:
            return True
        now = self._monotonic()
        if now - self._since >= PERIOD_S:
            self._since, self._told = now, 0
        if self._told >= MOST:
            self._left_out += 1
            return False
        self._told += 1
        if self._left_out:
            record.msg, record.args = f"{record.getMessage()} ({self._left_out} more of these are left out)", None
            self._left_out = 0
        return True
