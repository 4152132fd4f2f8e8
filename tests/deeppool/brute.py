"""Random problems of burst-parallel plans, and their best plan by looking at every one: the contract, written again."""

import itertools
import random
from typing import Any

Document = dict[str, Any]


def compute_ms(layer: Document, samples: int) -> float:
    points = sorted((int(batch), ms) for batch, ms in layer["compute_ms"].items())
    if len(points) == 1:
        return float(points[0][1])
    for (low, first), (high, second) in itertools.pairwise(points):
        if samples <= high or high == points[-1][0]:
            return max(0.0, float(first + (second - first) * (samples - low) / (high - low)))
    raise AssertionError("no points")


def widths_of(problem: Document) -> list[int]:
    widest = min(problem["gpus"], problem["global_batch"])
    if problem["widths"] == "all":
        return list(range(1, widest + 1))
    return [1 << power for power in range(widest.bit_length())]


def layer_ms(problem: Document, layer: Document, by_name: dict[str, Document], chosen: dict[str, int]) -> float:
    """The time of a layer by the contract's formula."""
    batch, network, g = problem["global_batch"], problem["network"], chosen[layer["name"]]
    seconds = 0.0
    for name in layer["inputs"]:
        h = chosen[name]
        if h != g:
            size = by_name[name]["activation_bytes_per_sample"] * abs(batch / h - batch / g)
            seconds += 2 * (size / network["bytes_per_s"] + network["latency_s"])
    if g > 1:
        seconds += 2 * (g - 1) / g * layer["parameter_bytes"] / network["bytes_per_s"] + network["latency_s"]
    return compute_ms(layer, -(-batch // g)) + 1e3 * seconds


def keeps_limit(problem: Document, layer: Document, gpus: int, took_ms: float) -> bool:
    alone = compute_ms(layer, problem["global_batch"])
    if problem["limit"] is None or alone < problem.get("exempt_below_ms", 0):
        return True
    return bool(gpus * took_ms <= problem["limit"] * alone * (1 + 1e-12))


def every_plan(problem: Document) -> Any:
    """(widths by name, times by name) of every plan that keeps the limit, in sequence."""
    layers = problem["layers"]
    by_name = {layer["name"]: layer for layer in layers}
    for places in itertools.product(widths_of(problem), repeat=len(layers)):
        chosen = {layer["name"]: g for layer, g in zip(layers, places, strict=True)}
        times = {}
        for layer in layers:
            took = layer_ms(problem, layer, by_name, chosen)
            if not keeps_limit(problem, layer, chosen[layer["name"]], took):
                break
            times[layer["name"]] = took
        else:
            yield chosen, times


def best_in_sequence(problem: Document) -> float | None:
    """The least time of a plan in sequence, within limit and budget; None: there is none."""
    one_gpu = sum(compute_ms(layer, problem["global_batch"]) for layer in problem["layers"])
    best = None
    for chosen, times in every_plan(problem):
        used = sum(chosen[name] * took for name, took in times.items())
        if problem["budget"] is not None and used > problem["budget"] * one_gpu * (1 + 1e-12):
            continue
        total = sum(times.values())
        best = total if best is None else min(best, total)
    return best


def random_layer(draw: random.Random, name: str, inputs: list[str]) -> Document:
    batches = sorted(draw.sample([1, 2, 3, 4, 6, 8, 12, 16], draw.randint(1, 4)))
    fixed, each = draw.choice([0.01, 0.1, 1]), draw.random() * draw.choice([0.01, 0.1, 0.5])
    return {
        "name": name,
        "inputs": inputs,
        "compute_ms": {str(b): fixed * draw.uniform(0.5, 1) + each * b * draw.uniform(0.8, 1.2) for b in batches},
        "parameter_bytes": draw.choice([0, 1e5, 1e6]),
        "activation_bytes_per_sample": draw.choice([0, 1e3, 1e5, 1e6]),
    }


def random_problem(draw: random.Random, layers: list[Document], *, wide: bool = True) -> Document:
    """A problem of these layers. wide: it may have many widths, where brute force still ends soon."""
    few = len(layers) <= 4 and wide
    gpus = draw.choice([1, 2, 3, 4, 6, 8, 12] if wide else [1, 2, 3, 4, 6])
    return {
        "schema": 1,
        "gpus": gpus,
        "global_batch": draw.choice([1, 3, 4, 8, 12, 16]),
        "limit": draw.choice([None, 0.9, 1, 1.1, 1.5, 2, 3, 6]),
        "budget": None,
        "widths": draw.choice(["all", "powers-of-two"]) if few and gpus <= 8 else "powers-of-two",
        "network": {"bytes_per_s": 1e10, "latency_s": draw.choice([0, 1e-5, 1e-4])},
        "layers": layers,
        "exempt_below_ms": draw.choice([0, 0, 0.1]),
    }


def random_chain(draw: random.Random) -> Document:
    many = draw.randint(1, 5)
    return random_problem(draw, [random_layer(draw, f"l{i}", [f"l{i - 1}"] if i else []) for i in range(many)])


def random_graph(draw: random.Random) -> Document:
    """Any graph without a cycle: several sources, several ends and branches that cross among them."""
    layers: list[Document] = []
    for at in range(draw.randint(2, 5)):
        layers.append(random_layer(draw, f"l{at}", [each["name"] for each in layers if draw.random() < 0.6]))
    return random_problem(draw, layers)


def random_branches(draw: random.Random) -> Document:
    """A graph of branches and joins, nested ones among them, with a GPU for each branch or not."""
    layers: list[Document] = []

    def add(inputs: list[str]) -> str:
        layers.append(random_layer(draw, f"l{len(layers)}", inputs))
        return str(layers[-1]["name"])

    def grow(source: str, depth: int) -> list[str]:
        """Ends of what follows a layer."""
        if len(layers) > 4 or draw.random() < 0.4:
            return [add([source])]
        ends = [end for _ in range(draw.randint(1, 2)) for end in grow(source, depth + 1)]
        return ends if depth and draw.random() < 0.4 else [add(ends)]

    first = add([])
    ends = [end for _ in range(draw.randint(2, 3)) for end in grow(first, 1)]
    if draw.random() < 0.2:
        ends.append(first)
    if draw.random() < 0.8:
        add(ends)
    document = random_problem(draw, layers, wide=False)
    return document | {"branches": "parallel"}


def best_side_by_side(problem: Document) -> float | None:
    """The least time with branches side by side, None: there is no such plan.

    A branch of a fork is all that lies between it and the join (its immediate post-dominator) behind one of its
    readers, as far as it is connected without the fork; nested ones likewise.
    """
    layers = problem["layers"]
    best = None
    for chosen, times in every_plan(problem):
        total = finish(layers, chosen, times, problem["gpus"])
        if total is not None:
            best = total if best is None else min(best, total)
    return best


def finish(layers: list[Document], chosen: dict[str, int], times: dict[str, float], gpus: int) -> float | None:
    """When the last layer ends, None where the GPUs do not suffice: each layer starts once its inputs are done."""
    ends: dict[str, float] = {}
    for layer in layers:
        ends[layer["name"]] = max([ends[name] for name in layer["inputs"]], default=0.0) + times[layer["name"]]
    needed = gpus_needed({layer["name"]: set(layer["inputs"]) for layer in layers}, chosen)
    return max(ends.values()) if needed <= gpus else None


def gpus_needed(inputs: dict[str, set[str]], chosen: dict[str, int]) -> int:
    """The GPUs of a graph: unconnected parts add up; else one layer is passed by all."""
    if not inputs:
        return 0
    parts = connected(inputs)
    if len(parts) > 1:
        return sum(gpus_needed({name: inputs[name] & part for name in part}, chosen) for part in parts)
    above = {name: ancestors(inputs, name) for name in inputs}
    for name in inputs:
        below = {each for each in inputs if name in above[each]}
        if len(above[name]) + len(below) + 1 == len(inputs):
            before = {each: inputs[each] & above[name] for each in above[name]}
            after = {each: inputs[each] & below for each in below}
            return max(chosen[name], gpus_needed(before, chosen), gpus_needed(after, chosen))
    raise AssertionError("branches cross")


def ancestors(inputs: dict[str, set[str]], name: str) -> set[str]:
    found: set[str] = set()
    left = list(inputs[name])
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += inputs[each]
    return found


def connected(inputs: dict[str, set[str]]) -> list[set[str]]:
    near = {name: set(theirs) for name, theirs in inputs.items()}
    for name, theirs in inputs.items():
        for other in theirs:
            near[other].add(name)
    parts: list[set[str]] = []
    for name in inputs:
        if any(name in part for part in parts):
            continue
        part, left = {name}, [name]
        while left:
            more = near[left.pop()] - part
            part |= more
            left += more
        parts.append(part)
    return parts
