"""Why a layer has its number of GPUs: what the next wider and the next narrower width would cost, all else as it is."""

from collections.abc import Callable, Mapping, Sequence

from hpcdl.deeppool.costs import ROUNDING, CostTables, cost_tables
from hpcdl.deeppool.parallel import measure_side_by_side
from hpcdl.deeppool.planner import BurstPlan
from hpcdl.deeppool.problem import PARALLEL, BurstProblem

Measure = Callable[[Sequence[int]], tuple[float, int]]
"""Of the places of the widths, the time of the iteration and the GPUs that it needs, branches side by side."""


def width_reasons(problem: BurstProblem, plan: BurstPlan) -> Mapping[str, str]:
    """A line for each layer of the plan."""
    tables = cost_tables(problem)
    at = {int(width): place for place, width in enumerate(tables.widths)}
    places = [at[plan.widths[layer.name]] for layer in problem.layers]
    measure = measure_side_by_side(tables) if problem.branches == PARALLEL else None
    return {
        layer.name: "; ".join(_step(tables, plan, places, number, by, measure) for by in (1, -1))
        for number, layer in enumerate(problem.layers)
    }


def _step(tables: CostTables, plan: BurstPlan, places: list[int], layer: int, by: int, measure: Measure | None) -> str:
    """What the next width would cost: time, and the limit, the budget or the number of GPUs that it would break."""
    problem = tables.problem
    if not 0 <= places[layer] + by < len(tables.widths):
        whose = "sample" if problem.global_batch < problem.gpus else "GPU"
        return f"no wider width: there are {problem.widest} {whose}s" if by > 0 else "1 is the fewest"
    other = list(places)
    other[layer] += by
    touched = (layer, *tables.readers[layer])
    before = [tables.layer_ms(each, places) for each in touched]
    after = [tables.layer_ms(each, other) for each in touched]
    gpu_ms = sum(
        float(tables.widths[other[each]]) * now - float(tables.widths[places[each]]) * then
        for each, now, then in zip(touched, after, before, strict=True)
    )
    gpus = int(tables.widths[other[layer]])
    own, rest = after[0] - before[0], sum(after[1:]) - sum(before[1:])
    said = f"on {gpus} it would take {_change(own)}" + (f", the layers that read it {_change(rest)}" if rest else "")
    for each, took in zip(touched, after, strict=True):
        if float(tables.widths[other[each]]) * took > tables.allowed[each] * ROUNDING:
            ratio = float(tables.widths[other[each]]) * took / tables.one_gpu[each] if tables.one_gpu[each] else 0.0
            whose = "" if each == layer else f" of {problem.layers[each].name!r}"
            return f"{said}: an amplification{whose} of {ratio:.3g}, over the limit of {problem.limit:g}"
    if problem.budget is not None and plan.gpu_ms + gpu_ms > problem.budget * plan.one_gpu_ms * ROUNDING:
        return f"{said}, for {gpu_ms:.3g} GPU-ms more than the budget has left"
    if measure is None:
        return said
    ends, needed = measure(other)
    if needed > problem.gpus:
        return f"{said}: {needed} GPUs with the branches beside it, of {problem.gpus}"
    return f"{said}, the iteration {_change(ends - plan.time_ms if ends > plan.time_ms * ROUNDING else 0.0)}"


def _change(ms: float) -> str:
    return f"{abs(ms):.3g} ms {'longer' if ms > 0 else 'less'}" if ms else "as long"
