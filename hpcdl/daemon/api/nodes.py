"""The API's routes about nodes (docs/api.md)."""

import asyncio
from typing import Any

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.daemon.agents import Hub
from hpcdl.daemon.api.http import ApiProblem, body_of
from hpcdl.daemon.api.rows import JobRows
from hpcdl.daemon.loop import ControllerLoop


class NodeRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(self, loop: ControllerLoop, hub: Hub, rows: JobRows) -> None:
        self._loop = loop
        self._hub = hub
        self._rows = rows

    async def nodes(self, request: Request) -> dict[str, Any]:
        """`GET /v1/nodes`."""
        rows, beats = await self._rows.now(), self._hub.heartbeats()
        samples = {name: {line.index: line for line in beat.gpus} for name, beat in beats.items()}
        return {"nodes": [rows.node(name, samples.get(name, {})) for name in sorted(rows.world.nodes)]}

    async def drain(self, request: Request) -> dict[str, Any]:
        """`POST /v1/nodes/NAME/drain`."""
        body = await body_of(request)
        now, until, reason = body.get("now", False), body.get("until"), body.get("reason", "")
        if not isinstance(now, bool) or not isinstance(reason, str) or len(reason) > 200:
            raise ApiProblem(400, "now must be true or false, reason a text of 200 characters at most")
        if until is not None and not (isinstance(until, int | float) and not isinstance(until, bool) and until >= 0):
            raise ApiProblem(400, "until must be a time in seconds since the epoch, or null")
        name = request.path_params["node"]
        command = cmd.Drain(name, None if until is None else float(until), now, reason)
        await asyncio.wrap_future(self._loop.send(command))
        rows = await self._rows.now()
        return {"nodes": [rows.node(name, {})]}
