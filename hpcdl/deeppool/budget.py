"""The fastest plan within a budget of GPU-time for the whole iteration, branches one after another.

One multiplier prices the GPU-time: min time + price x GPU-time is the same program as without a budget, and two plans,
one within the budget and one beyond, give the next price (where both cost the same). It ends at the best price, with a
bound that no plan is below. What gap is left is closed by labels: plans of the first layers, kept by the widths that
later layers read, as long as they are not dominated, fit the budget, and may still beat the best plan that is known.
Where that takes too many labels the plan is the best that was seen, and not called optimal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcdl.deeppool.costs import ROUNDING, CostTables, Floats
from hpcdl.deeppool.search import Factor, layer_factors, least_over, least_time

MOST_LABELS = 200_000
_MOST_ENTRIES = 1 << 21
_MOST_PRICES = 60


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """The places of the widths of the best plan, its time, and a time that no plan is below."""

    places: tuple[int, ...]
    time_ms: float
    bound_ms: float

    @property
    def optimal(self) -> bool:
        """Whether no plan within limit and budget is faster."""
        return self.time_ms <= self.bound_ms * ROUNDING


def spent(tables: CostTables, places: Sequence[int]) -> tuple[float, float]:
    """Milliseconds and GPU-milliseconds of the layers at these widths."""
    times = [tables.layer_ms(layer, places) for layer in range(len(places))]
    return sum(times), float(sum(tables.widths[at] * took for at, took in zip(places, times, strict=True)))


def least_time_within(tables: CostTables, budget_ms: float) -> BudgetChoice | None:
    """The fastest choice that takes at most so many GPU-milliseconds; None: no choice within the limit does."""
    fastest = least_time(tables)
    if fastest is None:
        return None
    most = budget_ms * ROUNDING
    time, used = spent(tables, fastest.places)
    if used <= most:
        return BudgetChoice(fastest.places, time, time)
    beyond = (time, used)
    thrifty = least_time(tables, tables.widths)
    assert thrifty is not None
    best, within = thrifty.places, spent(tables, thrifty.places)
    if within[1] > most:
        return None
    bound, price = time, 0.0
    for _ in range(_MOST_PRICES):
        price = (within[0] - beyond[0]) / (beyond[1] - within[1])
        choice = least_time(tables, 1 + price * tables.widths)
        assert choice is not None
        value = choice.value
        bound = max(bound, value - price * budget_ms)
        if value >= (within[0] + price * within[1]) / (1 + 1e-12):
            break
        time, used = spent(tables, choice.places)
        if used <= most:
            within, best = (time, used), choice.places
        else:
            beyond = (time, used)
    known = BudgetChoice(best, within[0], min(bound, within[0]))
    return known if known.optimal else _close(tables, budget_ms, price, known)


def _close(tables: CostTables, budget_ms: float, price: float, known: BudgetChoice) -> BudgetChoice:
    """The best choice, by labels in the order of the layers; `known` where they would be too many."""
    counted = [
        _costs_to_go(tables, weight)
        for weight in (np.ones_like(tables.widths), tables.widths, 1 + price * tables.widths)
    ]
    if any(each is None for each in counted):
        return known
    to_go = [each for each in counted if each is not None]
    most = budget_ms * ROUNDING
    best_ms, best = known.time_ms, known.places
    # By the widths of the layers that later ones read: (time, GPU-time, widths so far), none dominated.
    labels: dict[tuple[int, ...], list[tuple[float, float, tuple[int, ...]]]] = {(): [(0.0, 0.0, ())]}
    looked = 0
    for layer in range(len(tables.own)):
        pending = [each[layer] for each in to_go]
        needed = sorted({other for factors in pending for factor in factors for other in factor.scope})
        fresh: dict[tuple[int, ...], list[tuple[float, float, tuple[int, ...]]]] = {}
        for kept in labels.values():
            for time, used, widths in kept:
                for place in range(len(tables.widths)):
                    looked += 1
                    if looked > MOST_LABELS:
                        return BudgetChoice(best, best_ms, known.bound_ms)
                    places = (*widths, place)
                    if not tables.keeps_limit(layer, places):
                        continue
                    took = tables.layer_ms(layer, places)
                    now, gpu = time + took, used + float(tables.widths[place]) * took
                    rest = [_at(factors, places) for factors in pending]
                    if (
                        now + rest[0] >= best_ms / ROUNDING
                        or gpu + rest[1] > most
                        or now + price * gpu + rest[2] - price * budget_ms >= best_ms / ROUNDING
                    ):
                        continue
                    if layer == len(tables.own) - 1:
                        best_ms, best = now, places
                        continue
                    fresh.setdefault(tuple(places[other] for other in needed), []).append((now, gpu, places))
        labels = {state: _undominated(each) for state, each in fresh.items()}
    return BudgetChoice(best, best_ms, best_ms)


def _undominated(
    labels: list[tuple[float, float, tuple[int, ...]]],
) -> list[tuple[float, float, tuple[int, ...]]]:
    kept: list[tuple[float, float, tuple[int, ...]]] = []
    for label in sorted(labels):
        if not kept or label[1] < kept[-1][1]:
            kept.append(label)
    return kept


def _at(factors: Sequence[Factor], places: Sequence[int]) -> float:
    return sum(float(factor.table[tuple(places[other] for other in factor.scope)]) for factor in factors)


def _costs_to_go(tables: CostTables, weight: Floats) -> list[list[Factor]] | None:
    """By layer: tables whose sum is the least that all later layers add. None: they would be too large."""
    many = len(tables.widths)
    holding: list[list[Factor]] = [[] for _ in tables.own]
    for factor in layer_factors(tables, {}, weight):
        holding[factor.scope[-1]].append(factor)
    after: list[list[Factor]] = [[] for _ in tables.own]
    pending: list[Factor] = []
    for layer in reversed(range(len(tables.own))):
        after[layer] = list(pending)
        mine = [*holding[layer], *(factor for factor in pending if layer in factor.scope)]
        pending = [factor for factor in pending if layer not in factor.scope]
        scope = tuple(sorted({other for factor in mine for other in factor.scope} - {layer}))
        if many ** (len(scope) + 1) > _MOST_ENTRIES:
            return None
        pending.append(Factor(scope, least_over(layer, scope, mine, many)))
    return after
