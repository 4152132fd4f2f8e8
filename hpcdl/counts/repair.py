"""Choices that fit, for several pools: made from prices, and improved a pool at a time."""

from collections.abc import Callable

import numpy as np

from hpcdl.counts.prices import Priced
from hpcdl.counts.table import Ints, Table

ROUNDS = 2
CANDIDATES = 4096  # changes tried before they are sorted anew


def fitted(table: Table, at: Priced) -> Ints | None:
    """Rows within the capacities: what the items pick at these prices, changed where it costs least; None: stuck.

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


def improved(table: Table, rows: Ints, exact: Callable[[Table], Ints | None]) -> Ints:
    """Rows that are worth no less: in turn each pool is given anew, exactly, to those that have it or nothing."""
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
