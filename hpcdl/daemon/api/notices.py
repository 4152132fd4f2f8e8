"""The API's routes about notifications that are not delivered yet (docs/api.md).

No answer has anything secret of a destination: `redacted` stands before each. `notifier` delivers.
"""

import asyncio

from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.notice import LONGEST, Notice, NoticeKind, check_destinations, is_command, redacted
from hpcdl.core.model.world import World
from hpcdl.core.rules.notices import failing
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.http import ApiProblem, body_of, text_in
from hpcdl.daemon.api.rows import Json
from hpcdl.daemon.delivery import Letter, NotDelivered, deliver


@route("GET", "/v1/notices")
async def notices(api: ApiContext, request: Request) -> Json:
    """All that wait, or were given up."""
    world, now = api.world, api.loop.now()
    return {"notices": [notice_row(world, each, now) for each in world.notices.values()]}


@route("POST", "/v1/notices/retry")
async def retry(api: ApiContext, request: Request) -> Json:
    """Tries all destinations again at once."""
    await api.send(cmd.RetryNotices())
    return await notices(api, request)


@route("POST", "/v1/notices/{notice:int}/drop")
async def drop(api: ApiContext, request: Request) -> Json:
    """Forgets one; the answer has it as it was."""
    number: int = request.path_params["notice"]
    world = api.world
    rows = [notice_row(world, world.notices[number], api.loop.now())] if number in world.notices else []
    await api.send(cmd.DropNotice(number))
    return {"notices": rows}


@route("POST", "/v1/notices/test")
async def test(api: ApiContext, request: Request) -> Json:
    """Delivers a notification that is about nothing, at once and only once, as that of a job in `folder`; nothing of it
    is recorded."""
    body = await body_of(request)
    destination, folder = text_in(body, "destination", LONGEST), text_in(body, "folder", LONGEST)
    try:
        check_destinations((destination,))
    except ValueError as error:
        raise ApiProblem(400, str(error)) from None
    if api.ways is None:
        raise ApiProblem(409, "this daemon delivers no notifications")
    notice = Notice(0, NoticeKind.END, 0, "this test of notifications", "DONE", "", "", api.loop.now(), (destination,))
    letter, why = Letter(api.ways.instance, (notice,), folder), ""
    try:
        await asyncio.to_thread(deliver, destination, letter, api.ways)
    except NotDelivered as error:
        why = str(error)
    where = api.ways.folder_of(letter) if is_command(destination) else ""
    return {"destination": redacted(destination), "delivered": not why, "why": why, "folder": where}


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


def notices_summary(world: World) -> Json:
    """For `GET /v1/status`: how many notices wait, how many were given up, and which destinations take none."""
    return {
        "waiting": sum(1 for notice in world.notices.values() if notice.waiting),
        "given_up": sum(1 for notice in world.notices.values() if notice.given_up),
        "failing": failing(world, world.routes),
    }
