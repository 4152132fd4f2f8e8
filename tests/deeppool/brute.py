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
