"""Which of a node's free GPUs a job gets: those that are best connected to each other (NVLink, PCIe, NUMA).

Pure. Where it is not known how far a node's GPUs are from each other, the first ones are as good as any.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

Distances = tuple[tuple[int, int, int], ...]
"""(index, other index, how far) of a node's GPUs, both ways; (): not known."""

MOST_TRIED = 20_000
"""Choices that are compared; beyond, GPUs are added one by one to the best two."""


def closest(free: Sequence[int], number: int, distances: Distances, keep: Collection[int] = ()) -> tuple[int, ...]:
    """`keep`, and `number` of the free GPUs, in all ascending: those with the least sum of distances between all of
    them. Of equal choices the one that leaves those over closest to each other, then the first."""
    if not distances or not 0 < number < len(free):
        return tuple(sorted((*keep, *free[:number])))
    return _closest(tuple(sorted(free)), number, distances, tuple(sorted(keep)))


@lru_cache(maxsize=1 << 12)
def _closest(free: tuple[int, ...], number: int, distances: Distances, keep: tuple[int, ...]) -> tuple[int, ...]:
    far = {(one, other): value for one, other, value in distances}
    if comb(len(free), number) > MOST_TRIED:
        chosen = list(keep or min(combinations(free, min(2, number)), key=lambda pair: _sum(pair, far)))
        while len(chosen) < number + len(keep):
            rest = (gpu for gpu in free if gpu not in chosen)
            chosen.append(min(rest, key=lambda gpu: (sum(far.get((gpu, each), 0) for each in chosen), gpu)))
        return tuple(sorted(chosen))

    def cost(some: tuple[int, ...]) -> tuple[int, int]:
        return _sum((*keep, *some), far), _sum([gpu for gpu in free if gpu not in some], far)

    return tuple(sorted((*keep, *min(combinations(free, number), key=cost))))


def _sum(gpus: Iterable[int], far: Mapping[tuple[int, int], int]) -> int:
    return sum(far.get(pair, 0) for pair in combinations(gpus, 2))
