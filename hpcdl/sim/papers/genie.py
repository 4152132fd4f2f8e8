"""The figures of the GENIE paper (Chen et al., TPDS 2020): 13, 14, 15 and 17.

What the paper prints, and the notes below each table, stand in genie.yaml; `data` reads or draws the workloads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from statistics import fmean
from types import MappingProxyType
from typing import Any

from hpcdl.core.model.profile import Profile
from hpcdl.estimators.latency import LightRun, fit, plan_light_runs
from hpcdl.sim.conditions import SimulatedRun
from hpcdl.sim.generators import chance
from hpcdl.sim.papers.data import GENIE_GPUS, GENIE_LOADS, GENIE_MODELS, GENIE_NODES, STEPS_PER_S, genie, genie_speedup
from hpcdl.sim.papers.table import (
    PaperRow,
    PaperTable,
    conditions_for,
    intervals,
    mean,
    paper_file,
    run_policy,
    seeds_note,
)
from hpcdl.sim.results import percentile
from hpcdl.sim.workload import SimJob, Workload

SEEDS = tuple(range(8))
FEW = 3
"""Seeds of the sensitivity figures: as many runs as the paper takes the mean of."""
BLACK_BOXES = ("fifo", "capacity", "min-min", "weighted-fair")
BASELINES = (*BLACK_BOXES, "tetris-perf", "tetris-cer")
POLICIES = (*BASELINES, "genie", "adaptive")

PRIORITIES = ((5, 35, 60), (10, 40, 50), (20, 40, 40))
"""Per cent of urgent, prior and normal jobs (figure 14 c, d). The first ones are the paper's."""
PRIORITIES_PER_HOUR = 10
DURATIONS_H = (12, 24, 48)
"""Hours in which jobs arrive (figure 14 e, f), at 15 an hour."""
SIZES = (4, 8, 16, 32)
"""Nodes with 4 GPUs each (figure 17)."""
SIZES_PER_HOUR = 20

NOISE = 0.02
"""Relative standard deviation of a light run's rate against the truth."""
LIGHT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""From the smallest batch that a GPU of 16 can see to the largest job on one."""

_PRINTED: Mapping[str, Mapping[str, float]] = paper_file("genie")["printed"]
_NOTES: Mapping[str, Any] = paper_file("genie")["notes"]


@dataclass(frozen=True, slots=True)
class GenieMeasures:
    """A run; the notes in genie.yaml say what each measure is. Times are seconds; shares and errors lie from 0 to 1."""

    qos: float
    qos_prior_normal: float
    makespan_s: float
    jct_s: float
    normalised_latency: float
    longest_wait_missed_s: float


def single_latency_s(job: SimJob) -> float:
    """Lat(t, <1, 1>): seconds of the whole job on one GPU, its start-up included."""
    return job.profile.startup_s + job.steps / job.profile.rate(1)


def measure_run(run: SimulatedRun) -> GenieMeasures:
    """The measures of a run. AssertionError where a job did not end."""
    ends, waits, met = [], [], []
    for number, job in run.jobs.items():
        told = run.world.jobs[number]
        if told.finished_at is None or told.first_start_at is None or job.deadline_s is None:
            raise AssertionError(f"{run.workload.name} under {run.policy}: job {job.name} did not end, or has no ECT")
        ends.append((job, told.finished_at))
        met.append(told.finished_at <= job.deadline_s + 1e-6)
        waits.append(told.first_start_at - job.submit_s)
    late = [wait for wait, good in zip(waits, met, strict=True) if not good]
    not_urgent = [good for (job, _), good in zip(ends, met, strict=True) if not _urgent(job)]
    return GenieMeasures(
        qos=fmean(met),
        qos_prior_normal=fmean(not_urgent),
        makespan_s=max(end for _, end in ends) - min(job.submit_s for job, _ in ends),
        jct_s=fmean(end - job.submit_s for job, end in ends),
        normalised_latency=fmean((end - job.submit_s) / single_latency_s(job) for job, end in ends),
        longest_wait_missed_s=max(late, default=0.0),
    )


def _urgent(job: SimJob) -> bool:
    return job.deadline_s is not None and job.deadline_s <= job.submit_s


# --- workloads -------------------------------------------------------------------------------------------------------


def by_type(workload: Workload) -> Workload:
    """The workload with the type of model as user: `capacity` has a queue for each user, the paper's for each type."""
    return _with(workload, lambda _, job: replace(job, user=job.profile.name.split()[0]))


def with_priorities(workload: Workload, shares: Sequence[int], seed: int) -> Workload:
    """The workload with priorities drawn anew: `shares` of urgent, prior and normal in per cent."""
    draws = chance("genie", "priorities", *shares, seed)

    def change(_: int, job: SimJob) -> SimJob:
        times = draws.choices((0.0, 1.0, 2.0), shares)[0]
        return replace(job, deadline_s=job.submit_s + times * single_latency_s(job))

    text = "/".join(map(str, shares))
    return replace(_with(workload, change), name=f"{workload.name}, {text} % urgent/prior/normal")


def lasting(hours: int, seed: int) -> Workload:
    """Arrivals at 15 an hour for so many hours: those of 5 and of 10 an hour together, days one after another."""
    day_h = 24
    jobs: list[SimJob] = []
    for day in range(-(-hours // day_h)):
        shift = day * day_h * 3600.0
        for per_hour in (5, 10):
            more = genie(per_hour, seed + 1000 * day).jobs
            jobs += [
                replace(job, submit_s=job.submit_s + shift, deadline_s=(job.deadline_s or 0.0) + shift) for job in more
            ]
    kept = sorted((job for job in jobs if job.submit_s < hours * 3600), key=lambda job: job.submit_s)
    whole = genie(10, seed)
    return replace(whole, name=f"15/h for {hours} h seed {seed}", jobs=tuple(kept))


def with_drawn_requests(workload: Workload, seed: int) -> Workload:
    """Each job asks for one of its placements, drawn, and takes no other."""
    draws = chance("genie", "requests", seed)
    shapes = tuple(product(range(1, GENIE_NODES + 1), range(1, GENIE_GPUS + 1)))

    def change(_: int, job: SimJob) -> SimJob:
        nodes, gpus = draws.choice(shapes)
        return replace(job, nodes=nodes, nodes_max=nodes, gpus_min=gpus, gpus_max=gpus)

    return _with(workload, change)


def with_light_profiles(workload: Workload, seed: int) -> Workload:
    """The workload, of whose jobs policies know only what the light profiling says (eq. 4 to 8)."""
    return _with(workload, lambda _, job: replace(job, believed=light_profile(job.profile, seed)))


def _with(workload: Workload, change: Callable[[int, SimJob], SimJob]) -> Workload:
    return replace(workload, jobs=tuple(change(number, job) for number, job in enumerate(workload.jobs)))


@lru_cache(maxsize=1024)
def light_profile(truth: Profile, seed: int) -> Profile:
    """What B + N + G noisy runs of its model say about a job with this true profile."""
    model, kind, batch_text = truth.name.split()
    batch = int(batch_text[1:])
    draws = chance("genie", "light", model, kind, seed)
    runs = [
        LightRun(
            setting, _samples_per_s(model, kind, setting.batch, setting.nodes, setting.gpus) * draws.gauss(1, NOISE)
        )
        for setting in plan_light_runs(LIGHT_BATCHES, range(1, GENIE_NODES + 1), range(1, GENIE_GPUS + 1))
    ]
    found = fit(runs, synchronises=kind == "training")
    # A step of the workload is a tenth of a second on one GPU, whatever the batch.
    step = _samples_per_s(model, kind, batch, 1, 1) / STEPS_PER_S
    points = tuple((nodes, gpus, found.rate(batch, nodes, gpus) / step) for nodes, gpus, _ in truth.points)
    return replace(truth, points=points, spread=found.error, source="GENIE's model, fitted to light runs with noise")


def _samples_per_s(model: str, kind: str, batch: int, nodes: int, gpus: int) -> float:
    """The truth, in units of one GPU with an infinite batch."""
    return genie_speedup(model, kind, batch, nodes, gpus) * batch / (batch + GENIE_MODELS[model].b0)


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(seeds: Iterable[int] = SEEDS) -> tuple[PaperTable, ...]:
    """The tables of figures 13, 14, 15 and 17."""
    found = tuple(seeds)
    return tuple(make(found) for make in (densities, drawn, priorities, durations, prediction, sizes))


def densities(seeds: Sequence[int]) -> PaperTable:
    """Figures 13 and 14 (a, b): QoS and makespan by arrivals an hour."""
    cases = {f"{per_hour}/h": partial(genie, per_hour) for per_hour in GENIE_LOADS}
    return _compared("GENIE figures 13 and 14 (a, b): arrivals an hour", cases, seeds, _PRINTED["densities"])


def drawn(seeds: Sequence[int]) -> PaperTable:
    """Figure 13 with drawn requests."""
    cases = {f"{per_hour}/h": partial(_drawn, per_hour) for per_hour in GENIE_LOADS}
    return _compared("GENIE figure 13: black boxes with drawn requests", cases, seeds[:FEW], policies=BLACK_BOXES)


def priorities(seeds: Sequence[int]) -> PaperTable:
    """Figure 14 (c, d): QoS and makespan by shares of priorities."""
    cases = {"/".join(map(str, shares)): partial(_of_priorities, shares) for shares in PRIORITIES}
    note = f"At {PRIORITIES_PER_HOUR} an hour (the paper does not say); per cent of urgent, prior and normal jobs."
    return _compared("GENIE figure 14 (c, d): priorities", cases, seeds[:FEW], {}, note)


def durations(seeds: Sequence[int]) -> PaperTable:
    """Figure 14 (e, f): QoS and makespan by hours of arrivals."""
    cases = {f"{hours} h": partial(lasting, hours) for hours in DURATIONS_H}
    return _compared("GENIE figure 14 (e, f): duration of arrivals", cases, seeds[:FEW], {}, _NOTES["durations"])


def sizes(seeds: Sequence[int]) -> PaperTable:
    """Figure 17: QoS and makespan by size of the cluster."""
    cases = {f"{nodes * GENIE_GPUS} GPUs": partial(genie, SIZES_PER_HOUR, nodes=nodes) for nodes in SIZES}
    note = f"{SIZES_PER_HOUR} an hour; a job has at most 4 nodes on larger clusters too: its smallest batch is 16."
    return _compared("GENIE figure 17: 16 to 128 GPUs", cases, seeds[:FEW], _PRINTED["sizes"], note)


def prediction(seeds: Sequence[int], loads: Sequence[int] = GENIE_LOADS) -> PaperTable:
    """Figure 15, and what GENIE comes to with such predictions."""
    rows = []
    for per_hour in loads:
        runs = [_run(with_light_profiles(genie(per_hour, seed), seed), "genie") for seed in seeds]
        errors = [error for run in runs for error in prediction_errors(run)]
        more = {
            "error_mean": fmean(errors),
            "error_p95": percentile(errors, 0.95),
            "error_max": max(errors),
            "light_runs": len(plan_light_runs(LIGHT_BATCHES, range(1, 5), range(1, 5))),
        }
        rows.append(_row(f"{per_hour}/h", "genie", [measure_run(run) for run in runs], more, _PRINTED["prediction"]))
    return _table("GENIE figure 15: error of the prediction", rows, seeds, _NOTES["prediction"])


def _compared(
    title: str,
    cases: Mapping[str, Callable[[int], Workload]],
    seeds: Sequence[int],
    paper: Mapping[str, float] = MappingProxyType({}),
    *notes: str,
    policies: Sequence[str] = POLICIES,
) -> PaperTable:
    """A row for each case under each policy. `cases`: by name, the workload of a seed."""
    rows: list[PaperRow] = []
    for name, make in cases.items():
        rows += rows_of(name, measure(policies, seeds, make), paper)
    return _table(title, rows, seeds, *notes)


def measure(
    policies: Sequence[str], seeds: Sequence[int], make: Callable[[int], Workload]
) -> dict[str, list[GenieMeasures]]:
    """The runs of a workload with each seed, by policy."""
    return {policy: [measure_run(_run(by_type(make(seed)), policy)) for seed in seeds] for policy in policies}


def _table(title: str, rows: Sequence[PaperRow], seeds: Sequence[int], *notes: str) -> PaperTable:
    return PaperTable(title, tuple(rows), (seeds_note(seeds), *notes, *_NOTES["all"]))


def prediction_errors(run: SimulatedRun) -> list[float]:
    """Of each job: the relative error of its predicted latency at the placement it had."""
    errors = []
    for each in run.history.jobs:
        job = run.jobs[each.id]
        had = each.attempts[0].placement
        true_s = job.profile.startup_s + job.steps / job.profile.rate(had.per_node, len(had.nodes))
        believed = job.believed or job.profile
        told_s = believed.startup_s + job.steps / believed.rate(had.per_node, len(had.nodes))
        errors.append(abs(told_s / true_s - 1))
    return errors


def _drawn(per_hour: int, seed: int) -> Workload:
    return with_drawn_requests(genie(per_hour, seed), seed)


def _of_priorities(shares: Sequence[int], seed: int) -> Workload:
    return with_priorities(genie(PRIORITIES_PER_HOUR, seed), shares, seed)


def _run(workload: Workload, policy: str) -> SimulatedRun:
    return run_policy(workload, policy, conditions_for(policy, "deadline"))


def rows_of(name: str, runs: Mapping[str, Sequence[GenieMeasures]], paper: Mapping[str, float]) -> list[PaperRow]:
    theirs = [own for policy, own in runs.items() if policy in BASELINES]
    best_qos = max(mean(own, "qos") for own in theirs)
    best_makespan_s = min(mean(own, "makespan_s") for own in theirs)
    rows = []
    for policy, own in runs.items():
        more = {}
        if policy not in BASELINES:
            more = {
                "qos_gain": mean(own, "qos") / best_qos - 1 if best_qos else None,
                "makespan_reduction": 1 - mean(own, "makespan_s") / best_makespan_s,
            }
        rows.append(_row(name, policy, own, more, paper if policy == "genie" else {}))
    return rows


def _row(
    workload: str, policy: str, own: Sequence[GenieMeasures], more: Mapping[str, Any], paper: Mapping[str, float]
) -> PaperRow:
    figures = intervals(own, "qos", "qos_prior_normal", "makespan_s", "normalised_latency")
    makespan_s = figures.pop("makespan_s")
    figures |= {"longest_wait_missed_s": max(run.longest_wait_missed_s for run in own), "seeds": len(own)}
    return PaperRow(workload, policy, makespan_s, mean(own, "jct_s"), {**figures, **more}, paper)
