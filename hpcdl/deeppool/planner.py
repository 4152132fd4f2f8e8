"""Burst-parallel plans: how many GPUs each layer of a model is given, and when it runs.

`plan_burst` is the way in; `problem` has the input, `costs` what a layer takes, `search` and `parallel` the exact
choice. The paper's own search and data parallelism, to compare with, are in `baselines`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdl.deeppool.budget import least_time_within
from hpcdl.deeppool.costs import CostTables, cost_tables
from hpcdl.deeppool.parallel import least_time_side_by_side, too_many_branches
from hpcdl.deeppool.problem import PARALLEL, BurstProblem, BurstProblemError
from hpcdl.deeppool.search import layer_without_width, least_time


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """A layer's part of a plan: it runs on GPUs first_gpu to first_gpu + gpus - 1, milliseconds from the step's start.

    amplification: gpus x time_ms over the compute time on one GPU; None where that is 0. extrapolated: its time, or
    that on one GPU, lies outside the measured batches.
    """

    name: str
    gpus: int
    first_gpu: int
    start_ms: float
    time_ms: float
    amplification: float | None
    extrapolated: bool = False

    def to_json(self) -> dict[str, Any]:
        """The layer as JSON."""
        own = {
            "name": self.name,
            "gpus": self.gpus,
            "first_gpu": self.first_gpu,
            "start_ms": self.start_ms,
            "time_ms": self.time_ms,
            "amplification": self.amplification,
        }
        return {**own, "extrapolated": True} if self.extrapolated else own


@dataclass(frozen=True, slots=True)
class BurstPlan:
    """A plan of one iteration: layers in the order of the problem's document.

    gpu_ms: GPU-time in use, the sum over layers of gpus x time. one_gpu_ms: time of the iteration on one GPU.
    optimal: no plan within the limit and the budget is faster. bound_ms: no such plan is faster than this.
    """

    time_ms: float
    gpu_ms: float
    one_gpu_ms: float
    layers: tuple[LayerPlan, ...]
    optimal: bool
    bound_ms: float

    @property
    def widths(self) -> Mapping[str, int]:
        """The GPUs of each layer."""
        return {layer.name: layer.gpus for layer in self.layers}


def plan_burst(problem: BurstProblem) -> BurstPlan:
    """The fastest plan within the limit and the budget. BurstProblemError: there is none, by the layer it fails at."""
    tables = cost_tables(problem)
    if problem.branches == PARALLEL:
        return _plan_side_by_side(tables)
    if problem.budget is None:
        choice = least_time(tables)
        if choice is None:
            raise no_plan(tables)
        return plan_in_sequence(tables, choice.places)
    found = least_time_within(tables, problem.budget * sum(tables.one_gpu))
    if found is None:
        raise no_plan(tables)
    return plan_in_sequence(tables, found.places, optimal=found.optimal, bound_ms=found.bound_ms)


def _plan_side_by_side(tables: CostTables) -> BurstPlan:
    problem = tables.problem
    if problem.budget is not None:
        raise BurstProblemError("a budget is kept with branches in sequence only: give a limit, or leave it out")
    choice = least_time_side_by_side(tables)
    if choice is not None:
        return timed_plan(tables, choice.places, choice.starts, choice.first_gpus, choice.time_ms, optimal=True)
    short = too_many_branches(tables)
    if short is None and (problem.limit is None or least_time(tables) is None):
        raise no_plan(tables)
    if short is None:
        raise BurstProblemError(
            f"layer {problem.layers[-1].name!r}: within the limit, the branches before it need more than "
            f"{problem.gpus} GPUs side by side"
        )
    name = problem.layers[short[0]].name
    raise BurstProblemError(f"layer {name!r}: its branches need {short[1]} GPUs side by side, of {problem.gpus}")


def data_parallel(problem: BurstProblem, gpus: int | None = None) -> BurstPlan:
    """Every layer on all GPUs, or on so many of them: the baseline. It heeds no limit."""
    width = min(gpus or problem.gpus, problem.widest)
    tables = cost_tables(problem, (width,))
    return plan_in_sequence(tables, (0,) * len(problem.layers), optimal=False, bound_ms=0.0)


def plan_in_sequence(
    tables: CostTables, places: Sequence[int], *, optimal: bool = True, bound_ms: float | None = None
) -> BurstPlan:
    """The plan that runs the layers one after another at these widths."""
    start, starts = 0.0, []
    for layer in range(len(tables.own)):
        starts.append(start)
        start += tables.layer_ms(layer, places)
    return timed_plan(tables, places, starts, [0] * len(starts), start, optimal=optimal, bound_ms=bound_ms)


def timed_plan(
    tables: CostTables,
    places: Sequence[int],
    starts: Sequence[float],
    first_gpus: Sequence[int],
    time_ms: float,
    *,
    optimal: bool,
    bound_ms: float | None = None,
) -> BurstPlan:
    """The plan of layers by number: their widths' places, starts and first GPUs."""
    problem = tables.problem
    made: dict[str, LayerPlan] = {}
    for at, layer in enumerate(problem.layers):
        gpus = int(tables.widths[places[at]])
        took, alone = tables.layer_ms(at, places), tables.one_gpu[at]
        made[layer.name] = LayerPlan(
            layer.name,
            gpus,
            first_gpus[at],
            starts[at],
            took,
            gpus * took / alone if alone > 0 else None,
            layer.extrapolates(problem.samples_per_gpu(gpus)) or layer.extrapolates(problem.global_batch),
        )
    layers = tuple(made[name] for name in problem.order or made)
    return BurstPlan(
        time_ms,
        sum(layer.gpus * layer.time_ms for layer in layers),
        sum(tables.one_gpu),
        layers,
        optimal,
        time_ms if bound_ms is None else bound_ms,
    )


def no_plan(tables: CostTables) -> BurstProblemError:
    """Why no plan keeps the limit, by the layer where it fails."""
    problem = tables.problem
    if problem.budget is not None and (problem.limit is None or least_time(tables) is not None):
        largest = problem.layers[max(range(len(tables.one_gpu)), key=tables.one_gpu.__getitem__)].name
        return BurstProblemError(
            f"layer {largest!r} is the longest, and no plan takes at most {problem.budget:g} x the GPU-time of one GPU"
        )
    name, limit = problem.layers[layer_without_width(tables)].name, problem.limit
    return BurstProblemError(f"layer {name!r}: no number of GPUs keeps it within {limit:g} x its GPU-time on one GPU")


def uncounted(problem: BurstProblem) -> dict[str, str]:
    """What answers say is not in the times of their plans: with branches side by side, moves between their GPUs."""
    return {"moves_between_lanes": "not counted"} if problem.branches == PARALLEL else {}


def plan_to_json(problem: BurstProblem, plan: BurstPlan, seconds: float) -> dict[str, Any]:
    """The answer of `hpcdl burst plan --json`. seconds: what the search took."""
    plain = data_parallel(problem)
    return {
        "schema": 1,
        "time_ms": plan.time_ms,
        "gpu_ms": plan.gpu_ms,
        "one_gpu_ms": plan.one_gpu_ms,
        "optimal": plan.optimal,
        "bound_ms": plan.bound_ms,
        "seconds": seconds,
        "layers": [layer.to_json() for layer in plan.layers],
        "data_parallel": {"time_ms": plain.time_ms, "gpu_ms": plain.gpu_ms},
        **uncounted(problem),
    }
