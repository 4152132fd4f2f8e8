"""The application behind the HTTPS/JSON API: the table of routes, who may use which, and how errors are answered.

Every route checks the token, every answer has the number of its schema, and a refusal says the next step. The
handlers of an area (`jobs`, `nodes`, `pilots`, ...) return one JSON object or raise; what they have in common is here.
A new route is a line in `Api.application` and one in docs/api.md; routes may stand in any order.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.transitions import state_of
from hpcdl.core.rules.departures import leave_s
from hpcdl.core.rules.intake import OBJECTIVES
from hpcdl.daemon.agents import Hub
from hpcdl.daemon.api.drills import DrillRoutes
from hpcdl.daemon.api.http import ApiProblem, body_of, error_answer, json_answer, not_found, number_of, seconds_of
from hpcdl.daemon.api.jobs import VERBS, JobRoutes
from hpcdl.daemon.api.ledger import LedgerRoutes
from hpcdl.daemon.api.metrics import MetricsRoutes, ProcessMetrics
from hpcdl.daemon.api.nodes import NodeRoutes
from hpcdl.daemon.api.notices import CareRoutes, notices_summary
from hpcdl.daemon.api.overview import OverviewRoutes
from hpcdl.daemon.api.pilots import BatchRoutes
from hpcdl.daemon.api.profiles import ProfileRoutes
from hpcdl.daemon.api.rows import JobRows, event_row, events_of
from hpcdl.daemon.api.viewers import ONLY as VIEWERS_ONLY
from hpcdl.daemon.api.viewers import AccessRole, job_seen, jobs_seen, metrics_seen, nodes_seen, status_seen
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.batch import BatchThread
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.meter import Meter

log = logging.getLogger("hpcdl.daemon")

MAX_EVENTS = 10_000
LOOK_S = 2.0
"""So long an answer waits for agents that are asked how things are now."""
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


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """What `GET /v1/status` says of the daemon itself."""

    pid: int
    host: str
    started_at: float
    version: str
    home: str
    policies: tuple[str, ...]
    pilots_max: int = 0
    leave_margin_s: float = 30.0
    settings: Mapping[str, tuple[Any, str]] = field(default_factory=dict)  # value and where it comes from


class Api:
    """The routes."""

    def __init__(
        self,
        loop: ControllerLoop,
        hub: Hub,
        changes: Changes,
        profiles: Profiles,
        clock: WallClock,
        about: DaemonStatus,
        token: str,
        on_stop: Callable[[bool], float],
        batching: BatchThread | None = None,
        viewer_token: str | None = None,
        on_proven: Callable[[tuple[str, int] | None], None] = lambda caller: None,
        meter: Meter | None = None,
    ) -> None:
        """`on_stop(now)` is called once a stop is recorded; it returns the seconds that the stop may take.

        `on_proven(address and port)`: this connection has shown the owner's token. `meter`: is told of each event.
        """
        self._loop = loop
        self._hub = hub
        self._changes = changes
        self._profiles = profiles
        self._clock = clock
        self._about = about
        self._tokens = {AccessRole.OWNER: b"Bearer " + token.encode()}
        if viewer_token is not None:
            self._tokens[AccessRole.VIEWER] = b"Bearer " + viewer_token.encode()
        self._on_proven = on_proven
        self._traced_at = -FAULT_EVERY_S
        self._untraced = 0
        self._on_stop = on_stop
        self._batch = BatchRoutes(loop, batching, about.pilots_max, changes.wait)
        rows = JobRows(loop, profiles)
        self._jobs = JobRoutes(loop, changes, rows, self._batch)
        self._nodes = NodeRoutes(loop, hub, rows)
        self._known = ProfileRoutes(loop, profiles, Path(about.home))
        self._ledger = LedgerRoutes(loop, Path(about.home))
        self._drills = DrillRoutes(loop, hub)
        self._care = CareRoutes(loop)
        self._overview = OverviewRoutes(loop, hub, rows, self._status)
        self._metrics = MetricsRoutes(loop, hub, meter or Meter(), ProcessMetrics(about.started_at, about.version))

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/jobs", self._guard(self._jobs.submit), methods=["POST"]),
            Route("/v1/jobs", self._guard(self._jobs.list, jobs_seen), methods=["GET"]),
            Route("/v1/jobs/verb", self._guard(self._jobs.verbs), methods=["POST"]),
            Route("/v1/jobs/{job:int}", self._guard(self._jobs.show, job_seen), methods=["GET"]),
            Route("/v1/jobs/{job:int}/why", self._guard(self._jobs.why), methods=["GET"]),
            Route("/v1/jobs/{job:int}/preempt", self._guard(self._drills.preempt), methods=["POST"]),
            Route("/v1/jobs/{job:int}/drill", self._guard(self._drills.kill), methods=["POST"]),
            Route("/v1/jobs/{job:int}/drilled", self._guard(self._drills.drilled), methods=["POST"]),
            Route("/v1/jobs/{job:int}/{verb:verb}", self._guard(self._jobs.verb), methods=["POST"]),
            Route("/v1/wait", self._guard(self._jobs.wait), methods=["GET"]),
            Route("/v1/events", self._guard(self._events), methods=["GET"]),
            Route("/v1/nodes", self._guard(self._nodes.nodes, nodes_seen), methods=["GET"]),
            Route("/v1/nodes/{node:str}/drain", self._guard(self._nodes.drain), methods=["POST"]),
            Route("/v1/nodes/{node:str}/avoid", self._guard(self._care.avoid), methods=["POST"]),
            Route("/v1/nodes/{node:str}/lift", self._guard(self._care.lift), methods=["POST"]),
            Route("/v1/avoided", self._guard(self._care.avoided), methods=["GET"]),
            Route("/v1/notices", self._guard(self._care.notices), methods=["GET"]),
            Route("/v1/notices/retry", self._guard(self._care.retry), methods=["POST"]),
            Route("/v1/notices/{notice:int}/drop", self._guard(self._care.drop), methods=["POST"]),
            Route("/v1/profiles", self._guard(self._known.known), methods=["GET"]),
            Route("/v1/profiles/read", self._guard(self._known.read), methods=["POST"]),
            Route("/v1/ledger/copy", self._guard(self._ledger.copy), methods=["POST"]),
            Route("/v1/pilots", self._guard(self._batch.pilots), methods=["GET"]),
            Route("/v1/pilots/{pilot:int}/cancel", self._guard(self._batch.cancel), methods=["POST"]),
            Route("/v1/holes", self._guard(self._batch.holes), methods=["GET"]),
            Route("/v1/status", self._guard(self._status, status_seen), methods=["GET"]),
            Route("/v1/overview", self._guard(self._overview.overview), methods=["GET"]),
            Route("/v1/metrics", self._guard(self._metrics.metrics, metrics_seen), methods=["GET"]),
            Route("/v1/config", self._guard(self._config), methods=["GET", "PUT"]),
            Route("/v1/stop", self._guard(self._stop), methods=["POST"]),
            WebSocketRoute("/v1/agent", self._agent),
            WebSocketRoute("/v1/jobs/{job:int}/shell", self._shell),
        ]
        application = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found})
        application.router.redirect_slashes = False  # what is not a route is none, for strangers too
        return application

    def _role(self, connection: HTTPConnection) -> AccessRole | None:
        """Who asks, by the token; None for a token that is not ours."""
        given = connection.headers.get("authorization", "").encode("utf-8", "replace")
        role = next((role for role, token in self._tokens.items() if hmac.compare_digest(given, token)), None)
        if role is AccessRole.OWNER:
            self._on_proven(connection.client)
        return role

    def _guard(
        self,
        handler: Callable[[Request], Awaitable[dict[str, Any]]],
        seen: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Callable[[Request], Awaitable[Response]]:
        """`seen`: what of the answer a viewer sees; without it the route is the owner's alone."""

        async def guarded(request: Request) -> Response:
            try:
                role = self._role(request)
                if role is None:
                    raise ApiProblem(401, "the token is not this daemon's: read access.json again", "token")
                if role is AccessRole.VIEWER and seen is None:
                    raise ApiProblem(403, VIEWERS_ONLY, "viewer")
                answer = await handler(request)
                return json_answer(200, seen(answer) if seen is not None and role is AccessRole.VIEWER else answer)
            except ApiProblem as problem:
                return error_answer(problem.status, str(problem), problem.code)
            except cmd.CommandRefused as refusal:
                return error_answer(STATUS_OF_CODE.get(refusal.code, 400), str(refusal), refusal.code)
            except JournalError as error:
                return error_answer(503, f"nothing was recorded: {error}", "not-recorded")
            except ClientDisconnect:
                return error_answer(400, "the client went away", "gone")
            except Exception:
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

    async def _send(self, command: cmd.Command) -> Any:
        return await asyncio.wrap_future(self._loop.send(command))

    async def _agent(self, socket: WebSocket) -> None:
        if self._role(socket) is not AccessRole.OWNER:
            await socket.close(4003, "the token is not this daemon's")
            return
        await self._hub.serve(socket)

    async def _shell(self, socket: WebSocket) -> None:
        if self._role(socket) is not AccessRole.OWNER:
            await socket.close(4003, "the token is not this daemon's")
            return
        await self._hub.sessions.serve(socket, socket.path_params["job"])

    async def _events(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        after = number_of(query.get("after", "0"), "after")
        limit = min(MAX_EVENTS, max(1, number_of(query.get("limit", "1000"), "limit")))
        job = number_of(query["job"], "job") if "job" in query else None
        if "wait" in query:
            await self._changes.until(lambda: self._loop.world.seq > after, seconds_of(request, "wait", 0.0))
        last = self._loop.world.seq
        records = await asyncio.wrap_future(
            self._loop.call(lambda controller: events_of(controller.journal, controller.world, after, limit, job))
        )
        return {"events": [event_row(record) for record in records], "last": last}

    async def _status(self, request: Request) -> dict[str, Any]:
        if request.query_params.get("fresh") == "1":
            await self._hub.look(LOOK_S)
        world, about = self._loop.world, self._about
        states = dict(world.retired)
        for job in world.jobs.values():
            state = state_of(job).value
            states[state] = states.get(state, 0) + 1
        connected = set(self._hub.nodes())
        beats = self._hub.heartbeats()
        return {
            "daemon": {
                "pid": about.pid,
                "host": about.host,
                "since_s": self._clock.now() - about.started_at,
                "cpu_s": time.process_time(),
                "fence": world.fence,
                "version": about.version,
                "home": about.home,
                "policy": world.policy,
                "objective": world.objective,
                "stopping": world.stopping,
                "leave_s": leave_s(world, about.leave_margin_s),
                "held": sum(1 for number in world.active if world.jobs[number].held),
            },
            "agents": [
                {"pid": node.agent_pid, "node": name, "connected": name in connected}
                for name, node in sorted(world.nodes.items())
            ],
            "trainers": [
                {
                    "pid": line.pid,
                    "job": line.job,
                    "incarnation": line.incarnation,
                    "node": name,
                    "supervisor": line.supervisor,
                    "supervisor_pid": line.supervisor,
                    "pids": list(line.pids),
                }
                for name, beat in sorted(beats.items())
                for line in beat.trainers
            ],
            "jobs": states,
            "events": world.seq,
            "notices": notices_summary(world),
            "batch": self._batch.about(),
            "pilots": sum(1 for pilot in world.pilots.values() if not pilot.over),
            "notes": self._batch.notes(),
            "damaged": [{"node": name, "path": path} for name, beat in sorted(beats.items()) for path in beat.damaged],
        }

    async def _config(self, request: Request) -> dict[str, Any]:
        if request.method == "PUT":
            body = await body_of(request)
            choices: dict[str, Callable[[str], cmd.Command]] = {
                "policy": cmd.ChoosePolicy,
                "objective": cmd.ChooseObjective,
            }
            if not body or not body.keys() <= choices.keys() or not all(isinstance(v, str) for v in body.values()):
                raise ApiProblem(400, "the body must name a policy or an objective")
            for key, value in body.items():
                await self._send(choices[key](value))
        world = self._loop.world
        return {
            "config": {"policy": world.policy, "objective": world.objective},
            "policies": list(self._about.policies),
            "objectives": list(OBJECTIVES),
            "settings": {
                name: {"value": value, "origin": origin} for name, (value, origin) in self._about.settings.items()
            },
        }

    async def _stop(self, request: Request) -> dict[str, Any]:
        now = (await body_of(request)).get("now", False)
        if not isinstance(now, bool):
            raise ApiProblem(400, "now must be true or false")
        await self._send(cmd.Stop(now))
        return {"stopping": True, "within_s": self._on_stop(now)}
