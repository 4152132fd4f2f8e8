"""An exported ledger as a workload: what `hpcdl events --json` prints.

What happened is read by `hpcdl/report/spans.py`, as for every page; here it becomes jobs with steps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import CodecError
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.profile import ProfileError, find_profile
from hpcdl.core.model.world import JobState
from hpcdl.report.history import JobHistory
from hpcdl.report.spans import event_of, read_history
from hpcdl.sim.readers.job_rules import ReaderDefaults, WorkloadBuilder, rigid
from hpcdl.sim.readers.source import Place, read_text
from hpcdl.sim.workload import Workload


@dataclass(slots=True)
class _LedgerJob:
    spec: JobSpec
    at: float
    step: int = 0


def read_ledger(path: Path, given: ReaderDefaults) -> Workload:
    """The jobs as they were submitted; the first submit becomes 0.

    A job that was done has the steps of its spec, another one the steps that it came to. One without a profile, or
    that reported no step, runs for as long as it did, on the GPUs that it had at most. Jobs that never trained are left
    out and counted in the notes. The nodes are the caller's: a ledger says which came, not which will.
    """
    place = Place(path)
    try:
        data = json.loads(read_text(path))
        rows = data["events"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError("events is no list of events")
        history = read_history(rows)
        seen = _seen(rows)
    except json.JSONDecodeError as error:
        place.line = error.lineno
        place.wrong("", f"not JSON: {error.msg}; expected what hpcdl events --json prints")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, AttributeError) as error:
        reason = ("it has no " if isinstance(error, KeyError) else "") + " ".join(str(error).split())[:100]
        place.wrong("", f"not what hpcdl events --json prints: {reason}")
    jobs = WorkloadBuilder(place, given)
    for job in history.jobs:
        if job.id in seen:
            _add(jobs, job, seen[job.id])
    none = "tells of no job that trained: export it with hpcdl events --json"
    return jobs.workload(f"ledger {path.name}", none, rebase=True)


def _seen(rows: list[Mapping[str, Any]]) -> dict[int, _LedgerJob]:
    """Spec, submit and last step of every job."""
    seen: dict[int, _LedgerJob] = {}
    for row in rows:
        try:
            event = event_of(row)
        except CodecError:
            continue
        if isinstance(event, ev.JobSubmitted):
            seen[event.job] = _LedgerJob(event.spec, float(row["at"]))
        elif isinstance(event, ev.ArraySubmitted):
            submitted = zip(event.members, event.specs, strict=True)
            seen.update((number, _LedgerJob(spec, float(row["at"]))) for number, spec in submitted)
        elif isinstance(event, ev.Progressed | ev.Saved | ev.TrainerReady | ev.IncarnationEnded) and event.job in seen:
            reached = event.reached if isinstance(event, ev.IncarnationEnded) else event.step
            job = seen[event.job]
            job.step = max(job.step, reached or 0)
    return seen


def _add(jobs: WorkloadBuilder, job: JobHistory, seen: _LedgerJob) -> None:
    """The job with the steps that it did; without a profile or steps, with the time that it trained."""
    spec = seen.spec
    trained = sum(
        max(0.0, (attempt.asked_at or attempt.exited_at or attempt.end_at or attempt.ready_at) - attempt.ready_at)
        for attempt in job.attempts
        if attempt.ready_at is not None
    )
    profile = find_profile(jobs.given.profiles, spec.profile) if spec.profile else None
    steps = spec.steps if job.state is JobState.DONE and spec.steps else seen.step
    draw: int | None = None
    if profile is None or not steps:
        if trained <= 0:
            jobs.note("left out: a job that never trained")
            return
        draw = max(attempt.placement.per_node for attempt in job.attempts)
        nodes = max(len(attempt.placement.nodes) for attempt in job.attempts)
        try:
            profile, steps = rigid(spec.profile or "no profile", draw, nodes), max(1, round(trained))
        except ProfileError as error:
            jobs.place.wrong("", f"job {job.id}: {error}")
        jobs.note("no profile, or no step reported: it trains for as long as it did")
    elif job.state is not JobState.DONE:
        jobs.note("was not done: it has the steps that it came to")
    jobs.add_job(
        submit_s=seen.at,
        name=spec.name,
        profile=jobs.with_costs(profile),
        steps=steps,
        gpus_min=spec.gpus_min,
        gpus_max=spec.gpus_max,
        gpus_counts=tuple(spec.gpus_counts),
        nodes=spec.nodes,
        nodes_max=spec.nodes_max,
        user=spec.user,
        deadline_s=spec.deadline if spec.deadline is not None and spec.deadline >= seen.at else None,
        draw=draw,
    )
