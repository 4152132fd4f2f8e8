"""Submits: the body of `POST /v1/jobs` to a command, and the answer; also what a dry run says.

The body is checked alike where it comes over the API and where it was spooled. Whether the jobs can run at all, the
core says (`core/rules/jobs`).
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdl.core.controller.light_runs import without_light_runs
from hpcdl.core.controller.view_builder import Views
from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import Array, indices_from, indices_of
from hpcdl.core.model.commands import Entry, Submit
from hpcdl.core.model.dependency import KINDS
from hpcdl.core.model.frozen import CodecError, from_json
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import JobView, Policies, Profiles, View, deadlines_unheeded
from hpcdl.core.model.world import Job, JobState, World
from hpcdl.core.rules.dependencies import never_why
from hpcdl.core.rules.intake import Intake, Settings
from hpcdl.core.rules.jobs import again_text, doubts_of
from hpcdl.core.rules.notices import failing
from hpcdl.daemon.api.context import ApiContext
from hpcdl.daemon.api.estimates import forecast, forecast_json, unheeded
from hpcdl.daemon.api.http import ApiProblem, Encoded, encode, encoded
from hpcdl.daemon.api.latency import latencies_json, latency
from hpcdl.daemon.api.rows import Json, RowBuilder
from hpcdl.daemon.queue import queue_of

if TYPE_CHECKING:
    from hpcdl.adaptive.eta import Eta

MEMBERS = ("array_index", "array_most", "sweep")
"""Fields of a spec that only members of arrays have: nobody submits them."""

_OF_ARRAY = ("indices", "sweep", "max_parallel")


class BadSubmit(ApiProblem, ValueError):
    """The body is not one of a submit; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


def submit_of(body: Mapping[str, Any]) -> cmd.Submit:
    """The command for `{"request_id": str, "jobs": [entry, ...]}` (docs/api.md). Raises BadSubmit."""
    request_id, jobs, strict = body.get("request_id"), body.get("jobs"), body.get("strict", False)
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= 100 or not request_id.isprintable():
        raise BadSubmit("request_id must be a string of 1 to 100 printable characters")
    if not isinstance(jobs, list):
        raise BadSubmit("jobs must be a list of specs")
    if not isinstance(strict, bool):
        raise BadSubmit("strict must be true or false")
    try:
        entries = tuple(_entry(each) for each in jobs)
    except (CodecError, ValueError) as error:
        raise BadSubmit(str(error)[:500]) from error
    return cmd.Submit(entries, request_id, strict, nonce=os.urandom(16).hex())


def fill_in(entry: Json, model: JobSpec) -> None:
    """Give an entry of a submit the environment of a job, under its own variables, and its destinations where it names
    none. Both stay in the ledger: no client is told them. Raises BadSubmit.
    """
    env = entry.get("env", [])
    if not isinstance(env, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in env):
        raise BadSubmit("env must be a list of pairs of name and value")
    entry["env"] = [list(pair) for pair in (dict(model.env) | {str(name): value for name, value in env}).items()]
    entry.setdefault("notify", list(model.notify))


def _entry(given: Any) -> JobSpec | Entry:
    if not isinstance(given, dict):
        return from_json(JobSpec, given)
    if "like" in given:
        raise BadSubmit("like names a job of a running daemon: a spooled submit cannot have it")
    plain = dict(given)
    array, held, after = plain.pop("array", None), plain.pop("held", False), plain.pop("after_entries", [])
    conditions = plain.pop("condition_entries", [])
    for name in MEMBERS:
        plain.pop(name, None)
    spec = from_json(JobSpec, plain)
    if not isinstance(held, bool):
        raise BadSubmit("held must be true or false")
    if not isinstance(after, list) or not all(type(each) is int for each in after):
        raise BadSubmit("after_entries must be a list of places of earlier jobs in the list")
    if not isinstance(conditions, list) or not all(map(_is_condition, conditions)):
        raise BadSubmit(f"condition_entries must be a list of [one of {', '.join(KINDS)}, place of an earlier job]")
    if array in (None, 0) and not held and not after and not conditions:
        return spec
    plan = None if array in (None, 0) else array_of(array)
    return Entry(spec, plan, held, tuple(after), tuple((kind, place) for kind, place in conditions))


def _is_condition(given: Any) -> bool:
    return isinstance(given, list) and len(given) == 2 and given[0] in KINDS and type(given[1]) is int


def array_of(given: Any) -> Array:
    """`{"indices": [1, 2] | "1-100", "sweep": {"lr": ["0.1"]}, "max_parallel": 4}`. Raises ValueError."""
    if not isinstance(given, dict):
        raise BadSubmit("array must be an object with indices, sweep or both")
    unknown = next((key for key in given if key not in _OF_ARRAY), None)
    if unknown is not None:
        raise BadSubmit(f"array has no {unknown!r}: it takes {', '.join(_OF_ARRAY)}")
    indices, sweep, most = given.get("indices"), given.get("sweep") or {}, given.get("max_parallel") or 0
    if not isinstance(sweep, dict) or type(most) is not int:
        raise BadSubmit("sweep must be an object of lists of strings, and max_parallel a whole number")
    for name, values in sweep.items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadSubmit(f"the values of the sweep {name!r} must be a list of strings")
    if isinstance(indices, str):
        chosen = indices_from(indices)
    elif isinstance(indices, list) and all(type(index) is int for index in indices):
        chosen = indices_of(indices)
    elif indices is None:
        chosen = ()
    else:
        raise BadSubmit("indices must be a list of whole numbers, or text like 1-100")
    return Array(chosen, tuple((name, tuple(values)) for name, values in sweep.items()), most)


# --- answers ----------------------------------------------------------------------------------------------------------

_OWN = ("id", "name", "array_index", "sweep", "reason", "note")
"""What the rows of members of an array may differ in, while nothing has happened to them."""


async def submit_answer(api: ApiContext, ids: Sequence[int]) -> Json:
    """The rows of these jobs, where there are any with `warnings`, the `forecast` of its deadline, and the `latency` of
    an inference."""
    rows = await api.rows(ids)
    jobs = [rows.known(number) for number in ids]
    warning = await unheeded(api, jobs)
    due = [job for job in jobs if job.spec.deadline is not None][:ESTIMATED]
    estimates = await latencies_json(api, rows.world, jobs, rows.now)
    for job in due:
        estimates[job.id] = estimates.get(job.id, {}) | await forecast_json(api, rows.world, job, rows.now)
    return Encoded(_joined(rows, jobs, estimates, warning))


async def dry_run(api: ApiContext, command: Submit) -> Json:
    """What would become of a submit; nothing is recorded."""
    policies, settings = await api.call(lambda controller: (controller.policies, controller.settings))
    rows = await api.rows()
    found = await asyncio.to_thread(tried, rows.world, command, policies, rows.profiles, settings, rows.now)
    return {"dry_run": True, "jobs": found}


def _joined(rows: RowBuilder, jobs: Iterable[Job], estimates: Mapping[int, Json], warning: str) -> bytes:
    """The whole answer. What all members of an array share is encoded once: of 1,000 that takes 1 ms in place of 20
    (`array_of_1000_in_the_api` of benchmarks/submits.py)."""
    found: list[str] = []
    shared: dict[int, tuple[str, str, str]] = {}  # by array: the reason, the note, and all else
    for job in jobs:
        array = job.spec.array if job.id not in estimates and _untouched(rows, job) else 0
        if array not in shared:
            row = _row(rows, job, warning) | estimates.get(job.id, {})
            found.append(encode(row))
            if array:
                rest = encode({key: value for key, value in row.items() if key not in _OWN})[1:]
                shared[array] = (encode(row["reason"]), encode(row["note"]), rest)
            continue
        why, note, rest = shared[array]
        if job.held:  # they name the job
            why, note = encode(rows.reason(job)), encode(rows.note(job))
        name, index, sweep = encode(job.spec.name), job.spec.array_index, encode(dict(job.spec.sweep) or None)
        own = f'"id":{job.id},"name":{name},"array_index":{index},"sweep":{sweep}'
        found.append(f'{{{own},"reason":{why},"note":{note},{rest}')
    return encoded(f'"jobs":[{",".join(found)}]')


def _row(rows: RowBuilder, job: Job, warning: str) -> Json:
    """A job's row with its `warnings`; `warning`: that of a deadline which nothing is done for, "" for none."""
    unheard = [f"its notifications fail: {each}: hpcdl notifications" for each in failing(rows.world, job.spec.notify)]
    doubts = [*doubts_of(rows.world, job.spec), *unheard]
    if job.outcome is JobState.CANCELLED and (never := never_why(rows.world, job)):
        doubts.insert(0, f"cancelled, since it can never start: {never}: {again_text(rows.world, job)}")
    if warning and job.spec.deadline is not None:
        doubts.append(warning)
    return rows.job(job) | ({"warnings": doubts} if doubts else {})


def _untouched(rows: RowBuilder, job: Job) -> bool:
    """Whether its row is that of the other members of its array, but for its own keys."""
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

    `placement`: what it would be given at once, None: it would wait, and `reason` says for what. `starts_at`;
    `ends_at`, from `ends_low_at` to `ends_high_at`: where they can be predicted, else None. `forecast`: of its
    deadline, where it has one. Raises CommandRefused.
    """
    draft = Draft(world)
    intake = Intake(draft, now, policies=policies, profiles=profiles, settings=settings, pending={}, missed={})
    ids = intake.take(command)
    intake.finish()
    view = without_light_runs(Views().build(draft.world, profiles, now))
    policy = policies.make(draft.world.policy)
    plan, warning = policy.decide(view), deadlines_unheeded(policy, draft.world.objective)
    targets = {target.job: target for target in plan.targets if target.job in set(ids)}
    reasons = {number: target.reason for number, target in targets.items()}
    rows = RowBuilder(draft.world, profiles, reasons, now, queue=queue_of(draft.world, view))
    found = []
    jobs = [view.by_id[number] for number in ids if number in view.by_id]
    estimates = _starts_and_ends(view, jobs, draft.world.policy)
    for number in ids:
        job = draft.world.jobs[number]
        target = targets.get(number)
        placement = None if target is None else target.placement
        eta = estimates.get(number)
        row = _row(rows, job, warning)
        row["id"] = None  # nobody has it yet
        row["would_start"] = placement is not None
        row["placement"] = None if placement is None else {share.node: list(share.gpus) for share in placement.shares}
        if target is not None and placement is not None:
            row["reason"], row["note"] = target.reason, None  # else its own, as `hpcdl why` would say it
        elif job.held:
            row["reason"] = row["note"] = "held by its user, until hpcdl release"  # and not of which id
        starts, ends = (None, None) if eta is None else (eta.starts, eta.ends)
        row["starts_at"] = now if placement is not None else None if starts is None else now + starts.expected_s
        row["ends_at"] = None if ends is None else now + ends.expected_s
        row["ends_low_at"] = None if ends is None else now + ends.low_s
        row["ends_high_at"] = None if ends is None else now + ends.high_s
        if number in ids[:ESTIMATED] and (told := forecast(draft.world, job, profiles, now)) is not None:
            row["forecast"] = told
        if number in ids[:ESTIMATED] and job.spec.infers and number in view.by_id:
            row["latency"] = latency(draft.world, view, job, profiles)
        found.append(row)
    return found


ESTIMATED = 50
"""Of so many jobs it is said when they would start and end; each is one look ahead over all jobs."""


def _starts_and_ends(view: View, jobs: Iterable[JobView], policy: str) -> dict[int, "Eta"]:
    """When jobs would first have GPUs and when they would be done, by id, if nothing else came."""
    chosen = [job for job in jobs if job.profile is not None and job.total is not None and not job.blocked][:ESTIMATED]
    if not chosen:
        return {}
    from hpcdl.adaptive.eta import grounds_of  # numpy takes its time, and few submits are tried

    grounds = {job.id: grounds_of(view, job, policy) for job in chosen}
    return {number: found.eta() for number, found in grounds.items() if found is not None and found.starts is not None}
