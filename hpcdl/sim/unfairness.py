"""The jobs of a run that took much longer than their fair share would have, and what would have helped.

Only what the history shows is said: how its time went, who had the GPUs meanwhile, and whether its own were free. What
another decision would have cost others is not reckoned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpcdl.core.model.units import GpuRef, count
from hpcdl.report.history import History, JobHistory
from hpcdl.sim.conditions import SimulatedRun
from hpcdl.sim.workload import NodeSpell, SimJob

Times = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Interval = tuple[float, float]

MOST_OF = 0.5
"""A cause is named where it makes so much of the time."""


@dataclass(frozen=True, slots=True)
class UnfairJob:
    """A job whose finish-time fairness (`results.JobResult`) is above the limit. `why`: in words, with what would have
    helped."""

    job: int
    name: str
    fairness: float
    why: str


def unfair_jobs(run: SimulatedRun, fairness: Mapping[int, float]) -> tuple[UnfairJob, ...]:
    """The jobs above `Conditions.max_slowdown`, the worst first. `fairness`: of each finished job, by its id."""
    above = {number: value for number, value in fairness.items() if value > run.conditions.max_slowdown}
    if not above:
        return ()
    looked = _Occupancy(run.history, run.workload.nodes)
    found = [
        UnfairJob(story.id, story.name, above[story.id], _why(story, run.jobs[story.id], above[story.id], looked))
        for story in run.history.jobs
        if story.id in above
    ]
    return tuple(sorted(found, key=lambda each: (-each.fairness, each.job)))


def _why(story: JobHistory, job: SimJob, fairness: float, looked: "_Occupancy") -> str:
    assert story.finished_at is not None
    jct_s = story.finished_at - story.submitted_at
    held = [(each.start_at, story.finished_at if each.end_at is None else each.end_at) for each in story.attempts]
    waits = _gaps(story.submitted_at, held, story.finished_at)
    waited_s = _length(waits)
    trained_s = 0.0
    for attempt, (_, end) in zip(story.attempts, held, strict=True):
        if attempt.ready_at is not None:
            until = min(at for at in (attempt.asked_at, attempt.exited_at, end) if at is not None)
            trained_s += max(0.0, until - attempt.ready_at)
    changed_s = max(0.0, jct_s - waited_s - trained_s)
    said = (
        f"waited {waited_s:.0f} s, spent {changed_s:.0f} s in starts and saves, trained {trained_s:.0f} s; "
        f"its fair share would have taken {jct_s / fairness:.0f} s in all"
    )
    if waited_s >= max(changed_s, trained_s):
        return f"{said}. {_why_it_waited(story, job, waits, looked)}"
    if changed_s >= trained_s:
        times = f"{count(len(story.attempts), 'start')}, the first of {job.profile.startup_s:.0f} s"
        return f"{said}. Fewer suspends would have helped: {times}"
    gpus = sorted({len(attempt.placement.gpus) for attempt in story.attempts})
    kinds = sorted({looked.kinds[node] for attempt in story.attempts for node in attempt.placement.nodes} - {""})
    on = f"{gpus[0]}" if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]}"
    return f"{said}. More or faster GPUs would have helped: it had {on} {'/'.join(kinds)}".rstrip()


def _why_it_waited(story: JobHistory, job: SimJob, waits: Sequence[Interval], looked: "_Occupancy") -> str:
    waited_s = _length(waits)
    each = job.smallest(looked.largest) or job.gpus_min
    gpus = count(job.nodes * each, "GPU")
    fits_s, enough_s = looked.free_s(waits, job.nodes, each)
    if fits_s >= MOST_OF * waited_s:
        return f"To start it would have helped: it takes {gpus}, which were free for {fits_s:.0f} s of that"
    if enough_s - fits_s >= MOST_OF * waited_s:
        return (
            f"Jobs packed on fewer nodes would have helped: it takes {gpus} on {count(job.nodes, 'node')}, and so many "
            f"were free, but on more nodes, for {enough_s - fits_s:.0f} s of that"
        )
    later, earlier = looked.held_gpu_s(waits, story)
    what = "let jobs that came later wait" if later >= earlier else "suspend jobs that came earlier"
    had = f"later ones held {later:.0f} GPU s meanwhile, earlier ones {earlier:.0f}"
    return f"To {what} would have helped: it takes {gpus}; {had}"


def _gaps(begin: float, held: Iterable[Interval], end: float) -> list[Interval]:
    """The times from `begin` to `end` in which it holds nothing."""
    ordered = [(begin, begin), *sorted(held), (end, end)]
    return [(before[1], after[0]) for before, after in pairwise(ordered) if after[0] > before[1]]


def _length(intervals: Iterable[Interval]) -> float:
    return sum(until - begin for begin, until in intervals)


class _Occupancy:
    """Who held which GPUs when, and where some were free."""

    def __init__(self, history: History, spells: Sequence[NodeSpell]) -> None:
        self.kinds = {spell.name: spell.kind for spell in spells}
        self.largest = max(spell.gpus for spell in spells)
        self._spells, self._spans = spells, history.spans
        self._begin = np.array([span.start_at for span in history.spans])
        self._end = np.array([span.end_at for span in history.spans])
        self._job = np.array([span.job for span in history.spans])
        self._steps_of: dict[int, tuple[Times, Counts, Counts]] = {}

    def held_gpu_s(self, waits: Sequence[Interval], story: JobHistory) -> tuple[float, float]:
        """GPU seconds that others held in these times: those that were submitted later, and earlier."""
        held = np.zeros(len(self._job))
        for begin, until in waits:
            held += np.clip(np.minimum(self._end, until) - np.maximum(self._begin, begin), 0.0, None)
        later = self._job > story.id  # ids are in the order of the submits
        return float(held[later].sum()), float(held[self._job < story.id].sum())

    def free_s(self, waits: Sequence[Interval], nodes: int, gpus: int) -> tuple[float, float]:
        """Seconds of these times in which so many nodes of a type had so many free GPUs each, and in which so many
        GPUs were free anywhere."""
        if gpus not in self._steps_of:
            self._steps_of[gpus] = self._steps(gpus)
        times, most, free = self._steps_of[gpus]
        fits_s = enough_s = 0.0
        for begin, until in waits:
            first, last = np.searchsorted(times, [begin, until], side="right")
            edges = np.clip(np.append(times[max(0, first - 1) : last], until), begin, until)
            there = slice(max(0, first - 1), last)
            lengths = np.diff(edges)
            fits_s += float(lengths[most[there] >= nodes].sum())
            enough_s += float(lengths[free[there] >= nodes * gpus].sum())
        return fits_s, enough_s

    def _steps(self, gpus: int) -> tuple[Times, Counts, Counts]:
        """From when on so many nodes of one type, at most, have `gpus` free ones, and so many are free in all."""
        changes: list[tuple[float, str, int]] = []  # when, on which node, how many become free
        for spell in self._spells:
            changes += [(spell.from_s, spell.name, spell.gpus), (spell.until_s, spell.name, -spell.gpus)]
        holders: dict[GpuRef, list[tuple[float, int]]] = {}
        for span in self._spans:
            holders.setdefault(GpuRef(span.node, span.gpu), []).extend([(span.start_at, 1), (span.end_at, -1)])
        for gpu, held in holders.items():
            by = 0
            for at, change in sorted(held):
                if (by == 0) != (by + change == 0):  # two jobs that share it hold it once
                    changes.append((at, gpu.node, -1 if by == 0 else 1))
                by += change
        free, fitting = dict.fromkeys(self.kinds, 0), dict.fromkeys(self.kinds.values(), 0)
        total, times, most, totals = 0, [float("-inf")], [0], [0]
        for at, node, change in sorted(changes):
            fitted = free[node] >= gpus
            free[node] += change
            total += change
            fitting[self.kinds[node]] += (free[node] >= gpus) - fitted
            if at != times[-1]:
                times.append(at)
                most.append(0)
                totals.append(0)
            most[-1], totals[-1] = max(fitting.values()), total
        return np.array(times), np.array(most), np.array(totals)
