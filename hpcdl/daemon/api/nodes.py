"""The API's routes about nodes: their GPUs, draining them, and excluding them or their GPUs (docs/api.md)."""

from pathlib import Path

from starlette.requests import Request

from hpcdl.batch.without_agent import nodes_without_agent
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.world import World
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.http import ApiProblem, body_of, flag_in, number_in, text_in
from hpcdl.daemon.api.rows import Json, picked
from hpcdl.daemon.api.viewers import nodes_seen

REASON = 200
"""Characters of a reason, at most."""


@route("GET", "/v1/nodes", nodes_seen)
async def nodes(api: ApiContext, request: Request) -> Json:
    """All nodes, with the newest sample of each GPU; and those of an allocation on which no agent could be started."""
    rows, beats = await api.rows(), api.hub.heartbeats()
    samples = {name: {line.index: line for line in beat.gpus} for name, beat in beats.items()}
    without = [to_json(each) for each in nodes_without_agent(Path(api.about.home))]
    found = [rows.node(name, samples.get(name, {})) for name in sorted(rows.world.nodes)]
    return {"nodes": found, "without_agent": without}


@route("POST", "/v1/nodes/{node:str}/drain")
async def drain(api: ApiContext, request: Request) -> Json:
    """Nothing starts on the node any more; `now`: what runs there leaves; `until`: when it goes, if that is known."""
    body, name = await body_of(request), request.path_params["node"]
    what = "a time in seconds since the epoch, or null"
    until = None if body.get("until") is None else number_in(body, "until", 0.0, 0.0, what=what)
    await api.send(cmd.Drain(name, until, flag_in(body, "now"), text_in(body, "reason", REASON)))
    return {"nodes": [(await api.rows()).node(name, {})]}


@route("GET", "/v1/avoided")
async def avoided(api: ApiContext, request: Request) -> Json:
    """Excluded GPUs and nodes."""
    return {"avoided": avoided_rows(api.world, api.loop.now())}


@route("POST", "/v1/nodes/{node:str}/avoid")
async def avoid(api: ApiContext, request: Request) -> Json:
    """Excludes a GPU, or the node, for a while."""
    body, node = await body_of(request), request.path_params["node"]
    for_s = number_in(body, "for_s", 3600.0, what="a number of seconds")
    reason, moves = text_in(body, "reason", REASON), flag_in(body, "moves")
    await api.send(cmd.Avoid(node, _gpu_in(body), for_s, reason, moves))
    return {"avoided": avoided_rows(api.world, api.loop.now(), node)}


@route("POST", "/v1/nodes/{node:str}/lift")
async def lift(api: ApiContext, request: Request) -> Json:
    """Ends an exclusion."""
    node = request.path_params["node"]
    await api.send(cmd.Lift(node, _gpu_in(await body_of(request))))
    return {"avoided": avoided_rows(api.world, api.loop.now(), node)}


def _gpu_in(body: Json) -> int | None:
    gpu = body.get("gpu")
    if gpu is not None and (type(gpu) is not int or gpu < 0):
        raise ApiProblem(400, "gpu must be the index of a GPU, or null for the node")
    return gpu


def avoided_rows(world: World, now: float, only: str | None = None) -> list[Json]:
    """What is granted to nobody now, and until when; `only`: on this node."""
    return [
        {
            "node": node.name,
            "gpu": each.index,
            "left_s": max(0.0, each.until - now),
            **picked(each, ("since", "until", "times", "reason", "moves")),
        }
        for node in world.nodes.values()
        for each in node.avoided
        if not each.over and only in (None, node.name)
    ]
