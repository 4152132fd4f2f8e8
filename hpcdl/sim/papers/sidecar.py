"""The figures of the SideCar paper (Wang et al., SC 2020): workloads one to four; its case study is next door."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from hpcdl.core.model import Cause
from hpcdl.core.policy import Policies
from hpcdl.elastic import K8sDefault
from hpcdl.policies import all_policies
from hpcdl.report.spans import JobHistory, Stay
from hpcdl.sim.conditions import Conditions, Simulated
from hpcdl.sim.engine import simulate
from hpcdl.sim.papers.data import SIDECAR_WORKLOADS, sidecar
from hpcdl.sim.papers.sidecar_case import case_table, draws
from hpcdl.sim.papers.table import Row, Table
from hpcdl.sim.results import summarise
from hpcdl.sim.workload import WorkloadError

SEEDS = tuple(range(10))
UNSEEN = tuple(range(1000, 1010))
"""Drawn of the same kind, in no file."""

FEW = 5
"""Of the seeds, how many the table of lengths takes."""

LENGTHS = (0.5, 0.75, 1.0, 1.5)
"""Factors on the work of every job."""

# Table and figure 6, as shares of the makespan and of the mean JCT; table VIII; figure 11.
_PAPER: dict[str, dict[str, float]] = {
    "W1": {
        "makespan_vs_default": 0.45,
        "makespan_vs_optimus": 0.17,
        "jct_vs_default": 0.63,
        "jct_vs_optimus": 0.27,
        "overhead": 0.089,
        "adds": 16,
    },
    "W2": {
        "makespan_vs_default": 0.34,
        "makespan_vs_optimus": 0.20,
        "jct_vs_default": 0.58,
        "jct_vs_optimus": 0.37,
        "overhead": 0.067,
    },
    "W3": {
        "makespan_vs_default": 0.42,
        "makespan_vs_optimus": 0.17,
        "jct_vs_default": 0.61,
        "jct_vs_optimus": 0.35,
        "overhead": 0.076,
    },
    "W4": {
        "makespan_vs_default": 0.36,
        "makespan_vs_optimus": 0.18,
        "jct_vs_default": 0.55,
        "jct_vs_optimus": 0.36,
        "overhead": 0.083,
    },
}
_PAPER_OPTIMUS: dict[str, dict[str, float]] = {
    "W1": {"overhead": 0.293, "adds": 46, "removes": 0},
    "W2": {"overhead": 0.219},
    "W3": {"overhead": 0.271},
    "W4": {"overhead": 0.286},
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `overhead`: time spent on reshapes over the time from first start to end, summed over jobs;
    `with_starts`: first starts counted as reshapes too."""

    makespan_s: float
    jct_s: float
    wait_s: float
    overhead: float
    with_starts: float
    adds: int
    removes: int
    moves: int


def measure_run(run: Simulated) -> Measured:
    """What the paper's section VI reports of a run. WorkloadError where the run had a problem."""
    if run.problems:
        raise WorkloadError(f"{run.workload.name} under {run.policy}: {run.problems[0]}")
    result = summarise(run)
    pairs = [pair for job in run.history.jobs for pair in pairwise(job.stays) if pair[0].cause is Cause.SUSPENDED]
    stayed = math.fsum(_stayed_s(job) for job in run.history.jobs)
    reshaped = math.fsum(job.lost_s for job in result.jobs)
    starts = math.fsum(
        job.stays[0].ready_at - job.stays[0].start_at
        for job in run.history.jobs
        if job.stays and job.stays[0].ready_at is not None
    )
    sizes = [(_gpus(before), _gpus(after)) for before, after in pairs]
    return Measured(
        makespan_s=result.makespan_s,
        jct_s=result.mean_jct_s or 0.0,
        wait_s=result.mean_wait_s or 0.0,
        overhead=reshaped / stayed,
        with_starts=(reshaped + starts) / stayed,
        adds=sum(after > before for before, after in sizes),
        removes=sum(after < before for before, after in sizes),
        moves=sum(before.placement.nodes != after.placement.nodes for before, after in pairs),
    )


def _gpus(stay: Stay) -> int:
    return len(stay.placement.gpus)


def _stayed_s(job: JobHistory) -> float:
    return (job.finished_at or 0.0) - job.stays[0].start_at if job.stays else 0.0


TERMINATION_BASED = ("k8s-default", "optimus")


def run_one(name: str, seed: int, policy: str, costs: float = 1.0, length: float = 1.0) -> Measured:
    """One of W1 to W4 under a policy; the termination-based ones pay for it, the default draws as the file says.

    `costs`, `length`: factors on the times of starts and reshapes, and on every job's work.
    """
    workload = sidecar(name, seed, costs=costs, termination=policy in TERMINATION_BASED)
    if length != 1.0:
        jobs = (replace(job, steps=max(1, round(job.steps * length))) for job in workload.jobs)
        workload = replace(workload, jobs=tuple(jobs))
    policies = all_policies()
    if policy == K8sDefault.name:
        policies = Policies()
        policies.register(policy, partial(K8sDefault, draws(workload)))
    return measure_run(simulate(workload, policy, policies, Conditions(exempt_starts=0.0)))


_NOTES = (
    (
        "Cluster, jobs, curves and costs as in conf/workloads/README.md: the paper prints neither curves nor lengths "
        "of jobs, those are assumed. A reduction is the mean over seeds of 1 - ours / theirs on the same seed; _ci95: "
        "half of its 95 % interval (Student's t)."
    ),
    (
        "MS_predict is the latest predicted end of all jobs with GPUs, the new one included; among equals the smaller "
        "sum of ends, then fewer GPUs. Algorithm 2 adds only where its own prediction gets better."
    ),
    (
        "optimus adds on the job's own node by marginal gain without the cost of a restart (Optimus, section 4.1), to "
        "the next of 1, 2, 4, 8 GPUs. k8s-default spreads: a job goes to the server with most idle GPUs, of any type."
    ),
    (
        "overhead: seconds without progress by reshapes over seconds from first start to end, summed over jobs. The "
        "printed shares fit the printed 46 and 16 events only if first starts count too (46 x 242 s + 40 x 170 s over "
        "29.3 %, and 16 x 37 s + 30 x 27 s + 40 x 110 s over 8.9 %, are both 61,000 to 65,000 s): overhead_with_starts."
    ),
)


def tables(
    seeds: Iterable[int] = SEEDS,
    unseen: Iterable[int] = UNSEEN,
    progress: Callable[[str], None] | None = None,
) -> tuple[Table, ...]:
    """The case study; W1 to W4 on the files' seeds, on as many others of the same kind, and at a tenth of the costs.

    `progress`: is told what comes next.
    """
    seeds = tuple(seeds)
    unseen = tuple(unseen)[: len(seeds)]
    told = progress or (lambda _: None)
    there = all_policies().names()
    ours = [name for name in ("adaptive",) if name in there]
    told("SideCar: case study")
    found = [case_table()]
    of = ("k8s-default", "optimus", "elastic", *ours)
    found.append(workloads_table("SideCar W1 to W4", seeds, of, told, paper=True))
    found.append(workloads_table("SideCar W1 to W4, unseen seeds", unseen, of, told))
    found.append(workloads_table("SideCar W1 to W4, costs at a tenth", seeds, ("elastic", *ours), told, costs=0.1))
    found.append(lengths_table(seeds[:FEW], told))
    return tuple(found)


def lengths_table(seeds: Sequence[int], progress: Callable[[str], None]) -> Table:
    """W1 with shorter and longer jobs: what the printed figures say of the lengths, which the paper does not print."""
    title = "SideCar W1, length of jobs"
    rows = []
    for length in LENGTHS:
        progress(f"{title}: {length:g} times")
        runs = {
            policy: [run_one("W1", seed, policy, length=length) for seed in seeds]
            for policy in (*TERMINATION_BASED, "elastic")
        }
        printed = {"elastic": _PAPER["W1"], "optimus": _PAPER_OPTIMUS["W1"]}
        rows += [_row(f"W1 x {length:g}", policy, runs, printed.get(policy, {})) for policy in runs]
    notes = (
        (
            "Printed overheads and numbers of adds are met by jobs half as long as assumed (first starts counted), "
            "printed reductions of the makespan only by jobs as long as assumed or longer: arrivals alone take 11,000 "
            "s, which bounds what any policy can reduce. No one length meets all printed figures."
        ),
    )
    return Table(title, tuple(rows), (f"Seeds {seeds[0]} to {seeds[-1]}, {len(seeds)} of them.", *notes))


def workloads_table(
    title: str,
    seeds: Sequence[int],
    policies: Sequence[str],
    progress: Callable[[str], None],
    costs: float = 1.0,
    paper: bool = False,
) -> Table:
    """W1 to W4 under these policies, each against those before it. `paper`: with the printed figures beside them."""
    rows = []
    for name in SIDECAR_WORKLOADS:
        runs: dict[str, list[Measured]] = {}
        for policy in policies:
            progress(f"{title}: {name} under {policy}")
            runs[policy] = [run_one(name, seed, policy, costs) for seed in seeds]
            printed: Mapping[str, Any] = {}
            if paper:
                printed = {"elastic": _PAPER, "optimus": _PAPER_OPTIMUS}.get(policy, {}).get(name, {})
            rows.append(_row(name, policy, runs, printed))
    return Table(title, tuple(rows), (f"Seeds {seeds[0]} to {seeds[-1]}, {len(seeds)} of them.", *_NOTES))


def _row(name: str, policy: str, runs: Mapping[str, Sequence[Measured]], printed: Mapping[str, Any]) -> Row:
    own = runs[policy]
    more: dict[str, Any] = {
        "makespan_s_ci95": interval([run.makespan_s for run in own])[1],
        "mean_jct_s_ci95": interval([run.jct_s for run in own])[1],
        "mean_wait_s": fmean(run.wait_s for run in own),
    }
    for other, theirs in runs.items():
        if other == policy:
            break
        key = other.removeprefix("k8s-")
        pairs = list(zip(own, theirs, strict=True))
        for what, gains in (
            ("makespan", [1 - mine.makespan_s / its.makespan_s for mine, its in pairs]),
            ("jct", [1 - mine.jct_s / its.jct_s for mine, its in pairs]),
        ):
            more[f"{what}_vs_{key}"], more[f"{what}_vs_{key}_ci95"] = interval(gains)
    more |= {
        "overhead": fmean(run.overhead for run in own),
        "overhead_with_starts": fmean(run.with_starts for run in own),
        "adds": fmean(run.adds for run in own),
        "removes": fmean(run.removes for run in own),
        "moves": fmean(run.moves for run in own),
        "seeds": len(own),
    }
    return Row(name, policy, fmean(run.makespan_s for run in own), fmean(run.jct_s for run in own), more, printed)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % confidence interval (Student's t; 0 for a single value)."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, 0.0
    from scipy.stats import t  # takes long to load

    return mean, float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
