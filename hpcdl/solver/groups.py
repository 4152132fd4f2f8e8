"""Counts on the nodes of several groups: a price for each group, and branches where the relaxation shares a trainer.

At given prices every trainer picks for itself, which bounds the value of every choice, as with one group; the best
prices are found as for items (hpcdl/solver/prices.py). What the trainers pick, rounded so that together they use what
is there, says which group each uses; then each group is given out anew, exactly. Where the relaxation has a trainer
partly in one group and partly in another, or partly with few nodes and partly with many, both are tried, each with
prices and a bound of its own: the highest bound first, within a budget that counts work, never time.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpcdl.solver import compiled
from hpcdl.solver.exact import one_group, only, with_row
from hpcdl.solver.kernels import Rows
from hpcdl.solver.prices import COLDEST, NEAR, PriceBound, many_prices, rounded, shared, together
from hpcdl.solver.table import NEVER, Floats, Ints, Mask, OptionTable

BUDGET = 150_000  # rows that are priced, in all branches together
QUICK = 10_000  # the same, where the gap is no more than ENOUGH
BRANCH_ROWS = 800  # what a branch costs beyond its rows, in rows
ENOUGH = 1e-3  # of the value
SHARED = 0.02  # least part of a trainer that counts as one


@dataclass(frozen=True, slots=True)
class GroupedCounts:
    """Nodes and group of each trainer, their value, and what no choice is worth more than; optimal where they meet."""

    nodes: Ints
    groups: Ints
    value: int
    bound: int


@dataclass(frozen=True, slots=True)
class _Branch:
    rows: Rows
    bound: int
    reduced: Ints
    priced: PriceBound
    table: OptionTable


def several_groups(rows: Rows) -> GroupedCounts:
    """A choice within the capacities of all groups, and its bound."""
    first = _branch(rows, None)
    best = _given(first)
    if _lanes(rows).max() <= 1:
        return replace(best, bound=best.value)
    untried, spent, number = [(first.bound, 0, first)], 0, 0
    while untried:
        untried.sort(key=lambda entry: entry[:2])
        bound, _, at = untried.pop()
        gap = bound - best.value
        if gap <= 0:
            break
        if spent > BUDGET or (spent > QUICK and gap < ENOUGH * abs(best.value)):
            return replace(best, bound=bound)
        for part in _parts(at, gap):
            number += 1
            spent += len(part.nodes) + BRANCH_ROWS
            child = _branch(part, at.priced.price)
            if child.bound <= best.value:
                continue
            found = _given(child)
            if found.value > best.value:
                best = found
            # Where every trainer has one group, that was the best choice of all.
            if child.bound > best.value and _lanes(part).max() > 1:
                untried.append((min(bound, child.bound), number, child))
    return replace(best, bound=best.value)


def _branch(rows: Rows, near: Floats | None) -> _Branch:
    pool = np.maximum(rows.group, 0)
    capacity = rows.capacity
    places = np.arange(len(pool))
    table = OptionTable(
        rows.trainer, pool, rows.nodes, rows.value.astype(np.float64), places, rows.starts, capacity, rows.exponent
    )
    at = _prices(table, near)
    # Any prices give a bound; where nothing fits they would rise without end.
    highest = 4.0 * (float(np.abs(rows.value).max()) + 1.0)
    price = np.rint(np.clip(np.nan_to_num(at.price, nan=0.0, posinf=highest), 0.0, highest)).astype(np.int64)
    score = rows.value - price[pool] * rows.nodes
    top = np.maximum.reduceat(score, rows.starts)
    bound = sum((price * capacity).tolist()) + sum(top.tolist())
    return _Branch(rows, bound, top[rows.trainer] - score, at, table)


def _prices(table: OptionTable, near: Floats | None) -> PriceBound:
    """As many_prices; by compiled loops where they are there."""
    if not compiled.compiled():
        return many_prices(table, near)
    begun = together(table) if near is None else near
    heat = float(begun.max()) / 8 or 1.0
    capacity = table.capacity.astype(np.float64)
    start = heat if near is None else heat * NEAR
    price = compiled.arithmetic().cooled(
        table.pool, table.units, table.value, table.starts, capacity, begun.copy(), start,
        heat * COLDEST,
    )  # fmt: skip
    return rounded(table, price, heat * COLDEST)


def _lanes(rows: Rows) -> Ints:
    """In how many groups each trainer may be."""
    new = (np.diff(rows.trainer, prepend=-1) != 0) | (np.diff(rows.group, prepend=-1) != 0)
    return np.bincount(rows.trainer[new & (rows.group >= 0)], minlength=rows.trainers)


def _given(at: _Branch) -> GroupedCounts:
    """The best choice in which every trainer is in the group that it picks, or has no node."""
    rows = at.rows
    # Who picks no node is in the group where it loses least.
    picked = rows.group[at.priced.rows]
    best = np.full((rows.trainers, len(rows.capacity)), -NEVER)
    there = rows.group >= 0
    np.minimum.at(best, (rows.trainer[there], rows.group[there]), at.reduced[there])
    picked = np.where(picked >= 0, picked, best.argmin(axis=1))
    nodes = np.zeros(rows.trainers, np.int64)
    value = 0
    for group, capacity in enumerate(rows.capacity.tolist()):
        mine = np.flatnonzero(picked == group)
        if not len(mine):
            continue
        keep = (picked[rows.trainer] == group) & ((rows.group == group) | (rows.group == -1))
        number = np.zeros(rows.trainers, np.int64)
        number[mine] = np.arange(len(mine))
        part = only(rows, keep)
        found = one_group(part._replace(trainer=number[part.trainer]), capacity)
        if found is None:
            return GroupedCounts(nodes, picked, NEVER, 0)
        nodes[mine] = found.nodes
        value += found.value
    return GroupedCounts(nodes, np.where(nodes > 0, picked, -1), value, 0)


def _parts(at: _Branch, gap: int) -> list[Rows]:
    """The rows of a branch that are within the gap, in two parts."""
    rows = at.rows
    near = at.reduced <= gap
    left = np.flatnonzero(rows.inner)
    left = left[near[left] | near[left + 1]]
    inner = np.zeros(len(near), np.bool_)
    inner[left] = True
    keep = near.copy()
    keep[left] = keep[left + 1] = True
    trainer, group, nodes = _split(at, near)
    rows = rows._replace(inner=inner)
    if nodes:
        keep, rows = _cut(rows, keep, trainer, group, nodes)
    mine = (rows.trainer == trainer) & (rows.group == group) & (rows.nodes > nodes)
    parts = (keep & (mine | (rows.trainer != trainer)), keep & ~mine)
    return [only(rows, part) for part in parts if len(np.unique(rows.trainer[part])) == rows.trainers]


def _cut(rows: Rows, keep: Mask, trainer: int, group: int, nodes: int) -> tuple[Mask, Rows]:
    """The same with rows at so many nodes, and at one more, where these counts are allowed and had none."""
    for count in (nodes, nodes + 1):
        mine = (rows.trainer == trainer) & (rows.group == group) & (rows.nodes <= count)
        if not mine.any():
            continue
        last = int(np.flatnonzero(mine)[-1])
        if rows.inner[last] and rows.nodes[last] < count:
            rows, keep = with_row(rows, last, count), np.insert(keep, last + 1, True)
    return keep, rows


def _split(at: _Branch, near: Mask) -> tuple[int, int, int]:
    """A trainer that the relaxation shares, a group, and nodes: it is to have more of that group, or not."""
    rows = at.rows
    row, share = shared(at.table, at.priced)
    row, share = row[share > SHARED], share[share > SHARED]
    worst, choice = 0.0, None
    ends = np.append(np.flatnonzero(np.diff(rows.trainer[row], prepend=-1)), len(row)).tolist()
    for start, end in pairwise(ends):
        mine, part = row[start:end], share[start:end]
        if len(mine) < 2 or (len(mine) == 2 and rows.inner[mine[0]] and mine[1] == mine[0] + 1):
            continue
        held, groups = rows.nodes[mine], rows.group[mine]
        spread = 0.0
        for group in sorted({group for group in groups.tolist() if group >= 0}):
            use = np.where(groups == group, held, 0)
            mean = float(part @ use)
            spread += float(part @ (use - mean) ** 2)
        if spread > worst:
            worst = spread
            group = int(groups[np.argmax(np.where(groups >= 0, part, -1))])
            there = groups == group
            nodes = 0 if not there.all() else int(part @ held / part.sum())
            choice = int(rows.trainer[mine[0]]), group, nodes
    if choice is not None:
        return choice
    # Nobody is shared: whoever loses least by another group.
    trainers = np.flatnonzero(_lanes(rows) > 1)
    open_to = near & np.isin(rows.trainer, trainers) & (rows.group >= 0)
    open_to &= rows.group != rows.group[at.priced.rows][rows.trainer]
    possible = np.flatnonzero(open_to)
    if not len(possible):
        possible = np.flatnonzero(np.isin(rows.trainer, trainers) & (rows.group >= 0))
    least = int(possible[np.argmin(at.reduced[possible])])
    return int(rows.trainer[least]), int(rows.group[least]), 0
