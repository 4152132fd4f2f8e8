"""The API's routes about jobs (docs/api.md)."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request

from hpcdl.core import commands as cmd
from hpcdl.core.events import Recorded
from hpcdl.core.model import Job
from hpcdl.core.numbering import no_such_job
from hpcdl.core.plan import Profiles
from hpcdl.core.policy import deadlines_unheeded
from hpcdl.core.retiring import is_retired
from hpcdl.core.transitions import state_of
from hpcdl.daemon.aftermath import aftermath, past_of
from hpcdl.daemon.answering import Encoded, Problem, body_of, number_of, numbers_of, seconds_of
from hpcdl.daemon.batchroutes import BatchRoutes
from hpcdl.daemon.changes import Changes
from hpcdl.daemon.clock import Clock
from hpcdl.daemon.deadlines import forecast, when, when_json, when_text
from hpcdl.daemon.explain import NOBODY, explain
from hpcdl.daemon.jobverbs import MOST, array_of, chosen, maker, past_array_of, settled
from hpcdl.daemon.listed import Asked, Listed
from hpcdl.daemon.loop import Loop
from hpcdl.daemon.queue import Queue, Queues
from hpcdl.daemon.rows import Rows
from hpcdl.daemon.submits import BadSubmit, submit_of
from hpcdl.daemon.submitted import FORESEEN, answer_of, tried

EVENTS = 1000
"""Of a job, in one piece."""


async def _events_of(loop: Loop, job: int) -> list[Recorded]:
    """All events of a job, asked for in pieces: there may be many."""
    found: list[Recorded] = []
    while True:
        after = found[-1].seq if found else 0
        piece = await asyncio.to_thread(loop.events, after, EVENTS, job)
        found += piece
        if len(piece) < EVENTS:
            return found


class JobRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(
        self, loop: Loop, changes: Changes, profiles: Profiles, clock: Clock, batch: BatchRoutes, queues: Queues
    ) -> None:
        """`batch`: why there are no more nodes from the batch system."""
        self._loop = loop
        self._changes = changes
        self._profiles = profiles
        self._queues = queues
        self._clock = clock
        self._batch = batch
        self._listed = Listed()

    async def _send(self, command: cmd.Command) -> Any:
        return await asyncio.wrap_future(self._loop.send(command))

    async def _queue(self) -> Queue:
        return await asyncio.to_thread(self._queues.look, self._loop.world, self._clock.now())

    async def _rows(self, numbers: Iterable[int] = (), queue: Queue = NOBODY) -> Rows:
        """With those of these jobs that have left the world."""
        world, past = self._loop.world, dict[int, Job]()
        gone = [number for number in numbers if is_retired(world, number)]
        if gone:
            past = {job.id: job for job in await asyncio.to_thread(self._loop.retired, gone)}
        return Rows(world, self._profiles, self._loop.reasons, self._clock.now(), past, queue)

    async def _job(self, request: Request) -> Job:
        number = request.path_params["job"]
        job = self._loop.world.jobs.get(number)
        if job is None and is_retired(self._loop.world, number):
            job = next(iter(await asyncio.to_thread(self._loop.retired, (number,))), None)
        if job is None:
            raise Problem(404, no_such_job(self._loop.world, number), "unknown-job")
        return job

    async def submit(self, request: Request) -> dict[str, Any]:
        """`POST /v1/jobs`."""
        body = await body_of(request)
        try:
            command = submit_of(body)
        except BadSubmit as error:
            raise Problem(400, str(error)) from error
        command = replace(command, elsewhere=self._batch.largest())
        if body.get("dry_run") is True:
            return await self._tried(command)
        ids = await self._send(command)
        rows = await self._rows(ids)
        extra, unheeded = {}, await self._unheeded(map(rows.known, ids))
        for number in ids:
            if rows.known(number).spec.deadline is not None:
                extra[number] = await self._forecast(rows, number)
                if len(extra) == FORESEEN:
                    break
        return Encoded(answer_of(rows, ids, extra, unheeded))

    async def _tried(self, command: cmd.Submit) -> dict[str, Any]:
        policies, settings = await asyncio.wrap_future(self._loop.call(lambda each: (each.policies, each.settings)))
        world, now = self._loop.world, self._clock.now()
        rows = await asyncio.to_thread(tried, world, command, policies, self._profiles, settings, now)
        return {"dry_run": True, "jobs": rows}

    async def _unheeded(self, jobs: Iterable[Job]) -> str:
        """What is said of their deadlines, if any has one that nothing is done for."""
        if all(job.spec.deadline is None or job.finished for job in jobs):
            return ""
        world = self._loop.world
        policies = await asyncio.wrap_future(self._loop.call(lambda each: each.policies))
        if world.policy not in policies.names():
            return ""
        return deadlines_unheeded(policies.make(world.policy), world.objective)

    async def _forecast(self, rows: Rows, number: int) -> dict[str, Any]:
        """A job with a deadline is told at once whether it will meet it; others need not wait while that is found."""
        job = rows.known(number)
        if job.spec.deadline is None or number in rows.past:
            return {}
        found = await asyncio.to_thread(forecast, rows.world, job, self._profiles, rows.now)
        return {} if found is None else {"forecast": found}

    async def list(self, request: Request) -> dict[str, Any]:
        """`GET /v1/jobs`."""
        asked, rows = Asked.of(request.query_params), await self._rows(queue=await self._queue())
        reaches = rows.world.retired and (asked.finished or asked.ids is not None)
        past = await asyncio.to_thread(Listed.past, rows, asked, self._loop.retired) if reaches else {}
        return Encoded(self._listed.answer(rows, asked, past))

    async def show(self, request: Request) -> dict[str, Any]:
        """`GET /v1/jobs/ID`."""
        job = await self._job(request)
        detail = (await self._rows(queue=await self._queue())).detail(job)
        if detail["deadline"] is not None:
            detail["deadline"]["warning"] = await self._unheeded((job,))
        return {"job": detail}

    async def why(self, request: Request) -> dict[str, Any]:
        """`GET /v1/jobs/ID/why`."""
        job, world, now = await self._job(request), self._loop.world, self._clock.now()
        answer = explain(world, job, self._loop.reasons, now, await self._queue())
        waits = job.running is None and not job.finished and not job.held
        notes = [f"no more pilots: {note}" for note in self._batch.notes()] if waits and self._batch.pilots_max else []
        found = {"job": job.id, "state": state_of(job).value, "reason": answer.reason}
        if job.finished:
            past = past_of(await _events_of(self._loop, job.id), job.submitted_at)
            details = [*answer.details, *aftermath(job, past)]
            return found | {"details": details, **when_json(None), "past": past.to_json(job)}
        eta = await asyncio.to_thread(when, world, job, self._profiles, now, self._queues.views)
        told = [] if eta is None else [when_text(eta, world.policy)]
        unheeded = await self._unheeded((job,))
        details = [*answer.details, *told, *notes, *([unheeded] if unheeded else ())]
        return found | {"details": details, **when_json(eta)} | await self._forecast(await self._rows(), job.id)

    async def verb(self, request: Request) -> dict[str, Any]:
        """`POST /v1/jobs/ID/VERB`."""
        make = maker(request.path_params["verb"])
        number = (await self._job(request)).id
        await self._send(make(number))
        rows = await self._rows((number,))
        return {"jobs": [rows.job(rows.known(number))]}

    async def verbs(self, request: Request) -> dict[str, Any]:
        """`POST /v1/jobs/verb`."""
        body = await body_of(request)
        make = maker(body.get("verb"))
        numbers = chosen(self._loop.world, body["verb"], body)
        if body["verb"] == "retry":
            more = {name: body.get(name) is True for name in ("with_dependents", "from_start")}
            make = partial(cmd.Retry, **more)
        answers = [self._loop.send(make(number)) for number in numbers]
        told, errors, left = await asyncio.to_thread(settled, numbers, answers)
        for error in errors:
            if (job := self._loop.world.jobs.get(error["job"])) is not None:
                error["state"] = state_of(job).value
        rows = await self._rows(told)
        return {"jobs": [rows.job(rows.known(number)) for number in told], "errors": errors, "cancelled": left}

    async def wait(self, request: Request) -> dict[str, Any]:
        """`GET /v1/wait`."""
        members: Sequence[int] = ()
        if "array" in request.query_params:
            array = number_of(request.query_params["array"], "array")
            if is_retired(self._loop.world, array):
                members = await asyncio.to_thread(past_array_of, self._loop.retired, array)
            else:
                members = array_of(self._loop.world, array)
        numbers = list(dict.fromkeys((*numbers_of(request.query_params.get("ids", ""), MOST), *members)))
        if not numbers:
            raise Problem(400, "ids or array must name a job")
        world = self._loop.world
        missing = [number for number in numbers if number not in world.jobs and not is_retired(world, number)]
        if missing:
            raise Problem(404, no_such_job(world, missing[0]), "unknown-job")

        def done() -> bool:
            jobs = self._loop.world.jobs
            return all((job := jobs.get(number)) is None or job.finished for number in numbers)

        await self._changes.until(done, seconds_of(request, "timeout", 30.0))
        rows = await self._rows(numbers)
        return {"jobs": [rows.job(rows.known(number)) for number in numbers], "done": done()}
