"""The HTTPS/JSON API (docs/api.md). Every route checks the token; every answer has a schema number."""

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from hpcdl.core import commands as cmd
from hpcdl.core.intake import OBJECTIVES
from hpcdl.core.journal import JournalError
from hpcdl.core.leaving import leave_s
from hpcdl.core.model import Job
from hpcdl.core.plan import Profiles
from hpcdl.core.transitions import state_of
from hpcdl.daemon.batching import Batching
from hpcdl.daemon.batchroutes import BatchRoutes
from hpcdl.daemon.changes import Changes
from hpcdl.daemon.clock import Clock
from hpcdl.daemon.deadlines import forecast
from hpcdl.daemon.explain import explain
from hpcdl.daemon.hub import Hub
from hpcdl.daemon.loop import Loop
from hpcdl.daemon.profilerows import profile_row, profile_rows
from hpcdl.daemon.rows import SCHEMA, Rows, event_row
from hpcdl.daemon.submits import BadSubmit, submit_of

log = logging.getLogger("hpcdl.daemon")

MAX_BODY = 8 << 20
MAX_WAIT_S = 60.0
MAX_EVENTS = 10_000
STATUS_OF_CODE = {"unknown-job": 404, "finished": 409, "stopping": 409, "protocol": 400, "unknown-pilot": 404}


@dataclass(frozen=True, slots=True)
class About:
    """What `GET /v1/status` says of the daemon itself."""

    pid: int
    host: str
    started_at: float
    version: str
    home: str
    policies: tuple[str, ...]
    pilots_max: int = 0
    leave_margin_s: float = 30.0


class _Problem(Exception):
    def __init__(self, status: int, message: str, code: str = "bad-input") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Api:
    """The routes."""

    def __init__(
        self,
        loop: Loop,
        hub: Hub,
        changes: Changes,
        profiles: Profiles,
        clock: Clock,
        about: About,
        token: str,
        on_stop: Callable[[bool], float],
        batching: Batching | None = None,
    ) -> None:
        """`on_stop(now)` is called once a stop is recorded; it returns the seconds that the stop may take."""
        self._loop = loop
        self._hub = hub
        self._changes = changes
        self._profiles = profiles
        self._clock = clock
        self._about = about
        self._token = token.encode()
        self._on_stop = on_stop
        self._batch = BatchRoutes(loop, batching, about.pilots_max, changes.wait)

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/jobs", self._guard(self._submit), methods=["POST"]),
            Route("/v1/jobs", self._guard(self._list), methods=["GET"]),
            Route("/v1/jobs/{job:int}", self._guard(self._show), methods=["GET"]),
            Route("/v1/jobs/{job:int}/why", self._guard(self._why), methods=["GET"]),
            Route("/v1/jobs/{job:int}/{verb:str}", self._guard(self._verb), methods=["POST"]),
            Route("/v1/wait", self._guard(self._wait), methods=["GET"]),
            Route("/v1/events", self._guard(self._events), methods=["GET"]),
            Route("/v1/nodes", self._guard(self._nodes), methods=["GET"]),
            Route("/v1/nodes/{node:str}/drain", self._guard(self._drain), methods=["POST"]),
            Route("/v1/profiles", self._guard(self._profiles_known), methods=["GET"]),
            Route("/v1/pilots", self._guard(self._batch.pilots), methods=["GET"]),
            Route("/v1/pilots/{pilot:int}/cancel", self._guard(self._batch.cancel), methods=["POST"]),
            Route("/v1/holes", self._guard(self._batch.holes), methods=["GET"]),
            Route("/v1/status", self._guard(self._status), methods=["GET"]),
            Route("/v1/config", self._guard(self._config), methods=["GET", "PUT"]),
            Route("/v1/stop", self._guard(self._stop), methods=["POST"]),
            WebSocketRoute("/v1/agent", self._agent),
        ]
        return Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})

    def _admits(self, header: str | None) -> bool:
        return header is not None and hmac.compare_digest(header.encode("utf-8", "replace"), b"Bearer " + self._token)

    def _guard(
        self, handler: Callable[[Request], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                if not self._admits(request.headers.get("authorization")):
                    raise _Problem(401, "the token is not this daemon's: read access.json again", "token")
                return _json(200, await handler(request))
            except _Problem as problem:
                return _error(problem.status, str(problem), problem.code)
            except cmd.Refused as refusal:
                return _error(STATUS_OF_CODE.get(refusal.code, 400), str(refusal), refusal.code)
            except JournalError as error:
                return _error(503, f"nothing was recorded: {error}", "not-recorded")
            except ClientDisconnect:
                return _error(400, "the client went away", "gone")
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                return _error(500, "the daemon failed at this: see $HPCDL_HOME/daemon.log", "internal")

        return guarded

    async def _agent(self, socket: WebSocket) -> None:
        if not self._admits(socket.headers.get("authorization")):
            await socket.close(4003, "the token is not this daemon's")
            return
        await self._hub.serve(socket)

    async def _send(self, command: cmd.Command) -> Any:
        return await asyncio.wrap_future(self._loop.send(command))

    def _rows(self) -> Rows:
        return Rows(self._loop.world, self._profiles, self._loop.reasons, self._clock.now())

    def _job(self, request: Request) -> Job:
        number = request.path_params["job"]
        job = self._loop.world.jobs.get(number)
        if job is None:
            raise _Problem(404, f"there is no job {number}: hpcdl ls --all lists them", "unknown-job")
        return job

    # --- jobs --------------------------------------------------------------------------------------------------

    async def _submit(self, request: Request) -> dict[str, Any]:
        body = await _body(request)
        try:
            command = submit_of(body)
        except BadSubmit as error:
            raise _Problem(400, str(error)) from error
        ids = await self._send(command)
        rows = self._rows()
        return {"jobs": [rows.job(rows.world.jobs[number]) | await self._forecast(rows, number) for number in ids]}

    async def _forecast(self, rows: Rows, number: int) -> dict[str, Any]:
        """A job with a deadline is told at once whether it will meet it; others need not wait while that is found."""
        job = rows.world.jobs[number]
        if job.spec.deadline is None:
            return {}
        found = await asyncio.to_thread(forecast, rows.world, job, self._profiles, rows.now)
        return {} if found is None else {"forecast": found}

    async def _list(self, request: Request) -> dict[str, Any]:
        rows = self._rows()
        jobs = rows.world.jobs
        if "ids" in request.query_params:
            numbers = _numbers(request.query_params["ids"])
            return {"jobs": [rows.job(jobs[number]) for number in numbers if number in jobs]}
        if request.query_params.get("all") == "1":
            return {"jobs": [rows.job(job) for job in jobs.values()]}
        return {"jobs": [rows.job(jobs[number]) for number in rows.world.active]}

    async def _show(self, request: Request) -> dict[str, Any]:
        return {"job": self._rows().detail(self._job(request))}

    async def _why(self, request: Request) -> dict[str, Any]:
        job = self._job(request)
        answer = explain(self._loop.world, job, self._loop.reasons, self._profiles, self._clock.now())
        waits = job.running is None and not job.finished and not job.held
        notes = [f"no more pilots: {note}" for note in self._batch.notes()] if waits and self._about.pilots_max else []
        return {
            "job": job.id,
            "state": state_of(job).value,
            "reason": answer.reason,
            "details": [*answer.details, *notes],
            "eta_s": answer.eta_s,
        } | await self._forecast(self._rows(), job.id)

    async def _verb(self, request: Request) -> dict[str, Any]:
        verbs: dict[str, Callable[[int], cmd.Command]] = {
            "cancel": cmd.Cancel,
            "suspend": cmd.Hold,
            "resume": cmd.Release,
        }
        make = verbs.get(request.path_params["verb"])
        if make is None:
            raise _Problem(404, f"jobs can be told to {', '.join(verbs)}", "unknown-verb")
        number = self._job(request).id
        await self._send(make(number))
        rows = self._rows()
        return {"jobs": [rows.job(rows.world.jobs[number])]}

    async def _wait(self, request: Request) -> dict[str, Any]:
        numbers = _numbers(request.query_params.get("ids", ""))
        if not numbers:
            raise _Problem(400, "ids must name at least one job")
        missing = [number for number in numbers if number not in self._loop.world.jobs]
        if missing:
            raise _Problem(404, f"there is no job {missing[0]}: hpcdl ls --all lists them", "unknown-job")

        def done() -> bool:
            return all(self._loop.world.jobs[number].finished for number in numbers)

        await self._until(done, _seconds(request, "timeout", 30.0))
        rows = self._rows()
        return {"jobs": [rows.job(rows.world.jobs[number]) for number in numbers], "done": done()}

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        clock = asyncio.get_running_loop()
        end = clock.time() + seconds
        while not condition() and not self._changes.closed:
            if not await self._changes.wait(end - clock.time()) and clock.time() >= end:
                return

    # --- events, nodes, the daemon ---------------------------------------------------------------------------------

    async def _events(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        after = _number(query.get("after", "0"), "after")
        limit = min(MAX_EVENTS, max(1, _number(query.get("limit", "1000"), "limit")))
        job = _number(query["job"], "job") if "job" in query else None
        if "wait" in query:
            await self._until(lambda: self._loop.world.seq > after, _seconds(request, "wait", 0.0))
        last = self._loop.world.seq
        records = await asyncio.wrap_future(
            self._loop.call(lambda controller: controller.journal.read(after, limit, job))
        )
        return {"events": [event_row(record) for record in records], "last": last}

    async def _nodes(self, request: Request) -> dict[str, Any]:
        rows, beats = self._rows(), self._hub.heartbeats()
        samples = {name: {line.index: line for line in beat.gpus} for name, beat in beats.items()}
        return {"nodes": [rows.node(name, samples.get(name, {})) for name in sorted(rows.world.nodes)]}

    async def _drain(self, request: Request) -> dict[str, Any]:
        body = await _body(request)
        now, until, reason = body.get("now", False), body.get("until"), body.get("reason", "")
        if not isinstance(now, bool) or not isinstance(reason, str) or len(reason) > 200:
            raise _Problem(400, "now must be true or false, reason a text of 200 characters at most")
        if until is not None and not (isinstance(until, int | float) and not isinstance(until, bool) and until >= 0):
            raise _Problem(400, "until must be a time in seconds since the epoch, or null")
        name = request.path_params["node"]
        await self._send(cmd.Drain(name, None if until is None else float(until), now, reason))
        return {"nodes": [self._rows().node(name, {})]}

    async def _profiles_known(self, request: Request) -> dict[str, Any]:
        world, name = self._loop.world, request.query_params.get("name")
        if name is None:
            return {"profiles": await asyncio.to_thread(profile_rows, world, self._profiles)}
        row = await asyncio.to_thread(profile_row, world, self._profiles, name)
        if row is None:
            raise _Problem(404, f"there is no profile {name[:100]!r}: hpcdl profile ls lists them", "unknown-profile")
        return {"profiles": [row]}

    async def _status(self, request: Request) -> dict[str, Any]:
        world, about = self._loop.world, self._about
        states: dict[str, int] = {}
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
                }
                for name, beat in sorted(beats.items())
                for line in beat.trainers
            ],
            "jobs": states,
            "events": world.seq,
            "batch": self._batch.about(),
            "pilots": sum(1 for pilot in world.pilots.values() if not pilot.over),
            "notes": self._batch.notes(),
        }

    async def _config(self, request: Request) -> dict[str, Any]:
        if request.method == "PUT":
            body = await _body(request)
            choices: dict[str, Callable[[str], cmd.Command]] = {
                "policy": cmd.ChoosePolicy,
                "objective": cmd.ChooseObjective,
            }
            if not body or not body.keys() <= choices.keys() or not all(isinstance(v, str) for v in body.values()):
                raise _Problem(400, "the body must name a policy or an objective")
            for key, value in body.items():
                await self._send(choices[key](value))
        world = self._loop.world
        return {
            "config": {"policy": world.policy, "objective": world.objective},
            "policies": list(self._about.policies),
            "objectives": list(OBJECTIVES),
        }

    async def _stop(self, request: Request) -> dict[str, Any]:
        now = (await _body(request)).get("now", False)
        if not isinstance(now, bool):
            raise _Problem(400, "now must be true or false")
        await self._send(cmd.Stop(now))
        return {"stopping": True, "within_s": self._on_stop(now)}


def _json(status: int, body: dict[str, Any]) -> Response:
    text = json.dumps({"schema": SCHEMA, **body}, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "backslashreplace"), status, media_type="application/json")


def _error(status: int, message: str, code: str) -> Response:
    return _json(status, {"error": message, "code": code})


async def _not_found(request: Request, error: Exception) -> Response:
    return _error(404, f"there is no {request.method} {request.url.path}: see docs/api.md", "unknown-route")


async def _body(request: Request) -> dict[str, Any]:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            raise _Problem(413, f"the body is over {MAX_BODY >> 20} MiB", "too-large")
        chunks.append(chunk)
    try:
        data = json.loads(b"".join(chunks) or b"{}")
    except (ValueError, RecursionError) as error:
        raise _Problem(400, "the body is not JSON") from error
    if not isinstance(data, dict):
        raise _Problem(400, "the body is not a JSON object")
    return data


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise _Problem(400, f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_number(part, "ids") for part in text.split(",") if part]


def _seconds(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise _Problem(400, f"{name} must be a number of seconds, got {text[:40]!r}") from error
    return min(MAX_WAIT_S, max(0.0, value)) if value == value else default
