"""The measures of a run from its history. Times are seconds; those of jobs count from the run's first submit.

`account` has the shares of GPU time, `hpcdl/sim/results.py` the measures of simulated runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hpcdl.core.model.incarnation import Cause, Purpose
from hpcdl.core.model.profile import Profile, find_profile
from hpcdl.core.model.world import JobState
from hpcdl.report.history import History, JobAttempt, JobHistory, Phase, Piece

_BY_POLICY = (Purpose.RESCALE, Purpose.PREEMPT)


@dataclass(frozen=True, slots=True)
class JobMeasures:
    """The measures of one job. `start_s`, `end_s`: first grant of GPUs and end, None if not (yet). `wait_s` and `jct_s`
    count from its own submit. `gpus`: (time, number of GPUs held from then on), ending with 0 once it is finished.

    `lost_s`: from each of a policy's requests to suspend until its next attempt trains, the wait for GPUs between
    included; what users hold and daemons stop is not the policy's loss.
    """

    id: int
    name: str
    state: JobState | None
    start_s: float | None
    end_s: float | None
    wait_s: float | None
    jct_s: float | None
    gpus: tuple[tuple[float, int], ...]
    suspends: int
    resumes: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class RunMeasures:
    """The measures of a whole run.

    `utilisation` is work done over work possible: while a job trains on n GPUs, each of them counts with the share
    rate(n) / (n * rate(1)) of its profile, so GPUs that a job holds without getting faster by them count as idle; a GPU
    of a job without a profile counts in full while that job trains. `held` is the plain share of GPU time held by
    jobs. Both are of all GPUs from the first submit to the end; None where that is no time or no GPU.
    """

    makespan_s: float
    utilisation: float | None
    held: float | None
    suspends: int
    lost_s: float
    jobs: tuple[JobMeasures, ...]


def measure(history: History, profiles: Mapping[str, Profile] | None = None) -> RunMeasures:
    """The measures of a history. `profiles`: see `find_profile`; without one, a job's GPUs count in full."""
    makespan_s = history.end - history.begin
    possible = makespan_s * len(history.gpus)
    jobs = {job.id: job for job in history.jobs}
    held = sum(span.end_at - span.start_at for span in history.spans)
    worked = 0.0
    for span in history.spans:
        job = jobs[span.job]
        profile = None if job.profile is None else find_profile(profiles or {}, job.profile)
        trained = (piece for piece in span.pieces if piece.phase is Phase.TRAINING)
        worked += sum(_share(profile, piece) * (piece.end - piece.begin) for piece in trained)
    measured = tuple(_measure_job(job, history.begin) for job in history.jobs)
    return RunMeasures(
        makespan_s=makespan_s,
        utilisation=worked / possible if possible > 0 else None,
        held=held / possible if possible > 0 else None,
        suspends=sum(job.suspends for job in measured),
        lost_s=sum(job.lost_s for job in measured),
        jobs=measured,
    )


def _share(profile: Profile | None, piece: Piece) -> float:
    """How much of each of its GPUs a job uses that trains on so many."""
    return 1.0 if profile is None else profile.rate(piece.per_node, piece.nodes) / (piece.gpus * profile.rate(1))


def _measure_job(job: JobHistory, begin: float) -> JobMeasures:
    start = job.attempts[0].start_at if job.attempts else None
    end = job.finished_at
    suspends = sum(1 for attempt in job.attempts if attempt.cause is Cause.SUSPENDED)
    pairs = [
        (attempt, after) for attempt, after in zip(job.attempts, job.attempts[1:], strict=False) if _suspended(attempt)
    ]
    return JobMeasures(
        id=job.id,
        name=job.name,
        state=job.state,
        start_s=None if start is None else start - begin,
        end_s=None if end is None else end - begin,
        wait_s=None if start is None else start - job.submitted_at,
        jct_s=None if end is None else end - job.submitted_at,
        gpus=_gpus_over_time(job, begin),
        suspends=suspends,
        resumes=len(pairs),
        lost_s=sum(
            after.ready_at - attempt.asked_at
            for attempt, after in pairs
            if attempt.asked_at is not None and after.ready_at is not None and attempt.purpose in _BY_POLICY
        ),
    )


def _suspended(attempt: JobAttempt) -> bool:
    return attempt.cause is Cause.SUSPENDED and attempt.asked_at is not None


def _gpus_over_time(job: JobHistory, begin: float) -> tuple[tuple[float, int], ...]:
    """Numbers of GPUs held; a gap between two attempts is a 0 only where the job waited for GPUs."""
    steps: list[tuple[float, int]] = []
    for attempt, after in zip(job.attempts, (*job.attempts[1:], None), strict=False):  # a job may have no attempt yet
        steps += [(at - begin, gpus) for at, _, _, gpus in attempt.sizes()]
        if attempt.end_at is not None and (after is None or after.start_at > attempt.end_at):
            steps.append((attempt.end_at - begin, 0))
    return tuple(steps)
