"""The API's routes about jobs: submit, list, show, why, wait, and the verbs (docs/api.md).

A handler reads its request, sends commands to the Controller, and answers with rows that `rows` made. It waits for no
disk and no long computation in the event loop: these go to threads.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec import structs
from starlette.requests import Request

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import members_of
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import Job, JobState, World, no_such_job
from hpcdl.core.rules.jobs import again_text
from hpcdl.core.rules.retention import as_history, is_retired
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.estimates import forecast_json, metric_text, not_known_text, unheeded, when, when_json, when_text
from hpcdl.daemon.api.http import ApiProblem, Encoded, body_of, number_of, numbers_of, seconds_of
from hpcdl.daemon.api.job_list import JobList, JobQuery
from hpcdl.daemon.api.learnt import learnt_of, predicted_text
from hpcdl.daemon.api.pilots import batch_notes, largest_hole
from hpcdl.daemon.api.post_mortem import aftermath, past_of
from hpcdl.daemon.api.rows import Json
from hpcdl.daemon.api.submit import dry_run, fill_in, submit_answer, submit_of
from hpcdl.daemon.api.viewers import job_seen, jobs_seen
from hpcdl.daemon.api.why import explain
from hpcdl.report.account import story_of
from hpcdl.report.attempts import attempts_of

EVENTS = 1000
"""Of a job, in one piece."""


async def existing(api: ApiContext, request: Request) -> Job:
    """The job of the path, also one that has left the world. Raises ApiProblem."""
    return await _job_of(api, request.path_params["job"])


async def _job_of(api: ApiContext, number: int) -> Job:
    """The job of that id. Raises ApiProblem."""
    job = api.world.jobs.get(number)
    if job is None and is_retired(api.world, number):
        job = next(iter(await asyncio.to_thread(api.loop.retired, (number,))), None)
    if job is None:
        raise ApiProblem(404, no_such_job(api.world, number), "unknown-job")
    return job


@route("POST", "/v1/jobs")
async def submit(api: ApiContext, request: Request) -> Json:
    """Queues jobs; with `dry_run` says what would become of them."""
    body = await body_of(request)
    await _take_templates(api, body)
    command = structs.replace(submit_of(body), elsewhere=largest_hole(api))
    if body.get("dry_run") is True:
        return await dry_run(api, command)
    return await submit_answer(api, await api.send(command))


async def _take_templates(api: ApiContext, body: Json) -> None:
    """Has entries with `like` the environment of that job, under their own, and its destinations. Raises ApiProblem."""
    jobs = body.get("jobs")
    for entry in jobs if isinstance(jobs, list) else ():
        if isinstance(entry, dict) and "like" in entry:
            number = entry.pop("like")
            if type(number) is not int:
                raise ApiProblem(400, "like must be the id of a job")
            fill_in(entry, (await _job_of(api, number)).spec)


@route("GET", "/v1/jobs", jobs_seen)
async def list_jobs(api: ApiContext, request: Request) -> Json:
    """The jobs that the query chooses."""
    asked, rows = JobQuery.of(request.query_params), await api.rows(queued=True)
    reaches = rows.world.retired and (asked.finished or asked.ids is not None)
    past = await asyncio.to_thread(JobList.past, rows, asked, api.loop.retired) if reaches else {}
    return Encoded(api.listed.answer(rows, asked, past))


@route("GET", "/v1/jobs/{job:int}", job_seen)
async def show(api: ApiContext, request: Request) -> Json:
    """A job with its spec and its attempts that live."""
    job = await existing(api, request)
    detail = (await api.rows(queued=True)).detail(job)
    if detail["deadline"] is not None:
        detail["deadline"]["warning"] = await unheeded(api, (job,))
    return {"job": detail}


@route("GET", "/v1/jobs/{job:int}/why")
async def why(api: ApiContext, request: Request) -> Json:
    """Why a job is in its state, and when it starts and is done; of a finished one, where its time went."""
    job, rows = await existing(api, request), await api.rows(queued=True)
    world, now = rows.world, rows.now
    answer = explain(world, job, rows.reasons, now, rows.queue)
    found = {"job": job.id, "state": state_of(job).value, "reason": answer.reason}
    if job.finished:
        past = await asyncio.to_thread(past_of, await _events_of(api, job.id), job.submitted_at)
        odd = rows.not_finite_note(job)
        details = [*([odd] if odd else ()), *answer.details, *aftermath(job, past)]
        if job.outcome is JobState.CANCELLED:
            details.append(again_text(world, job))
        return found | {"details": details, **when_json(None), "past": past.to_json(job)}
    eta = await asyncio.to_thread(when, world, job, rows.profiles, now, api.queues.views)
    views = api.queues.views
    told = (
        await asyncio.to_thread(not_known_text, world, job, rows.profiles, now, views)
        if eta is None
        else when_text(eta, world.policy)
    )
    metric = await asyncio.to_thread(metric_text, world, job, rows.profiles)
    details = [*answer.details, *filter(None, (metric, told))]
    if job.running is None and not job.held and api.about.pilots_max:
        details += [f"no more pilots: {note}" for note in batch_notes(api)]
    if warning := await unheeded(api, (job,)):
        details.append(warning)
    lines, learnt = await asyncio.to_thread(learnt_of, world, job)
    if predicted := await asyncio.to_thread(predicted_text, world, job, rows.profiles):
        lines.append(predicted)
    if note := rows.not_finite_note(job) or rows.idle.get(job.id):
        details.insert(0, note)
    solver = api.loop.solver
    if solver:
        details.append(f"numbers of nodes by {solver}")
    known = {"details": [*details, *lines], "solver": solver or None, "learnt": learnt, **when_json(eta)}
    return found | known | await forecast_json(api, world, job, now)


@route("GET", "/v1/jobs/{job:int}/attempts")
async def attempts(api: ApiContext, request: Request) -> Json:
    """The attempts of a job that held GPUs, in order, with what became of each."""
    number = (await existing(api, request)).id
    records = await _events_of(api, number)
    found = await asyncio.to_thread(lambda: [to_json(each) for each in attempts_of(story_of(records))])
    return {"job": number, "attempts": [{key: row[key] for key in row if key != "job"} for row in found]}


async def _events_of(api: ApiContext, job: int) -> list[Recorded]:
    """All events of a job, asked for in pieces: there may be many."""
    found: list[Recorded] = []
    while True:
        after = found[-1].seq if found else 0
        piece = await asyncio.to_thread(api.loop.events, after, EVENTS, job)
        found += piece
        if len(piece) < EVENTS:
            return found


@route("POST", "/v1/jobs/{job:int}/{verb:verb}")
async def verb(api: ApiContext, request: Request) -> Json:
    """One verb for one job."""
    make = maker(request.path_params["verb"])
    number = (await existing(api, request)).id
    await api.send(make(number))
    return {"jobs": await api.rows_of((number,))}


@route("POST", "/v1/jobs/verb")
async def verbs(api: ApiContext, request: Request) -> Json:
    """One verb for many jobs, each of which is answered for."""
    body = await body_of(request)
    make = maker(body.get("verb"))
    numbers = chosen(api.world, body["verb"], body)
    if body["verb"] == "retry":
        more = {name: body.get(name) is True for name in ("with_dependents", "from_start")}
        make = partial(cmd.Retry, **more)
    elif body["verb"] == "annotate":
        make = partial(cmd.Annotate, changes=annotations_of(body))
    elif body["verb"] == "priority":
        make = partial(cmd.SetPriority, priority=priority_of(body))
    lifts = body["verb"] in ("resume", "release")
    unheld = [each for each in numbers if lifts and (job := api.world.jobs.get(each)) is not None and not job.held]
    answers = [api.loop.send(make(number)) for number in numbers]
    told, errors, left, unfinished = await asyncio.to_thread(outcomes, numbers, answers)
    for error in errors:
        if (job := api.world.jobs.get(error["job"])) is not None:
            error["state"] = state_of(job).value
    return {
        "jobs": await api.rows_of(told),
        "errors": errors,
        "cancelled": left,
        "unfinished": unfinished,
        "unheld": [each for each in unheld if each in told],
    }


@route("GET", "/v1/wait")
async def wait(api: ApiContext, request: Request) -> Json:
    """Answers once these jobs are finished, or the time is over."""
    members: Sequence[int] = ()
    if "array" in request.query_params:
        array = number_of(request.query_params["array"], "array")
        if is_retired(api.world, array):
            members = await asyncio.to_thread(past_array_of, api.loop.retired, array)
        else:
            members = array_of(api.world, array)
    numbers = list(dict.fromkeys((*numbers_of(request.query_params.get("ids", ""), MOST), *members)))
    if not numbers:
        raise ApiProblem(400, "ids or array must name a job")
    world = api.world
    missing = [number for number in numbers if number not in world.jobs and not is_retired(world, number)]
    if missing:
        raise ApiProblem(404, no_such_job(world, missing[0]), "unknown-job")

    def done() -> bool:
        jobs = api.world.jobs
        return all((job := jobs.get(number)) is None or job.finished for number in numbers)

    await api.changes.until(done, seconds_of(request, "timeout", 30.0))
    return {"jobs": await api.rows_of(numbers), "done": done()}


# --- verbs ------------------------------------------------------------------------------------------------------------

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
    "priority": lambda job: cmd.SetPriority(job, None),
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


def priority_of(body: Mapping[str, Any]) -> int:
    """Which priority a request gives to jobs. Raises ApiProblem."""
    found = body.get("priority")
    if type(found) is not int:
        raise ApiProblem(400, "priority must be a whole number")
    return found


def chosen(world: World, verb: str, body: Mapping[str, Any]) -> list[int]:
    """The jobs that a request names: `ids`, `array` (those of its members that the verb concerns), and for retry
    `failed` (those of them, or of all jobs, that FAILED) with `since` (seconds since the epoch). Raises ApiProblem."""
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
        pool: Iterable[int] = world.jobs if members is None else members
        if failed and found:
            pool = (*found, *(members or ()))
            found = {number: None for number in found if number not in world.jobs}  # each is answered for
        for number in pool:
            if (job := world.jobs.get(number)) is None:
                continue
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
) -> tuple[list[int], list[dict[str, Any]], list[int], list[int]]:
    """What became of each: the jobs that took the verb, in order; the errors; dependents that stay cancelled; and
    those of the first that needed no retry, as they are not finished.

    Waits for the answers. Raises JournalError where nothing was recorded at all.
    """
    told: dict[int, None] = {}
    errors: list[dict[str, Any]] = []
    left: dict[int, None] = {}
    retried: set[int] = set()
    unfinished: list[int] = []
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
                retried.update(value.jobs)
                unfinished += () if value.jobs or number in retried else (number,)
                left.update(dict.fromkeys(value.left))
    if lost is not None and not told:
        raise lost
    return list(told), errors, [number for number in left if number not in told], unfinished
