"""Lagrangian bounds: a price per unit of each pool, at which every item picks for itself.

For prices p >= 0 no choice within the capacities is worth more than L(p) = sum_pools p C + sum_items max_o (v_o - p
u_o). L is convex and piecewise linear, and its least value is the bound of the linear relaxation: the slopes of the
items' upper hulls merged. Any p gives a true bound, so the number of iterations decides how tight it is, never
whether it holds.

The reduced cost of an option is what it loses against the best of its item at these prices. Every choice is worth at
most L(p) minus the reduced costs of its options, so options that lose more than the gap are in no better choice.
"""

from dataclasses import dataclass, replace

import numpy as np

from hpcdl.solver.table import Floats, Ints, OptionTable

SECANTS = 100
ROUNDS = 60  # of Newton steps, at falling temperatures
COLDEST = 1e-6  # of the first temperature
NEAR = 0.1  # of the first temperature: where to begin with prices that are nearly right
NEWTON_STEPS = 4  # at each of them
HALVINGS = 6  # of a step that goes too far
NEGLIGIBLE = 40.0  # temperatures that a row may lose and still count: beyond, its weight is below 1e-17
LIKELY = 1e-2  # least probability, over an even one, of a row that an item may be rounded to
MOST_POOLS_TOGETHER = 32  # beyond, the curvature between pools is left out


@dataclass(frozen=True, slots=True)
class PriceBound:
    """A bound and what every row loses at its prices; both on the grid."""

    price: Floats  # by pool, at least 0
    bound: float
    reduced: Floats  # by row, at least 0
    rows: Ints  # of each item a row that is best, or as good as best, at these prices
    heat: float = 0.0  # the last temperature of many_prices


def slack(table: OptionTable) -> float:
    """How far rounding may push a bound or a sum of reduced costs, in steps of the grid."""
    return 8.0 * (table.items + 8)


def priced(table: OptionTable, price: Floats) -> PriceBound:
    """Bound, reduced costs and choice at some prices."""
    score = table.value - price[table.pool] * table.units
    top = np.maximum.reduceat(score, table.starts)
    reduced = top[table.item] - score
    return PriceBound(price, float(price @ table.capacity + top.sum()), reduced, table.first(reduced <= 0))


def one_price(table: OptionTable) -> PriceBound:
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


def cheapest(table: OptionTable) -> Ints:
    """Of each item the row with the fewest units, of these the one with the highest value."""
    fewest = table.units == table.units[table.starts][table.item]
    value = np.where(fewest, table.value, -np.inf)
    return table.first(value == np.maximum.reduceat(value, table.starts)[table.item])


@dataclass(frozen=True, slots=True)
class _Soft:
    """The rows that count at a temperature; an item with one of them is part of the rest."""

    row: Ints  # in the table
    owner: Ints  # the table's item of each item here
    item: Ints
    pool: Ints
    units: Floats
    value: Floats
    starts: Ints
    room: Floats  # what the rest leaves of each pool; below 0 where it uses more


def many_prices(table: OptionTable, near: Floats | None = None) -> PriceBound:
    """Good prices for several pools: Newton's method on L with its maxima softened, ever less.

    At temperature t, max_o becomes t log sum_o exp(./t): its slope is the use that an item expects if it picks each
    option with probability proportional to exp(./t), its curvature the covariance of that use over t. `near`: prices
    that are nearly right.
    """
    lowest = priced(table, np.zeros(len(table.capacity)))
    price = together(table) if near is None else near
    heat = float(price[0]) / 8 or max(float(np.abs(table.value[lowest.rows]).mean()), 1.0)
    coldest = heat * COLDEST
    if near is not None:
        heat *= NEAR
    found = priced(table, price)
    for _ in range(ROUNDS):
        soft = _warm(table, found, heat)
        price, settled = _cooled(soft, price, heat)
        found = priced(table, price)
        if found.bound < lowest.bound:
            lowest = replace(found, rows=_rounded(found.rows, soft, price, heat) if heat < 25 * coldest else found.rows)
        if settled:
            heat /= 5.0
            if heat < coldest:
                break
    return replace(lowest, heat=coldest)


def shared(table: OptionTable, at: PriceBound) -> tuple[Ints, Floats]:
    """Rows that an item wavers between at these prices, of many_prices, and the probability of each."""
    soft = _warm(table, at, at.heat)
    if not len(soft.starts):
        return soft.row, np.zeros(0)
    return soft.row, _shares(soft, at.price, at.heat)[2]


def rounded(table: OptionTable, price: Floats, heat: float) -> PriceBound:
    """What many_prices gives, for prices that were found elsewhere, at a last temperature."""
    found = priced(table, price)
    return replace(found, rows=_rounded(found.rows, _warm(table, found, heat), price, heat), heat=heat)


def _rounded(rows: Ints, soft: _Soft, price: Floats, heat: float) -> Ints:
    """These rows, where an item wavers between several: one of them, so that together they use what is expected.

    Each item in turn picks the row that leaves the least difference between what was expected so far and what is
    used: of 300 items alike that waver between two rows, so many pick the one and so many the other.
    """
    if not len(soft.starts):
        return rows
    share = _shares(soft, price, heat)[2]
    rows = rows.copy()
    wanted = np.zeros(len(price))
    ends = np.append(soft.starts, len(share))
    pools, units = soft.pool.tolist(), soft.units.tolist()
    for item in range(len(soft.starts)):
        mine = range(ends[item], ends[item + 1])
        for row in mine:
            wanted[pools[row]] += share[row] * units[row]
        # |wanted - use|^2, less what is the same for all rows
        picked = min(
            (row for row in mine if share[row] * len(mine) > LIKELY),
            key=lambda row: units[row] * (units[row] - 2 * wanted[pools[row]]),
        )
        wanted[pools[picked]] -= units[picked]
        rows[soft.owner[item]] = soft.row[picked]
    return rows


def together(table: OptionTable) -> Floats:
    """The price of every pool if all were one: where to begin."""
    return np.full(len(table.capacity), _one_pool(table))


def _one_pool(table: OptionTable) -> float:
    one = table.alone(np.arange(len(table.item)), int(table.capacity.sum()))
    if one.units[cheapest(one)].sum() > one.capacity[0]:
        return float(one.value.max())
    if one.units[priced(one, np.zeros(1)).rows].sum() <= one.capacity[0]:
        return 0.0
    return float(one_price(one).price[0])


def _warm(table: OptionTable, at: PriceBound, heat: float) -> _Soft:
    rows = np.flatnonzero(at.reduced <= NEGLIGIBLE * heat)
    owner = table.item[rows]
    several = np.bincount(owner, minlength=table.items)[owner] > 1
    room = (table.capacity - table.used(rows[~several])).astype(np.float64)
    rows, owner = rows[several], owner[several]
    new = np.diff(owner, prepend=-1) != 0
    starts = np.flatnonzero(new)
    units = table.units[rows].astype(np.float64)
    return _Soft(rows, owner[starts], np.cumsum(new) - 1, table.pool[rows], units, table.value[rows], starts, room)


def _cooled(soft: _Soft, price: Floats, heat: float) -> tuple[Floats, bool]:
    """Prices nearer to the minimum of the softened L, by damped Newton steps, and whether they are near enough.

    They move no further than the rows that were left out allow.
    """
    if not len(soft.starts):
        return price, True
    reach = NEGLIGIBLE / 4 * heat / max(float(soft.units.max()), 1.0)
    begun = price
    now, slope, bend = _softened(soft, price, heat)
    for _ in range(NEWTON_STEPS):
        step = _newton(price, slope, bend)
        length = min(1.0, reach / max(float(np.abs(step).max()), reach))
        for _ in range(HALVINGS):
            there = np.maximum(0.0, price + length * step)
            then, slope_there, bend_there = _softened(soft, there, heat)
            if then < now + 1e-4 * float(slope @ (there - price)):
                break
            length /= 3.0
        else:
            break
        gain = now - then
        price, now, slope, bend = there, then, slope_there, bend_there
        if gain < 0.1 * heat:
            break
    else:
        return price, False
    return price, float(np.abs(price - begun).max()) < reach / 2


def _shares(soft: _Soft, price: Floats, heat: float) -> tuple[Floats, Floats, Floats]:
    """Of each item the best score and the sum of the weights, and the probability of each row."""
    score = soft.value - price[soft.pool] * soft.units
    top = np.maximum.reduceat(score, soft.starts)
    weight = np.exp((score - top[soft.item]) / heat)
    total = np.add.reduceat(weight, soft.starts)
    return top, total, weight / total[soft.item]


def _softened(soft: _Soft, price: Floats, heat: float) -> tuple[float, Floats, Floats]:
    """L with softened maxima, its gradient and its Hessian (diagonal only, where there are many pools)."""
    pools, many = len(soft.room), len(soft.starts)
    top, total, share = _shares(soft, price, heat)
    expected = share * soft.units
    value = float(price @ soft.room + top.sum() + heat * np.log(total).sum())
    use = np.bincount(soft.pool, weights=expected, minlength=pools)
    square = np.bincount(soft.pool, weights=expected * soft.units, minlength=pools)
    if pools > MOST_POOLS_TOGETHER:
        return value, soft.room - use, np.diag(square) / heat
    each = np.bincount(soft.item * pools + soft.pool, weights=expected, minlength=many * pools).reshape(many, pools)
    return value, soft.room - use, (np.diag(square) - each.T @ each) / heat


def _newton(price: Floats, slope: Floats, bend: Floats) -> Floats:
    """The step of the prices that may move: not those at 0 that would fall."""
    step = np.zeros(len(price))
    free = np.flatnonzero((price > 0) | (slope < 0))
    if len(free):
        matrix = bend[np.ix_(free, free)]
        ridge = 1e-9 * float(np.trace(matrix)) / len(free) + 1e-30
        step[free] = np.linalg.solve(matrix + ridge * np.eye(len(free)), -slope[free])
    return step
