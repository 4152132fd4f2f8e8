"""Whether what a job waits for has come, or never can: conditions on other jobs and on batch jobs.

Once a job has held GPUs it waits for nothing any more, whatever becomes of the others (one may be retried). Pure: views
ask `waiting_why`, endings ask `never_why`.
"""

from collections.abc import Iterator, Sequence

from hpcdl.core.model.dependency import Condition
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.units import ranges
from hpcdl.core.model.world import BatchEnd, Job, JobState, World

_FAILED = (JobState.FAILED, JobState.CANCELLED)
_SHOWN = 3
"""Groups of conditions that a reason names."""


def waiting_why(world: World, job: Job) -> str:
    """What the job waits for, in words; "" where it waits for no other job."""
    spec = job.spec
    if not (spec.after or spec.conditions) or job.first_start_at is not None:
        return ""
    waits = [each for each in spec.after if (before := world.jobs.get(each)) is None or not before.finished]
    numbers = ranges(waits).replace(",", ", ")
    found = [f"{'job' if len(waits) == 1 else 'jobs'} {numbers} to be DONE"] if waits else []
    for group in spec.conditions:
        verdicts = [_verdict(world, job, each) for each in group]
        if True not in verdicts:
            found.append(_alternatives([e for e, known in zip(group, verdicts, strict=True) if known is None] or group))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"waiting for {', '.join(found[:_SHOWN])}{more}" if found else ""


def never_why(world: World, job: Job) -> str:
    """Why the job can never start, in words, as what it waits for cannot come any more; "" where it may."""
    if job.first_start_at is not None:
        return ""
    for number in job.spec.after:
        before = world.jobs.get(number)
        if before is not None and before.outcome in _FAILED:
            return f"job {number}, which it waited for, is {before.outcome}"
    for group in job.spec.conditions:
        if all(_verdict(world, job, each) is False for each in group):
            ends = ", ".join(dict.fromkeys(_end(world, each) for each in group))
            return f"{ends}, and it waited for {_alternatives(group)}"
    return ""


def surely_before(world: World, spec: JobSpec) -> set[int]:
    """The jobs that are over before a job with this spec starts: those that it waits for, and those before them."""
    found = {*_required(spec, "ended"), *_required(spec, "failed")}
    more = list(_required(spec, "done"))
    while more:
        job = world.jobs.get(more.pop())
        if job is not None and job.id not in found:
            found.add(job.id)
            more += _required(job.spec, "done")  # which it was DONE after; another may have been retried since
    return found


def _required(spec: JobSpec, kind: str) -> Iterator[int]:
    """The jobs of which no other can take the place."""
    if kind == "done":
        yield from spec.after
    for group in spec.conditions:
        if len(group) == 1 and group[0].kind == kind and group[0].job:
            yield group[0].job


def batch_end(world: World, job: Job, batch: str) -> BatchEnd | None:
    """How a batch job ended that the job waits for; None: not known, or from before the job's submit or last retry.

    It may have been requeued since, or its id be another's: the batch system is asked again.
    """
    end = world.batch_ends.get(batch)
    since = job.submitted_at if job.retried_at is None else job.retried_at
    return None if end is None or (end.at is not None and end.at < since) else end


def _verdict(world: World, waiting: Job, condition: Condition) -> bool | None:
    """Whether it is met; None: not yet."""
    if condition.batch:
        end = batch_end(world, waiting, condition.batch)
        if end is None:
            return None
        if condition.kind == "ended":
            return True
        return end.done is not None and end.done == (condition.kind == "done")
    job = world.jobs.get(condition.job)
    if job is None:
        return None
    if condition.kind == "started":
        runs = job.running is not None and job.running.started_at is not None
        return True if runs or job.finished or job.last.placement is not None else None
    if not job.finished:
        return None
    return condition.kind == "ended" or (job.outcome in _FAILED) == (condition.kind == "failed")


def _alternatives(group: Sequence[Condition]) -> str:
    return " or ".join(map(str, group))


def _end(world: World, condition: Condition) -> str:
    """How the other job ended."""
    if condition.batch:
        return f"{condition.whose} is over ({world.batch_ends[condition.batch].how})"
    return f"{condition.whose} is {world.jobs[condition.job].outcome}"
