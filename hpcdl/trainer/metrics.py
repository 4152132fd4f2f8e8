"""Numbers that a training reports beside its step (loss=0.3, lr=1e-3), until they are sent: the newest of each name.

A tensor is turned into a number only when it is sent, a few times a second: that may wait for its GPU. Nothing here
raises: what is no number is left out, and said once.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("hpcdl.trainer")

MOST = 16
"""Names that a job may report."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,62}")


def detached(value: Any) -> Any:
    """A number, or a tensor without its graph: that would be kept in memory, and PyTorch warns of a float of it."""
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


class PendingMetrics:
    """The newest value of each name that was not sent yet."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._known: set[str] = set()
        self._refused: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._values)

    def take(self, values: Mapping[str, Any]) -> None:
        """Take in what was reported now."""
        for name, value in values.items():
            if value is None or name in self._refused:
                continue
            if name not in self._known:
                if len(self._known) >= MOST or not NAME.fullmatch(name):
                    self._refuse(name, f"a job has {MOST} at most, of letters, digits and _ . : / -")
                    continue
                self._known.add(name)
            self._values[name] = detached(value)

    def numbers(self) -> dict[str, float | None]:
        """What is to be sent, by name; None: not finite."""
        found: dict[str, float | None] = {}
        for name, value in list(self._values.items()):
            try:
                number = float(value)
            except Exception as error:  # a tensor of several, or of a device that has failed
                del self._values[name]
                self._refuse(name, f"it is no number: {error}")
                continue
            found[name] = number if math.isfinite(number) else None
        return found

    def sent(self) -> None:
        """What `numbers` said last has gone."""
        self._values.clear()

    def _refuse(self, name: str, why: str) -> None:
        self._refused.add(name)
        log.warning("the metric %.80r is left out: %.200s", name, why)
