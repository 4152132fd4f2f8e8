"""Choices that fit, for several pools: made from prices, and improved a pool at a time."""

from collections.abc import Callable

import numpy as np

from hpcdl.counts.prices import Priced
from hpcdl.counts.table import Ints, Table

ROUNDS = 4


def fitted(table: Table, at: Priced) -> Ints | None:
    """Rows within the capacities: what the items pick at these prices, then changed where it costs least; None: stuck.

    Each change takes an item of a pool that is used too much to an option that uses less of it and fits elsewhere:
    the one that loses least, at these prices, for each unit that it relieves.
    """
    rows = at.rows.copy()
    used = table.used(rows)
    # Every change relieves a pool by a unit at least, and none is made worse.
    for _ in range(int(np.maximum(used - table.capacity, 0).sum())):
        over = np.maximum(used - table.capacity, 0)
        if not over.any():
            break
        pool, units = table.pool[rows], table.units[rows]
        held = np.where(over[pool] > 0, units, 0)[table.item]  # 0: may stay where it is
        same = table.pool == pool[table.item]
        spared = np.minimum(held - np.where(same, table.units, 0), over[pool][table.item])
        fits = same | (table.units == 0) | (table.units <= (table.capacity - used)[table.pool])
        possible = np.flatnonzero((spared > 0) & fits)
        if not len(possible):
            return None
        worse = at.reduced[possible] - at.reduced[rows][table.item[possible]]
        row = int(possible[np.argmin(worse / spared[possible])])
        item = int(table.item[row])
        used[pool[item]] -= units[item]
        used[table.pool[row]] += table.units[row]
        rows[item] = row
    return rows if (used <= table.capacity).all() else None


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
