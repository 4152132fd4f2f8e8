"""The API's routes about the batch system: pilots, holes, and what of it works (docs/api.md)."""

import asyncio

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.pilot import Pilot
from hpcdl.core.rules.batch_poll import with_agents
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.rows import Json, picked

HOLES_S = 20.0
"""So long an answer waits for holes that are looked at just then."""

NOBODY = "no batch system was found where the daemon runs: hpcdl doctor says what it looked for"


def batch_status(api: ApiContext) -> Json | None:
    """The batch system: what it is, and how it answers; None where there is none."""
    batching = api.batching
    if batching is None:
        return None
    return {
        "kind": batching.kind,
        "interval_s": batching.settings.interval_s,
        "polled_at": batching.polled_at,
        "commands": batching.commands(),
        "troubles": [f"{what}: {detail}" for what, detail in sorted(batching.troubles.items())],
        "pilots_max": api.about.pilots_max,
    }


def batch_notes(api: ApiContext) -> list[str]:
    """Why there are no more pilots than there are."""
    if api.batching is None:
        return [NOBODY]
    troubles = [f"{api.batching.kind} does not work: {text}" for text in api.batching.troubles.values()]
    if api.about.pilots_max == 0:
        return [*troubles, "none may be submitted: the setting pilots is 0"]
    return [*troubles, *api.loop.pilot_notes]


def largest_hole(api: ApiContext) -> int:
    """GPUs of the largest node that pilots could hold, as far as one is known to idle; 0 where there are none."""
    return max((hole.gpus or 0 for hole in api.loop.holes), default=0) if api.about.pilots_max else 0


@route("GET", "/v1/pilots")
async def pilots(api: ApiContext, request: Request) -> Json:
    """Pilots that wait or run; with `?all=1` those that are over, too."""
    every, now = request.query_params.get("all") == "1", api.loop.now()
    rows = [pilot_row(each, now) for each in with_agents(api.world) if every or not each.over]
    return {"pilots": rows, "notes": batch_notes(api), "batch": batch_status(api)}


@route("POST", "/v1/pilots/{pilot:int}/cancel")
async def cancel(api: ApiContext, request: Request) -> Json:
    """Takes a pilot back."""
    number: int = request.path_params["pilot"]
    await api.send(cmd.CancelPilot(number))
    now = api.loop.now()
    return {"pilots": [pilot_row(each, now) for each in with_agents(api.world) if each.id == number]}


@route("GET", "/v1/holes")
async def holes(api: ApiContext, request: Request) -> Json:
    """Idle nodes as of the last look, which is taken now where that is older than the interval."""
    batching = api.batching
    if batching is None:
        return {"holes": [], "at": None, "notes": [NOBODY], "batch": None}
    clock = asyncio.get_running_loop()
    end = clock.time() + HOLES_S
    before, troubles = batching.holes_at, batching.troubles
    batching.ask_holes()
    old = before is None or api.loop.now() - before > batching.settings.interval_s
    if old and not troubles.keys() & {"holes", "poll"}:  # one that is away is asked again in its own time
        while batching.holes_at == before and batching.troubles is troubles and clock.time() < end:
            await api.changes.wait(min(1.0, end - clock.time()))
    return {
        "holes": to_json(api.loop.holes),
        "at": batching.holes_at,
        "notes": batch_notes(api),
        "batch": batch_status(api),
    }


def pilot_row(pilot: Pilot, now: float) -> Json:
    """A pilot. `now`: the daemon's time, in seconds since the epoch."""
    job, spec = pilot.job, pilot.spec
    until = None if job is None or pilot.over else job.until
    return {
        **picked(pilot, ("id", "state", "batch_id", "asked_at", "since", "cancelled", "how")),
        "queue": (job.queue if job is not None else "") or spec.queue,
        "nodes": list(pilot.nodes),
        "asked": {**picked(spec, ("nodes", "gpus", "walltime_s")), "on": list(spec.on)},
        "why": spec.why,
        "started_at": None if job is None else job.started_at,
        "until": until,
        "left_s": None if until is None else max(0.0, until - now),
        "reason": "" if job is None else job.reason,
        "preempted": job is not None and job.preempted,
        "exit_code": None if job is None else job.code,
    }
