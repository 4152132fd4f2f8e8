"""Finished jobs leave the world once there are many, so that a daemon of months costs what one of days does.

The event names them; the ledger keeps each as it was, in a table, for whoever asks. None comes back.
"""

from collections.abc import Iterable

from hpcdl.core.model.world import Job, JobState, World, is_unknown

DONE_S = 24 * 3600.0
"""For so long after its end a job stays, however many there are: others may be submitted that wait for it."""
FAILED_S = 7 * 24 * 3600.0
"""The same of one that FAILED or was CANCELLED, since it may be retried."""
BATCH = 1_000
"""Jobs of one event; an array leaves as a whole, and may be larger."""


def jobs_to_retire(world: World, now: float, keep: int, busy: Iterable[int] = ()) -> tuple[int, ...]:
    """The ids that are to leave now, the lowest first; () while there are hardly more than `keep` finished jobs.

    Never one for which an unfinished job waits, that a notice is about, or that is in `busy`; and of an array all, or
    none.
    """
    surplus = len(world.jobs) - len(world.active) - keep
    if surplus < max(1, min(BATCH, keep // 10)):
        return ()
    needed = {*busy, *(notice.job for notice in world.notices.values())}
    for number in world.active:
        needed.update(world.jobs[number].spec.awaits)
    old = {job.id for job in world.jobs.values() if _is_old(job, now)} - needed
    incomplete = {job.spec.array for job in world.jobs.values() if job.id not in old} - {0}
    most, chosen, array = min(surplus, BATCH), list[int](), 0
    for number in sorted(old):
        which = world.jobs[number].spec.array
        if len(chosen) >= most and not (which and which == array):
            break
        if which not in incomplete:
            chosen.append(number)
            array = which
    return tuple(chosen)


def _is_old(job: Job, now: float) -> bool:
    if job.finished_at is None:
        return False
    return now - job.finished_at >= (DONE_S if job.outcome is JobState.DONE else FAILED_S)


def is_retired(world: World, number: int) -> bool:
    """Whether there was such a job, which has left the world. Ids are given one after the other, and never again."""
    return 0 < number < world.next_job and number not in world.jobs and not is_unknown(world, number)


def as_history(number: int) -> str:
    """What is said to whoever wants to do something with such a job."""
    return f"job {number} ended long ago and is kept as history only (hpcdl show {number})"
