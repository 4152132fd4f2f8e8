"""Items with their options, and all options of all items as sorted columns of numbers.

Values are put on a grid: they are divided by a power of two so that the sum of the items' largest |value| is at most
2**51, and rounded to integers, which float64 adds exactly. So equal is equal, whatever the order of additions, and
what is rounded away is at most items * 2**-51 of that sum (1e-12 of it for 2,000 items).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]  # whole numbers, of type float64 or int64

NEVER = -(2**62)  # the value of what cannot be; with any sum of values it is still the lowest
GRID_BITS = 51
MOST_UNITS = 10**9  # capacity of a pool; what is more is a mistake, and would not be exact


class InfeasibleError(ValueError):
    """The required items do not fit; `proven`: else none was found within the budget, and there may be one."""

    def __init__(self, message: str, *, proven: bool = True) -> None:
        super().__init__(message)
        self.proven = proven


@dataclass(frozen=True, slots=True)
class Item:
    """A multiple-choice item: it picks exactly one of its options, or nothing (value 0, no unit) unless it is required.

    Option i uses `units[i]` units (0 or more) of pool `pools[i]` and is worth `values[i]` (finite, may be negative).
    An option without units is allowed, with any value; which pool it names does not matter. The numbers are checked
    where all items are read together, by `solve`. `held`: the option that it has; see `solve`.
    """

    pools: Sequence[int]
    units: Sequence[int]
    values: Sequence[float]
    required: bool = False
    held: int | None = None

    def __post_init__(self) -> None:
        if not len(self.pools) == len(self.units) == len(self.values):
            raise ValueError(
                f"an item has {len(self.pools)} pools, {len(self.units)} units and {len(self.values)} values: "
                "one of each is needed for each option"
            )


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of all items, a row each, sorted by item, units, pool and place; every item has at least one row."""

    item: Ints
    pool: Ints
    units: Ints
    value: Values  # on the grid
    place: Ints  # of the option in its item; -1: nothing
    starts: Ints  # first row of each item
    capacity: Ints  # by pool
    exponent: int  # one step of the grid is 2**exponent

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.starts)

    def used(self, rows: Ints) -> Ints:
        """Units by pool that these rows use together."""
        found = np.bincount(self.pool[rows], weights=self.units[rows], minlength=len(self.capacity))
        return found.astype(np.int64)

    def worth(self, rows: Ints) -> float:
        """Value of these rows together, exact, on the grid."""
        return float(self.value[rows].sum())

    def first(self, flags: Mask) -> Ints:
        """Of each item the first row that is flagged; each item must have one."""
        rows = np.flatnonzero(flags)
        owner = self.item[rows]
        return rows[np.flatnonzero(np.diff(owner, prepend=-1))]

    def held(self, places: Sequence[int | None]) -> Ints | None:
        """The rows of these options, or of nothing where there is none; None: they do not fit together."""
        owned = np.array([-1 if place is None else place for place in places], dtype=np.int64)[self.item]
        there = self.place == owned
        lost = np.bincount(self.item[there], minlength=self.items) == 0
        rows = self.first(there | (lost[self.item] & (self.place == -1)))
        return rows if len(rows) == self.items and (self.used(rows) <= self.capacity).all() else None

    def alone(self, rows: Ints, units: int) -> "OptionTable":
        """The items of some rows (ascending) with these rows only, in one pool of so many units."""
        owner = self.item[rows]
        new = np.diff(owner, prepend=-1) != 0
        return OptionTable(
            np.cumsum(new) - 1,
            np.zeros(len(rows), np.int64),
            self.units[rows],
            self.value[rows],
            self.place[rows],
            np.flatnonzero(new),
            np.array([units]),
            self.exponent,
        )


def off_grid(steps: float, exponent: int) -> float:
    """A value on the grid as a value of the caller's (may round, or overflow to infinity)."""
    try:
        return math.ldexp(steps, exponent)
    except OverflowError:
        return math.copysign(math.inf, steps)


def read(items: Sequence[Item], capacity: Sequence[int]) -> OptionTable:
    """The table of some items and the capacities of the pools, without options that can be in no best solution.

    ValueError names the item and the option of a number that makes no sense; InfeasibleError the item that can never
    fit.
    """
    room = _capacities(capacity)
    lengths = np.fromiter((len(item.units) for item in items), np.int64, len(items))
    total = int(lengths.sum())
    optional = np.fromiter((not item.required for item in items), np.bool_, len(items))
    owner = np.repeat(np.arange(len(items)), lengths)
    place = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    units = _column((item.units for item in items), total, "units")
    pools = _column((item.pools for item in items), total, "pools")
    values = _column((item.values for item in items), total, "values")
    _refuse(~np.isfinite(values), owner, place, values, "a value that is not finite")
    _refuse(
        ~((units >= 0) & (units == np.floor(units)) & np.isfinite(units)), owner, place, units, "no number of units"
    )
    wrong = ~((pools >= 0) & (pools < len(room)) & (pools == np.floor(pools)))
    _refuse(wrong, owner, place, pools, f"no pool of the {len(room)}")
    if not len(room):
        room = np.zeros(1, np.int64)

    pool = np.where(units > 0, pools, 0).astype(np.int64)
    fits = units <= room[pool]
    # Nothing is as good and uses less.
    useful = fits & ((values > 0) | ~optional[owner] | ((units == 0) & (values == 0)))
    nothing = np.flatnonzero(optional)
    owner = np.concatenate([nothing, owner[useful]])
    pool = np.concatenate([np.zeros(len(nothing), np.int64), pool[useful]])
    amount = np.concatenate([np.zeros(len(nothing), np.int64), units[useful].astype(np.int64)])
    worth = np.concatenate([np.zeros(len(nothing)), values[useful]])
    place = np.concatenate([np.full(len(nothing), -1), place[useful]])

    widest = int(amount.max(initial=0)) + 1
    key = (owner * widest + amount) * len(room) + pool
    order = np.argsort(key, kind="stable")
    owner = owner[order]
    starts = np.searchsorted(owner, np.arange(len(items)))
    there = np.bincount(owner, minlength=len(items)) > 0
    if not there.all():
        lost = int(np.flatnonzero(~there)[0])
        raise InfeasibleError(f"item {lost} is required, and none of its {lengths[lost]} options fits into its pool")
    grid, exponent = _on_grid(worth[order], starts)
    return OptionTable(owner, pool[order], amount[order], grid, place[order], starts, room, exponent)


def _capacities(capacity: Sequence[int]) -> Ints:
    for pool, units in enumerate(capacity):
        if not 0 <= units <= MOST_UNITS or units != int(units):
            raise ValueError(f"pool {pool} has {units} units: it must be a whole number from 0 to {MOST_UNITS}")
    return np.array([int(units) for units in capacity], dtype=np.int64)


def _column(parts: Any, total: int, name: str) -> Floats:
    try:
        return np.fromiter(chain.from_iterable(parts), np.float64, total)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the {name} of an item are not all numbers: {error}") from None


def _refuse(wrong: Mask, owner: Ints, place: Ints, column: Floats, what: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"item {owner[row]}, option {place[row]}: {column[row]:g} is {what}")


def _on_grid(values: Floats, starts: Ints) -> tuple[Floats, int]:
    if not len(values):
        return values, 0
    with np.errstate(over="ignore"):
        total = float(np.maximum.reduceat(np.abs(values), starts).sum())
    if not math.isfinite(total):
        raise ValueError("the values are too large: their sum is not finite")
    exponent = math.frexp(total)[1] - GRID_BITS
    return np.rint(np.ldexp(values, -exponent)), exponent
