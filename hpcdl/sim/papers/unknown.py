"""What it costs to know no profile at all, and what learning them while jobs run gains: no paper's figure, ours.

A step of each model takes another time here, drawn for each seed, so that nothing can be learnt from the number of
steps alone: in SideCar's files a step is a tenth of a second for every model.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.plan import Policies
from hpcdl.core.model.profile import Point, Profile
from hpcdl.policies import all_policies
from hpcdl.sidecar import K8sDefault
from hpcdl.sim.beliefs import learner_of
from hpcdl.sim.conditions import SimulatedRun
from hpcdl.sim.engine import simulate
from hpcdl.sim.generators import chance, poisson
from hpcdl.sim.intervals import interval
from hpcdl.sim.papers.data import SIDECAR_WORKLOADS, sidecar
from hpcdl.sim.papers.table import PaperRow, PaperTable, conditions_for, mean, paper_file
from hpcdl.sim.workload import SimJob, Workload, WorkloadError, cluster

SEEDS = tuple(range(8))

STEP_FACTORS = (0.05, 5.0)
"""A step of a model takes so many times as long as in the files: log-uniform."""

PROGRESS_S = 60.0
"""Seconds between two reports of a trainer; a daemon asks for them every 10 s."""

POISSON = "MARBLE models"
POISSON_NODES, POISSON_GPUS = 2, 6
POISSON_PER_HOUR, POISSON_HOURS = 12.0, 4.0
LENGTH_S, LENGTH_SIGMA = 1800.0, 0.8
"""Seconds on one GPU of a job of the Poisson workload: log-normal, median and sigma."""

APART_S = 20 * 3600.0
"""So long after the jobs of a day before come those that are measured."""


@dataclass(frozen=True, slots=True)
class UnknownCase:
    """How a workload is run. `told`: with the true profiles; `learns`: they are learnt; `before`: after another day."""

    name: str
    policy: str
    told: bool = False
    learns: bool = False
    before: bool = False


CASES = (
    UnknownCase("fifo, no profile", "fifo"),
    UnknownCase("k8s-default, no profile", "k8s-default"),
    UnknownCase("adaptive, told", "adaptive", told=True),
    UnknownCase("adaptive, never", "adaptive"),
    UnknownCase("adaptive, learnt", "adaptive", learns=True),
    UnknownCase("adaptive, learnt before", "adaptive", learns=True, before=True),
)


@dataclass(frozen=True, slots=True)
class UnknownMeasures:
    """The measures of one run: mean JCT and makespan in seconds, and suspends."""

    jct_s: float
    makespan_s: float
    suspends: float


def tables(seeds: Iterable[int] = SEEDS) -> tuple[PaperTable, ...]:
    """One table: W1 to W4 and a Poisson workload under every case."""
    wanted = tuple(seeds)
    rows = []
    for name in (*SIDECAR_WORKLOADS, POISSON):
        runs: dict[str, list[UnknownMeasures]] = {}
        for case in CASES:
            runs[case.name] = [run_one(name, seed, case) for seed in wanted]
            rows.append(_row(name, case.name, runs))
    return (
        PaperTable("Jobs without profiles", tuple(rows), (f"{len(wanted)} seeds.", *paper_file("unknown")["notes"])),
    )


def run_one(name: str, seed: int, case: UnknownCase) -> UnknownMeasures:
    """A workload under one case. WorkloadError where the run had a problem."""
    work = workload(name, seed)
    skipped = 0
    if case.before:
        first = workload(name, seed + 1000, steps_of=seed)
        skipped = len(first.jobs)
        later = tuple(_later(job, APART_S) for job in work.jobs)
        work = replace(work, name=f"{work.name}, the second day", jobs=(*first.jobs, *later))
    if not case.told:
        work = replace(work, jobs=tuple(replace(job, told=False) for job in work.jobs))
    policies = all_policies()
    if case.policy == K8sDefault.name:
        drawn = {number: _drawn(job, seed, number) for number, job in enumerate(work.jobs, 1)}
        policies = Policies()
        policies.register(case.policy, partial(K8sDefault, drawn))
    learn = learner_of(work) if case.learns else None
    run = simulate(work, case.policy, policies, conditions_for(case.policy, progress_s=PROGRESS_S), learn)
    if run.problems:
        raise WorkloadError(f"{work.name}, {case.name}: {run.problems[0]}")
    return _measured(run, skipped)


def workload(name: str, seed: int, steps_of: int | None = None) -> Workload:
    """W1 to W4 or POISSON. `steps_of`: the seed that says how long a step of each model takes; None: `seed`."""
    work = _poisson_workload(seed) if name == POISSON else sidecar(name, seed)
    times = seed if steps_of is None else steps_of
    low, high = (math.log(factor) for factor in STEP_FACTORS)
    jobs: list[SimJob] = []
    made: dict[str, Profile] = {}
    for job in work.jobs:
        factor = math.exp(chance("unknown", "steps", job.profile.name, times).uniform(low, high))
        if job.profile.name not in made:
            made[job.profile.name] = _slower(job.profile, factor)
        steps = max(1, round(job.steps / factor))
        jobs.append(replace(job, profile=made[job.profile.name], steps=steps))
    return replace(work, jobs=tuple(jobs))


def _slower(profile: Profile, factor: float) -> Profile:
    """A step takes so many times as long."""

    def points(listed: Sequence[Point]) -> tuple[Point, ...]:
        return tuple((nodes, gpus, rate / factor) for nodes, gpus, rate in listed)

    kinds = tuple((kind, points(listed)) for kind, listed in profile.kinds)
    return replace(profile, points=points(profile.points), kinds=kinds)


def _poisson_workload(seed: int) -> Workload:
    profiles = [*load_profiles([conf_folder() / "profiles"]).values()]
    draws = chance("unknown", "poisson", seed)
    jobs = []
    for number, submit_s in enumerate(poisson(draws, POISSON_PER_HOUR, POISSON_HOURS)):
        profile = profiles[draws.randrange(len(profiles))]
        seconds = LENGTH_S * math.exp(draws.gauss(0.0, LENGTH_SIGMA))
        # In milliseconds of one GPU, to be brought to steps with the length of one.
        fine = _slower(profile, profile.rate(1) / 1000.0)
        jobs.append(SimJob(submit_s, f"{number} {profile.name}", fine, max(1, round(seconds * 1000.0))))
    return Workload(f"{POISSON} seed {seed}", tuple(jobs), cluster(POISSON_NODES, POISSON_GPUS, "v100"))


def _later(job: SimJob, seconds: float) -> SimJob:
    deadline_s = None if job.deadline_s is None else job.deadline_s + seconds
    return replace(job, submit_s=job.submit_s + seconds, deadline_s=deadline_s)


def _drawn(job: SimJob, seed: int, number: int) -> int:
    if job.draw is not None:
        return job.draw
    return random.Random(f"draw {seed} {number}").choice(job.gpus_counts or tuple(range(1, POISSON_GPUS + 1)))


def _measured(run: SimulatedRun, skipped: int) -> UnknownMeasures:
    later = [job for number, job in enumerate(run.history.jobs) if number >= skipped]
    ended = [job.finished_at for job in later if job.finished_at is not None]
    begun = min(job.submitted_at for job in later)
    jcts = [job.finished_at - job.submitted_at for job in later if job.finished_at is not None]
    suspends = sum(max(0, len(job.attempts) - 1) for job in later)
    return UnknownMeasures(fmean(jcts), max(ended) - begun, float(suspends))


def _row(name: str, case: str, runs: Mapping[str, Sequence[UnknownMeasures]]) -> PaperRow:
    own = runs[case]
    more: dict[str, Any] = {"mean_jct_s_ci95": interval([run.jct_s for run in own])[1]}
    for other, key in (
        ("adaptive, told", "told"),
        ("fifo, no profile", "fifo"),
        ("k8s-default, no profile", "default"),
    ):
        if other in runs and other != case:
            losses = [mine.jct_s / its.jct_s - 1 for mine, its in zip(own, runs[other], strict=True)]
            more[f"jct_vs_{key}"], more[f"jct_vs_{key}_ci95"] = interval(losses)
    more |= {"suspends": mean(own, "suspends"), "seeds": len(own)}
    return PaperRow(name, case, mean(own, "makespan_s"), mean(own, "jct_s"), more)
