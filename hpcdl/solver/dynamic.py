"""The (max,+) dynamic program over units: the best choice of one row of each item within the capacities.

g_k(s) = max over the options o of item k of g_(k+1)(s - units_o) + value_o, where s is what items k, k+1, ... use,
exactly. With several pools s is a vector, stored in one flat array whose digits are the pools. Each digit but the
highest has room to spare above its capacity, always at NEVER, so that a shift of the flat array is a shift of one
digit: what would borrow from a neighbour comes from there, and what would overflow ends there.

Values are whole numbers: of type float64 up to 2**51 for items, or int64 for trainers, where a value is a key of two
parts (hpcdl/solver/rows.py).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdl.solver.table import NEVER, Ints, Mask, OptionTable, Values

MOST_CELLS = 2**28  # 2 GiB of float64


@dataclass(frozen=True, slots=True)
class ReducedRows:
    """The rows of a table among which a choice is left, without items that have one row only."""

    fixed: Ints  # rows of the items with one row left
    rows: Ints  # rows of the others
    starts: Ints  # first place in `rows` of each of them
    room: Ints  # by pool: units that they may use beyond the least that each needs
    least: Ints  # of each row: units that its item needs whatever it picks
    sizes: tuple[int, ...]  # of the digits; empty: the fixed rows alone are too many

    @property
    def states(self) -> int:
        """Length of the flat array."""
        return math.prod(self.sizes) if self.sizes else 0

    @property
    def work(self) -> int:
        """Additions that the dynamic program makes, at most."""
        return self.states * (len(self.rows) + (len(self.starts) if len(self.sizes) > 1 else 0))

    @property
    def cells(self) -> int:
        """Numbers that it stores, at most."""
        return self.states * (len(self.starts) + 1)


def core(table: OptionTable, keep: Mask | None = None) -> ReducedRows:
    """The core problem: what is left to choose among the rows in `keep` (None: all); every item has one of them."""
    rows = np.arange(len(table.item)) if keep is None else np.flatnonzero(keep)
    owner = table.item[rows]
    several = np.bincount(owner, minlength=table.items)[owner] > 1
    fixed, rows, owner = rows[~several], rows[several], owner[several]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    lengths = np.diff(starts, append=len(rows))
    units, pool = table.units[rows], table.pool[rows]
    pools = len(table.capacity)
    room = table.capacity - table.used(fixed)
    least = np.zeros(len(rows), np.int64)
    if len(rows):
        # Rows are sorted by units: the first has the least. If all are in one pool, that much is spent in any case.
        single = np.minimum.reduceat(pool, starts) == np.maximum.reduceat(pool, starts)
        spent = np.where(single, units[starts], 0)
        room = room - np.bincount(pool[starts], weights=spent, minlength=pools).astype(np.int64)
        least = np.repeat(spent, lengths)
    if (room < 0).any():
        return ReducedRows(fixed, rows, starts, room, least, ())
    # An item's largest units in each pool, summed: more room than that is never used.
    reach = np.zeros(len(starts) * pools, np.int64)
    np.maximum.at(reach, np.repeat(np.arange(len(starts)), lengths) * pools + pool, units - least)
    room = np.minimum(room, reach.reshape(len(starts), pools).sum(axis=0))
    shift = units - least
    widest = np.zeros(pools, np.int64)
    possible = shift <= room[pool]
    np.maximum.at(widest, pool[possible], shift[possible])
    sizes = [int(each) + 1 for each in room]
    digits = [at for at, size in enumerate(sizes) if size > 1]
    for at in digits[1:]:
        sizes[at] += int(widest[at])
    return ReducedRows(fixed, rows, starts, room, least, tuple(sizes) or (1,))


def best(table: OptionTable, inner: ReducedRows, shift: int = 0) -> Ints | None:
    """The best choice, a row for each item; None: nothing fits.

    `shift`: the value of a row is a key, value * 2**shift - distance. Among choices of equal value the one with the
    fewest units in all; then with the least distance; then with the most in pool 0, then pool 1, ...; then with the
    most units for item 0, then item 1, ...; then the row that comes first. MemoryError beyond MOST_CELLS.
    """
    if not inner.sizes:
        return None
    if inner.cells > MOST_CELLS:
        raise MemoryError(f"a dynamic program of {inner.states} states for {len(inner.starts)} items is too large")
    strides = np.cumprod([1, *inner.sizes[:0:-1]])[::-1].astype(np.int64)
    pool = table.pool[inner.rows]
    more = table.units[inner.rows] - inner.least
    shifts = np.where(more <= inner.room[pool], more * strides[pool], inner.states) if len(pool) else more
    stages = _stages(table.value[inner.rows], shifts, inner)
    last = stages[-1]
    if last.max() < NEVER / 2:
        return None
    fixed = table.value[inner.fixed].sum()
    worth = -(-(last + fixed) >> shift) if shift else last
    state = _fewest(np.flatnonzero(worth == worth.max()), last, strides)
    chosen = np.empty(table.items, np.int64)
    chosen[table.item[inner.fixed]] = inner.fixed
    picked = np.empty(len(inner.starts), np.int64)
    ends = [*inner.starts.tolist(), len(inner.rows)]
    steps, worths, units = shifts.tolist(), table.value[inner.rows].tolist(), table.units[inner.rows].tolist()
    for at in range(len(inner.starts)):
        before = stages[-2 - at]
        reached = stages[-1 - at][state]
        pick, most = -1, -1
        for place in range(ends[at], ends[at + 1]):
            source = state - steps[place]
            # Of equal units the first, that is the lowest pool and place.
            if 0 <= source < len(before) and units[place] > most and before[source] + worths[place] == reached:
                pick, most = place, units[place]
        picked[at] = pick
        state -= steps[pick]
    chosen[table.item[inner.rows[inner.starts]]] = inner.rows[picked]
    return chosen


def _stages(gains: Values, shifts: Ints, inner: ReducedRows) -> list[Values]:
    """g by state: of no item, of the last, of the last two, ...; shorter where not every state can be reached yet."""
    states = inner.states
    flat = len([size for size in inner.sizes if size > 1]) < 2
    most = None if flat else _most(inner, gains.dtype)
    before = np.full(1 if flat else states, NEVER, gains.dtype)
    before[0] = 0
    stages = [before]
    scratch = np.empty(states, gains.dtype)
    steps, worths = shifts.tolist(), gains.tolist()
    ends = [*inner.starts.tolist(), len(steps)]
    reach = _widest(shifts, inner) if flat else [states] * len(inner.starts)
    for start, end, widest in zip(reversed(ends[:-1]), reversed(ends[1:]), reversed(reach), strict=True):
        width = len(before)
        length = min(states, width + widest)
        row = np.full(length, NEVER, gains.dtype)
        for step, worth in zip(steps[start:end], worths[start:end], strict=True):
            many = min(width, length - step)
            if many > 0:
                sums = np.add(before[:many], worth, out=scratch[:many])
                there = row[step : step + many]
                np.maximum(there, sums, out=there)
        if most is not None:
            np.minimum(row, most, out=row)
        stages.append(row)
        before = row
    return stages


def _widest(shifts: Ints, inner: ReducedRows) -> list[int]:
    """Of each item the largest step that stays within the states, 0 where none does."""
    if not len(inner.starts):
        return []
    found: list[int] = np.maximum.reduceat(np.where(shifts < inner.states, shifts, 0), inner.starts).tolist()
    return found


def _most(inner: ReducedRows, dtype: Any) -> Values:
    """What a state may be worth: anything within the room, NEVER in the spare parts of the digits."""
    found = np.full(inner.sizes, NEVER, dtype)
    found[tuple(slice(0, int(each) + 1) for each in inner.room)] = -NEVER
    return found.reshape(-1)


def _fewest(states: Ints, keys: Values, strides: Ints) -> int:
    """Of some states the one with the fewest units in all, then the best key, then most in the first pools."""
    total = np.zeros(len(states), np.int64)
    rest = states
    for stride in strides.tolist():
        total += rest // stride
        rest = rest % stride
    states = states[total == total.min()]
    return int(states[keys[states] == keys[states].max()].max())
