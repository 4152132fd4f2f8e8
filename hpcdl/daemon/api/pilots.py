"""The API's routes about the batch system: pilots, holes, and what of it works (docs/api.md)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.rules.batch_poll import with_agents
from hpcdl.daemon.api.pilot_rows import hole_row, pilot_row
from hpcdl.daemon.batch import BatchThread
from hpcdl.daemon.loop import ControllerLoop

HOLES_S = 20.0
"""So long an answer waits for holes that are looked at just then."""

NOBODY = "no batch system was found where the daemon runs: hpcdl doctor says what it looked for"


class BatchRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(
        self,
        loop: ControllerLoop,
        batching: BatchThread | None,
        pilots_max: int,
        wait: Callable[[float], Awaitable[bool]],
    ) -> None:
        """`batching`: None without a batch system. `wait(seconds)`: until the next commit, at most so long."""
        self._loop = loop
        self._batching = batching
        self.pilots_max = pilots_max
        self._wait = wait

    def about(self) -> dict[str, Any] | None:
        """The batch system: what it is, and how it answers; None where there is none."""
        batching = self._batching
        if batching is None:
            return None
        return {
            "kind": batching.kind,
            "interval_s": batching.settings.interval_s,
            "polled_at": batching.polled_at,
            "commands": batching.commands(),
            "troubles": [f"{what}: {detail}" for what, detail in sorted(batching.troubles.items())],
            "pilots_max": self.pilots_max,
        }

    def notes(self) -> list[str]:
        """Why there are no more pilots than there are."""
        if self._batching is None:
            return [NOBODY]
        troubles = [f"{self._batching.kind} does not work: {text}" for text in self._batching.troubles.values()]
        if self.pilots_max == 0:
            return [*troubles, "none may be submitted: the setting pilots is 0"]
        return [*troubles, *self._loop.pilot_notes]

    def largest(self) -> int:
        """GPUs of the largest node that pilots could hold, as far as one is known to idle; 0 where there are none."""
        return max((hole.gpus or 0 for hole in self._loop.holes), default=0) if self.pilots_max else 0

    async def pilots(self, request: Request) -> dict[str, Any]:
        """`GET /v1/pilots`."""
        every = request.query_params.get("all") == "1"
        now = self._loop.now()
        rows = [pilot_row(each, now) for each in with_agents(self._loop.world) if every or not each.over]
        return {"pilots": rows, "notes": self.notes(), "batch": self.about()}

    async def cancel(self, request: Request) -> dict[str, Any]:
        """`POST /v1/pilots/ID/cancel`."""
        number: int = request.path_params["pilot"]
        await asyncio.wrap_future(self._loop.send(cmd.CancelPilot(number)))
        now = self._loop.now()
        return {"pilots": [pilot_row(each, now) for each in with_agents(self._loop.world) if each.id == number]}

    async def holes(self, request: Request) -> dict[str, Any]:
        """`GET /v1/holes`: as of the last look, which is taken now where that is older than the interval."""
        batching = self._batching
        if batching is None:
            return {"holes": [], "at": None, "notes": [NOBODY], "batch": None}
        clock = asyncio.get_running_loop()
        end = clock.time() + HOLES_S
        before, troubles = batching.holes_at, batching.troubles
        batching.ask_holes()
        old = before is None or self._loop.now() - before > batching.settings.interval_s
        if old and not troubles.keys() & {"holes", "poll"}:  # one that is away is asked again in its own time
            while batching.holes_at == before and batching.troubles is troubles and clock.time() < end:
                await self._wait(min(1.0, end - clock.time()))
        return {
            "holes": [hole_row(hole) for hole in self._loop.holes],
            "at": batching.holes_at,
            "notes": self.notes(),
            "batch": self.about(),
        }
