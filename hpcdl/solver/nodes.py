"""How many nodes each trainer gets: the best counts, with their proof (BFTrainer, section 3, over counts).

`allocate` reads trainers (trainers.py) as columns of whole numbers (rows.py) and hands them to the search for one group
(exact.py) or several (groups.py), or to the dynamic program over all counts (dynamic.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcdl.solver import compiled, dynamic
from hpcdl.solver.exact import one_group
from hpcdl.solver.groups import several_groups
from hpcdl.solver.kernels import Rows
from hpcdl.solver.rows import read
from hpcdl.solver.table import Ints, OptionTable, off_grid
from hpcdl.solver.trainers import ElasticTrainer

SOLVERS = ("exact", "dp")
SMALL = 1_000_000  # additions of a dynamic program over all counts of several groups that is cheaper than any bound
MIDDLE = 30_000_000  # the same, where branches did not come to an end


@dataclass(frozen=True, slots=True)
class Allotment:
    """The nodes that each trainer gets, of which group (None: it gets none), and how good that is proven to be.

    `value`: the sum of what the trainers' counts are worth to them (ElasticTrainer.worth). No other counts are worth
    more than `bound`; where `optimal`, that is `value`, up to the grid of values (hpcdl/solver/rows.py). `solver`:
    which found it.
    """

    counts: tuple[int, ...]
    groups: tuple[int | None, ...]
    value: float
    bound: float
    optimal: bool
    solver: str

    @property
    def gap(self) -> float:
        """How much better other counts could be at most, in the unit of the values; 0 where optimal."""
        return 0.0 if self.optimal else max(0.0, self.bound - self.value)

    @property
    def relative_gap(self) -> float:
        """The gap as a part of the value."""
        return self.gap / abs(self.value) if self.gap and self.value else self.gap and math.inf


def allocate(trainers: Sequence[ElasticTrainer], capacities: Sequence[int], solver: str = "exact") -> Allotment:
    """The counts of the highest value: max sum_j v_j(n_j), with the nodes used of each group at most its capacity.

    `capacities`: the nodes of each group; group g of a trainer is `capacities[g]`. Counts are enough, since the nodes
    of a group are interchangeable (BFTrainer, section 3: its node-level program, equations 1 to 16, has the same
    optimum: who shrinks keeps any of its nodes, who grows takes what is free or released).

    One group: always exact. Several: exact too, or with a bound that is nearly always within 0.1 % of the value.
    Of counts with the same value those with the fewest nodes in all; then those nearest to the current ones (least
    sum of |n - C|, or n + C in another group); then with the most nodes for trainer 0, then 1, ... (with several
    groups: of those that were looked at). Same input, same answer.

    `solver`: "exact" or "dp" (the plain dynamic program, a check on the other; MemoryError where it is too large).
    ValueError: numbers that make no sense, or another solver.
    """
    if solver not in SOLVERS:
        raise ValueError(f"no solver of counts is called {solver!r}: there are {', '.join(SOLVERS)}")
    compiled.count_solve()
    rows = read(trainers, capacities)
    if not rows.trainers:
        return Allotment((), (), 0.0, 0.0, True, solver)
    found = _solved(trainers, rows, solver)
    small = _lost(rows)
    if not small or len(small) == rows.trainers:
        return found
    # Beside what others are worth all that these are worth is less than the grid's rounding: they share what is left.
    left = rows.capacity.tolist()
    for number in set(range(rows.trainers)).difference(small):
        left[found.groups[number] or 0] -= found.counts[number]
    among = allocate([trainers[number] for number in small], left, solver)
    chosen = list(zip(found.counts, (group or 0 for group in found.groups), strict=True))
    for number, nodes, group in zip(small, among.counts, among.groups, strict=True):
        chosen[number] = (nodes, group or 0)
    proven = found.optimal and among.optimal
    return allotment(trainers, chosen, None if proven else found.bound, solver)


def _lost(rows: Rows) -> list[int]:
    """The trainers whose counts are all worth the same, but for the rounding of the grid."""
    most = np.maximum.reduceat(np.abs(rows.value - rows.value[rows.starts][rows.trainer]), rows.starts)
    can = np.diff(rows.starts, append=len(rows.trainer)) > 1
    found: list[int] = np.flatnonzero((most <= rows.rounding) & can).tolist()
    return found


def _solved(trainers: Sequence[ElasticTrainer], rows: Rows, solver: str) -> Allotment:
    if solver == "dp" or (len(rows.capacity) > 1 and _work(rows) <= SMALL):
        return allotment(trainers, _by_dynamic_program(rows), None, solver)
    if len(rows.capacity) == 1:
        found = one_group(rows, int(rows.capacity[0]))
        assert found is not None  # no node for anybody always fits
        return allotment(trainers, [(nodes, 0) for nodes in found.nodes.tolist()], None, solver)
    answer = several_groups(rows)
    chosen = list(zip(answer.nodes.tolist(), answer.groups.tolist(), strict=True))
    proven = answer.bound <= answer.value
    if not proven and _work(rows) <= MIDDLE:
        return allotment(trainers, _by_dynamic_program(rows), None, solver)
    return allotment(
        trainers, chosen, None if proven else off_grid(answer.bound + rows.rounding, rows.exponent), solver
    )


def _counts_between(rows: Rows) -> Ints:
    """How many counts are allowed between each row and the next one."""
    return np.where(rows.inner, np.diff(rows.nodes, append=0) - 1, 0)


def _work(rows: Rows) -> float:
    """Additions of a dynamic program over every count of every trainer, at most."""
    return float((1 + _counts_between(rows)).sum() * np.prod(rows.capacity + 1.0))


def _by_dynamic_program(rows: Rows) -> list[tuple[int, int]]:
    """Nodes and group of each trainer in the best choice, with every count as an option; MemoryError: too many."""
    length = 1 + _counts_between(rows)
    row = np.repeat(np.arange(len(length)), length)
    more = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
    value = rows.value[row] + rows.slope[row] * more
    distance = rows.distance[row] + np.sign(np.diff(rows.distance, append=0))[row] * more
    trainer, pool, nodes = rows.trainer[row], np.maximum(rows.group, 0)[row], rows.nodes[row] + more
    order = np.lexsort((pool, nodes, trainer))
    starts = np.searchsorted(trainer, np.arange(rows.trainers))
    keys = ((value << rows.shift) - distance)[order]
    table = OptionTable(trainer, pool[order], nodes[order], keys, order, starts, rows.capacity, rows.exponent)
    chosen = dynamic.best(table, dynamic.core(table), rows.shift)
    assert chosen is not None  # no node for anybody always fits
    return list(zip(table.units[chosen].tolist(), table.pool[chosen].tolist(), strict=True))


def allotment(
    trainers: Sequence[ElasticTrainer], chosen: Sequence[tuple[int, int]], bound: float | None, solver: str
) -> Allotment:
    """The answer that gives trainers these nodes of these groups; no `bound`: it is proven to be the best."""
    groups = tuple(group if nodes else None for nodes, group in chosen)
    counts = tuple(nodes for nodes, _ in chosen)
    value = math.fsum(map(ElasticTrainer.worth, trainers, counts, groups))
    return Allotment(counts, groups, value, value if bound is None else max(bound, value), bound is None, solver)
