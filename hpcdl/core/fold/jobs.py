"""Effects of the events of jobs: submits and other wishes of users, deadlines, ends, retirement.

What users may ask for is checked before, in `rules/jobs.py`; an effect only refuses what contradicts the world.
"""

from collections.abc import Sequence
from itertools import islice

from hpcdl.core.fold.effect import Decision, effect
from hpcdl.core.fold.write import job_of, story
from hpcdl.core.model import events as ev
from hpcdl.core.model.arrays import expand
from hpcdl.core.model.frozen import changed, unchecked
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import POISON, NoticeKind
from hpcdl.core.model.world import (
    DrillRecord,
    Expectation,
    FailureHistory,
    Job,
    JobEnd,
    JobProgress,
    JobState,
    World,
)

REPEATED_S = 30 * 24 * 3600.0
"""For so long at least a submit may be repeated: by a client that had no answer, or from a spool."""

REMEMBERED = 1_000
"""The last submits are remembered however old they are: what was taken in from the spool right before the daemon was
killed, and is still there when it is started months later, is among them. One look takes 200 files."""

ROUND = 1_000
"""Jobs between two looks for submits that are to be forgotten: each goes through all that go."""

SUBMITTED = ("jobs", "active", "request_ids", "awaited", "awaited_batch")


@effect(ev.JobSubmitted, writes=SUBMITTED)
def job_submitted(world: World, event: ev.JobSubmitted, at: float) -> None:
    if event.job in world.jobs:
        raise story(world, event, "that job exists")
    spec = _sharing(world, event.job, event.spec)
    progress = JobProgress(total=spec.steps)
    world.jobs[event.job] = Job(id=event.job, spec=spec, submitted_at=at, progress=progress, nonce=event.nonce)
    _submitted(world, (event.job,), spec, event.request_id, at)


@effect(ev.ArraySubmitted, writes=SUBMITTED, jobs=lambda world, event: event.members)
def array_submitted(world: World, event: ev.ArraySubmitted, at: float) -> None:
    members = event.members
    if any(number in world.jobs for number in members):
        raise story(world, event, "that job exists")
    global _last
    last = _last  # several threads fold: what is looked at is what is used
    if last is None or last[0] is not event or last[1] != at:
        template = _sharing(world, event.job, event.spec)
        progress = JobProgress(total=template.steps)
        first = Job(event.job, template, at, progress=progress, held=event.held, nonce=event.nonce)
        specs = expand(template, event.array, event.job)
        made = {number: changed(first, id=number, spec=spec) for number, spec in zip(members, specs, strict=True)}
        last = _last = (event, at, made)
    world.jobs.update(last[2])
    _submitted(world, members, event.spec, event.request_id, at)


_last: tuple[ev.ArraySubmitted, float, dict[int, Job]] | None = None
"""The jobs of the array that was expanded last: controller and journal fold the same event, and can share them."""


def _sharing(world: World, number: int, spec: JobSpec) -> JobSpec:
    """The spec; jobs of one shell share kilobytes of environment, which are kept once."""
    before = world.jobs.get(number - 1)
    if before is not None and before.spec.env == spec.env and before.spec.env is not spec.env:
        return unchecked(spec, env=before.spec.env)
    return spec


def _submitted(world: World, numbers: Sequence[int], spec: JobSpec, request_id: str, at: float) -> None:
    world.active.update(dict.fromkeys(numbers))
    world.await_others(spec, numbers)
    world.request_ids[request_id] = (*world.request_ids.get(request_id, ()), *numbers)
    following = max(world.next_job, numbers[-1] + 1)
    if following // ROUND > world.next_job // ROUND:
        _forget_submits(world, at - REPEATED_S)
    world.next_job = following


def _forget_submits(world: World, before: float) -> None:
    """Whoever repeats a submit that is as old, and not among the last ones, submits anew."""
    oldest = islice(world.request_ids.items(), max(0, len(world.request_ids) - REMEMBERED))
    over, left = [], 0
    for place, (request_id, numbers) in enumerate(oldest, 1):
        job = world.jobs.get(numbers[0])
        over.append(request_id)
        if job is not None:  # of one that was retired it is known by the next one only how old it is
            if job.submitted_at >= before:
                break
            left = place
    for request_id in over[:left]:
        del world.request_ids[request_id]


@effect(ev.JobRetried, writes=("jobs", "active", "awaited", "awaited_batch"))
def job_retried(world: World, event: ev.JobRetried, at: float) -> None:
    job = job_of(world, event)
    if job.outcome not in (JobState.FAILED, JobState.CANCELLED):
        raise story(world, event, "it has neither failed nor been cancelled")
    anew = bool(event.beginning)
    world.jobs[job.id] = changed(
        job,
        end=None,
        held=False,
        cancelling=False,
        verdict=None,
        progress=JobProgress(total=job.progress.total) if anew else changed(job.progress, step=job.progress.saved_step),
        suspended=False,
        failures=FailureHistory(total=event.failures),
        last=changed(job.last, exit_code=None),
        warm_failed=False,
        expectation=None,
        beginning=event.beginning or job.beginning,
        ran_s=0.0,
        out_of_time=False,
        retried_at=at if job.spec.awaits_batch else None,
        fruitless=0,
        unfit_nodes=(),
        held_after="",
        ends_cut=0,
        saved_by=0 if anew else job.saved_by,
        setback=None if anew else job.setback,
        checkpoint_missing=False,
    )
    later = bool(world.active) and job.id < next(reversed(world.active))
    world.active[job.id] = None
    if later:
        world.active = dict.fromkeys(sorted(world.active))
    world.await_others(job.spec, (job.id,))


@effect(ev.JobHeld)
def job_held(world: World, event: ev.JobHeld, at: float) -> None:
    world.jobs[event.job] = changed(unfinished(world, event), held=True, held_after=event.after)


@effect(ev.TimeLimitReached)
def time_limit_reached(world: World, event: ev.TimeLimitReached, at: float) -> None:
    world.jobs[event.job] = changed(unfinished(world, event), out_of_time=True)


@effect(ev.JobAnnotated, decides=Decision.NONE)
def job_annotated(world: World, event: ev.JobAnnotated, at: float) -> None:
    job = job_of(world, event)
    kept = {**dict(job.annotations), **dict(event.changes)}
    annotations = tuple(sorted((key, value) for key, value in kept.items() if value))
    world.jobs[job.id] = changed(job, annotations=annotations)


@effect(ev.PriorityChanged)
def priority_changed(world: World, event: ev.PriorityChanged, at: float) -> None:
    job = unfinished(world, event)
    world.jobs[job.id] = changed(job, spec=unchecked(job.spec, priority=event.priority))


@effect(ev.JobReleased)
def job_released(world: World, event: ev.JobReleased, at: float) -> None:
    job = unfinished(world, event)
    if job.held_after:  # what it failed of is said to be mended: failures are counted anew
        failures = FailureHistory(total=job.failures.total, retries_used=job.failures.retries_used)
        job = changed(job, held_after="", failures=failures, fruitless=0, unfit_nodes=(), ends_cut=0)
    world.jobs[event.job] = changed(job, held=False)


@effect(ev.CancelRequested)
def cancel_requested(world: World, event: ev.CancelRequested, at: float) -> None:
    world.jobs[event.job] = changed(unfinished(world, event), cancelling=True, cancel_why=event.why)


@effect(ev.JobDrilled)
def job_drilled(world: World, event: ev.JobDrilled, at: float) -> None:
    world.jobs[event.job] = changed(job_of(world, event), drill=DrillRecord(event.drill, at))


def unfinished(world: World, event: ev.JobEvent) -> Job:
    """The job, which must not be finished."""
    job = job_of(world, event)
    if job.finished:
        raise story(world, event, "it is finished")
    return job


def _end_notified(event: ev.JobEnded) -> NoticeKind:
    if event.state is not JobState.FAILED:
        return NoticeKind.END
    return NoticeKind.POISON if event.detail.startswith(POISON) else NoticeKind.FAILURE


@effect(ev.JobEnded, writes=("jobs", "active"), notifies=_end_notified)
def job_ended(world: World, event: ev.JobEnded, at: float) -> None:
    job = unfinished(world, event)
    if job.live:
        raise story(world, event, "an incarnation still lives")
    world.jobs[job.id] = changed(
        job,
        end=JobEnd(event.state, at),
        held=False,
        suspended=False,
        last=changed(job.last, detail=event.detail),
    )
    del world.active[job.id]
    if job.id in world.targets:
        world.targets = {number: target for number, target in world.targets.items() if number != job.id}


@effect(ev.JobsRetired, writes=("jobs", "awaited"), decides=Decision.NONE)
def jobs_retired(world: World, event: ev.JobsRetired, at: float) -> None:
    counts, folders = dict(world.retired), dict(world.folders)
    for number in event.jobs:
        job = world.jobs.get(number)
        if job is None or job.outcome is None:
            raise story(world, event, f"job {number} is not a finished one")
        if any(each in world.active for each in world.awaited.get(number, ())):
            raise story(world, event, f"a job waits for job {number}")
    for number in event.jobs:
        job = world.jobs.pop(number)
        world.awaited.pop(number, None)
        state = str(job.outcome)
        counts[state] = counts.get(state, 0) + 1
        folder = job.spec.checkpoint_dir
        if folder is not None:
            incarnation, beginning = folders.get(folder, (0, 0))
            folders[folder] = (max(incarnation, job.last_incarnation), max(beginning, job.beginning))
    world.retired, world.folders = counts, folders


@effect(ev.DeadlineForeseen, decides=Decision.NONE)
def deadline_foreseen(world: World, event: ev.DeadlineForeseen, at: float) -> None:
    world.jobs[event.job] = changed(
        unfinished(world, event), expectation=Expectation(event.meets, at, event.probability, event.ends_at)
    )


@effect(ev.DeadlineSlipped, decides=Decision.NONE, notifies=NoticeKind.DEADLINE)
def deadline_slipped(world: World, event: ev.DeadlineSlipped, at: float) -> None:
    world.jobs[event.job] = changed(
        unfinished(world, event), expectation=Expectation(False, at, event.probability, event.ends_at, slipped=True)
    )
