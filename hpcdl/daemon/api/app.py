"""The application behind the HTTPS/JSON API: who may use which route, and how errors are answered.

Every route checks the token, every answer has the number of its schema, and a refusal says the next step. The handlers
of each area are in a module of its name beside this one; `context` has the table that they join.
"""

import hmac
import logging
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.commands import CommandRefused
from hpcdl.daemon.api import (  # noqa: F401  # their handlers join ROUTES
    drills,
    ledger,
    metrics,
    nodes,
    notices,
    overview,
    pilots,
    profiles,
    series,
    status,
)
from hpcdl.daemon.api.context import ROUTES, ApiContext, ApiRoute
from hpcdl.daemon.api.http import ApiProblem, error_answer, json_answer, not_found
from hpcdl.daemon.api.jobs import VERBS
from hpcdl.daemon.api.viewers import ONLY as VIEWERS_ONLY
from hpcdl.daemon.api.viewers import AccessRole
from hpcdl.daemon.memory import end_without_memory

log = logging.getLogger("hpcdl.daemon")

FAULT_EVERY_S, FAULTS_SAID = 60.0, 100
"""A request that fails by a fault of ours is logged with its traceback once in this time; so many more get a line."""
STATUS_OF_CODE = {
    "unknown-job": 404,
    "finished": 409,
    "running": 409,
    "stopping": 409,
    "protocol": 400,
    "unknown-pilot": 404,
    "unknown-notice": 404,
}


class _Number(IntegerConvertor):
    """A number in a path; one that is longer than any of ours is no route, and Python is not asked to read it."""

    regex = "[0-9]{1,15}"


class _Verb(StringConvertor):
    """One of VERBS in a path: routes of other names beside it may stand in any order."""

    regex = "|".join(VERBS)


register_url_convertor("int", _Number())
register_url_convertor("verb", _Verb())


class Api:
    """The routes of one daemon, each behind the check of the token."""

    def __init__(
        self,
        context: ApiContext,
        token: str,
        viewer_token: str | None = None,
        on_proven: Callable[[tuple[str, int] | None], None] = lambda caller: None,
    ) -> None:
        """`on_proven(address and port)`: this connection has shown the owner's token."""
        self._context = context
        self._tokens = {AccessRole.OWNER: b"Bearer " + token.encode()}
        if viewer_token is not None:
            self._tokens[AccessRole.VIEWER] = b"Bearer " + viewer_token.encode()
        self._on_proven = on_proven
        self._traced_at = -FAULT_EVERY_S
        self._untraced = 0

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [Route(each.path, self._guard(each), methods=[each.method]) for each in ROUTES]
        sockets = [
            WebSocketRoute("/v1/agent", self._agent),
            WebSocketRoute("/v1/jobs/{job:int}/shell", self._shell),
        ]
        application = Starlette(routes=[*routes, *sockets], exception_handlers={404: not_found, 405: not_found})
        application.router.redirect_slashes = False  # what is not a route is none, for strangers too
        return application

    def _role(self, connection: HTTPConnection) -> AccessRole | None:
        """Who asks, by the token; None for a token that is not ours."""
        given = connection.headers.get("authorization", "").encode("utf-8", "replace")
        role = next((role for role, token in self._tokens.items() if hmac.compare_digest(given, token)), None)
        if role is AccessRole.OWNER:
            self._on_proven(connection.client)
        return role

    def _guard(self, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
        """The route behind the check of the token; whatever goes wrong becomes an answer."""

        async def guarded(request: Request) -> Response:
            try:
                role = self._role(request)
                if role is None:
                    raise ApiProblem(401, "the token is not this daemon's: read access.json again", "token")
                if role is AccessRole.VIEWER and route.seen is None:
                    raise ApiProblem(403, VIEWERS_ONLY, "viewer")
                answer = await route.answer(self._context, request)
                seen = route.seen if role is AccessRole.VIEWER else None
                return json_answer(200, answer if seen is None else seen(answer))
            except ApiProblem as problem:
                return error_answer(problem.status, str(problem), problem.code)
            except CommandRefused as refusal:
                return error_answer(STATUS_OF_CODE.get(refusal.code, 400), str(refusal), refusal.code)
            except JournalError as error:
                return error_answer(503, f"nothing was recorded: {error}", "not-recorded")
            except ClientDisconnect:
                return error_answer(400, "the client went away", "gone")
            except Exception as error:
                end_without_memory(error)
                self._log_fault(request)
                return error_answer(500, "the daemon failed at this: see $HPCDL_HOME/daemon.log", "internal")

        return guarded

    def _log_fault(self, request: Request) -> None:
        """Log the exception that is handled, with its traceback at most once in FAULT_EVERY_S: who may ask may not fill
        the log."""
        now = time.monotonic()
        traced = now - self._traced_at >= FAULT_EVERY_S
        self._traced_at = now if traced else self._traced_at
        self._untraced = 0 if traced else self._untraced + 1
        if traced or self._untraced <= FAULTS_SAID:
            log.error("%s %s failed", request.method, request.url.path, exc_info=traced)

    async def _proven(self, socket: WebSocket) -> bool:
        """Whether the socket's caller has shown the owner's token; else the socket is closed."""
        if self._role(socket) is AccessRole.OWNER:
            return True
        await socket.close(4003, "the token is not this daemon's")
        return False

    async def _agent(self, socket: WebSocket) -> None:
        if await self._proven(socket):
            await self._context.hub.serve(socket)

    async def _shell(self, socket: WebSocket) -> None:
        if await self._proven(socket):
            await self._context.hub.sessions.serve(socket, socket.path_params["job"])
