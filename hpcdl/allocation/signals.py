"""Signals of the batch system, kept until the process looks."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from types import FrameType

from hpcdl.agent.departure import end_signals
from hpcdl.wire.readable import readable


class Signals:
    """Signals of the batch system, kept and not acted upon, from `with` on in the main thread. `first`: the name of the
    first that came, "" before it.
    """

    def __init__(self, numbers: Iterable[signal.Signals] = ()) -> None:
        self._numbers = tuple(numbers) or end_signals()
        self._before: dict[signal.Signals, object] = {}
        self._came = self._comes = -1
        self.first = ""

    def __enter__(self) -> "Signals":
        # A pipe, and nothing of `threading`: a handler that takes a lock waits for ever where it interrupts its holder.
        self._came, self._comes = os.pipe()
        os.set_blocking(self._comes, False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *args: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` gave is what it takes
        for end in (self._came, self._comes):
            os.close(end)

    def wait(self, seconds: float) -> str:
        """Until a signal comes, or so long; `first`. Once one has come it only waits."""
        if self.first:
            time.sleep(seconds)
        else:
            readable([self._came], seconds)
        return self.first

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.first:
            self.first = signal.Signals(number).name
        with contextlib.suppress(BlockingIOError):
            os.write(self._comes, b".")
