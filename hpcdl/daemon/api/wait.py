"""Waking of requests that wait for a commit: `/v1/wait`, `/v1/events?wait=`, `/v1/holes`.

A request never waits beyond its own time, and none once the daemon ends.
"""

import asyncio
import logging
from collections.abc import Callable

from hpcdl.core.model.world import World

log = logging.getLogger("hpcdl.daemon")


class Changes:
    """Wakes those who wait for the world to change. `announce` may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: where the waiters are."""
        self._loop = loop
        self._event = asyncio.Event()
        self.closed = False

    def announce(self, world: World) -> None:
        """Something was committed."""
        try:
            self._loop.call_soon_threadsafe(self._swap)
        except RuntimeError:
            log.debug("a commit after the end of the event loop")

    def close(self) -> None:
        """The daemon ends: nobody is to wait any more. In the event loop's thread."""
        self.closed = True
        self._swap()

    def _swap(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, seconds: float) -> bool:
        """Until the next change, or so many seconds. False on the latter."""
        try:
            await asyncio.wait_for(self._event.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        return True

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Waits until the condition holds, for so long at most."""
        end = self._loop.time() + seconds
        while not condition() and not self.closed:
            if not await self.wait(end - self._loop.time()) and self._loop.time() >= end:
                return
