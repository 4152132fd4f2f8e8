"""What burst-parallel plans are compared with: the paper's own search, and a cluster that is split for good.

Data parallelism itself is `planner.data_parallel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from hpcdl.core.model.units import count
from hpcdl.deeppool.costs import cost_tables
from hpcdl.deeppool.planner import BurstPlan, data_parallel, plan_burst, plan_in_sequence
from hpcdl.deeppool.problem import BurstProblem, BurstProblemError


def algorithm_1(problem: BurstProblem) -> BurstPlan | None:
    """The plan of the paper's Algorithm 1 as it is printed; None: the layers are no chain.

    It may break the limit, and be slower than the best plan: Amp is tested on the cheapest way to the layer before
    only, the first width that it looks at is always let in, and the last layer is never tested.
    """
    tables = cost_tables(problem)
    if any(theirs != ((layer - 1,) if layer else ()) for layer, theirs in enumerate(tables.inputs)):
        return None
    many = len(tables.widths)
    limit = inf if problem.limit is None else problem.limit
    shortest, took = [0.0] * many, [0.0] * many
    came: list[list[int]] = []
    for layer, own in enumerate(tables.own):
        now, own_time, origin = [], [], []
        for g in range(many):
            best_amp = best = move_of_best = inf
            chosen = 0
            for h in range(many):
                alone = tables.one_gpu[layer - 1] if layer else 0.0
                amp = took[h] * float(tables.widths[h]) / alone if alone else 0.0
                move = float(tables.moves[layer - 1][h, g]) if layer else 0.0
                if amp <= max(best_amp, limit) and shortest[h] + move <= best:
                    best, move_of_best, chosen = shortest[h] + move, move, h
                    best_amp = min(best_amp, amp)
            now.append(best + float(own[g]))
            own_time.append(move_of_best + float(own[g]))
            origin.append(chosen)
        shortest, took = now, own_time
        came.append(origin)
    place = min(range(many), key=shortest.__getitem__)
    places = [place]
    for origin in reversed(came[1:]):
        place = origin[place]
        places.append(place)
    return plan_in_sequence(tables, places[::-1], optimal=False, bound_ms=0.0)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A way to run the foreground job on the cluster, and what the GPUs that it leaves do meanwhile.

    kind: `data parallel`, `burst parallel` or `partition`. time_ms: of an iteration. free_gpus: GPUs that are free
    for background jobs, on average over the iteration. Samples a second: of the foreground, and of it with background
    jobs of the same model, each on one GPU at its full speed whenever its GPU is free. speedup: against one GPU.
    """

    kind: str
    setting: str
    time_ms: float
    speedup: float
    free_gpus: float
    foreground_per_s: float
    total_per_s: float


def background_per_s(problem: BurstProblem, batch: int) -> float:
    """Samples a second of one background job: the same model on one GPU, so many samples at a time."""
    took = sum(layer.compute(batch) for layer in problem.layers)
    return 1e3 * batch / took if took else 0.0


def operating_points(
    problem: BurstProblem, limits: Sequence[float | None], background_batch: int
) -> tuple[OperatingPoint, ...]:
    """Data parallelism alone, burst parallelism at each limit, and partitions in powers of two (figures 9 and 10).

    A limit that no plan keeps is left out. BurstProblemError where there is no plan without a limit either.
    """
    each = background_per_s(problem, background_batch)
    one_gpu = sum(layer.compute(problem.global_batch) for layer in problem.layers)

    def point(kind: str, setting: str, plan: BurstPlan, free: float) -> OperatingPoint:
        own = 1e3 * problem.global_batch / plan.time_ms if plan.time_ms else 0.0
        speedup = one_gpu / plan.time_ms if plan.time_ms else 1.0
        return OperatingPoint(kind, setting, plan.time_ms, speedup, free, own, own + free * each)

    points = [point("data parallel", count(problem.widest, "GPU"), data_parallel(problem), 0.0)]
    for limit in limits:
        try:
            plan = plan_burst(replace(problem, limit=limit, budget=None))
        except BurstProblemError:
            if limit is None:
                raise
            continue
        free = problem.gpus - plan.gpu_ms / plan.time_ms if plan.time_ms else 0.0
        points.append(point("burst parallel", "no limit" if limit is None else f"limit {limit:g}", plan, free))
    for power in range(problem.widest.bit_length()):
        gpus = 1 << power
        points.append(
            point("partition", f"{gpus} of {problem.gpus} GPUs", data_parallel(problem, gpus), problem.gpus - gpus)
        )
    return tuple(points)


def gain_over_partition(points: Sequence[OperatingPoint]) -> float | None:
    """The most by which a burst-parallel point's speedup is above the partitions' at the same total throughput.

    Between two partitions their frontier is a straight line; None where no partition reaches a point's throughput.
    """
    line = sorted((each.total_per_s, each.speedup) for each in points if each.kind == "partition")
    gains = []
    for each in points:
        if each.kind == "burst parallel":
            there = [
                low[1] + (high[1] - low[1]) * (each.total_per_s - low[0]) / (high[0] - low[0])
                for at, low in enumerate(line)
                for high in line[at + 1 :]
                if low[0] <= each.total_per_s <= high[0] and low[0] < high[0]
            ]
            if there:
                gains.append(each.speedup / max(there) - 1)
    return max(gains, default=None)


def gain_over_one_partition(points: Sequence[OperatingPoint]) -> float | None:
    """The most by which a burst-parallel point's speedup is above that of one partition with at least its throughput.

    The fastest of those that are there: a cluster that is split for good is one of them, and nothing between (the
    paper's figure 10 has four). None where no partition reaches a point's throughput.
    """
    partitions = [each for each in points if each.kind == "partition"]
    gains = []
    for each in points:
        if each.kind == "burst parallel":
            there = [one.speedup for one in partitions if one.total_per_s >= each.total_per_s * (1 - 1e-9)]
            if there:
                gains.append(each.speedup / max(there) - 1)
    return max(gains, default=None)
