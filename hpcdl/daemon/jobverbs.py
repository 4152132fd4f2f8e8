"""`POST /v1/jobs/verb`: one verb for many jobs, each of which is answered for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hpcdl.core import commands as cmd
from hpcdl.core.arrays import members_of
from hpcdl.core.commands import Refused
from hpcdl.core.journal import JournalError
from hpcdl.core.model import Job, JobState, World
from hpcdl.core.numbering import no_such_job
from hpcdl.core.retiring import as_history, is_retired
from hpcdl.daemon.answering import Problem

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
}

_FAILED = (JobState.FAILED, JobState.CANCELLED)


def maker(verb: object) -> Callable[[int], cmd.Command]:
    """What makes the verb's command for a job. Raises Problem."""
    make = VERBS.get(verb) if isinstance(verb, str) else None
    if make is None:
        raise Problem(404, f"jobs can be told to {', '.join(VERBS)}", "unknown-verb")
    return make


def chosen(world: World, verb: str, body: Mapping[str, Any]) -> list[int]:
    """The jobs that a request names: `ids`, `array` (those of its members that the verb concerns), and for retry
    `failed` with `since` (seconds since the epoch). Raises Problem."""
    ids, array, failed, since = (body.get(name) for name in ("ids", "array", "failed", "since"))
    if ids is not None and not (isinstance(ids, list) and all(type(each) is int for each in ids)):
        raise Problem(400, "ids must be a list of whole numbers")
    if array is not None and type(array) is not int:
        raise Problem(400, "array must be the id of a job")
    if failed is not None and (type(failed) is not bool or verb != "retry"):
        raise Problem(400, "failed must be true or false, and goes with retry")
    if since is not None and type(since) not in (int, float):
        raise Problem(400, "since must be a number of seconds since the epoch")
    found: dict[int, None] = dict.fromkeys(ids or ())
    if len(found) > MOST:
        raise Problem(400, f"a request names {MOST} jobs at most")
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
        raise Problem(400, "ids or array must name a job")
    return list(found)


def array_of(world: World, number: int) -> Sequence[int]:
    """The members of the array that a job is in. Raises Problem."""
    members = members_of(lambda each: None if (job := world.jobs.get(each)) is None else job.spec, number)
    if not members:
        if is_retired(world, number):
            raise Problem(409, f"{as_history(number)}: submit it again", "finished")
        if number not in world.jobs:
            raise Problem(404, no_such_job(world, number), "unknown-job")
        raise Problem(404, f"job {number} is in no array: hpcdl show {number}", "unknown-job")
    return members


def past_array_of(retired: Callable[[Sequence[int]], list[Job]], number: int) -> list[int]:
    """The same of a job that has left the world, with all of its array. Raises Problem."""
    found = retired((number,))
    array = found[0].spec.array if found else 0
    if not array:
        raise Problem(404, f"job {number} is in no array: hpcdl show {number}", "unknown-job")
    members: list[int] = []
    while True:
        first = array + len(members)
        piece = [job.id for job in retired(range(first, first + AT_ONCE)) if job.spec.array == array]
        members += piece
        if len(piece) < AT_ONCE:
            return members


def settled(
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
        except Refused as refusal:
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
