"""The figures of the SideCar paper (Wang et al., SC 2020): workloads W1 to W4, and the case study of two jobs.

What the paper prints stands in sidecar.yaml; the workloads are read or drawn by `data`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.plan import Policies
from hpcdl.core.model.profile import Profile
from hpcdl.report.history import JobAttempt, JobHistory
from hpcdl.sidecar import K8sDefault, SideCarLetter
from hpcdl.sim.conditions import SimulatedRun
from hpcdl.sim.engine import simulate
from hpcdl.sim.intervals import interval
from hpcdl.sim.papers.data import SIDECAR_WORKLOADS, sidecar
from hpcdl.sim.papers.table import PaperRow, PaperTable, conditions_for, mean, paper_file, run_policy, seeds_note
from hpcdl.sim.results import summarise
from hpcdl.sim.workload import SimJob, Workload, cluster

SEEDS = tuple(range(10))

UNSEEN = tuple(range(1000, 1010))
"""Drawn of the same kind, in no file."""

FEW = 5
"""Of the seeds, how many the table of lengths takes."""

LENGTHS = (0.5, 0.75, 1.0, 1.5)
"""Factors on the work of every job."""

_PAPER = paper_file("sidecar")
_CASE = _PAPER["case_study"]


@dataclass(frozen=True, slots=True)
class SidecarMeasures:
    """One run. `overhead`: time spent on reshapes over the time from first start to end, summed over jobs;
    `with_starts`: first starts counted as reshapes too; `pending`: jobs without GPUs at the last submit."""

    makespan_s: float
    jct_s: float
    wait_s: float
    overhead: float
    with_starts: float
    adds: int
    removes: int
    moves: int
    pending: int


def measure_run(run: SimulatedRun) -> SidecarMeasures:
    """What the paper's section VI reports of a run."""
    result = summarise(run)
    pairs = [pair for job in run.history.jobs for pair in pairwise(job.attempts) if pair[0].cause is Cause.SUSPENDED]
    stayed = math.fsum(_stayed_s(job) for job in run.history.jobs)
    reshaped = math.fsum(job.lost_s for job in result.jobs)
    starts = math.fsum(
        job.attempts[0].ready_at - job.attempts[0].start_at
        for job in run.history.jobs
        if job.attempts and job.attempts[0].ready_at is not None
    )
    last_at = max(job.submitted_at for job in run.history.jobs)
    sizes = [(_gpus(before), _gpus(after)) for before, after in pairs]
    return SidecarMeasures(
        makespan_s=result.makespan_s,
        jct_s=result.mean_jct_s or 0.0,
        wait_s=result.mean_wait_s or 0.0,
        overhead=reshaped / stayed,
        with_starts=(reshaped + starts) / stayed,
        adds=sum(after > before for before, after in sizes),
        removes=sum(after < before for before, after in sizes),
        moves=sum(before.placement.nodes != after.placement.nodes for before, after in pairs),
        pending=sum(not job.attempts or job.attempts[0].start_at > last_at for job in run.history.jobs),
    )


def _gpus(attempt: JobAttempt) -> int:
    return len(attempt.placement.gpus)


def _stayed_s(job: JobHistory) -> float:
    return (job.finished_at or 0.0) - job.attempts[0].start_at if job.attempts else 0.0


TERMINATION_BASED = ("k8s-default", "optimus")


def run_one(name: str, seed: int, policy: str, costs: float = 1.0, length: float = 1.0) -> SidecarMeasures:
    """One of W1 to W4 under a policy; the termination-based ones pay for it, the default draws as the file says.

    `costs`, `length`: factors on the times of starts and reshapes, and on every job's work.
    """
    workload = sidecar(name, seed, costs=costs, termination=policy in TERMINATION_BASED)
    if length != 1.0:
        jobs = (replace(job, steps=max(1, round(job.steps * length))) for job in workload.jobs)
        workload = replace(workload, jobs=tuple(jobs))
    policies = None
    if policy == K8sDefault.name:
        policies = Policies()
        policies.register(policy, partial(K8sDefault, draws(workload)))
    return measure_run(run_policy(workload, policy, conditions_for(policy), policies))


def tables(seeds: Iterable[int] = SEEDS) -> tuple[PaperTable, ...]:
    """The case study; W1 to W4 on the files' seeds, on as many others of the same kind, and at a tenth of the costs."""
    seeds = tuple(seeds)
    of = ("k8s-default", "optimus", "elastic", "adaptive")
    beside = ("k8s-default", "optimus", "elastic", "elastic-letter", "adaptive")
    return (
        case_table(),
        workloads_table("SideCar W1 to W4", seeds, beside, paper=True),
        workloads_table("SideCar W1 to W4, unseen seeds", UNSEEN[: len(seeds)], of),
        workloads_table("SideCar W1 to W4, costs at a tenth", seeds, ("elastic", "adaptive"), costs=0.1),
        lengths_table(seeds[:FEW]),
    )


def lengths_table(seeds: Sequence[int]) -> PaperTable:
    """W1 with shorter and longer jobs: what the printed figures say of the lengths, which the paper does not print."""
    rows = []
    for length in LENGTHS:
        runs = {
            policy: [run_one("W1", seed, policy, length=length) for seed in seeds]
            for policy in (*TERMINATION_BASED, "elastic")
        }
        rows += [_row(f"W1 x {length:g}", policy, runs, _printed(policy, "W1")) for policy in runs]
    return PaperTable("SideCar W1, length of jobs", tuple(rows), (seeds_note(seeds), *_PAPER["lengths_notes"]))


def workloads_table(
    title: str, seeds: Sequence[int], policies: Sequence[str], costs: float = 1.0, paper: bool = False
) -> PaperTable:
    """W1 to W4 under these policies, each against those before it. `paper`: with the printed figures beside them."""
    rows = []
    for name in SIDECAR_WORKLOADS:
        runs: dict[str, list[SidecarMeasures]] = {}
        for policy in policies:
            runs[policy] = [run_one(name, seed, policy, costs) for seed in seeds]
            rows.append(_row(name, policy, runs, _printed(policy, name) if paper else {}))
    return PaperTable(title, tuple(rows), (seeds_note(seeds), *_PAPER["notes"]))


def _printed(policy: str, workload: str) -> Mapping[str, float]:
    printed: Mapping[str, float] = _PAPER["printed"].get(policy, {}).get(workload, {})
    return printed


def _row(name: str, policy: str, runs: Mapping[str, Sequence[SidecarMeasures]], printed: Mapping[str, Any]) -> PaperRow:
    own = runs[policy]
    more: dict[str, Any] = {
        "makespan_s_ci95": interval([run.makespan_s for run in own])[1],
        "mean_jct_s_ci95": interval([run.jct_s for run in own])[1],
        "mean_wait_s": mean(own, "wait_s"),
    }
    for other, theirs in runs.items():
        if other == policy:
            break
        key = other.removeprefix("k8s-")
        for what in ("makespan", "jct"):
            times = ([getattr(run, f"{what}_s") for run in runs] for runs in (own, theirs))
            gains = [1 - mine_s / its_s for mine_s, its_s in zip(*times, strict=True)]
            more[f"{what}_vs_{key}"], more[f"{what}_vs_{key}_ci95"] = interval(gains)
    more |= {"overhead": mean(own, "overhead"), "overhead_with_starts": mean(own, "with_starts")}
    more |= {key: mean(own, key) for key in ("adds", "removes", "moves", "pending")} | {"seeds": len(own)}
    return PaperRow(name, policy, mean(own, "makespan_s"), mean(own, "jct_s"), more, printed)


# --- the case study: two jobs on four GPUs, table I and figure 3 -----------------------------------------------------


def case_study() -> dict[str, Workload]:
    """The two jobs by approach: default, termination, sidecar. Jobs are the same, costs are not."""
    termination, sidecar = (_case_profile(name, costs) for name, costs in _CASE["costs"].items())
    cold = replace(sidecar, startup_s=_CASE["cold_startup_s"])
    profiles = {"default": (termination,) * 2, "termination": (termination,) * 2, "sidecar": (cold, sidecar)}
    return {name: _case(name, both) for name, both in profiles.items()}


def _case_profile(name: str, costs: Mapping[str, Any]) -> Profile:
    """Steps of a tenth of a second on one GPU; the speed-ups are the paper's for ResNet (section I)."""
    points = tuple((nodes, gpus, rate) for nodes, gpus, rate in _CASE["points"])
    return Profile(f"case study, {name}", points, source="derived from figure 3", **costs)


def _case(name: str, profiles: Sequence[Profile]) -> Workload:
    each = zip(_CASE["submit_s"], profiles, _CASE["steps"], _CASE["gpus"], strict=True)
    jobs = tuple(
        SimJob(submit_s, f"job {number}", profile, steps, gpus_max=4, gpus_counts=(1, 2, 4), draw=gpus)
        for number, (submit_s, profile, steps, gpus) in enumerate(each, 1)
    )
    return Workload(f"case study, {name}", jobs, cluster(1, 4), "SideCar, section II-C", tuple(_CASE["notes"]))


def case_table() -> PaperTable:
    """Figure 3: when things happen."""
    rows = []
    for name, workload in case_study().items():
        policies = Policies()
        policies.register("default", partial(K8sDefault, draws(workload)))
        policies.register("termination", SideCarLetter)
        policies.register("sidecar", SideCarLetter)
        run = simulate(workload, name, policies, conditions_for(name))
        result = summarise(run)
        rows.append(
            PaperRow(
                "case study",
                name,
                result.makespan_s,
                result.mean_jct_s or math.nan,
                _moments(run),
                _CASE["printed"][name],
            )
        )
    return PaperTable("SideCar case study", tuple(rows), tuple(_CASE["notes"]))


def _moments(run: SimulatedRun) -> dict[str, float]:
    first, second = run.history.jobs
    moments: dict[str, float] = {"job2_done": _at(second.finished_at), "job1_done": _at(first.finished_at)}
    moments["job2_runs"] = _at(second.attempts[0].ready_at)
    for before, after in pairwise(first.attempts):
        up = len(after.placement.gpus) > len(before.placement.gpus)
        moments["reshape_up_s" if up else "reshape_down_s"] = _at(after.ready_at) - _at(before.asked_at)
        if up:
            moments["job1_back_on_4"] = _at(after.ready_at)
    return moments


def _at(when: float | None) -> float:
    return math.nan if when is None else round(when, 3)


def draws(workload: Workload) -> dict[int, int]:
    """The static default's draws by job id: the simulation numbers jobs from 1 in the order of their submits."""
    return {number: job.draw for number, job in enumerate(workload.jobs, start=1) if job.draw is not None}
