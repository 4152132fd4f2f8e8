"""Signals of a batch system in the process that its batch job began with: told, not acted upon."""

import signal
import threading
from collections.abc import Iterable
from types import FrameType

from hpcdl.agent.leaving import SIGNALS


class Signals:
    """From `with` on in the main thread. `first`: the name of the first that came, "" before it."""

    def __init__(self, numbers: Iterable[signal.Signals] = SIGNALS) -> None:
        self._numbers = tuple(numbers)
        self._before: dict[signal.Signals, object] = {}
        self._came = threading.Event()
        self.first = ""

    def __enter__(self) -> "Signals":
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *args: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` gave is what it takes

    def wait(self, seconds: float) -> str:
        """Until a signal comes, or so long; `first`. Once one has come it only waits."""
        if self.first:
            threading.Event().wait(seconds)
        else:
            self._came.wait(seconds)
        return self.first

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.first:
            self.first = signal.Signals(number).name
        self._came.set()
