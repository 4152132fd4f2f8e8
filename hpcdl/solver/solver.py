"""The best choice of one option for each item within the capacities of the pools, proven or with a bound.

The general solver, for options of any values: `adaptive` and policies of one's own call `solve`. nodes.py is its
neighbour for trainers, whose options are too many to list. The bounds come from prices.py, the search is dynamic.py.
Budgets count work, never time: same input, same answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcdl.solver.dynamic import MOST_CELLS, ReducedRows, best, core
from hpcdl.solver.prices import PriceBound, cheapest, many_prices, one_price, priced, slack
from hpcdl.solver.table import InfeasibleError, Ints, Item, OptionTable, off_grid, read

SMALL = 250_000  # additions of a dynamic program that is cheaper than any bound

SMALL_ROWS = 600

FIRST_ROWS = 48  # of the first core, beyond the best row of each item

BUDGET = 10_000_000


@dataclass(frozen=True, slots=True)
class Solution:
    """What each item picked, and how good that is proven to be.

    `chosen[j]` is the place of item j's option, None: nothing. No choice is worth more than `bound`; where `optimal`,
    that is `value`, up to the grid of values (see solver/table.py).
    """

    chosen: tuple[int | None, ...]
    value: float
    bound: float
    optimal: bool

    @property
    def gap(self) -> float:
        """How much better another choice could be at most, in the unit of the values; 0 where optimal."""
        return 0.0 if self.optimal else max(0.0, self.bound - self.value)


def solve(items: Sequence[Item], capacity: Sequence[int], budget: int = BUDGET) -> Solution:
    """The choice of the highest value: max sum_j v_j(o_j), with the units used of each pool at most its capacity.

    Counts are enough where the units of a pool are interchangeable (BFTrainer, section 3: its node-level program,
    equations 3 to 10, has the same optimum: who shrinks keeps any of its nodes, who grows takes what is free or
    released).

    One pool: always exact. Bound and core: the bound of the linear relaxation gives each option a reduced cost; the
    (max,+) dynamic program then runs over options that lose no more than the gap. Several pools: the same with a
    price for each, exact where the dynamic program takes at most `budget` additions (about a second for a thousand
    million), else the best that was found, with its bound. That is worth no less than what the items hold, where that
    fits (`Item.held`): who solves again and again does not alternate between two answers. The budget counts work, never
    time: same input, same answer.

    Of choices with the same value, where optimal, the one with the fewest units in all; then with the most in pool 0,
    then 1, ...; then with the most units for item 0, then 1, ...; then with the lowest pool and the first option. The
    same value means: after rounding to the grid, so values nearer than 1e-12 of their sum may count as the same.

    ValueError: numbers that make no sense; InfeasibleError: required items that do not fit. No items: nothing, worth
    0.
    """
    if budget < 0:
        raise ValueError(f"a budget of {budget} additions: it must be 0 or more")
    table = read(items, capacity)
    if not table.items:
        return Solution((), 0.0, 0.0, True)
    free = priced(table, np.zeros(len(table.capacity)))
    if (table.used(free.rows) <= table.capacity).all():
        return _solution(items, table, free.rows, None)
    if len(table.item) <= SMALL_ROWS:
        everything = core(table)
        if everything.work <= SMALL:
            return _exact(items, table, best(table, everything))
    if len(table.capacity) == 1:
        return _exact(items, table, one_pool(table))
    return _many_pools(items, table, budget)


def dynamic(items: Sequence[Item], capacity: Sequence[int]) -> Solution:
    """The same choice by the plain dynamic program over all options: slower, and a check on `solve`.

    MemoryError where the states of all pools together are too many.
    """
    table = read(items, capacity)
    if not table.items:
        return Solution((), 0.0, 0.0, True)
    return _exact(items, table, best(table, core(table)))


def one_pool(table: OptionTable) -> Ints | None:
    """The best rows of a table with one pool; None: its items do not fit."""
    free = priced(table, np.zeros(1)).rows
    if table.units[free].sum() <= table.capacity[0]:
        return free
    if table.units[cheapest(table)].sum() > table.capacity[0]:
        return None
    at = one_price(table)
    many, gap, before = FIRST_ROWS, math.inf, -1.0
    while True:
        loss = min(gap, _threshold(at, table.items + many) + slack(table))
        many *= 4
        if loss == before:  # so many rows lose the same
            continue
        rows = best(table, core(table, at.reduced <= loss))
        gap = _gap(table, at, rows)
        # Whoever picks an option that loses more is worth less than these rows: nothing better is left out.
        if gap <= loss:
            return rows
        before = loss


def _threshold(at: PriceBound, many: int) -> float:
    """The loss of so many rows, those that lose least; infinite where there are not so many."""
    return float(np.partition(at.reduced, many)[many]) if many < len(at.reduced) else math.inf


def _many_pools(items: Sequence[Item], table: OptionTable, budget: int) -> Solution:
    at = many_prices(table)
    starts = [rows for rows in (fitted(table, at), table.held([item.held for item in items])) if rows is not None]
    start = max(starts, key=table.worth, default=None)
    rows, loss = _searched(table, at, None if start is None else improved(table, start, one_pool), budget)
    if _gap(table, at, rows) > loss:
        rows, loss = _searched(table, at, improved(table, rows, one_pool), budget)
    # All choices among what loses less than `loss` were searched, and another one loses that much.
    worth = table.worth(rows)
    bound = max(worth, min(at.bound, at.bound - loss) + slack(table))
    proven = _gap(table, at, rows) <= loss or bound - worth <= 2 * slack(table)
    return _solution(items, table, rows, None if proven else bound)


def _searched(table: OptionTable, at: PriceBound, rows: Ints | None, budget: int) -> tuple[Ints, float]:
    """Rows that are no worse than those in hand, and the loss from which on others were not looked at."""
    loss, inner = _largest(table, at, rows, _gap(table, at, rows), budget)
    found = best(table, inner)
    if found is not None and (rows is None or table.worth(found) >= table.worth(rows)):
        return found, loss
    if rows is not None:
        return rows, loss
    if loss == math.inf:
        raise InfeasibleError("the required items do not fit together")
    raise InfeasibleError("no way to fit the required items was found within the budget", proven=False)


def _gap(table: OptionTable, at: PriceBound, rows: Ints | None) -> float:
    return math.inf if rows is None else at.bound - table.worth(rows) + slack(table)


def _largest(
    table: OptionTable, at: PriceBound, rows: Ints | None, most: float, budget: int
) -> tuple[float, ReducedRows]:
    """The rows in hand and all that lose at most `most`, or as many of these, in rising order, as the budget allows.

    Also the loss that every other row has, at least.
    """
    mine = np.zeros(len(table.item), np.bool_)
    mine[at.rows if rows is None else rows] = True
    inner = core(table, mine | (at.reduced <= most))
    if _within(inner, budget):
        return most, inner
    order = _order(table, at, most)
    low, high = 0, int((at.reduced <= most).sum())  # the first `low` are within the budget
    inner = core(table, mine)
    while high - low > 1 + low // 8:  # near enough
        middle = (low + high) // 2 if low else min(high // 2, 4 * FIRST_ROWS)
        keep = mine.copy()
        keep[order[:middle]] = True
        tried = core(table, keep)
        if _within(tried, budget):
            low, inner = middle, tried
        else:
            high = middle
    return float(at.reduced[order[low:]].min()), inner


def _order(table: OptionTable, at: PriceBound, most: float) -> Ints:
    """Rows by what they lose, in steps of a thousandth of `most`; those of a step mixed: a part has all kinds."""
    step = most / 1000 if math.isfinite(most) else slack(table)
    mixed = (table.item * 2654435761) % 2**32  # Knuth's multiplicative hash
    return np.lexsort((mixed, np.floor(at.reduced / step)))


def _within(inner: ReducedRows, budget: int) -> bool:
    return inner.work <= budget and inner.cells <= MOST_CELLS


def _exact(items: Sequence[Item], table: OptionTable, rows: Ints | None) -> Solution:
    if rows is None:
        raise InfeasibleError("the required items do not fit together")
    return _solution(items, table, rows, None)


def _solution(items: Sequence[Item], table: OptionTable, rows: Ints, bound: float | None) -> Solution:
    """`bound`, on the grid; None: these rows are optimal."""
    places = table.place[rows].tolist()
    chosen = tuple(None if place < 0 else place for place in places)
    value = math.fsum(item.values[place] for item, place in zip(items, places, strict=True) if place >= 0)
    if bound is None:
        return Solution(chosen, value, value, True)
    # Rounding to the grid moved each item's value by half a step at most.
    return Solution(chosen, value, max(value, off_grid(bound + table.items / 2, table.exponent)), False)


ROUNDS = 2  # of `improved`, over all pools
CANDIDATES = 4096  # changes that `fitted` tries before they are sorted anew


def fitted(table: OptionTable, at: PriceBound) -> Ints | None:
    """A repair heuristic: what the items pick at these prices, changed where it costs least until it fits; None: stuck.

    A change takes an item of a pool that is used too much to an option that uses less of it and fits elsewhere, first
    those that lose least, at these prices, for each unit that they relieve.
    """
    rows = at.rows.copy()
    free = table.capacity - table.used(rows)
    while (free < 0).any():
        over = np.maximum(-free, 0)
        pool, units = table.pool[rows], table.units[rows]
        held = np.where(over[pool] > 0, units, 0)[table.item]  # 0: may stay where it is
        same = table.pool == pool[table.item]
        spared = np.minimum(held - np.where(same, table.units, 0), over[pool][table.item])
        possible = np.flatnonzero((spared > 0) & (same | (table.units <= np.maximum(free, 0)[table.pool])))
        worse = at.reduced[possible] - at.reduced[rows][table.item[possible]]
        changed = False
        for row in possible[np.argsort(worse / spared[possible], kind="stable")[:CANDIDATES]].tolist():
            item = int(table.item[row])
            held_row = int(rows[item])
            source, target = int(table.pool[held_row]), int(table.pool[row])
            less, more = int(table.units[held_row]), int(table.units[row])
            if free[source] >= 0 or less == 0 or (source == target and more >= less):
                continue
            if source != target and more > max(0, free[target]):
                continue
            free[source] += less
            free[target] -= more
            rows[item] = row
            changed = True
        if not changed:
            return None
    return rows


def improved(table: OptionTable, rows: Ints, exact: Callable[[OptionTable], Ints | None]) -> Ints:
    """Local search, a pool at a time: each is given out anew, exactly, to those that have it or nothing."""
    best, since = table.worth(rows), 0
    pools = len(table.capacity)
    for turn in range(ROUNDS * pools):
        if since == pools:
            break
        pool = turn % pools
        mine = (table.pool[rows] == pool) | (table.units[rows] == 0)
        options = np.flatnonzero(mine[table.item] & ((table.pool == pool) | (table.units == 0)))
        since += 1
        if len(options):
            found = exact(table.alone(options, int(table.capacity[pool])))
            if found is not None:
                new = rows.copy()
                new[mine] = options[found]
                if table.worth(new) > best:
                    rows, best, since = new, table.worth(new), 0
    return rows
