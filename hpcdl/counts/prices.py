"""Lagrangian bounds: a price per unit of each pool, at which every item picks for itself.

For prices p >= 0 no choice within the capacities is worth more than L(p) = sum_pools p C + sum_items max_o (v_o - p
u_o). L is convex and piecewise linear, and its least value is the bound of the linear relaxation: the slopes of the
items' upper hulls merged. Any p gives a true bound, so the number of iterations decides how tight it is, never
whether it holds.

The reduced cost of an option is what it loses against the best of its item at these prices. Every choice is worth at
most L(p) minus the reduced costs of its options, so options that lose more than the gap are in no better choice.
"""

from dataclasses import dataclass

import numpy as np

from hpcdl.counts.table import Floats, Ints, Table

SECANTS = 100
LEVELS = 9  # temperatures, each a fifth of the one before
NEWTON_STEPS = 4  # at each of them
MOST_POOLS_TOGETHER = 32  # beyond, the curvature between pools is left out


@dataclass(frozen=True, slots=True)
class Priced:
    """A bound and what every row loses at its prices; both on the grid."""

    price: Floats  # by pool, at least 0
    bound: float
    reduced: Floats  # by row, at least 0
    rows: Ints  # of each item the best row at these prices, of equal ones the one with the fewest units


def slack(table: Table) -> float:
    """How far rounding may push a bound or a sum of reduced costs, in steps of the grid."""
    return 8.0 * (table.items + 8)


def priced(table: Table, price: Floats) -> Priced:
    """Bound, reduced costs and choice at some prices."""
    score = table.value - price[table.pool] * table.units
    top = np.maximum.reduceat(score, table.starts)
    reduced = top[table.item] - score
    return Priced(price, float(price @ table.capacity + top.sum()), reduced, table.first(reduced <= 0))


def one_price(table: Table) -> Priced:
    """The best price of a single pool: secants between a price at which too much is used, and one at which all fits.

    The table must not fit at the price 0, and must fit at an infinite one (each item at its fewest units).
    """
    capacity = int(table.capacity[0])
    high = priced(table, np.zeros(1)).rows
    low = cheapest(table)
    more = (table.worth(high), int(table.units[high].sum()))
    less = (table.worth(low), int(table.units[low].sum()))
    price, units = 0.0, table.units.astype(np.float64)
    for _ in range(SECANTS):
        if more[1] <= less[1]:
            break
        price = max(0.0, (more[0] - less[0]) / (more[1] - less[1]))
        score = table.value - price * units
        rows = table.first(score == np.maximum.reduceat(score, table.starts)[table.item])
        found = (table.worth(rows), int(units[rows].sum()))
        # No higher than the line through both: the price is where L bends.
        if found[0] - price * found[1] <= more[0] - price * more[1] + table.items:
            break
        if found[1] > capacity:
            more = found
        else:
            less = found
    return priced(table, np.array([price]))


def cheapest(table: Table) -> Ints:
    """Of each item the row with the fewest units, of these the one with the highest value."""
    fewest = table.units == table.units[table.starts][table.item]
    value = np.where(fewest, table.value, -np.inf)
    return table.first(value == np.maximum.reduceat(value, table.starts)[table.item])


def many_prices(table: Table) -> Priced:
    """Good prices for several pools: Newton's method on L with its maxima softened, ever less.

    At temperature t, max_o becomes t log sum_o exp(./t): its slope is the use that an item expects if it picks each
    option with probability proportional to exp(./t), its curvature the covariance of that use over t.
    """
    top = np.maximum.reduceat(table.value, table.starts)
    used = table.used(priced(table, np.zeros(len(table.capacity))).rows)
    price = np.full(len(table.capacity), max(float(top.sum()), 0.0) / max(float(used.sum()), 1.0))
    lowest = priced(table, price)
    heat = max(float(np.abs(top).mean()), 1.0)
    for _ in range(LEVELS):
        heat /= 5.0
        now, slope, bend = _softened(table, price, heat)
        for _ in range(NEWTON_STEPS):
            step = _newton(price, slope, bend)
            length, accepted = 1.0, False
            for _ in range(6):
                there = np.maximum(0.0, price + length * step)
                then, slope_there, bend_there = _softened(table, there, heat)
                if then < now + 1e-4 * float(slope @ (there - price)):
                    accepted = True
                    break
                length /= 3.0
            if not accepted:
                break
            gain = now - then
            price, now, slope, bend = there, then, slope_there, bend_there
            if gain < 0.1 * heat:
                break
        found = priced(table, price)
        if found.bound < lowest.bound:
            lowest = found
    return lowest


def _softened(table: Table, price: Floats, heat: float) -> tuple[float, Floats, Floats]:
    """L with softened maxima, its gradient and its Hessian (diagonal only, where there are many pools)."""
    pools = len(table.capacity)
    room = table.capacity.astype(np.float64)
    score = table.value - price[table.pool] * table.units
    top = np.maximum.reduceat(score, table.starts)
    weight = np.exp((score - top[table.item]) / heat)
    total = np.add.reduceat(weight, table.starts)
    share = weight / total[table.item] * table.units
    value = float(price @ table.capacity + top.sum() + heat * np.log(total).sum())
    use = np.bincount(table.pool, weights=share, minlength=pools)
    square = np.bincount(table.pool, weights=share * table.units, minlength=pools)
    if pools > MOST_POOLS_TOGETHER:
        return value, room - use, np.diag(square) / heat
    cell = table.item * pools + table.pool
    each = np.bincount(cell, weights=share, minlength=table.items * pools).reshape(table.items, pools)
    return value, room - use, (np.diag(square) - each.T @ each) / heat


def _newton(price: Floats, slope: Floats, bend: Floats) -> Floats:
    """The step of the prices that may move: not those at 0 that would fall."""
    step = np.zeros(len(price))
    free = np.flatnonzero((price > 0) | (slope < 0))
    if len(free):
        matrix = bend[np.ix_(free, free)]
        ridge = 1e-9 * float(np.trace(matrix)) / len(free) + 1e-300
        step[free] = np.linalg.solve(matrix + ridge * np.eye(len(free)), -slope[free])
        # A pool that nobody wants bends nowhere: do not run away.
        most = 4.0 * float(price.max()) + 1.0
        step = np.clip(step, -most, most)
    return step
