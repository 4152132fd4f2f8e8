"""The API's routes about jobs: submit, list, show, why, wait, and the verbs (docs/api.md).

A handler reads its request, sends commands to the Controller, and answers with rows that `rows` made. It waits for no
disk and no long computation in the event loop: these go to threads.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import members_of
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import Job, JobState, World, no_such_job
from hpcdl.core.rules.retention import as_history, is_retired
from hpcdl.daemon.api.estimates import Deadlines, when, when_json, when_text
from hpcdl.daemon.api.http import ApiProblem, Encoded, body_of, number_of, numbers_of, seconds_of
from hpcdl.daemon.api.job_list import JobList, JobQuery
from hpcdl.daemon.api.pilots import BatchRoutes
from hpcdl.daemon.api.post_mortem import aftermath, past_of
from hpcdl.daemon.api.rows import JobRows
from hpcdl.daemon.api.submit import SubmitAnswers, submit_of
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.api.why import explain
from hpcdl.daemon.loop import ControllerLoop

EVENTS = 1000
"""Of a job, in one piece."""


async def _events_of(loop: ControllerLoop, job: int) -> list[Recorded]:
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

    def __init__(self, loop: ControllerLoop, changes: Changes, rows: JobRows, batch: BatchRoutes) -> None:
        """`batch`: why there are no more nodes from the batch system."""
        self._loop = loop
        self._changes = changes
        self._rows = rows
        self._batch = batch
        self._deadlines = Deadlines(loop, rows.profiles)
        self._submits = SubmitAnswers(loop, rows, self._deadlines)
        self._listed = JobList()

    async def _job(self, request: Request) -> Job:
        number = request.path_params["job"]
        job = self._loop.world.jobs.get(number)
        if job is None and is_retired(self._loop.world, number):
            job = next(iter(await asyncio.to_thread(self._loop.retired, (number,))), None)
        if job is None:
            raise ApiProblem(404, no_such_job(self._loop.world, number), "unknown-job")
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
        asked, rows = JobQuery.of(request.query_params), await self._rows.now(queued=True)
        reaches = rows.world.retired and (asked.finished or asked.ids is not None)
        past = await asyncio.to_thread(JobList.past, rows, asked, self._loop.retired) if reaches else {}
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
        eta = await asyncio.to_thread(when, world, job, rows.profiles, now, self._rows.queues.views)
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
        elif body["verb"] == "annotate":
            make = partial(cmd.Annotate, changes=annotations_of(body))
        answers = [self._loop.send(make(number)) for number in numbers]
        told, errors, left = await asyncio.to_thread(outcomes, numbers, answers)
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
            raise ApiProblem(400, "ids or array must name a job")
        world = self._loop.world
        missing = [number for number in numbers if number not in world.jobs and not is_retired(world, number)]
        if missing:
            raise ApiProblem(404, no_such_job(world, missing[0]), "unknown-job")

        def done() -> bool:
            jobs = self._loop.world.jobs
            return all((job := jobs.get(number)) is None or job.finished for number in numbers)

        await self._changes.until(done, seconds_of(request, "timeout", 30.0))
        return {"jobs": await self._rows.of(numbers), "done": done()}


# `POST /v1/jobs/verb`: one verb for many jobs, each of which is answered for.

MOST = 100_000
"""Jobs that one request names."""

AT_ONCE = 1_000
"""Retired jobs that are asked for in one go."""

VERBS: dict[str, Callable[[int], cmd.Command]] = {
    "cancel": cmd.Cancel,
    "suspend": cmd.Hold,
    "resume": cmd.Release,
    "hold": lambda job: cmd.Hold(job, waiting=True),
    "release": cmd.Release,
    "retry": cmd.Retry,
    "annotate": lambda job: cmd.Annotate(job, ()),
}

_FAILED = (JobState.FAILED, JobState.CANCELLED)


def maker(verb: object) -> Callable[[int], cmd.Command]:
    """What makes the verb's command for a job. Raises ApiProblem."""
    make = VERBS.get(verb) if isinstance(verb, str) else None
    if make is None:
        raise ApiProblem(404, f"jobs can be told to {', '.join(VERBS)}", "unknown-verb")
    return make


def annotations_of(body: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What a request has jobs annotated with: `annotations`, an object of texts. Raises ApiProblem."""
    found = body.get("annotations")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ApiProblem(400, 'annotations must be an object of texts: {"KEY": "VALUE"}')
    return tuple(found.items())


def chosen(world: World, verb: str, body: Mapping[str, Any]) -> list[int]:
    """The jobs that a request names: `ids`, `array` (those of its members that the verb concerns), and for retry
    `failed` with `since` (seconds since the epoch). Raises ApiProblem."""
    ids, array, failed, since = (body.get(name) for name in ("ids", "array", "failed", "since"))
    if ids is not None and not (isinstance(ids, list) and all(type(each) is int for each in ids)):
        raise ApiProblem(400, "ids must be a list of whole numbers")
    if array is not None and type(array) is not int:
        raise ApiProblem(400, "array must be the id of a job")
    if failed is not None and (type(failed) is not bool or verb != "retry"):
        raise ApiProblem(400, "failed must be true or false, and goes with retry")
    if since is not None and type(since) not in (int, float):
        raise ApiProblem(400, "since must be a number of seconds since the epoch")
    found: dict[int, None] = dict.fromkeys(ids or ())
    if len(found) > MOST:
        raise ApiProblem(400, f"a request names {MOST} jobs at most")
    members: Iterable[int] | None = None
    if array is not None:
        members = array_of(world, array)
    if verb == "retry" and (failed or array is not None):
        for number in world.jobs if members is None else members:
            job = world.jobs[number]
            wanted = job.outcome is JobState.FAILED if failed else job.outcome in _FAILED
            if wanted and (since is None or (job.finished_at or 0.0) >= since):
                found[number] = None
    elif members is not None:
        found.update(dict.fromkeys(number for number in members if number in world.active))
    elif not found:
        raise ApiProblem(400, "ids or array must name a job")
    return list(found)


def array_of(world: World, number: int) -> Sequence[int]:
    """The members of the array that a job is in. Raises ApiProblem."""
    members = members_of(lambda each: None if (job := world.jobs.get(each)) is None else job.spec, number)
    if not members:
        if is_retired(world, number):
            raise ApiProblem(409, f"{as_history(number)}: submit it again", "finished")
        if number not in world.jobs:
            raise ApiProblem(404, no_such_job(world, number), "unknown-job")
        raise ApiProblem(404, f"job {number} is in no array: hpcdl show {number}", "unknown-job")
    return members


def past_array_of(retired: Callable[[Sequence[int]], list[Job]], number: int) -> list[int]:
    """The same of a job that has left the world, with all of its array. Raises ApiProblem."""
    found = retired((number,))
    array = found[0].spec.array if found else 0
    if not array:
        raise ApiProblem(404, f"job {number} is in no array: hpcdl show {number}", "unknown-job")
    members: list[int] = []
    while True:
        first = array + len(members)
        piece = [job.id for job in retired(range(first, first + AT_ONCE)) if job.spec.array == array]
        members += piece
        if len(piece) < AT_ONCE:
            return members


def outcomes(
    numbers: Iterable[int], answers: Iterable["Future[Any]"]
) -> tuple[list[int], list[dict[str, Any]], list[int]]:
    """What became of each: the jobs that were told, in order; the errors; and dependents that stay cancelled.

    Waits for the answers. Raises JournalError where nothing was recorded at all.
    """
    told: dict[int, None] = {}
    errors: list[dict[str, Any]] = []
    left: dict[int, None] = {}
    lost: JournalError | None = None
    for number, answer in zip(numbers, answers, strict=True):
        try:
            value = answer.result()
        except CommandRefused as refusal:
            errors.append({"job": number, "error": str(refusal), "code": refusal.code})
        except JournalError as error:
            lost = error
            errors.append({"job": number, "error": f"nothing was recorded: {error}", "code": "not-recorded"})
        else:
            told[number] = None
            if isinstance(value, cmd.Retried):
                told.update(dict.fromkeys(value.jobs))
                left.update(dict.fromkeys(value.left))
    if lost is not None and not told:
        raise lost
    return list(told), errors, [number for number in left if number not in told]
