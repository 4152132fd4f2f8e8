"""The attempts of jobs one by one: how long on how many GPUs, how far they came, why they ended, and what was lost.

Pure. What counts as lost is said by `account` alone: `hpcdl show`, `why`, `report` and `timeline` print the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl.core.model.incarnation import Cause, Purpose
from hpcdl.report.account import Story, shares_of
from hpcdl.report.account_events import Interval, Work
from hpcdl.report.curves import merged
from hpcdl.report.history import JobAttempt, Phase, Span


@dataclass(frozen=True, slots=True)
class AttemptMeasures:
    """An attempt with GPUs, at most `gpus`. Times are in seconds since the epoch; `ended_at`, `cause`, `exit_code` are
    None while it lives.

    `first_step`, `last_step`: where its training began and came to, None where it reported none; `saved_step`: where
    the next attempt goes on. `gpu_s`: GPU-seconds that it held, of which `lost_gpu_s` were lost, as in the account;
    `lost_s`: seconds of its training, whatever its GPUs, that were, and `lost_steps`: the steps of these.
    """

    job: int
    number: int
    nodes: tuple[str, ...]
    gpus: int
    started_at: float
    ready_at: float | None
    ended_at: float | None
    purpose: Purpose | None
    cause: Cause | None
    detail: str
    exit_code: int | None
    first_step: int | None
    last_step: int | None
    saved_step: int | None
    gpu_s: float
    lost_steps: int
    lost_s: float
    lost_gpu_s: float


def attempts_of(story: Story) -> Iterator[AttemptMeasures]:
    """All attempts that held GPUs, by job and number."""
    spans: dict[tuple[int, int], list[Span]] = {}
    for span in story.history.spans:
        spans.setdefault((span.job, span.incarnation), []).append(span)
    for job in story.history.jobs:
        for attempt in job.attempts:
            key = (job.id, attempt.number)
            yield _measures(job.id, attempt, spans.get(key, []), story.watch.work.get(key, Work()))


def _measures(job: int, attempt: JobAttempt, spans: list[Span], work: Work) -> AttemptMeasures:
    trained: list[Interval] = []
    lost_gpu_s = 0.0
    for span in spans:
        lost = [(low, high) for low, high, share in shares_of(span, work) if share == "lost"]
        lost_gpu_s += sum(high - low for low, high in lost)
        ready = [piece for piece in span.pieces if piece.phase is Phase.TRAINING]
        trained += [each for each in lost if any(piece.begin <= each[0] < piece.end for piece in ready)]
    ended = work.ended
    return AttemptMeasures(
        job=job,
        number=attempt.number,
        nodes=tuple(dict.fromkeys(tenure.node for tenure in attempt.tenures)),
        gpus=max(gpus for _, _, _, gpus in attempt.sizes()),
        started_at=attempt.start_at,
        ready_at=attempt.ready_at,
        ended_at=attempt.end_at,
        purpose=attempt.purpose,
        cause=attempt.cause,
        detail="" if ended is None else ended.detail,
        exit_code=None if ended is None else ended.code,
        first_step=work.began,
        last_step=ended.reached if ended is not None and (work.gained or work.lost_steps) else work.step,
        saved_step=None if ended is None else ended.step,
        gpu_s=sum(span.end_at - span.start_at for span in spans),
        lost_steps=work.lost_steps,
        lost_s=sum(high - low for low, high in merged(trained)),
        lost_gpu_s=lost_gpu_s,
    )
