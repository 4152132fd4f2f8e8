"""The API's routes about jobs (docs/api.md)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request

from hpcdl.core import commands as cmd
from hpcdl.core.events import Recorded
from hpcdl.core.model import Job
from hpcdl.core.numbering import no_such_job
from hpcdl.core.plan import Profiles
from hpcdl.core.retiring import is_retired
from hpcdl.core.transitions import state_of
from hpcdl.daemon.aftermath import aftermath, past_of
from hpcdl.daemon.answering import Encoded, Problem, body_of, number_of, numbers_of, seconds_of
from hpcdl.daemon.batchroutes import BatchRoutes
from hpcdl.daemon.changes import Changes
from hpcdl.daemon.clock import Clock
from hpcdl.daemon.deadlines import Deadlines, when, when_json, when_text
from hpcdl.daemon.explain import explain
from hpcdl.daemon.jobverbs import MOST, array_of, chosen, maker, past_array_of, settled
from hpcdl.daemon.listed import Asked, Listed
from hpcdl.daemon.loop import Loop
from hpcdl.daemon.queue import Queues
from hpcdl.daemon.rows import JobRows
from hpcdl.daemon.submits import submit_of
from hpcdl.daemon.submitted import SubmitAnswers

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
        self._batch = batch
        self._rows = JobRows(loop, profiles, clock, queues)
        self._deadlines = Deadlines(loop, profiles)
        self._submits = SubmitAnswers(loop, self._rows, self._deadlines)
        self._listed = Listed()

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
        command = replace(submit_of(body), elsewhere=self._batch.largest())
        if body.get("dry_run") is True:
            return await self._submits.dry_run(command)
        ids = await asyncio.wrap_future(self._loop.send(command))
        return await self._submits.answer(ids)

    async def list(self, request: Request) -> dict[str, Any]:
        """`GET /v1/jobs`."""
        asked, rows = Asked.of(request.query_params), await self._rows.now(queued=True)
        reaches = rows.world.retired and (asked.finished or asked.ids is not None)
        past = await asyncio.to_thread(Listed.past, rows, asked, self._loop.retired) if reaches else {}
        return Encoded(self._listed.answer(rows, asked, past))

    async def show(self, request: Request) -> dict[str, Any]:
        """`GET /v1/jobs/ID`."""
        job = await self._job(request)
        detail = (await self._rows.now(queued=True)).detail(job)
        if detail["deadline"] is not None:
            detail["deadline"]["warning"] = await self._deadlines.unheeded((job,))
        return {"job": detail}

    async def why(self, request: Request) -> dict[str, Any]:
        """`GET /v1/jobs/ID/why`."""
        job, rows = await self._job(request), await self._rows.now(queued=True)
        world, now = rows.world, rows.now
        answer = explain(world, job, rows.reasons, now, rows.queue)
        waits = job.running is None and not job.finished and not job.held
        notes = [f"no more pilots: {note}" for note in self._batch.notes()] if waits and self._batch.pilots_max else []
        found = {"job": job.id, "state": state_of(job).value, "reason": answer.reason}
        if job.finished:
            past = past_of(await _events_of(self._loop, job.id), job.submitted_at)
            details = [*answer.details, *aftermath(job, past)]
            return found | {"details": details, **when_json(None), "past": past.to_json(job)}
        eta = await asyncio.to_thread(when, world, job, self._profiles, now, self._queues.views)
        told = [] if eta is None else [when_text(eta, world.policy)]
        unheeded = await self._deadlines.unheeded((job,))
        details = [*answer.details, *told, *notes, *([unheeded] if unheeded else ())]
        return found | {"details": details, **when_json(eta)} | await self._deadlines.forecast(world, job, now)

    async def verb(self, request: Request) -> dict[str, Any]:
        """`POST /v1/jobs/ID/VERB`."""
        make = maker(request.path_params["verb"])
        number = (await self._job(request)).id
        await asyncio.wrap_future(self._loop.send(make(number)))
        return {"jobs": await self._rows.of((number,))}

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
        return {"jobs": await self._rows.of(told), "errors": errors, "cancelled": left}

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
        return {"jobs": await self._rows.of(numbers), "done": done()}
