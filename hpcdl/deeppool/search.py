"""The exact choice of widths where branches run one after another: the least sum of the layers' times.

The sum has one term for each layer and one for each edge of the graph, and the amplification limit deletes pairs of
widths from an edge. So layers are eliminated one by one: the least sum over a layer's widths is a table over the widths
of its neighbours. A chain is the shortest path of the paper's Algorithm 1, a branch with its join the reduction of its
figure 7, and any other graph is exact too, with larger tables. A layer with several inputs has one limit for the sum of
its moves; where the choice breaks it, the search branches on the widths at that join.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcdl.deeppool.costs import ROUNDING, CostTables, Floats
from hpcdl.deeppool.problem import BurstProblemError

LARGEST_TABLE = 1 << 32
"""Sums that one elimination may look at; more would take minutes."""
_AT_ONCE = 1 << 22
_MOST_NODES = 20_000

Mask = NDArray[np.bool_]
Barred = Mapping[int, frozenset[int]]
"""By layer, the places of the widths that it must not have."""


class TooManyChoices(Exception):
    """So many layers with so many widths would have to be looked at together. args: the numbers of the layers."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A table of sums over the widths of some layers, in the order of their numbers."""

    scope: tuple[int, ...]
    table: Floats


@dataclass(frozen=True, slots=True)
class WidthChoice:
    """The place of each layer's width, and the least sum."""

    places: tuple[int, ...]
    value: float


def least_time(tables: CostTables, weight: Floats | None = None) -> WidthChoice | None:
    """The widths of the least sum of times within the limit; None: there are none.

    weight: by width, what a millisecond of a layer counts. None: 1 each.
    """
    root: Barred = {}
    first = _relaxed(tables, root, weight)
    if first is None:
        return None
    heap = [(first[0], 0, first[1], root)]
    nodes = 1
    while heap:
        value, _, places, barred = heapq.heappop(heap)
        broken = _broken_join(tables, places)
        if broken is None:
            return WidthChoice(places, value)
        if nodes > _MOST_NODES:
            name = tables.problem.layers[broken].name
            raise BurstProblemError(
                f"layer {name!r}: too many ways to keep the limit of its inputs together; try another"
            )
        for child in _partition(tables, barred, places, (broken, *tables.inputs[broken])):
            found = _relaxed(tables, child, weight)
            nodes += 1
            if found is not None:
                heapq.heappush(heap, (found[0], nodes, found[1], child))
    return None


def layer_without_width(tables: CostTables) -> int:
    """The first layer that has no width within its limit, where no plan keeps it.

    Widths that have no partner on an edge are removed, until a layer has none left.
    """
    left: list[Mask] = [np.ones(len(tables.widths), dtype=bool) for _ in tables.own]
    changed = True
    while changed:
        before = sum(int(mask.sum()) for mask in left)
        for layer, theirs in enumerate(tables.inputs):
            fitting = _allowed_pairs(tables, layer, left)
            if not theirs:
                left[layer] = left[layer] & fitting[0]
            for other, fits in zip(theirs, fitting, strict=False):
                left[other] = left[other] & fits[:, left[layer]].any(axis=1)
                left[layer] = left[layer] & fits[left[other]].any(axis=0)
            if not left[layer].any():
                return layer
        changed = sum(int(mask.sum()) for mask in left) < before
    # Each pair has a partner, and all together none: a join is the only place where this may be.
    return max(range(len(tables.inputs)), key=lambda layer: (len(tables.inputs[layer]), -layer))


def _allowed_pairs(tables: CostTables, layer: int, left: Sequence[Mask]) -> list[Mask]:
    """By input, which widths (its, the layer's) may stand together if the other inputs move least."""
    if not np.isfinite(tables.allowed[layer]):
        shape = (len(tables.widths), len(tables.widths))
        return [np.ones(shape, dtype=bool) for _ in tables.inputs[layer]] or [np.ones(shape[0], dtype=bool)]
    room = tables.allowed[layer] * ROUNDING / tables.widths - tables.own[layer]
    theirs = tables.inputs[layer]
    if not theirs:
        return [room >= 0]
    least = [
        np.where(left[other][:, None], tables.moves[other], np.inf).min(axis=0) if len(theirs) > 1 else None
        for other in theirs
    ]
    fits = []
    for place, other in enumerate(theirs):
        others = sum((each for at, each in enumerate(least) if at != place and each is not None), np.zeros(len(room)))
        fits.append(tables.moves[other] + others <= room)
    return fits


def _relaxed(tables: CostTables, barred: Barred, weight: Floats | None) -> tuple[float, tuple[int, ...]] | None:
    """The least sum and its widths where each input of a join has the whole limit, less what the others must move."""
    many = len(tables.widths)
    try:
        return eliminate(len(tables.own), many, layer_factors(tables, barred, weight))
    except TooManyChoices as error:
        names = ", ".join(repr(tables.problem.layers[each].name) for each in error.args[0])
        raise BurstProblemError(
            f"layers {names}: {many} widths of each, chosen together, are too many to search"
        ) from None


def layer_factors(tables: CostTables, barred: Barred, weight: Floats | None) -> list[Factor]:
    """The sum's terms: one for each layer and for each edge, infinite where the limit forbids."""
    every = np.ones(len(tables.widths), dtype=bool)
    left = [every] * len(tables.own)
    for layer, places in barred.items():
        left[layer] = every.copy()
        left[layer][list(places)] = False
    factors: list[Factor] = []
    for layer, theirs in enumerate(tables.inputs):
        own = tables.own[layer]
        room = tables.allowed[layer] * ROUNDING / tables.widths if tables.allowed[layer] < np.inf else None
        alone = own if weight is None else own * weight
        if room is not None and not theirs:
            alone = np.where(own <= room, alone, np.inf)
        if layer in barred:
            alone = np.where(left[layer], alone, np.inf)
        fits = _allowed_pairs(tables, layer, left) if room is not None and len(theirs) > 1 else None
        for place, other in enumerate(theirs):
            move = tables.moves[other]
            cost = move if weight is None else move * weight
            if room is not None:
                cost = np.where(fits[place] if fits else move + own <= room, cost, np.inf)
            factors.append(Factor((other, layer), cost))
        factors.append(Factor((layer,), alone))
    return factors


def _broken_join(tables: CostTables, places: Sequence[int]) -> int | None:
    """The first layer with several inputs that breaks its limit."""
    if tables.problem.limit is None:
        return None
    for layer, theirs in enumerate(tables.inputs):
        if len(theirs) > 1 and not tables.keeps_limit(layer, places):
            return layer
    return None


def _partition(tables: CostTables, barred: Barred, places: Sequence[int], scope: Sequence[int]) -> list[Barred]:
    """All choices but those with just these widths at the layers of the scope, in parts that do not overlap."""
    every = frozenset(range(len(tables.widths)))
    parts: list[Barred] = []
    fixed: dict[int, frozenset[int]] = dict(barred)
    for layer in scope:
        gone = fixed.get(layer, frozenset())
        if len(gone) + 1 < len(every):
            parts.append({**fixed, layer: gone | {places[layer]}})
        fixed[layer] = every - {places[layer]}
    return parts


def eliminate(layers: int, many: int, factors: Sequence[Factor]) -> tuple[float, tuple[int, ...]] | None:
    """The least sum of the factors over `many` places of each layer, and the places; None: infinite."""
    holding: list[list[Factor]] = [[] for _ in range(layers)]
    near: list[set[int]] = [set() for _ in range(layers)]
    for factor in factors:
        for layer in factor.scope:
            holding[layer].append(factor)
            near[layer].update(factor.scope)
    for layer in range(layers):
        near[layer].discard(layer)
    # The layer with the fewest neighbours is next; entries of the heap that are out of date are passed over.
    heap = [(len(near[layer]), layer) for layer in range(layers)]
    heapq.heapify(heap)
    done = [False] * layers
    order: list[tuple[int, list[Factor]]] = []
    value = 0.0
    while heap:
        degree, layer = heapq.heappop(heap)
        if done[layer] or degree != len(near[layer]):
            continue
        done[layer] = True
        mine = holding[layer]
        order.append((layer, mine))
        scope = tuple(sorted(near[layer]))
        table = least_over(layer, scope, mine, many)
        if not scope:
            value += float(table)
            if value == np.inf:
                return None
            continue
        made = Factor(scope, table)
        used = set(map(id, mine))
        for other in scope:
            holding[other] = [each for each in holding[other] if id(each) not in used]
            holding[other].append(made)
            near[other].update(scope)
            near[other] -= {layer, other}
            heapq.heappush(heap, (len(near[other]), other))
    places = [0] * layers
    for layer, mine in reversed(order):
        line = np.zeros(many)
        for factor in mine:
            line = line + factor.table[tuple(slice(None) if each == layer else places[each] for each in factor.scope)]
        places[layer] = int(line.argmin())
    return value, tuple(places)


def least_over(layer: int, scope: tuple[int, ...], factors: Sequence[Factor], many: int) -> Floats:
    """The table over `scope` of the least sum of the factors over the widths of a layer."""
    if many ** (len(scope) + 1) > LARGEST_TABLE:
        raise TooManyChoices((*scope, layer))
    axes = (*scope, layer)
    shaped = []
    for factor in factors:
        table = factor.table
        if factor.scope[-1] != layer and layer in factor.scope:
            table = np.moveaxis(table, factor.scope.index(layer), -1)
        shaped.append(table.reshape([many if each in factor.scope else 1 for each in axes]))
    shaped.sort(key=np.size)
    if many ** len(axes) <= _AT_ONCE or len(scope) < 2:
        total = shaped[0]
        for table in shaped[1:]:
            total = total + table
        return np.asarray(total.min(axis=-1))
    least = np.empty([many] * len(scope))
    for row in range(many):
        total = np.zeros(1)
        for table in shaped:
            total = total + table[min(row, table.shape[0] - 1)]
        least[row] = total.min(axis=-1)
    return least
