"""Starts and ends to the second, and the same from poll to poll, from what bjobs -o tells to the minute.

The time that a job has run is told in seconds, so that its start is known as well as a poll is quick; it stands still
while the job is suspended. What was told first of a run is kept for as long as it is that run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpcdl.core.pilot import BatchJob, BatchState
from hpcdl.lsf import moments

SAME_S = 2.0
"""Ends that differ by less are the same one, told by two polls."""


@dataclass(frozen=True, slots=True)
class Told:
    """A job as one call of bjobs tells it. `start`: as it stands there; `ran_s`: None where it is not told."""

    job: BatchJob
    start: float | None = None
    ran_s: float | None = None


def start_of(told: Mapping[str, str], now: float) -> float | None:
    """The start, to the second where the time run fits to the minute that is told."""
    start, ran = moments.moment(told.get("start_time", ""), now), moments.run_time(told.get("run_time", ""))
    if start is None or ran is None or start % 60:
        return start
    return now - ran if start <= now - ran < start + 60 else start


def end_of(told: Mapping[str, str], now: float) -> float | None:
    """When LSF ends it: as LSF says, for the asked walltime does not count in an interruptible backfill queue."""
    limit, ran = moments.run_limit(told.get("runtimelimit", "")), moments.run_time(told.get("run_time", ""))
    planned = now + limit - ran if limit is not None and ran is not None else None
    finish = told.get("finish_time", "")
    if (at := moments.moment(finish, now)) is not None and not finish.endswith(("E", "X")):
        return planned if planned is not None and at <= planned < at + 60 else at
    if planned is not None:
        return planned
    if (left := moments.time_left(told.get("time_left", ""))) is not None:
        return now + left
    start = start_of(told, now)
    return start + limit if start is not None and limit is not None else None


class Steady:
    """What was told of the runs that still go on."""

    def __init__(self) -> None:
        self._last: dict[str, Told] = {}

    def job(self, told: Told) -> BatchJob:
        """The job, with the start and the end that were told first. It is another run when its start is told
        differently, or when it has run for less time than before.
        """
        job, last = told.job, self._last.pop(told.job.id, None)
        if last is not None and job.started_at is not None and last.start == told.start:
            if told.ran_s is None or last.ran_s is None or told.ran_s >= last.ran_s:
                until = job.until
                if until is not None and last.job.until is not None:
                    stands = job.state is BatchState.SUSPENDED  # its end moves on with the clock until it is resumed
                    until = last.job.until if stands or abs(until - last.job.until) < SAME_S else until
                job = replace(job, started_at=last.job.started_at, until=until)
        if job.started_at is not None and job.state is not BatchState.ENDED:
            self._last[job.id] = replace(told, job=job)
        return job
