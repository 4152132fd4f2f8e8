"""What a layer takes by its width and those of its inputs, as arrays over the widths. Milliseconds everywhere.

    T(h -> g) = compute(ceil(B / g)) + sync(g) + the moves of its inputs          (section 4.1 of the paper)
    move(h -> g) = 2 (activation bytes per sample |B/h - B/g| / bandwidth + latency), 0 where h = g
    sync(g) = 2 (g - 1) / g parameter bytes / bandwidth + latency, 0 on one GPU

The amplification limit: g T(h -> g) <= limit x compute(B). It depends on the widths of a layer and of its inputs only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcdl.deeppool.problem import ALL, BurstProblem, BurstProblemError

Floats = NDArray[np.float64]

MOST_WIDTHS = 2048
_MOST_BYTES = 4 << 30
"""Of the tables of a search: one over pairs of widths for each edge, and one for each size of an output."""
"""A table of moves has a number for each pair of widths."""
ROUNDING = 1 + 1e-12
"""A limit that is met exactly is not missed by the rounding of a sum."""


@dataclass(frozen=True)
class CostTables:
    """The costs of a problem. Layers by number, in a topological order; widths by place in `widths`.

    inputs, readers: of each layer, the numbers of the layers that it reads, and that read it. one_gpu: compute(B).
    own: by layer, compute and sync at each width. moves: by layer, the output's move from each width to each.
    allowed: by layer, the most GPU-time (width x time), infinite where it has no limit.
    """

    problem: BurstProblem
    widths: Floats
    inputs: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    one_gpu: tuple[float, ...]
    own: tuple[Floats, ...]
    moves: tuple[Floats, ...]
    allowed: tuple[float, ...]

    def layer_ms(self, layer: int, chosen: Sequence[int]) -> float:
        """The time of a layer, its moves included. `chosen`: the place of each layer's width."""
        mine = chosen[layer]
        moves = sum(float(self.moves[other][chosen[other], mine]) for other in self.inputs[layer])
        return float(self.own[layer][mine]) + moves

    def keeps_limit(self, layer: int, chosen: Sequence[int]) -> bool:
        """Whether a layer keeps its limit."""
        return float(self.widths[chosen[layer]]) * self.layer_ms(layer, chosen) <= self.allowed[layer] * ROUNDING


def cost_tables(problem: BurstProblem, widths: Sequence[int] | None = None) -> CostTables:
    """The costs of a problem at its widths, or at others."""
    if widths is None and problem.widths == ALL and problem.widest > MOST_WIDTHS:
        raise BurstProblemError(
            f"{problem.widest} widths are too many to search, {MOST_WIDTHS} are the most: take powers-of-two"
        )
    places = tuple(widths or problem.width_choices())
    tables = sum(len(layer.inputs) for layer in problem.layers)
    tables += len({layer.activation_bytes_per_sample for layer in problem.layers})
    if 8 * tables * len(places) ** 2 > _MOST_BYTES:
        raise BurstProblemError(
            f"{len(places)} widths of {len(problem.layers)} layers are too many to hold: take powers-of-two"
        )
    g = np.array(places, dtype=np.float64)
    samples = [problem.samples_per_gpu(each) for each in places]
    number = {layer.name: at for at, layer in enumerate(problem.layers)}
    inputs = tuple(tuple(number[name] for name in layer.inputs) for layer in problem.layers)
    readers: list[list[int]] = [[] for _ in problem.layers]
    for at, theirs in enumerate(inputs):
        for other in theirs:
            readers[other].append(at)

    latency_ms = 1e3 * problem.latency_s
    per_byte_ms = 1e3 / problem.bytes_per_s
    shares = problem.global_batch / g
    distance = np.abs(shares[:, None] - shares[None, :]) * (2 * per_byte_ms)
    moved = np.where(g[:, None] == g[None, :], 0.0, 2 * latency_ms)
    sync_share = 2 * (g - 1) / g * per_byte_ms
    sync_latency = np.where(g > 1, latency_ms, 0.0)
    own, moves, allowed, one_gpu = [], [], [], []
    compute: dict[tuple[tuple[int, float], ...], tuple[Floats, float]] = {}
    by_bytes: dict[float, Floats] = {}
    distinct = list(dict.fromkeys(samples))
    repeat = (
        None if len(distinct) == len(samples) else np.searchsorted([-each for each in distinct], [-s for s in samples])
    )
    for layer in problem.layers:
        known = compute.get(layer.compute_ms)
        if known is None:
            times = np.array([layer.compute(each) for each in distinct])
            known = (times if repeat is None else times[repeat], layer.compute(problem.global_batch))
            compute[layer.compute_ms] = known
        times, alone = known
        own.append(times + layer.parameter_bytes * sync_share + sync_latency)
        size = layer.activation_bytes_per_sample
        if size not in by_bytes:
            by_bytes[size] = size * distance + moved
        moves.append(by_bytes[size])
        limited = problem.limit is not None and not alone < problem.exempt_below_ms
        allowed.append(problem.limit * alone if limited and problem.limit is not None else np.inf)
        one_gpu.append(alone)
    return CostTables(
        problem, g, inputs, tuple(map(tuple, readers)), tuple(one_gpu), tuple(own), tuple(moves), tuple(allowed)
    )
