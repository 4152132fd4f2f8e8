"""Requests that a screen does not wait for: a thread carries them out one by one, their results wake the screen.

For `hpcdl top`. What is done with a result is done in the screen's own thread (`deliver`).
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from hpcdl.client import ClientError

_END_S = 1.0
"""A request that is under way at the end is not waited for longer."""


class BackgroundRequests:
    """`with BackgroundRequests() as requests: requests.ask(call, then)`; `then` gets the result, or the ClientError."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Callable[[Any], None], Any]] = queue.SimpleQueue()
        self._open = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)

    def __enter__(self) -> "BackgroundRequests":
        self.woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._open:
            self._ended = True
            os.close(self.woken)
            os.close(self._wakes)
        self._calls.put(None)
        self._thread.join(_END_S)

    def ask(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Has `call` made once those before it are answered."""
        self._calls.put((call, then))

    def deliver(self) -> None:
        """Once there is something to read from `woken`: hands out the results. Raises what is no ClientError."""
        os.read(self.woken, 4096)
        while not self._results.empty():
            then, result = self._results.get()
            if isinstance(result, Exception) and not isinstance(result, ClientError):
                raise result
            then(result)

    def _run(self) -> None:
        while (each := self._calls.get()) is not None:
            call, then = each
            try:
                result = call()
            except Exception as error:  # it is raised, or shown, in the screen's thread
                result = error
            self._results.put((then, result))
            with self._open:
                if self._ended:
                    return
                try:
                    os.write(self._wakes, b"\0")
                except BlockingIOError:
                    pass  # so many wait to be read that it wakes
