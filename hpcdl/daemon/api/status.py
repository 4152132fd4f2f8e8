"""The API's routes about the daemon itself: its status, its configuration, its end (docs/api.md).

What grows with nodes and jobs has routes of its own (`nodes`, `job_list`).
"""

import time
from collections.abc import Callable, Collection

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.objectives import OBJECTIVES
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import World
from hpcdl.core.rules.departures import leave_s
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.http import ApiProblem, body_of, flag_in
from hpcdl.daemon.api.notices import notices_summary
from hpcdl.daemon.api.pilots import batch_notes, batch_status
from hpcdl.daemon.api.rows import Json, picked
from hpcdl.daemon.api.viewers import status_seen

LOOK_S = 2.0
"""So long an answer waits for agents that are asked how things are now."""

CHOICES: dict[str, Callable[[str], cmd.Command]] = {"policy": cmd.ChoosePolicy, "objective": cmd.ChooseObjective}
"""What `PUT /v1/config` changes."""


@route("GET", "/v1/status", status_seen)
async def status(api: ApiContext, request: Request) -> Json:
    """The daemon, its agents and trainers, and how many jobs are in which state."""
    if request.query_params.get("fresh") == "1":
        await api.hub.look(LOOK_S)
    world, about = api.world, api.about
    states = dict(world.retired)
    for job in world.jobs.values():
        state = state_of(job).value
        states[state] = states.get(state, 0) + 1
    connected = set(api.hub.nodes())
    beats = sorted(api.hub.heartbeats().items())
    return {
        "daemon": {
            **picked(about, ("pid", "host", "version", "home")),
            **picked(world, ("fence", "policy", "objective", "stopping")),
            "since_s": api.loop.now() - about.started_at,
            "cpu_s": time.process_time(),
            "leave_s": leave_s(world, about.leave_margin_s),
            "held": sum(1 for number in world.active if world.jobs[number].held),
        },
        "agents": [
            {"pid": node.agent_pid, "node": name, "connected": name in connected}
            for name, node in sorted(world.nodes.items())
        ],
        "trainers": [
            {
                **picked(line, ("pid", "job", "incarnation", "supervisor")),
                "node": name,
                "supervisor_pid": line.supervisor,
                "pids": list(line.pids),
            }
            for name, beat in beats
            for line in beat.trainers
        ],
        "allocations": allocation_ends(world, connected),
        "jobs": states,
        "events": world.seq,
        "notices": notices_summary(world),
        "batch": batch_status(api),
        "pilots": sum(1 for pilot in world.pilots.values() if not pilot.over),
        "notes": batch_notes(api),
        "damaged": [{"node": name, "path": path} for name, beat in beats for path in beat.damaged],
    }


def allocation_ends(world: World, connected: Collection[str]) -> dict[str, float | None]:
    """When the allocations of these nodes end, by their ids; None where that is not known."""
    ends: dict[str, float | None] = {}
    for name in sorted(connected):
        node = world.nodes.get(name)
        if node is not None and node.allocation:
            known = (ends.get(node.allocation), node.until)
            ends[node.allocation] = max((each for each in known if each is not None), default=None)
    return ends


@route("GET", "/v1/config")
async def config(api: ApiContext, request: Request) -> Json:
    """The policy and the objective, what else they may be, and the settings with where each comes from."""
    settings = {name: {"value": value, "origin": origin} for name, (value, origin) in api.about.settings.items()}
    return {
        "config": picked(api.world, tuple(CHOICES)),
        "policies": list(api.about.policies),
        "objectives": list(OBJECTIVES),
        "settings": settings,
        "warnings": await _unheeded(api),
    }


async def _unheeded(api: ApiContext) -> list[str]:
    """Settings that the policy does nothing with."""
    solver, _ = api.about.settings.get("milp_solver", ("exact", ""))
    policies, name = await api.call(lambda controller: controller.policies), api.world.policy
    if solver == "exact" or name not in policies.names() or hasattr(policies.make(name), "deliberate"):
        return []
    return [f"the setting milp_solver, {solver}, is for bftrainer and harvest: {name} has no such program"]


@route("PUT", "/v1/config")
async def choose(api: ApiContext, request: Request) -> Json:
    """Another policy or objective; the answer is that of GET."""
    body = await body_of(request)
    if not body or not body.keys() <= CHOICES.keys() or not all(isinstance(v, str) for v in body.values()):
        raise ApiProblem(400, "the body must name a policy or an objective")
    for key, value in body.items():
        await api.send(CHOICES[key](value))
    return await config(api, request)


@route("POST", "/v1/stop")
async def stop(api: ApiContext, request: Request) -> Json:
    """The daemon's end: everything is suspended first."""
    now = flag_in(await body_of(request), "now")
    await api.send(cmd.Stop(now))
    return {"stopping": True, "within_s": api.on_stop(now)}
