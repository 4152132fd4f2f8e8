"""The answers to a submit: the rows of its jobs, which of an array are written once; and of one that is only tried."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcdl.core.commands import Submit
from hpcdl.core.intake import Intake, Settings
from hpcdl.core.lifecycle import Draft
from hpcdl.core.model import Job, World
from hpcdl.core.noticing import failing
from hpcdl.core.plan import JobView, Profiles, View
from hpcdl.core.policy import Policies, deadlines_unheeded
from hpcdl.core.submitting import doubts_of
from hpcdl.core.views import Views
from hpcdl.daemon.answering import Encoded
from hpcdl.daemon.deadlines import Deadlines
from hpcdl.daemon.loop import Loop
from hpcdl.daemon.queue import queue_of
from hpcdl.daemon.rows import SCHEMA, JobRows, Rows

Json = dict[str, Any]

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_OWN = ("id", "name", "array_index", "reason")
"""What the rows of members of an array may differ in, while nothing has happened to them."""


class SubmitAnswers:
    """The answers to `POST /v1/jobs`."""

    def __init__(self, loop: Loop, rows: JobRows, deadlines: Deadlines) -> None:
        self._loop = loop
        self._rows = rows
        self._deadlines = deadlines

    async def answer(self, ids: Sequence[int]) -> Json:
        """The rows of these jobs, with what is doubtful about them, and whether they meet their deadlines."""
        rows = await self._rows.now(ids)
        jobs = [rows.known(number) for number in ids]
        unheeded = await self._deadlines.unheeded(jobs)
        due = [job for job in jobs if job.spec.deadline is not None][:FORESEEN]
        forecasts = {job.id: await self._deadlines.forecast(rows.world, job, rows.now) for job in due}
        return Encoded(_joined(rows, jobs, forecasts, unheeded))

    async def dry_run(self, command: Submit) -> Json:
        """What would become of it; nothing is recorded."""
        policies, settings = await asyncio.wrap_future(self._loop.call(lambda each: (each.policies, each.settings)))
        rows = await self._rows.now()
        return {
            "dry_run": True,
            "jobs": await asyncio.to_thread(tried, rows.world, command, policies, rows.profiles, settings, rows.now),
        }


def _joined(rows: Rows, jobs: Iterable[Job], forecasts: Mapping[int, Json], unheeded: str) -> bytes:
    """The whole answer. What all members of an array share is encoded once: of 1,000 that takes 1 ms in place of 20
    (`array_of_1000_in_the_api` of benchmarks/submits.py)."""
    found: list[str] = []
    shared: dict[int, tuple[str, str]] = {}  # by array: the reason, and all else
    for job in jobs:
        if not job.spec.array or job.id in forecasts or not _untouched(rows, job):
            found.append(_encode(_row(rows, job, unheeded) | forecasts.get(job.id, {})))
            continue
        if job.spec.array not in shared:
            row = _row(rows, job, unheeded)
            rest = _encode({key: value for key, value in row.items() if key not in _OWN})[1:]
            shared[job.spec.array] = (_encode(row["reason"]), rest)
        why, rest = shared[job.spec.array]
        if job.held:  # it names the job
            why = _encode(rows.reason(job))
        name, index = _encode(job.spec.name), job.spec.array_index
        found.append(f'{{"id":{job.id},"name":{name},"array_index":{index},"reason":{why},{rest}')
    return f'{{"schema":{SCHEMA},"jobs":[{",".join(found)}]}}'.encode("utf-8", "backslashreplace")


def _row(rows: Rows, job: Job, unheeded: str) -> Json:
    unheard = [f"its notifications fail: {each}: hpcdl notifications" for each in failing(rows.world, job.spec.notify)]
    doubts = [*doubts_of(rows.world, job.spec), *unheard]
    if unheeded and job.spec.deadline is not None:
        doubts.append(unheeded)
    return rows.job(job) | ({"warnings": doubts} if doubts else {})


def _untouched(rows: Rows, job: Job) -> bool:
    """Whether all that can be told of it is told of the other members, too."""
    number = job.id
    return (
        not job.live
        and not job.last_incarnation
        and job.outcome is None
        and not job.cancelling
        and number not in rows.world.targets
        and number not in rows.reasons
    )


def tried(
    world: World, command: Submit, policies: Policies, profiles: Profiles, settings: Settings, now: float
) -> list[Json]:
    """What would become of a submit, without anything being recorded: a row for each job, as after the decision.

    `placement`: what it would be given at once, None: it would wait, and `reason` says for what. `starts_at`,
    `ends_at`: where they can be foreseen, else None. Raises Refused.
    """
    draft = Draft(world)
    intake = Intake(draft, now, policies=policies, profiles=profiles, settings=settings, pending={}, missed={})
    ids = intake.take(command)
    intake.finish()
    view = Views().build(draft.world, profiles, now)
    policy = policies.make(draft.world.policy)
    plan, unheeded = policy.decide(view), deadlines_unheeded(policy, draft.world.objective)
    targets = {target.job: target for target in plan.targets if target.job in set(ids)}
    reasons = {number: target.reason for number, target in targets.items()}
    rows = Rows(draft.world, profiles, reasons, now, queue=queue_of(draft.world, view))
    found = []
    jobs = [view.by_id[number] for number in ids if number in view.by_id]
    foreseen = _foreseen(view, jobs, draft.world.policy)
    for number in ids:
        job = draft.world.jobs[number]
        target = targets.get(number)
        placement = None if target is None else target.placement
        starts, ends = foreseen.get(number, (None, None))
        row = _row(rows, job, unheeded)
        row["id"] = None  # nobody has it yet
        row["would_start"] = placement is not None
        row["placement"] = None if placement is None else {share.node: list(share.gpus) for share in placement.shares}
        if target is not None and placement is not None:
            row["reason"] = target.reason  # else the row's own, as `hpcdl why` would say it
        elif job.held:
            row["reason"] = "held by its user, until hpcdl release"  # and not of which id
        row["starts_at"] = now if placement is not None else starts
        row["ends_at"] = ends
        found.append(row)
    return found


FORESEEN = 50
"""Of so many jobs it is said when they would start and end; each is one look ahead over all jobs."""


def _foreseen(view: View, jobs: Iterable[JobView], policy: str) -> dict[int, tuple[float | None, float | None]]:
    """When jobs would first have GPUs and when they would be done, by id, if nothing else came."""
    chosen = [job for job in jobs if job.profile is not None and job.total is not None and not job.blocked][:FORESEEN]
    if not chosen:
        return {}
    from hpcdl.adaptive.eta import grounds_of  # numpy takes its time, and few submits are tried

    found: dict[int, tuple[float | None, float | None]] = {}
    for job in chosen:
        grounds = grounds_of(view, job, policy)
        if grounds is not None and grounds.starts is not None:
            found[job.id] = (view.now + grounds.starts.base_s, view.now + grounds.ends.base_s)
    return found
