"""The post-mortem of a job, from its events: where its time went, as `hpcdl why` answers for a finished one.

Seconds of the job, whatever its GPUs; the account of GPU-hours, which also says what was lost, is in `report/account`,
the running counts of all jobs in `meter`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdl.agent.supervisor.exit_cause import TEXTS
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.incarnation import Cause, Purpose
from hpcdl.core.model.notice import POISON
from hpcdl.core.model.units import count, ranges, seconds_text, took_text
from hpcdl.core.model.world import Job, JobState
from hpcdl.report.account import story_of
from hpcdl.report.attempts import attempts_of

_NEXT = {
    Cause.USER_ERROR: "hpcdl logs {id} shows what it printed; corrected, hpcdl retry {id} runs it again",
    Cause.OUT_OF_MEMORY: "with a smaller batch, or on more GPUs, hpcdl retry {id} runs it again",
    Cause.STALLED: "hpcdl logs {id} shows what it printed before it stood still; then hpcdl retry {id} runs it again",
    Cause.INFRASTRUCTURE: "that was not the job's doing: hpcdl retry {id} runs it again",
    Cause.NODE_LOST: "that was not the job's doing: hpcdl retry {id} runs it again",
    Cause.PREEMPTED: "hpcdl retry {id} runs it again",
}
_HOST_MEMORY = "its node had no memory left for it: where it needs less, hpcdl retry {id} runs it again"
_LIMITED = "hpcdl submit --like {id} --mem SIZE runs it again with more memory"
_LASTING = "hpcdl logs {id} shows what it printed; once the reason is mended, hpcdl retry {id} runs it again"


@dataclass(slots=True)
class PostMortem:
    """Seconds that a job waited for GPUs, started and trained; checkpoints and the seconds that they took; suspends by
    purpose; the jobs for which it was suspended; starts; steps, seconds of training and GPU-seconds that were lost, the
    last also by starts that failed.
    """

    waited_s: float = 0.0
    started_s: float = 0.0
    trained_s: float = 0.0
    saves: int = 0
    save_s: float = 0.0
    suspends: Counter[Purpose] = field(default_factory=Counter)
    takers: list[int] = field(default_factory=list)
    starts: int = 0
    lost_steps: int = 0
    lost_s: float = 0.0
    lost_gpu_s: float = 0.0

    def to_json(self, job: Job) -> dict[str, Any]:
        """As the API answers it."""
        return {**to_json(self), "gpu_s": job.held_gpu_s}


@dataclass(slots=True)
class _Attempt:
    """An incarnation, from its GPUs to its end."""

    since: float
    ready_at: float | None = None
    until: float | None = None
    told: bool = False  # it reports steps: else it trains from its start on, as far as anybody knows


def past_of(records: Sequence[ev.Recorded], submitted_at: float) -> PostMortem:
    """The post-mortem of one job, from its events, oldest first."""
    past = PostMortem()
    for attempt in attempts_of(story_of(records)):
        past.lost_steps += attempt.lost_steps
        past.lost_s += attempt.lost_s
        past.lost_gpu_s += attempt.lost_gpu_s
    runs: dict[int, _Attempt] = {}
    free_since: float | None = submitted_at
    for record in records:
        event, at = record.event, record.at
        if isinstance(event, ev.IncarnationEvent):
            free_since = _take(past, runs, event, at, free_since)
        elif isinstance(event, ev.JobEnded) and free_since is not None:
            past.waited_s += at - free_since
        elif isinstance(event, ev.JobRetried):
            free_since = at
    return past


def _take(
    past: PostMortem, runs: dict[int, _Attempt], event: ev.IncarnationEvent, at: float, free_since: float | None
) -> float | None:
    run = runs.get(event.incarnation)
    match event:
        case ev.StartRequested(placement=placement) | ev.OpenRequested(placement=placement) if placement is not None:
            runs[event.incarnation] = _Attempt(at)
            past.starts += 1
            past.waited_s += 0.0 if free_since is None else at - free_since
            return None
        case ev.SuspendRequested() if run is not None:
            past.suspends[event.purpose] += 1
            past.takers += [job for job in event.takers if job not in past.takers]
            run.until = at if run.until is None else run.until
        case ev.Started() if run is not None and run.ready_at is None:
            run.ready_at = at
        case ev.Attached() if run is not None and not run.told:
            run.told, run.ready_at = True, None
        case ev.TrainerReady() | ev.Progressed() if run is not None and (run.ready_at is None or not run.told):
            run.told, run.ready_at = True, at
        case ev.Saved():
            past.saves += 1
            past.save_s += event.seconds
        case ev.Exited() if run is not None:
            run.until = at if run.until is None else run.until
        case ev.IncarnationEnded():
            if run is not None:  # else a warm start whose gate never opened: others may train meanwhile
                _end(past, run, at)
                return at
        case _:
            pass
    return free_since


def _end(past: PostMortem, run: _Attempt, at: float) -> None:
    until = at if run.until is None else run.until
    ready = until if run.ready_at is None else min(run.ready_at, until)
    past.started_s += ready - run.since
    past.trained_s += until - ready


def _hours(gpu_s: float) -> str:
    hours = gpu_s / 3600
    return f"{'<0.001' if 0 < hours < 0.0005 else f'{hours:.3f}'} GPU-hours"


def aftermath(job: Job, past: PostMortem) -> list[str]:
    """The lines of `hpcdl why` about a finished job."""
    lines = []
    if past.starts:
        took = "" if job.finished_at is None else f" of {seconds_text(job.finished_at - job.submitted_at)}"
        lines.append(
            f"waited {seconds_text(past.waited_s)}{took} for GPUs; started {count(past.starts, 'time')}, which took "
            f"{took_text(past.started_s)}; trained {seconds_text(past.trained_s)}"
        )
        lines.append(f"held {_hours(job.held_gpu_s)}")
    else:
        lines.append(f"never ran; waited {seconds_text(past.waited_s)}")
    if past.saves:
        lines.append(f"saved {count(past.saves, 'time')}, which took {took_text(past.save_s)} in all")
    if past.suspends:
        often = sorted(past.suspends.items(), key=lambda each: -each[1])
        taken = f"for {'job' if len(past.takers) == 1 else 'jobs'} {ranges(past.takers)}"
        others = taken if past.takers else Purpose.PREEMPT.words
        words = {Purpose.PREEMPT: others + ("" if job.drill is None else " or a preemption test")}
        told = ", ".join(f"{number} {words.get(purpose, purpose.words)}" for purpose, number in often)
        lines.append(f"suspended {count(sum(past.suspends.values()), 'time')}: {told}")
    if past.lost_gpu_s > 0:
        steps = f"{count(past.lost_steps, 'step')}, " if past.lost_steps else ""
        trained = f"{took_text(past.lost_s)} of training, " if past.lost_s > 0 else ""
        lines.append(f"lost {steps}{trained}{_hours(past.lost_gpu_s)}, to ends without a new checkpoint")
    if job.outcome is JobState.FAILED and job.last.cause in _NEXT:
        poisoned = job.last.detail.startswith(POISON) and job.last.cause is Cause.INFRASTRUCTURE
        limited = job.last.cause is Cause.OUT_OF_MEMORY and "--mem" in job.last.detail
        host = job.last.cause is Cause.OUT_OF_MEMORY and not any(text.decode() in job.last.detail for text in TEXTS)
        step = _LASTING if poisoned else _LIMITED if limited else _HOST_MEMORY if host else _NEXT[job.last.cause]
        lines.append(step.format(id=job.id))
    return lines
