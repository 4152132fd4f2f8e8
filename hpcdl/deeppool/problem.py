"""A burst-parallel planning problem: GPUs, a global batch, a network, and layers with what they cost.

Reads and checks the JSON document of a problem; every error is one line that names the place. Values only: what a
layer takes at a width is in `costs`, the search in `planner`.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

POWERS_OF_TWO = "powers-of-two"
ALL = "all"
SEQUENCE = "sequence"
PARALLEL = "parallel"

MOST_GPUS = 1 << 20
MOST_LAYERS = 5_000
_LARGEST = 1e18


class BurstProblemError(ValueError):
    """A problem that is malformed, or that has no plan: one line."""


@dataclass(frozen=True)
class BurstLayer:
    """A layer, and what it takes on one GPU by the samples there.

    inputs: names of the layers whose output it reads. compute_ms: milliseconds of its forward and backward pass by
    samples per GPU, in rising order. parameter_bytes: of its gradients, which are synchronised.
    activation_bytes_per_sample: of its output.
    """

    name: str
    inputs: tuple[str, ...]
    compute_ms: tuple[tuple[int, float], ...]
    parameter_bytes: float = 0.0
    activation_bytes_per_sample: float = 0.0

    @cached_property
    def _points(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        batches, times = zip(*self.compute_ms, strict=True)
        return batches, times

    def compute(self, samples: int) -> float:
        """Milliseconds of compute with so many samples on a GPU: linear between the points.

        Outside of them on the line through the two nearest ones, at least 0; with a single point its time.
        """
        batches, times = self._points
        after = bisect_left(batches, samples)
        if after < len(batches) and batches[after] == samples:
            return times[after]
        if len(batches) == 1:
            return times[0]
        high = min(max(after, 1), len(batches) - 1)
        slope = (times[high] - times[high - 1]) / (batches[high] - batches[high - 1])
        return max(0.0, times[high - 1] + slope * (samples - batches[high - 1]))

    def extrapolates(self, samples: int) -> bool:
        """Whether so many samples lie outside the points."""
        batches, _ = self._points
        return not batches[0] <= samples <= batches[-1]


@dataclass(frozen=True, slots=True)
class BurstProblem:
    """What a burst-parallel plan is made from.

    layers: in a topological order. limit: most GPU-time of a layer over its compute time on one GPU (the paper's
    amplification limit), None: none. budget: most GPU-time of the iteration over that on one GPU, None: none.
    exempt_below_ms: layers with less compute on one GPU have no limit.
    """

    gpus: int
    global_batch: int
    layers: tuple[BurstLayer, ...]
    bytes_per_s: float
    latency_s: float
    limit: float | None = None
    budget: float | None = None
    widths: str = POWERS_OF_TWO
    branches: str = SEQUENCE
    exempt_below_ms: float = 0.0
    order: tuple[str, ...] = field(default=())
    """Names of the layers in the order of the document."""

    @property
    def widest(self) -> int:
        """The most GPUs that a layer may have: each has at least one sample."""
        return min(self.gpus, self.global_batch)

    def width_choices(self) -> tuple[int, ...]:
        """The widths that a layer may have, in rising order."""
        if self.widths == ALL:
            return tuple(range(1, self.widest + 1))
        return tuple(1 << power for power in range(self.widest.bit_length()))

    def samples_per_gpu(self, width: int) -> int:
        """The samples of the fullest GPU: the global batch over the width, rounded up."""
        return -(-self.global_batch // width)


def read_problem(document: object) -> BurstProblem:
    """The problem of a JSON document. BurstProblemError where it is malformed, with the place in one line."""
    top = _object(document, "the problem")
    if top.get("schema", 1) != 1 or isinstance(top.get("schema"), bool):
        raise BurstProblemError(f"schema is {_shown(top['schema'])}, and this hpcdl reads schema 1")
    network = _object(_value(top, "network", ""), "network")
    raw = _value(top, "layers", "")
    if not isinstance(raw, list) or not raw:
        raise BurstProblemError("layers must be a list with at least one layer")
    if len(raw) > MOST_LAYERS:
        raise BurstProblemError(f"layers has {len(raw)} entries; {MOST_LAYERS} are the most")
    layers = [_layer(each, number) for number, each in enumerate(raw)]
    return BurstProblem(
        gpus=_whole(_value(top, "gpus", ""), "gpus", 1, MOST_GPUS),
        global_batch=_whole(_value(top, "global_batch", ""), "global_batch", 1, 1 << 40),
        layers=_sorted(layers),
        bytes_per_s=_bandwidth(_value(network, "bytes_per_s", "network.")),
        latency_s=_number(_value(network, "latency_s", "network."), "network.latency_s"),
        limit=_optional(top, "limit"),
        budget=_optional(top, "budget"),
        widths=_one_of(top, "widths", (POWERS_OF_TWO, ALL)),
        branches=_one_of(top, "branches", (SEQUENCE, PARALLEL)),
        exempt_below_ms=_number(top.get("exempt_below_ms", 0), "exempt_below_ms"),
        order=tuple(layer.name for layer in layers),
    )


def problem_to_json(problem: BurstProblem) -> dict[str, Any]:
    """The JSON document of a problem, as `read_problem` reads it."""
    by_name = {layer.name: layer for layer in problem.layers}
    return {
        "schema": 1,
        "gpus": problem.gpus,
        "global_batch": problem.global_batch,
        "limit": problem.limit,
        "budget": problem.budget,
        "widths": problem.widths,
        "branches": problem.branches,
        "exempt_below_ms": problem.exempt_below_ms,
        "network": {"bytes_per_s": problem.bytes_per_s, "latency_s": problem.latency_s},
        "layers": [
            {
                "name": layer.name,
                "inputs": list(layer.inputs),
                "compute_ms": {str(batch): ms for batch, ms in layer.compute_ms},
                "parameter_bytes": layer.parameter_bytes,
                "activation_bytes_per_sample": layer.activation_bytes_per_sample,
            }
            for layer in (by_name[name] for name in problem.order or by_name)
        ],
    }


def _layer(value: object, number: int) -> BurstLayer:
    place = f"layers[{number}]"
    item = _object(value, place)
    name = _value(item, "name", f"{place}.")
    if not isinstance(name, str) or not name or len(name) > 200:
        raise BurstProblemError(f"{place}.name must be a text of 1 to 200 letters, not {_shown(name)}")
    place = f"layer {_shown(name)}: "
    inputs = _value(item, "inputs", place)
    if not isinstance(inputs, list) or not all(isinstance(each, str) for each in inputs):
        raise BurstProblemError(f"{place}inputs must be a list of names of layers")
    if len(set(inputs)) < len(inputs):
        raise BurstProblemError(f"{place}inputs names a layer twice")
    points = _value(item, "compute_ms", place)
    if not isinstance(points, dict) or not points:
        raise BurstProblemError(f"{place}compute_ms must have a time for at least one number of samples per GPU")
    compute: dict[int, float] = {}
    for key, ms in points.items():
        text = str(key)
        if not (text.isascii() and text.isdigit() and len(text) < 13 and int(text) > 0):
            raise BurstProblemError(f"{place}compute_ms: {_shown(key)} is not a number of samples")
        if int(text) in compute:
            raise BurstProblemError(f"{place}compute_ms has {int(text)} samples twice")
        compute[int(text)] = _number(ms, f"{place}compute_ms of {text} samples")
    return BurstLayer(
        name,
        tuple(inputs),
        tuple(sorted(compute.items())),
        _number(_value(item, "parameter_bytes", place), f"{place}parameter_bytes"),
        _number(_value(item, "activation_bytes_per_sample", place), f"{place}activation_bytes_per_sample"),
    )


def _sorted(layers: list[BurstLayer]) -> tuple[BurstLayer, ...]:
    """The layers in a topological order that keeps theirs where it can. BurstProblemError: no such order."""
    by_name: dict[str, BurstLayer] = {}
    for layer in layers:
        if layer.name in by_name:
            raise BurstProblemError(f"two layers are called {_shown(layer.name)}")
        by_name[layer.name] = layer
    for layer in layers:
        for name in layer.inputs:
            if name not in by_name:
                raise BurstProblemError(f"layer {_shown(layer.name)}: no layer is called {_shown(name)}, its input")
    done: dict[str, BurstLayer] = {}
    left = layers
    while left:
        waiting = []
        for layer in left:
            if all(name in done for name in layer.inputs):
                done[layer.name] = layer
            else:
                waiting.append(layer)
        if len(waiting) == len(left):
            raise BurstProblemError(f"layer {_shown(_in_a_cycle(waiting, done))}: its inputs lead back to itself")
        left = waiting
    return tuple(done.values())


def _in_a_cycle(layers: list[BurstLayer], done: Mapping[str, BurstLayer]) -> str:
    by_name = {layer.name: layer for layer in layers}
    name, seen = layers[0].name, set[str]()
    while name not in seen:
        seen.add(name)
        name = next(each for each in by_name[name].inputs if each not in done)
    return name


def _object(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BurstProblemError(f"{place} must be a JSON object")
    return value


def _value(item: Mapping[str, Any], key: str, place: str) -> Any:
    if key not in item:
        raise BurstProblemError(f"{place}{key} is missing")
    return item[key]


def _number(value: object, place: str, *, above: bool = False) -> float:
    """A finite number of at least 0, or above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BurstProblemError(f"{place} must be a number, not {_shown(value)}")
    if not (value > 0 if above else value >= 0) or value > _LARGEST or (isinstance(value, float) and math.isnan(value)):
        raise BurstProblemError(f"{place} is {_shown(value)}; it must be {'above' if above else 'at least'} 0, to 1e18")
    return float(value)


def _bandwidth(value: object) -> float:
    found = _number(value, "network.bytes_per_s", above=True)
    if found < 1:
        raise BurstProblemError(f"network.bytes_per_s is {_shown(value)}; it must be at least 1")
    return found


def _whole(value: object, place: str, least: int, most: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or value in (math.inf, -math.inf)
    ):
        raise BurstProblemError(f"{place} must be a whole number, not {_shown(value)}")
    if value != int(value) or not least <= value <= most:
        raise BurstProblemError(f"{place} is {_shown(value)}; it must be a whole number from {least} to {most}")
    return int(value)


def _optional(top: Mapping[str, Any], key: str) -> float | None:
    return None if top.get(key) is None else _number(top[key], key, above=True)


def _one_of(top: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str:
    value = top.get(key, choices[0])
    if value not in choices:
        raise BurstProblemError(f"{key} is {_shown(value)}; it must be {' or '.join(choices)}")
    return str(value)


def _shown(value: object) -> str:
    """A value of the document in at most 60 letters on one line."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a huge number"
    return text if len(text) <= 60 else text[:59] + "…"
