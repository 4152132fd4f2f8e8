"""The API's routes for `hpcdl drill` (docs/api.md): a preemption, the kill that it orders, and what it found."""

import asyncio
import logging
import math
import secrets
from typing import Any

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.frozen import CodecError, from_json
from hpcdl.core.model.job import Drill
from hpcdl.core.rules.jobs import existing_job, preemptible
from hpcdl.daemon.agents import Hub
from hpcdl.daemon.api.http import ApiProblem, body_of
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.wire.messages import DrillMessage

log = logging.getLogger("hpcdl.daemon")

WITHIN_S = 3600.0
"""An order to kill is forgotten after so many seconds, at most."""
DETAIL = 500


class DrillRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(self, loop: ControllerLoop, hub: Hub) -> None:
        self._loop = loop
        self._hub = hub

    async def preempt(self, request: Request) -> dict[str, Any]:
        """`POST /v1/jobs/ID/preempt`."""
        number = request.path_params["job"]
        await asyncio.wrap_future(self._loop.send(cmd.Preempt(number)))
        return {"job": number}

    async def kill(self, request: Request) -> dict[str, Any]:
        """`POST /v1/jobs/ID/drill`. Nothing is recorded of it: what follows from the kill is, as of any other."""
        body, number = await body_of(request), request.path_params["job"]
        saving, part = body.get("saving", True), _number(body, "part", 0.5, 1.0)
        within_s = _number(body, "within_s", 60.0, WITHIN_S)
        if not isinstance(saving, bool):
            raise ApiProblem(400, "saving must be true or false")
        world = self._loop.world
        job = existing_job(world, number)
        running = preemptible(world, job) if within_s or job.running is None else job.running  # 0: none after all
        after_s = part * (job.costs.save_s or 0.0) if saving else 0.0
        order = DrillMessage(number, running.number, secrets.token_hex(8), saving, after_s, within_s)
        if not self._hub.tell(running.writer, order):
            raise ApiProblem(
                409, f"the agent of {running.writer} is away: again once hpcdl nodes shows it connected", "agent-away"
            )
        log.info("job %d.%d is to be killed by a preemption test", number, running.number)
        return {"kill": {"job": number, "incarnation": running.number, "node": running.writer, "after_s": after_s}}

    async def drilled(self, request: Request) -> dict[str, Any]:
        """`POST /v1/jobs/ID/drilled`."""
        body = await body_of(request)
        try:
            drill = from_json(Drill, body)
        except (CodecError, ValueError, TypeError) as error:
            raise ApiProblem(400, f"that is not what a preemption test finds: {error}"[:300]) from error
        if len(drill.detail) > DETAIL:
            raise ApiProblem(400, f"detail has {DETAIL} characters at most")
        number = request.path_params["job"]
        await asyncio.wrap_future(self._loop.send(cmd.Drilled(number, drill)))
        return {"job": number}


def _number(body: dict[str, Any], name: str, default: float, most: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or math.isnan(value):
        raise ApiProblem(400, f"{name} must be a number from 0 to {most:g}")
    return float(value)
