"""The workloads of the SideCar and GENIE papers, from conf/workloads: jobs, nodes, and profiles with their costs.

Seeds that the files do not hold are drawn anew, of the same kind (`sim/generators.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from hpcdl.config.layers import conf_folder
from hpcdl.core.model.profile import Point, Profile
from hpcdl.sim.generators import (
    GENIE_HOURS,
    GENIE_SHARES,
    SIDECAR_GPUS,
    GenieDraw,
    SidecarDraw,
    chance,
    draw_genie,
    draw_sidecar,
)
from hpcdl.sim.papers.table import paper_file
from hpcdl.sim.readers.source import number, read_values, whole, word
from hpcdl.sim.workload import NodeSpell, SimJob, Workload, WorkloadError, cluster

STEPS_PER_S = 10.0
"""Steps in a second of work on the GPU that work is counted in: fine enough for curves, coarse enough to count."""

SIDECAR_WORKLOADS = ("W1", "W2", "W3", "W4")
_JOBS = {"W1": 40, "W2": 20, "W3": 40, "W4": 40}
_OTHER = {"W1": "p100", "W2": "p100", "W3": "k80", "W4": "k80"}
_REFERENCE = "v100"
PREDICTION_SIGMA = 0.4

_SIDECAR_COSTS: Mapping[str, Mapping[str, float]] = paper_file("sidecar")["costs"]

GENIE_LOADS = (5, 10, 20)
GENIE_NODES, GENIE_GPUS = 4, 4
_GENIE: Mapping[str, Any] = paper_file("genie")["costs"]
_LEAST_SPEEDUP = 0.05


@dataclass(frozen=True, slots=True)
class GenieModel:
    """gamma: weight of communication; lambda_: a path within a node against one between nodes; b0: half-rate batch."""

    gamma: float
    lambda_: float
    b0: float


GENIE_MODELS = {
    name: GenieModel(each["gamma"], each["lambda"], each["b0"]) for name, each in paper_file("genie")["models"].items()
}

# The columns of the files in conf/workloads.
_CURVE_COLUMNS = {"type": word(), "gpu": word(), "gpus": whole(), "rate": number(1e-6)}
_JOB_COLUMNS = {
    "workload": word(),
    "seed": whole(0),
    "job": word(),
    "submit_s": number(),
    "type": word(),
    "work_s": number(),
    "default_gpus": whole(),
}
_TASK_COLUMNS = {
    "per_hour": whole(),
    "seed": whole(0),
    "task": word(),
    "submit_s": number(),
    "model": word(*GENIE_MODELS),
    "kind": word("training", "inference"),
    "batch": whole(),
    "latency_1gpu_s": number(),
    "priority": word(*GENIE_SHARES),
}

_Curves: TypeAlias = dict[str, dict[str, tuple[Point, ...]]]


def sidecar(
    workload: str, seed: int, costs: float = 1.0, termination: bool = False, folder: Path | None = None
) -> Workload:
    """W1 to W4: a server of 8 V100 (n1) and one of 8 P100 or K80 (n2), 40 jobs, 20 in W2.

    Seeds 0 to 9 are those of the file in `folder` (conf/workloads), others are drawn. A step is a tenth of a second on
    one V100. `costs` scales every time around starts and reshapes. `termination`: those of the baselines that end a
    trainer and start another one. In W4 policies see the remaining steps with an error (`SimJob.predicted`).
    """
    if workload not in SIDECAR_WORKLOADS:
        raise WorkloadError(f"there is no workload {workload!r}: choose from {', '.join(SIDECAR_WORKLOADS)}")
    if not 0 <= costs < 1e6:
        raise WorkloadError(f"costs must be a factor of 0 or more, got {costs}")
    place = folder or conf_folder() / "workloads"
    curves, (drawn, work) = _curves(place / "sidecar_curves.csv"), _sidecar_jobs(place / "sidecar_jobs.csv")
    found = drawn.get((workload, seed))
    source = "sidecar_jobs.csv" if found else "drawn like sidecar_jobs.csv"
    if found is None:
        # W4 is W3 with predictions, as in the file.
        name = "W3" if workload == "W4" else workload
        types = sorted({kind for of, kind in work if of == name})
        found = draw_sidecar(chance("sidecar", name, seed), types, _JOBS[name])
    costs_of = _SIDECAR_COSTS["termination" if termination else "sidecar"]
    times = {key: seconds * costs for key, seconds in costs_of.items()}
    profiles = {name: _sidecar_profile(name, kinds, times) for name, kinds in curves.items()}
    errors = chance("sidecar", "predictions", seed)
    jobs = tuple(
        SimJob(
            submit_s=job.submit_s,
            name=f"{workload}/{number} {job.type}",
            profile=profiles[job.type],
            steps=max(1, round(work[workload, job.type] * STEPS_PER_S)),
            gpus_min=SIDECAR_GPUS[0],
            gpus_max=SIDECAR_GPUS[-1],
            gpus_counts=SIDECAR_GPUS,
            predicted=errors.gauss(0.0, PREDICTION_SIGMA) if workload == "W4" else None,
            draw=job.gpus,
        )
        for number, job in enumerate(found)
    )
    nodes = (NodeSpell("n1", 8, _REFERENCE), NodeSpell("n2", 8, _OTHER[workload]))
    return Workload(f"{workload} seed {seed}", jobs, nodes, f"SideCar (Wang et al.), {source}")


def _sidecar_profile(name: str, kinds: dict[str, tuple[Point, ...]], times: Mapping[str, Any]) -> Profile:
    return Profile(
        name=name,
        points=kinds[_REFERENCE],
        kinds=tuple(kinds.items()),
        source="assumed, shaped by what SideCar prints (R50-64: measured, Gavel)",
        **times,
    )


@lru_cache(maxsize=8)
def _curves(path: Path) -> _Curves:
    rates: dict[str, dict[str, list[Point]]] = {}
    for _, (model, kind, gpus, rate) in read_values(path, _CURVE_COLUMNS):
        points = rates.setdefault(model, {}).setdefault(kind.lower(), [])
        points.append((1, gpus, rate * STEPS_PER_S))
    return {name: {kind: tuple(points) for kind, points in kinds.items()} for name, kinds in rates.items()}


@lru_cache(maxsize=8)
def _sidecar_jobs(
    path: Path,
) -> tuple[dict[tuple[str, int], tuple[SidecarDraw, ...]], dict[tuple[str, str], float]]:
    """Jobs by workload and seed, and the work of each type in each workload, which is constant."""
    jobs: dict[tuple[str, int], list[SidecarDraw]] = {}
    work: dict[tuple[str, str], float] = {}
    for place, (workload, seed, _, submit_s, model, seconds, gpus) in read_values(path, _JOB_COLUMNS):
        jobs.setdefault((workload, seed), []).append(SidecarDraw(submit_s, model, gpus))
        if work.setdefault((workload, model), seconds) != seconds:
            place.wrong("work_s", f"{model} has {work[workload, model]:g} s elsewhere")
    return {key: tuple(found) for key, found in jobs.items()}, work


def genie(per_hour: int, seed: int, folder: Path | None = None, nodes: int = GENIE_NODES) -> Workload:
    """GENIE's arrivals of 24 h on 4 nodes with 4 K80 each (or `nodes` of them).

    5, 10 and 20 an hour with seeds 0 to 7 are those of the file, others are drawn. A step is a tenth of a second on one
    GPU; a job may have 1 to 4 GPUs on each of 1 to 4 nodes. A deadline is the arrival (urgent), the latency on one GPU
    after it (prior, `genie_latency`, its 30 s of start-up included), or twice that (normal). `user` is the priority.
    """
    place = folder or conf_folder() / "workloads"
    found = _genie_draws(place / "genie_tasks.csv.gz").get((per_hour, seed))
    source = "genie_tasks.csv" if found else "drawn like genie_tasks.csv"
    if found is None:
        found = draw_genie(chance("genie", per_hour, seed), per_hour, GENIE_HOURS)
    after = {"urgent": 0.0, "prior": 1.0, "normal": 2.0}
    jobs = tuple(
        SimJob(
            submit_s=draw.submit_s,
            name=f"{number} {draw.model} {draw.kind} b{draw.batch}",
            profile=genie_profile(draw.model, draw.kind, draw.batch),
            steps=max(1, round(draw.seconds * STEPS_PER_S)),
            gpus_max=GENIE_GPUS,
            nodes_max=GENIE_NODES,
            user=draw.priority,
            kind=draw.kind,
            deadline_s=draw.submit_s + after[draw.priority] * (_GENIE["startup_s"] + draw.seconds),
        )
        for number, draw in enumerate(found)
    )
    name = f"{per_hour}/h seed {seed}"
    return Workload(name, jobs, cluster(nodes, GENIE_GPUS, "k80"), f"GENIE (Table 3), {source}")


def genie_speedup(model: str, kind: str, batch: int, nodes: int, gpus: int) -> float:
    """S of `nodes` x `gpus` over one GPU, at a global batch (GENIE's equations 5 to 8); at least 0.05."""
    of, many = GENIE_MODELS[model], nodes * gpus
    lost = 0.0
    if kind == "training" and many > 1:
        lost = ((nodes - 1) * gpus + of.lambda_ * (gpus - 1)) * of.gamma / (many - 1)
    share = batch / many
    filled = (share / (share + of.b0)) / (batch / (batch + of.b0))
    return max((many - lost) * filled, _LEAST_SPEEDUP)


@lru_cache(maxsize=256)
def genie_profile(model: str, kind: str, batch: int) -> Profile:
    """The true rates of a model on every placement of 1 to 4 nodes with 1 to 4 GPUs each."""
    points = tuple(
        (nodes, gpus, STEPS_PER_S * genie_speedup(model, kind, batch, nodes, gpus))
        for nodes in range(1, GENIE_NODES + 1)
        for gpus in range(1, GENIE_GPUS + 1)
    )
    return Profile(
        name=f"{model} {kind} b{batch}",
        points=points,
        source="GENIE's equations 5 to 8, with assumed parameters",
        **_GENIE,
    )


@lru_cache(maxsize=8)
def _genie_draws(path: Path) -> dict[tuple[int, int], tuple[GenieDraw, ...]]:
    draws: dict[tuple[int, int], list[GenieDraw]] = {}
    for _, (per_hour, seed, _, *values) in read_values(path, _TASK_COLUMNS):
        draws.setdefault((per_hour, seed), []).append(GenieDraw(*values))
    return {key: tuple(found) for key, found in draws.items()}
