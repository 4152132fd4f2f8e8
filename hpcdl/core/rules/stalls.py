"""When a job makes no progress: a pure decision from what agents measured, by their own clocks.

An agent that is away measures nothing, so silence is never taken for a stall; nor is time in which a machine, an agent
or a trainer was stopped, for agents leave that out.
"""

from collections.abc import Iterable

from hpcdl.core.fold.observations import OF_A_START
from hpcdl.core.model.commands import StallMeasurement
from hpcdl.core.model.events import JobStalled, StallOver
from hpcdl.core.model.incarnation import NO_OUTPUT, NO_STEP, NOT_READY, Incarnation, IncarnationState
from hpcdl.core.model.world import Job, World

LEAST_S = 600.0
"""Where nothing is set, no job is said to stall that made a step within this time, ..."""

STEPS = 20.0
"""... or within so many times what its steps take."""

UNKNOWN_S = 3600.0
"""The same, for the first step of an incarnation and for its start, of which nobody knows how long they take."""

STARTS = 3.0
"""A start may take so many times what starts of such jobs usually take."""


def stall_events(
    world: World, measured: Iterable[StallMeasurement], now: float, setting: float | None
) -> list[JobStalled | StallOver]:
    """What is news of these: jobs that stall, and jobs that go on again. `setting`: `stall_s`, see `limit_s`."""
    found: list[JobStalled | StallOver] = []
    for still in measured:
        job = world.jobs.get(still.job)
        incarnation = job.incarnation(still.incarnation) if job is not None else None
        if job is None or incarnation is None or not _watched(world, incarnation, still):
            continue
        what, quiet_s = _quiet(incarnation, still, now)
        limit = limit_s(world, job, incarnation, what, setting)
        stalls = limit is not None and quiet_s is not None and quiet_s >= limit
        if stalls and incarnation.stall is None:
            restart = job.spec.stall_restart
            found.append(
                JobStalled(job.id, incarnation.number, now - (quiet_s or 0.0), what, job.progress.step, restart=restart)
            )
        elif not stalls and incarnation.stall is not None and quiet_s is not None:
            found.append(StallOver(job.id, incarnation.number))
    return found


def _watched(world: World, incarnation: Incarnation, still: StallMeasurement) -> bool:
    """Whether it is to train now: nothing was asked of it, and every agent that could tell of progress is there."""
    if incarnation.state is not IncarnationState.RUNNING or incarnation.stop is not None:
        return False
    if incarnation.rescale_at is not None or incarnation.broken_at is not None:
        return False
    measured = set(still.nodes)
    for part in incarnation.training:
        node = world.nodes.get(part.node)
        if not part.started or part.exited or part.lost or part.node not in measured:
            return False
        if node is None or not node.connected:
            return False
    return True


def _quiet(incarnation: Incarnation, still: StallMeasurement, now: float) -> tuple[str, float | None]:
    """Of which kind the progress is that is missing, and for how long."""
    granted = incarnation.granted_at if incarnation.granted_at is not None else now
    if incarnation.end_at is not None:
        return NO_OUTPUT, still.idle_s  # it makes no step any more
    if still.step_s is not None:
        # A report that came after the measurement counts, too.
        newest = 0.0 if incarnation.progress is None else incarnation.progress.at
        return NO_STEP, min(still.step_s, max(0.0, now - newest))
    if incarnation.attached and incarnation.progress is None:
        return NOT_READY, min(still.started_s, max(0.0, now - granted))
    return NO_OUTPUT, still.idle_s


def limit_s(world: World, job: Job, incarnation: Incarnation, what: str, setting: float | None) -> float | None:
    """Seconds without progress from which on it stalls; None: it is not watched.

    The job's own `stall_s` counts, else the setting; 0 is never. Where both are None, only jobs that report steps are
    watched, with patience: LEAST_S, and STEPS times what its steps take.
    """
    wanted = setting if job.spec.stall_s is None else job.spec.stall_s
    if wanted == 0:
        return None
    usual = STARTS * _usual_start_s(world, job)
    # A program that knows nothing of hpcdl need not print every step.
    printed = not incarnation.attached and (job.spec.progress or job.spec.progress_regex) is not None
    unknown = incarnation.steps <= 0 or printed
    before_steps = what == NOT_READY or (what == NO_STEP and unknown)
    if wanted is not None:
        return max(wanted, usual) if before_steps else wanted
    if what == NO_OUTPUT:
        return None
    if before_steps:
        return max(UNKNOWN_S, usual)
    return max(LEAST_S, STEPS * _step_s(incarnation))


def _step_s(incarnation: Incarnation) -> float:
    """What a step of it takes, as far as its reports tell."""
    progress, steps = incarnation.progress, incarnation.steps
    if progress is None or steps <= 0:
        return 0.0
    return max(0.0, progress.at - progress.ready_at) / steps


def _usual_start_s(world: World, job: Job) -> float:
    """What starts of jobs like it take, the slowest kind of start; 0.0 where nothing was seen."""
    seen = world.observed.get(job.spec.learns_as)
    times = {timing.what: timing for timing in (*world.usual_times, *(seen.times if seen is not None else ()))}
    return max((times[what].seconds / times[what].times for what in OF_A_START if what in times), default=0.0)
