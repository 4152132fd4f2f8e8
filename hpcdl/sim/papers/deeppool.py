"""Tables 1 and 3 and what the text prints of figures 9 to 12 of the DeepPool paper (Park et al., MLSys 2022).

Ours is planned and predicted from measured layers, in hpcdl/deeppool; what the paper prints, and the notes, stand in
deeppool.yaml. Nothing here runs on a GPU.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpcdl.deeppool.baselines import gain_over_partition, operating_points
from hpcdl.deeppool.models import model_document
from hpcdl.deeppool.planner import plan_burst
from hpcdl.deeppool.problem import BurstProblem, read_problem
from hpcdl.sim.papers.table import PaperRow, PaperTable, paper_file

SEEDS = (0,)
"""Nothing is drawn."""
MODELS = {"VGG-16": "vgg16", "Inception-v3": "inception-v3"}
"""The models with measured layers; of WideResNet-101-2 there are none."""
LIMITS = (1.1, 1.2, 1.5, 2.0, 3.0, 4.0, None)
_REPEATS = 5


def tables(seeds: Sequence[int] = SEEDS) -> tuple[PaperTable, ...]:
    """The four tables; `seeds` is not used."""
    return models(), searches(), throughput(), multiplexing()


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
        for gpus, printed in by_gpus.items():
            for branches in ("sequence", "parallel") if name in MODELS else ("sequence",):
                more: dict[str, Any] = {}
                if name in MODELS:
                    batch = 1024 if gpus > 8 else _problem(name).global_batch
                    problem = replace(_problem(name), gpus=gpus, global_batch=batch, limit=2.0, branches=branches)
                    more = _searched(problem)
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
    for name, printed in _printed("throughput").items():
        more: dict[str, Any] = {}
        if name in MODELS:
            problem = _problem(name)
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
            }
        rows.append(_row(name, "burst parallel", more, printed))
    return _table("DeepPool figures 9 and 10: 8 GPUs", rows, "throughput")


def multiplexing() -> PaperTable:
    """What the text prints of figures 11 and 12: only the paper's, as hpcdl has not measured it on a GPU."""
    rows = [_row(name, "not run on a GPU", {}, printed) for name, printed in _printed("multiplexing").items()]
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
