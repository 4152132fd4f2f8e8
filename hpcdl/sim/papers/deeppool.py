"""Tables 1 and 3 and what the text prints of figures 9 to 12 of the DeepPool paper (Park et al., MLSys 2022).

Ours is planned and predicted from measured layers, in hpcdl/deeppool, and one table is simulated; what the paper
prints, and the notes, stand in deeppool.yaml. Nothing here runs on a GPU.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hpcdl.core.model.job import SLOWDOWN, Sharing
from hpcdl.core.model.profile import Profile
from hpcdl.deeppool.baselines import (
    OperatingPoint,
    background_per_s,
    gain_over_one_partition,
    gain_over_partition,
    operating_points,
)
from hpcdl.deeppool.models import model_document
from hpcdl.deeppool.planner import plan_burst
from hpcdl.deeppool.problem import PARALLEL, BurstProblem, read_problem
from hpcdl.policies import all_policies
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.papers.table import PaperRow, PaperTable, paper_file
from hpcdl.sim.slowdowns import Slowdown
from hpcdl.sim.workload import NodeSpell, SimJob, Workload

SEEDS = (0,)
"""Nothing is drawn."""
MODELS = {"VGG-16": "vgg16", "Inception-v3": "inception-v3"}
"""The models with measured layers; of WideResNet-101-2 there are none."""
LIMITS = (1.1, 1.2, 1.5, 2.0, 3.0, 4.0, None)
SIDE_BY_SIDE = "branches side by side"
_REPEATS = 5
POLICY = "deeppool"
HELD = {"held at 5 %": 0.05, "held at 10 %": 0.1, "not held": 1.0}
"""What the foreground is to lose at most (`--share foreground:PCT`), in words."""
_SECONDS, _STEPS, _MEMORY_MIB = 1000.0, 10**9, 40 * 1024


def tables(seeds: Sequence[int] = SEEDS) -> tuple[PaperTable, ...]:
    """The five tables; `seeds` is not used."""
    return models(), searches(), throughput(), shared(), multiplexing()


def models() -> PaperTable:
    """Table 1: parameters and layers."""
    rows = []
    for name, printed in _printed("models").items():
        more: dict[str, Any] = {}
        if name in MODELS:
            problem = _problem(name)
            millions = sum(layer.parameter_bytes for layer in problem.layers) / 4e6
            more = {"params_m": millions, "layers": len(problem.layers)}
        rows.append(_row(name, "profile", more, printed))
    return _table("DeepPool table 1: models", rows, "models")


def searches() -> PaperTable:
    """Table 3: time of the search, in one thread, with and without branches side by side."""
    rows = []
    for name, by_gpus in _printed("search_ms").items():
        on_8: dict[str, float] = {}
        for gpus, printed in by_gpus.items():
            for branches in ("sequence", "parallel") if name in MODELS else ("sequence",):
                more: dict[str, Any] = {}
                if name in MODELS:
                    batch = 1024 if gpus > 8 else _problem(name).global_batch
                    problem = replace(_problem(name), gpus=gpus, global_batch=batch, limit=2.0, branches=branches)
                    more = _searched(problem)
                    more["growth"] = more["search_ms"] / on_8.setdefault(branches, more["search_ms"])
                paper = {"search_ms": printed} if branches == "sequence" else {}
                rows.append(_row(f"{name}, {gpus} GPUs", f"branches in {branches}", more, paper))
    return _table("DeepPool table 3: time of the search", rows, "searches")


def _searched(problem: BurstProblem) -> dict[str, Any]:
    times = []
    for _ in range(_REPEATS):
        begun = time.process_time()
        plan = plan_burst(problem)
        times.append(1e3 * (time.process_time() - begun))
    limit = problem.limit or math.inf
    kept = all(
        layer.amplification is None or layer.amplification <= limit * (1 + 1e-9)
        for layer, known in zip(plan.layers, problem.layers, strict=True)
        if known.compute(problem.global_batch) >= problem.exempt_below_ms
    )
    return {"search_ms": min(times), "iteration_ms": plan.time_ms, "optimal": plan.optimal, "limit_kept": kept}


def throughput() -> PaperTable:
    """Figures 9 and 10: the cluster's throughput, and the speedup at the throughput of a partition."""
    rows = []
    for name, problem, printed in _with_branches("throughput"):
        more: dict[str, Any] = {}
        if problem is not None:
            points = operating_points(problem, LIMITS, problem.global_batch)
            plain = points[0]
            bursts = [point for point in points if point.kind == "burst parallel"]
            # As the paper chose: a good total with little loss of the foreground, here none against data parallelism.
            best = max(
                (point for point in bursts if point.speedup >= plain.speedup * (1 - 1e-9)),
                key=lambda point: point.total_per_s,
                default=max(bursts, key=lambda point: point.speedup),
            )
            more = {
                "total_vs_data_parallel": best.total_per_s / plain.total_per_s,
                "foreground_vs_data_parallel": best.speedup / plain.speedup,
                "setting": best.setting,
                "speedup_gain_over_partition": gain_over_partition(points),
                "speedup_gain_over_one_partition": gain_over_one_partition(points),
            }
        rows.append(_row(name, "burst parallel", more, printed))
    return _table("DeepPool figures 9 and 10: 8 GPUs", rows, "throughput")


def shared() -> PaperTable:
    """Figures 9 and 10 with background jobs, simulated: one beside the foreground on every GPU."""
    rows = []
    for name, problem, printed in _with_branches("shared"):
        if problem is None:
            continue
        points = operating_points(problem, (1.5, 2.0, 4.0), problem.global_batch)
        plain, partitions = points[0], [point for point in points if point.kind == "partition"]
        gains: dict[str, list[float]] = {}
        for point in points:
            if point.kind != "burst parallel":
                continue
            alone, _ = simulated_rates(problem, point, backgrounds=0)
            for held, limit in HELD.items():
                front, back = simulated_rates(problem, point, backgrounds=problem.gpus, limit=limit)
                both = replace(point, speedup=point.speedup * front / alone, total_per_s=front + back)
                above: dict[str, float | None] = {
                    "speedup_gain_over_partition": gain_over_partition([*partitions, both]),
                    "speedup_gain_over_one_partition": gain_over_one_partition([*partitions, both]),
                }
                for which, gain in above.items():
                    gains.setdefault(which, []).extend([] if gain is None else [gain])
                more = {
                    "setting": f"{point.setting}, {held}",
                    "total_vs_data_parallel": (front + back) / plain.total_per_s,
                    "foreground_vs_burst_parallel": front / alone,
                    "foreground_vs_data_parallel": front / plain.foreground_per_s,
                    **above,
                }
                rows.append(_row(name, POLICY, more, printed))
        best = {"setting": "the best of these"} | {which: max(each, default=None) for which, each in gains.items()}
        figure_10 = _printed("throughput")[name.partition(",")[0]]["speedup_gain_over_partition"]
        rows.append(_row(name, POLICY, best, {"speedup_gain_over_partition": figure_10}))
    return _table("DeepPool figures 9 and 10, simulated: burst parallel and backgrounds on 8 GPUs", rows, "shared")


def _with_branches(figure: str) -> Iterator[tuple[str, BurstProblem | None, dict[str, Any]]]:
    """Each model, its problem (None: there is no profile), and what is printed; where it branches both ways."""
    for name, printed in _printed(figure).items():
        yield name, _problem(name) if name in MODELS else None, printed
        if name in MODELS and any(len(layer.inputs) > 1 for layer in _problem(name).layers):
            yield f"{name}, {SIDE_BY_SIDE}", replace(_problem(name), branches=PARALLEL), printed


def simulated_rates(
    problem: BurstProblem, point: OperatingPoint, *, backgrounds: int, limit: float = SLOWDOWN
) -> tuple[float, float]:
    """Samples a second of the foreground on all GPUs, and of so many backgrounds on one GPU each beside it.

    The foreground loses what the paper's pairs show at most, or its limit where that is less: then backgrounds run for
    as much less of the time. A background has the part of its own speed for which the plan leaves its GPU free, as in
    `operating_points`.
    """
    front = Profile("foreground", ((1, problem.gpus, point.foreground_per_s / problem.global_batch),))
    own = background_per_s(problem, problem.global_batch) / problem.global_batch
    back = Profile("background", ((1, 1, own),))
    jobs = [_job(front, problem.gpus, Sharing("foreground", limit))]
    jobs += [_job(back, 1, Sharing("background"))] * backgrounds
    node = NodeSpell("n1", problem.gpus, memory_mib=_MEMORY_MIB)
    free = max(1e-9, point.free_gpus / problem.gpus)
    loss = paper_file("deeppool")["foreground_loss"]
    matrix = (Slowdown(front.name, back.name, loss / (1 - loss), free),)
    conditions = Conditions(progress_s=_SECONDS / 100, until_s=_SECONDS * 1.005)
    workload = Workload("figure 9", tuple(jobs), (node,), slowdowns=matrix)
    ran = simulate(workload, POLICY, all_policies(), conditions)
    steps = {number: job.progress.step or 0 for number, job in ran.world.jobs.items()}
    per_step_s = problem.global_batch / _SECONDS
    return steps.pop(1) * per_step_s, sum(steps.values()) * per_step_s


def _job(profile: Profile, gpus: int, share: Sharing) -> SimJob:
    return SimJob(0.0, share.role, profile, _STEPS, gpus, gpus, share=share, gpu_memory_mib=_MEMORY_MIB // 4)


def multiplexing() -> PaperTable:
    """What the text prints of figures 11 and 12: only the paper's, as hpcdl has no table of its own from a GPU."""
    rows = [_row(name, "no table from a GPU yet", {}, printed) for name, printed in _printed("multiplexing").items()]
    return _table("DeepPool figures 11 and 12: sharing a GPU", rows, "multiplexing")


def _problem(name: str) -> BurstProblem:
    return read_problem(model_document(MODELS[name]))


def _printed(name: str) -> dict[str, Any]:
    printed: dict[str, Any] = paper_file("deeppool")["printed"][name]
    return printed


def _row(workload: str, policy: str, more: dict[str, Any], paper: dict[str, Any]) -> PaperRow:
    return PaperRow(workload, policy, math.nan, math.nan, more, paper)


def _table(title: str, rows: Sequence[PaperRow], notes: str) -> PaperTable:
    return PaperTable(title, tuple(rows), tuple(paper_file("deeppool")["notes"][notes]))
