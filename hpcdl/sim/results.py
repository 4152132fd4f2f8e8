"""The measures of a simulated run: per job and for the whole. Times are seconds.

Starts from `hpcdl/report/measures.py` and adds what only a simulation knows: the true profiles, deadlines, fairness.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Any

from hpcdl.report.history import History, JobAttempt, JobHistory, Phase, Span
from hpcdl.report.measures import JobMeasures, measure
from hpcdl.report.memory import MemoryUse, memory_use
from hpcdl.sim.conditions import SimulatedRun
from hpcdl.sim.unfairness import UnfairJob, unfair_jobs
from hpcdl.sim.workload import SimJob

JOULES_PER_KWH = 3.6e6
_LISTS = ("jobs", "problems", "above_max_slowdown")


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job. `submit_s`, `start_s`, `end_s` are on the workload's clock; None: has not happened.

    `wait_s`: first start - submit; `jct_s`: end - submit. `rescales`: how often it went on with another number of GPUs;
    `moves`: with GPUs of other nodes. `lost_s`: see `report.JobMeasures`. `deadline_met`: None without a deadline.
    `fairness`: finish-time fairness, its JCT over the JCT it would have had alone on its share of all GPUs (Themis,
    NSDI'20): 1 is its due, more is worse. `shared_gpu_s`: GPU seconds for which another job had its GPUs too.
    `memory_utilisation`: the share of its GPUs' memory that it had in use while it held them; None: not known.
    """

    id: int
    name: str
    user: str
    state: str | None
    submit_s: float
    start_s: float | None
    end_s: float | None
    wait_s: float | None
    jct_s: float | None
    gpus: tuple[tuple[float, int], ...]
    suspends: int
    resumes: int
    rescales: int
    moves: int
    lost_s: float
    deadline_s: float | None
    deadline_met: bool | None
    fairness: float | None
    shared_gpu_s: float = 0.0
    memory_utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """A run. Means, medians and 95th percentiles are over finished jobs; None where there is none.

    `makespan_s`: from the first submit to the last end. `utilisation`, `held`: see `report.RunMeasures`, of the GPUs
    while they are there. `lost_share`: seconds lost to rescaling over the seconds between first start and end, summed
    over jobs. `deadlines_met`: of those jobs that have a deadline, None if none has. `energy_kwh`: of training GPUs
    whose profile says what they take. `shared_gpu_s`: GPU seconds that two jobs shared; None: no job agrees to that.
    `memory_utilisation`: the share of all GPUs' memory that jobs had in use (`report.memory`), None where it is not
    known of a job or a GPU. `bound_mean_jct_s`: below which no policy is (`jct_bound`), None where nobody asked for it.
    `above_max_slowdown`: the jobs whose fairness is above `Conditions.max_slowdown`, the worst first.
    """

    policy: str
    jobs: tuple[JobResult, ...]
    makespan_s: float
    mean_jct_s: float | None
    median_jct_s: float | None
    p95_jct_s: float | None
    mean_wait_s: float | None
    median_wait_s: float | None
    p95_wait_s: float | None
    longest_wait_s: float | None
    utilisation: float | None
    held: float | None
    lost_share: float | None
    suspends: int
    resumes: int
    rescales: int
    moves: int
    finished: int
    deadlines: int
    deadlines_met: float | None
    mean_fairness: float | None
    worst_fairness: float | None
    energy_kwh: float | None
    problems: tuple[str, ...]
    shared_gpu_s: float | None = None
    memory_utilisation: float | None = None
    bound_mean_jct_s: float | None = None
    above_max_slowdown: tuple[UnfairJob, ...] = ()

    def to_json(self, jobs: bool = True) -> dict[str, Any]:
        """Plain values, as `hpcdl simulate --json` prints them. `jobs`: with a list of all jobs."""
        plain: dict[str, Any] = {name: _rounded(getattr(self, name)) for name in self.__slots__ if name not in _LISTS}
        plain["problems"] = list(self.problems)
        plain["above_max_slowdown"] = [
            {name: _rounded(getattr(each, name)) for name in UnfairJob.__slots__} for each in self.above_max_slowdown
        ]
        left_out = {"gpus"}
        for name in ("shared_gpu_s", "memory_utilisation", "bound_mean_jct_s"):
            if getattr(self, name) is None:
                del plain[name]
                left_out.add(name)
        if jobs:
            plain["jobs"] = [
                {name: _rounded(getattr(job, name)) for name in JobResult.__slots__ if name not in left_out}
                | {"gpus": [[_rounded(at), number] for at, number in job.gpus]}
                for job in self.jobs
            ]
        return plain


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def summarise(run: SimulatedRun, bound_mean_jct_s: float | None = None) -> Results:
    """The measures of a simulated run, per job and for the whole; the bound is passed on."""
    history = _with_truth(run)
    measured = measure(history, {f"{number}": job.profile for number, job in run.jobs.items()})
    ideals = _ideal_jct(run, history)
    there_s = _there_s(run, history)
    possible_s = (history.end - history.begin) * len(history.gpus)  # had all GPUs that ever joined been there always
    share = possible_s / there_s if there_s > 0 else 1.0
    memory = _memory_use(run, history, there_s)
    shared = _shared_gpu_s(history) if run.workload.shares else {}
    jobs = tuple(
        _job_result(
            run.jobs[each.id],
            each,
            story,
            ideals.get(each.id),
            shared.get(each.id, 0.0),
            memory.jobs.get(each.id),
        )
        for each, story in zip(measured.jobs, history.jobs, strict=True)
    )
    done = [job for job in jobs if job.state == "DONE"]
    jct = [job.jct_s for job in done if job.jct_s is not None]
    wait = [job.wait_s for job in done if job.wait_s is not None]
    fair = [job.fairness for job in done if job.fairness is not None]
    due = [job for job in jobs if job.deadline_met is not None]
    stayed = math.fsum(job.end_s - job.start_s for job in done if job.end_s is not None and job.start_s is not None)
    lost = math.fsum(job.lost_s for job in done)
    return Results(
        policy=run.policy,
        jobs=jobs,
        makespan_s=measured.makespan_s,
        mean_jct_s=fmean(jct) if jct else None,
        median_jct_s=median(jct) if jct else None,
        p95_jct_s=percentile(jct, 0.95),
        mean_wait_s=fmean(wait) if wait else None,
        median_wait_s=median(wait) if wait else None,
        p95_wait_s=percentile(wait, 0.95),
        longest_wait_s=max(wait, default=None),
        utilisation=None if measured.utilisation is None else measured.utilisation * share,
        held=None if measured.held is None else measured.held * share,
        lost_share=lost / stayed if stayed > 0 else None,
        suspends=measured.suspends,
        resumes=sum(job.resumes for job in jobs),
        rescales=sum(job.rescales for job in jobs),
        moves=sum(job.moves for job in jobs),
        finished=len(done),
        deadlines=len(due),
        deadlines_met=sum(bool(job.deadline_met) for job in due) / len(due) if due else None,
        mean_fairness=fmean(fair) if fair else None,
        worst_fairness=max(fair, default=None),
        energy_kwh=_energy_kwh(run, history),
        problems=run.problems,
        shared_gpu_s=math.fsum(shared.values()) / 2 if run.workload.shares else None,
        memory_utilisation=memory.run,
        bound_mean_jct_s=bound_mean_jct_s,
        above_max_slowdown=unfair_jobs(run, {job.id: job.fairness for job in done if job.fairness is not None}),
    )


def _there_s(run: SimulatedRun, history: History) -> float:
    """GPU seconds of all GPUs while they are there."""
    spells = (
        (max(history.begin, spell.from_s), min(history.end, spell.until_s), spell.gpus) for spell in run.workload.nodes
    )
    return math.fsum((end - begin) * gpus for begin, end, gpus in spells if end > begin)


def _memory_use(run: SimulatedRun, history: History, there_s: float) -> MemoryUse:
    """By what the jobs take of each GPU, as far as the workload says it."""
    sizes = {spell.name: spell.memory_mib for spell in run.workload.nodes}

    def memory_of(number: int, gpus: int) -> float | None:
        job = run.jobs[number]
        return job.gpu_memory_mib if job.memory is None else job.memory.on(gpus)

    return memory_use(history, memory_of, lambda node: sizes.get(node, 0), there_s)


def _shared_gpu_s(history: History) -> Mapping[int, float]:
    """By job: GPU seconds for which another job had its GPUs too."""
    found: dict[int, float] = {}
    by_gpu: dict[tuple[str, int], list[Span]] = {}
    for span in history.spans:
        there = by_gpu.setdefault((span.node, span.gpu), [])
        for other in there:
            seconds = min(span.end_at, other.end_at) - max(span.start_at, other.start_at)
            if other.job != span.job and seconds > 0:
                for each in (span.job, other.job):
                    found[each] = found.get(each, 0.0) + seconds
        there.append(span)
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of all are not above; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _with_truth(run: SimulatedRun) -> History:
    """The history with each job under its own true profile, named by its id: policies may have seen another."""
    return replace(run.history, jobs=tuple(replace(job, profile=f"{job.id}") for job in run.history.jobs))


def _job_result(
    job: SimJob,
    measured: JobMeasures,
    story: JobHistory,
    ideal_s: float | None,
    shared_gpu_s: float,
    memory: float | None,
) -> JobResult:
    begin = story.submitted_at
    end_s = story.finished_at
    met = None
    if job.deadline_s is not None:
        met = end_s is not None and end_s <= job.deadline_s + 1e-6
    attempts = story.attempts
    pairs = list(pairwise(attempts))
    return JobResult(
        id=measured.id,
        name=measured.name,
        user=job.user,
        state=None if measured.state is None else measured.state.value,
        submit_s=begin,
        start_s=attempts[0].start_at if attempts else None,
        end_s=end_s,
        wait_s=measured.wait_s,
        jct_s=measured.jct_s,
        gpus=measured.gpus,
        suspends=measured.suspends,
        resumes=measured.resumes,
        rescales=sum(_gpus(before) != _gpus(after) for before, after in pairs),
        moves=sum(before.placement.nodes != after.placement.nodes for before, after in pairs),
        lost_s=measured.lost_s,
        deadline_s=job.deadline_s,
        deadline_met=met,
        fairness=None if measured.jct_s is None or not ideal_s else measured.jct_s / ideal_s,
        shared_gpu_s=shared_gpu_s,
        memory_utilisation=memory,
    )


def _gpus(attempt: JobAttempt) -> int:
    return len(attempt.placement.gpus)


def _ideal_jct(run: SimulatedRun, history: History) -> Mapping[int, float]:
    """The JCT of each finished job alone on 1/N of all GPUs; N: how many jobs there were on average in its time."""
    moments = sorted(
        [(job.submitted_at, 1) for job in history.jobs]
        + [(job.finished_at, -1) for job in history.jobs if job.finished_at is not None]
    )
    times = [at for at, _ in moments]
    there = list(accumulate(change for _, change in moments))
    spans = [(after - before) * number for before, after, number in zip(times, times[1:], there, strict=False)]
    area = [0.0, *accumulate(spans)]

    def jobs_until(at: float) -> float:
        index = bisect_right(times, at) - 1
        return area[index] + (at - times[index]) * there[index]

    ideals: dict[int, float] = {}
    kinds = Counter[str]()
    for name, spell in {spell.name: spell for spell in run.workload.nodes}.items():
        kinds[spell.kind] += run.workload.nodes_named[name]
    largest = max((spell.gpus for spell in run.workload.nodes), default=1)
    for job in history.jobs:
        end = job.finished_at
        if end is None or end <= job.submitted_at:
            continue
        number = (jobs_until(end) - jobs_until(job.submitted_at)) / (end - job.submitted_at)
        share = len(history.gpus) / max(1.0, number)
        ideals[job.id] = _alone_s(run.jobs[job.id], kinds, share, largest)
    return ideals


def _alone_s(job: SimJob, kinds: Mapping[str, int], share: float, largest: int) -> float:
    """Seconds for the job on its share of GPUs, a part of a GPU counting for its part.

    `kinds`: GPUs of each type. It has each type for its part of the time, as in Gavel's isolated share (OSDI'20).
    """
    counts = job.gpus_counts or tuple(range(job.gpus_min, min(job.gpus_max or largest, largest) + 1))
    fitting = [number for number in counts if number * job.nodes <= share] or [counts[0]]
    rate = math.fsum(
        gpus * max(job.profile.on(kind).rate(number, job.nodes) for number in fitting) for kind, gpus in kinds.items()
    ) / sum(kinds.values())
    return job.profile.startup_s + job.steps / (rate * min(1.0, share / (fitting[0] * job.nodes)))


def _energy_kwh(run: SimulatedRun, history: History) -> float | None:
    if not any(job.profile.power_w for job in run.jobs.values()):
        return None
    joules = 0.0
    for span in history.spans:
        trained = math.fsum(piece.end - piece.begin for piece in span.pieces if piece.phase is Phase.TRAINING)
        joules += trained * run.jobs[span.job].profile.power_w
    return joules / JOULES_PER_KWH
