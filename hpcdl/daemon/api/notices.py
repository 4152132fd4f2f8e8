"""The API's routes about notifications, and about excluded GPUs and nodes (docs/api.md)."""

import asyncio
from typing import Any

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.notice import Notice, redacted
from hpcdl.core.model.world import World
from hpcdl.core.rules.notices import failing
from hpcdl.daemon.api.http import ApiProblem, body_of
from hpcdl.daemon.loop import ControllerLoop

Json = dict[str, Any]


class CareRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(self, loop: ControllerLoop) -> None:
        self._loop = loop

    async def _send(self, command: cmd.Command) -> Any:
        return await asyncio.wrap_future(self._loop.send(command))

    # --- notices ---------------------------------------------------------------------------------------------------

    def _notices(self) -> Json:
        world, now = self._loop.world, self._loop.now()
        return {"notices": [notice_row(world, each, now) for each in world.notices.values()]}

    async def notices(self, request: Request) -> Json:
        """`GET /v1/notices`."""
        return self._notices()

    async def retry(self, request: Request) -> Json:
        """`POST /v1/notices/retry`."""
        await self._send(cmd.RetryNotices())
        return self._notices()

    async def drop(self, request: Request) -> Json:
        """`POST /v1/notices/ID/drop`."""
        number: int = request.path_params["notice"]
        notice = self._loop.world.notices.get(number)
        row = None if notice is None else notice_row(self._loop.world, notice, self._loop.now())
        await self._send(cmd.DropNotice(number))
        return {"notices": [] if row is None else [row]}

    # --- what is avoided -------------------------------------------------------------------------------------------

    async def avoided(self, request: Request) -> Json:
        """`GET /v1/avoided`."""
        return {"avoided": avoided_rows(self._loop.world, self._loop.now())}

    async def avoid(self, request: Request) -> Json:
        """`POST /v1/nodes/NODE/avoid`."""
        body, node = await body_of(request), request.path_params["node"]
        for_s, reason, moves = body.get("for_s", 3600), body.get("reason", ""), body.get("moves", False)
        if isinstance(for_s, bool) or not isinstance(for_s, int | float):
            raise ApiProblem(400, "for_s must be a number of seconds")
        if not isinstance(reason, str) or len(reason) > 200 or not isinstance(moves, bool):
            raise ApiProblem(400, "reason must be a text of 200 characters at most, moves true or false")
        await self._send(cmd.Avoid(node, _gpu_of(body), float(for_s), reason, moves))
        return {"avoided": [row for row in avoided_rows(self._loop.world, self._loop.now()) if row["node"] == node]}

    async def lift(self, request: Request) -> Json:
        """`POST /v1/nodes/NODE/lift`."""
        node = request.path_params["node"]
        await self._send(cmd.Lift(node, _gpu_of(await body_of(request))))
        return {"avoided": [row for row in avoided_rows(self._loop.world, self._loop.now()) if row["node"] == node]}


def _gpu_of(body: Json) -> int | None:
    gpu = body.get("gpu")
    if gpu is not None and (isinstance(gpu, bool) or not isinstance(gpu, int) or gpu < 0):
        raise ApiProblem(400, "gpu must be the index of a GPU, or null for the node")
    return gpu


def notice_row(world: World, notice: Notice, now: float) -> Json:
    """A notice, without what is secret of its destinations."""

    def told(destination: str) -> Json:
        route = world.routes.get(destination)
        over = destination in notice.given_up
        return {
            "destination": redacted(destination),
            "state": "given up" if over else "waiting" if route is None else "failing",
            "attempts": 0 if route is None else route.failed,
            "why": "" if route is None else route.why,
            "retry_in_s": None if route is None or over else max(0.0, route.retry_at - now),
        }

    return {
        "id": notice.id,
        "kind": notice.what,
        "job": notice.job or None,
        "text": notice.text,
        "at": notice.at,
        "destinations": [told(each) for each in (*notice.waiting, *notice.given_up)],
    }


def avoided_rows(world: World, now: float) -> list[Json]:
    """What nobody is given now, and until when."""
    return [
        {
            "node": node.name,
            "gpu": each.index,
            "since": each.since,
            "until": each.until,
            "left_s": max(0.0, each.until - now),
            "times": each.times,
            "reason": each.reason,
            "moves": each.moves,
        }
        for node in world.nodes.values()
        for each in node.avoided
        if not each.over
    ]


def notices_summary(world: World) -> Json:
    """For `GET /v1/status`: how many notices wait, how many were given up, and which destinations take none."""
    over = sum(1 for notice in world.notices.values() if notice.given_up)
    return {
        "waiting": sum(1 for notice in world.notices.values() if notice.waiting),
        "given_up": over,
        "failing": failing(world, world.routes),
    }
