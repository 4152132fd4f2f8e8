"""The plain (max,+) dynamic program over every count of every trainer: slow, simple, and a check on the others.

g_k(s) = the best key (value, then nearness to the current counts) with which trainers k, k+1, ... use exactly s nodes
of each group.
"""

from collections.abc import Iterator

import numpy as np

from hpcdl.solver.kernels import NEVER, Rows
from hpcdl.solver.table import Ints

MOST_CELLS = 2**27  # 1 GiB of int64

Choice = tuple[int, int, int]  # group (-1: none), nodes, key


def work(rows: Rows) -> float:
    """Additions that the dynamic program makes, at most."""
    counts = len(rows.nodes) + int((rows.nodes[1:] - rows.nodes[:-1] - 1)[rows.inner[:-1]].sum())
    return counts * float(np.prod(rows.capacity + 1.0))


def best(rows: Rows) -> list[tuple[int, int]]:
    """Nodes and group (-1: none) of each trainer in the best choice.

    Of equal values the one with the fewest nodes in all, then with the least sum of distances, then with the most
    nodes for trainer 0, then 1, ...; of equal counts with the first group for trainer 0, then 1, ... MemoryError
    beyond MOST_CELLS.
    """
    shape = (rows.capacity + 1).tolist()
    if np.prod(shape, dtype=np.float64) * (rows.trainers + 1) > MOST_CELLS:
        raise MemoryError(
            f"a dynamic program of {rows.trainers} trainers on {rows.capacity.tolist()} nodes is too large"
        )
    options = [list(_every(rows, trainer)) for trainer in range(rows.trainers)]
    stage = np.full(shape, NEVER, dtype=np.int64)
    stage[(0,) * len(shape)] = 0
    stages = [stage]
    for mine in reversed(options):
        after = np.full(shape, NEVER, dtype=np.int64)
        for group, nodes, key in mine:
            into, source = _moved(shape, group, nodes)
            np.maximum(after[into], stage[source] + key, out=after[into])
        stage = after
        stages.append(stage)
    # Value first, then the fewest nodes, then the least distance, then the most in group 0, then 1, ...
    value = -(-stage >> rows.shift)
    states = np.argwhere(value == value.max())
    total = states.sum(axis=1)
    states = states[total == total.min()]
    key = stage[tuple(states.T)]
    state = max(map(tuple, states[key == key.max()].tolist()))
    return _traced(options, stages, state)


def _traced(options: list[list[Choice]], stages: list[Ints], state: tuple[int, ...]) -> list[tuple[int, int]]:
    chosen = []
    for number, mine in enumerate(options):
        reached, before = int(stages[-1 - number][state]), stages[-2 - number]
        possible = []
        for group, nodes, key in mine:
            there = tuple(at - (nodes if axis == group else 0) for axis, at in enumerate(state))
            if min(there, default=0) >= 0 and int(before[there]) + key == reached:
                possible.append((nodes, -group, there))
        nodes, group, state = max(possible)
        chosen.append((nodes, -group))
    return chosen


def _every(rows: Rows, trainer: int) -> Iterator[Choice]:
    """Every choice of a trainer, those between the knots too."""
    end = rows.starts[trainer + 1] if trainer + 1 < rows.trainers else len(rows.nodes)
    for row in range(rows.starts[trainer], end):
        group, nodes, value, distance = (
            int(column[row]) for column in (rows.group, rows.nodes, rows.value, rows.distance)
        )
        yield group, nodes, (value << rows.shift) - distance
        if rows.inner[row]:
            slope, drift = int(rows.slope[row]), 1 if rows.distance[row + 1] > distance else -1
            for more in range(1, int(rows.nodes[row + 1]) - nodes):
                yield group, nodes + more, (value + slope * more << rows.shift) - (distance + drift * more)


def _moved(shape: list[int], group: int, nodes: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where states land that use so many nodes more of a group, and those that can."""
    into = tuple(slice(nodes if axis == group else 0, None) for axis in range(len(shape)))
    source = tuple(slice(0, size - nodes if axis == group else None) for axis, size in enumerate(shape))
    return into, source
