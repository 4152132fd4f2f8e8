"""The web server of `hpcdl web`: who is let in, what every answer says to the browser, and the routes.

A request must come from its owner's processes (the kernel says whose they are), name one of our hosts (so that no other
site's name can be led here by DNS), be a GET, and have the cookie of a session. All else is refused before a route is
looked at, and told nothing.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hpcdl.cli.web.job_log import LogChoice, LogPiece
from hpcdl.cli.web.pages import NoPage, Pages
from hpcdl.cli.web.sessions import LIFE_S, WebSessions
from hpcdl.daemon.api.admission import Admission, is_stranger
from hpcdl.daemon.api.server import AdmittedServer
from hpcdl.report.html import document, note, security_policy

T = TypeVar("T")

CONNECTIONS = 64
FIRST_S, NEXT_S = 15.0, 30.0
"""Until a connection has sent its first request, whole, and each further one."""
_PEER = struct.Struct("3i")  # SO_PEERCRED: pid, uid, gid

HEADERS = {
    "Content-Security-Policy": f"{security_policy(script=True, served=True)}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""

REFUSED = "Not for you, or no longer: open the link that hpcdl web printed last in its terminal."


class Guard:
    """What stands before all routes. `on_opened`: a link was used."""

    def __init__(self, app: ASGIApp, sessions: WebSessions, *, secure: bool, on_opened: Callable[[], None]) -> None:
        """`secure`: it listens with TLS."""
        self._app = app
        self._sessions = sessions
        self._secure = secure
        self._on_opened = on_opened
        name = f"hpcdl-{secrets.token_hex(4)}"
        self.host = f"{name}.localhost"
        self.cookie = f"__Host-{name}" if secure else name
        # A name of its own: cookies know no ports, so those of `localhost` go to every other server there, too.
        self._hosts = {self.host, "localhost", "127.0.0.1", "[::1]"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] == "http":
            await (self._refusal(scope) or self._app)(scope, receive, answered)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self._name(headers.get("host", "")) not in self._hosts:
            return _plain(421, "This host is not served here.")
        if scope["method"] != "GET":
            return _plain(405, "Only GET.", {"Allow": "GET"})
        if path.startswith("/open/"):
            return self._open(path.removeprefix("/open/"), headers)
        if self._sessions.known(self._cookie_of(headers)):
            return None
        return HTMLResponse(document("hpcdl", ["<h1>hpcdl</h1>", note(REFUSED)]), 403)

    @staticmethod
    def _name(host: str) -> str:
        name, colon, port = host.rpartition(":")
        return (name if colon and port.isdigit() else host).lower()

    def _cookie_of(self, headers: Headers) -> str:
        # Not by http.cookies, which stops at what it cannot parse: other servers' cookies of `localhost` come, too.
        pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self.cookie), "")

    def _open(self, secret: str, headers: Headers) -> Response:
        # What a browser fetches before anybody has opened it would use the link up.
        early = headers.get("sec-purpose", "") + headers.get("purpose", "") + headers.get("x-moz", "")
        cookie = None if early else self._sessions.open(secret)
        if cookie is None:
            return HTMLResponse(document("hpcdl", ["<h1>hpcdl</h1>", note(REFUSED)]), 403)
        self._on_opened()
        # No redirect: one that comes from another site's page would not be sent a strict cookie.
        page = document("hpcdl", [note("Opening …")], head='<meta http-equiv="refresh" content="0;url=/">')
        answer = HTMLResponse(page)
        answer.set_cookie(
            self.cookie, cookie, max_age=int(LIFE_S), path="/", secure=self._secure, httponly=True, samesite="strict"
        )
        return answer


def _plain(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)


async def _in_thread(function: Callable[..., T], *args: Any, **named: Any) -> T:
    """`asyncio.to_thread`, in a thread of its own that the end of the process does not wait for."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            result = function(*args, **named)
        except BaseException as error:
            settle(future.set_exception, error)
        else:
            settle(future.set_result, result)

    def settle(how: Callable[[Any], None], what: object) -> None:
        # Who waited may have been cancelled, and the loop may be closed.
        with contextlib.suppress(InvalidStateError, RuntimeError):
            how(what)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(future)


class _NumberConvertor(IntegerConvertor):
    regex = "[0-9]{1,18}"


register_url_convertor("number", _NumberConvertor())


def application(pages: Pages) -> Starlette:
    """The routes, without the guard."""

    def page(draw: Callable[..., str]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                return HTMLResponse(await _in_thread(draw, **request.path_params))
            except NoPage as error:
                return HTMLResponse(document("hpcdl", ["<h1>hpcdl</h1>", note(str(error))]), 404)

        return answer

    async def log(request: Request) -> Response:
        after, of, stream = (request.query_params.get(name, "") for name in ("after", "of", "stream"))
        piece: LogPiece = await _in_thread(pages.log, request.path_params["job"], after, LogChoice.of(of, stream))
        return PlainTextResponse(piece.text, headers={"X-Log-After": piece.after})

    async def not_found(request: Request, error: Exception) -> Response:
        return _plain(404, "There is no such page.")

    routes = [
        Route("/", page(pages.overview)),
        Route("/jobs", page(pages.jobs)),
        Route("/timeline", page(pages.timeline)),
        Route("/job/{job:number}", page(pages.job)),
        Route("/job/{job:number}/log", log),
        Route("/node/{node:str}", page(pages.node)),
    ]
    found = Starlette(routes=routes, exception_handlers={404: not_found})
    found.router.redirect_slashes = False
    found.add_middleware(GZipMiddleware, minimum_size=1000)
    return found


class OwnersProtocol(H11Protocol):
    """A connection, which ends at once where another user's process is at the other end."""

    door: Admission | None = None
    """Of a listener with TLS: it lets no stranger so far. None: the listener is a Unix socket."""
    connections: "set[OwnersProtocol]"  # type: ignore[assignment]
    since = 0.0
    _deadline: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle  # None before the first
        return cycle is None or cycle.response_complete

    def _await_request(self, limit_s: float) -> None:
        self.since = self.loop.time()
        self._cancel_deadline()
        self._deadline = self.loop.call_later(limit_s, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def handle_events(self) -> None:
        """See uvicorn."""
        super().handle_events()
        if not self.idle:
            self._cancel_deadline()

    def on_response_complete(self) -> None:
        """See uvicorn."""
        super().on_response_complete()
        if self.idle and not self.transport.is_closing():
            self._await_request(NEXT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        if len(self.connections) >= CONNECTIONS - 1:
            oldest = min((each for each in self.connections if each.idle), key=lambda each: each.since, default=None)
            if oldest is not None:
                self.connections.discard(oldest)
                oldest.transport.abort()
        super().connection_made(transport)
        self._await_request(FIRST_S)
        if self.door is not None:
            self.door.proven(transport.get_extra_info("peername"))
            return
        credentials = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if is_stranger(_PEER.unpack(credentials)[1]):
            transport.abort()


def serve(guard: Guard, listener: socket.socket, tls: ssl.SSLContext | None, on_started: Callable[[], None]) -> int:
    """Serve until a signal comes; its number. `on_started`: connections are taken from now on."""

    class Protocol(OwnersProtocol):
        door = None if tls is None else Admission(strangers=0)

    config = uvicorn.Config(
        guard,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=16 << 10,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.ssl = tls
    # What it says is of connections, or of answers that the end cuts short: not for the terminal with the links.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    server = uvicorn.Server(config) if Protocol.door is None else AdmittedServer(config, Protocol.door)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    came = [0]

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def end(number: int) -> None:
            came[0] = number
            server.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        on_started()
        await server.serve(sockets=[listener])

    asyncio.run(run())
    return came[0]
