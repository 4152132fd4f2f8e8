"""The API's routes for preemption tests, `hpcdl drill` (docs/api.md): a preemption, a kill, and what was found."""

import logging
import secrets

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.frozen import CodecError, from_json
from hpcdl.core.model.job import Drill
from hpcdl.core.rules.jobs import existing_job, preemptible
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.http import ApiProblem, body_of, flag_in, number_in
from hpcdl.daemon.api.rows import Json
from hpcdl.wire.messages import DrillMessage

log = logging.getLogger("hpcdl.daemon")

WITHIN_S = 3600.0
"""An order to kill is forgotten after so many seconds, at most."""
DETAIL = 500


@route("POST", "/v1/jobs/{job:int}/preempt")
async def preempt(api: ApiContext, request: Request) -> Json:
    """Suspends a job once, as if others needed its GPUs."""
    number = request.path_params["job"]
    await api.send(cmd.Preempt(number))
    return {"job": number}


@route("POST", "/v1/jobs/{job:int}/drill")
async def kill(api: ApiContext, request: Request) -> Json:
    """Has the job's trainer killed, maybe in the middle of a save. Nothing is recorded of the order: what follows from
    the kill is, as of any other."""
    body, number = await body_of(request), request.path_params["job"]
    saving, part = flag_in(body, "saving", True), number_in(body, "part", 0.5, 0.0, 1.0)
    within_s = number_in(body, "within_s", 60.0, 0.0, WITHIN_S)
    world = api.world
    job = existing_job(world, number)
    running = preemptible(world, job) if within_s or job.running is None else job.running  # 0: none after all
    after_s = part * (job.costs.save_s or 0.0) if saving else 0.0
    order = DrillMessage(number, running.number, secrets.token_hex(8), saving, after_s, within_s)
    if not api.hub.tell(running.writer, order):
        raise ApiProblem(
            409, f"the agent of {running.writer} is away: again once hpcdl nodes shows it connected", "agent-away"
        )
    log.info("job %d.%d is to be killed by a preemption test", number, running.number)
    return {"kill": {"job": number, "incarnation": running.number, "node": running.writer, "after_s": after_s}}


@route("POST", "/v1/jobs/{job:int}/drilled")
async def drilled(api: ApiContext, request: Request) -> Json:
    """Records what a preemption test found."""
    body, number = await body_of(request), request.path_params["job"]
    try:
        drill = from_json(Drill, body)
    except (CodecError, ValueError, TypeError) as error:
        raise ApiProblem(400, f"that is not what a preemption test finds: {error}"[:300]) from error
    if len(drill.detail) > DETAIL:
        raise ApiProblem(400, f"detail has {DETAIL} characters at most")
    await api.send(cmd.Drilled(number, drill))
    return {"job": number}
