"""Counts against brute force, a MILP and the plain dynamic program; ties, bounds, budgets, numbers without sense."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from hpcdl.solver import InfeasibleError, Item, Solution, dynamic, solve, solver
from tests.support.seeds import seeds

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
Chosen = tuple[int | None, ...]


def every_choice(items: Sequence[Item], capacity: Sequence[int]) -> tuple[float, Chosen] | None:
    """The best of all choices, by the documented order of ties; None: nothing fits."""
    options = [[*([] if item.required else [None]), *range(len(item.units))] for item in items]
    found: list[tuple[tuple, float, Chosen]] = []
    for chosen in itertools.product(*options):
        used = [0] * len(capacity)
        units, pools, value = [], [], 0.0
        for item, place in zip(items, chosen, strict=True):
            many, pool, worth = (
                (0, 0, 0.0) if place is None else (item.units[place], item.pools[place], item.values[place])
            )
            if many:
                used[pool] += many
            units.append(many)
            pools.append(-pool if many else 0)
            value += worth
        if all(use <= room for use, room in zip(used, capacity, strict=True)):
            first = [1 if place is None else -place for place in chosen]
            found.append(((value, -sum(units), used, units, pools, first), value, chosen))
    return max(found)[1:] if found else None


def use_of(items: Sequence[Item], solution: Solution, pools: int) -> list[int]:
    used = [0] * pools
    for item, place in zip(items, solution.chosen, strict=True):
        if place is not None and item.units[place]:
            used[item.pools[place]] += item.units[place]
    return used


def check(items: Sequence[Item], capacity: Sequence[int], solution: Solution) -> None:
    """It fits, it is worth what it says, nobody required is left out, and the bound is one."""
    assert all(use <= room for use, room in zip(use_of(items, solution, len(capacity)), capacity, strict=True))
    picked = zip(items, solution.chosen, strict=True)
    assert all(place is not None or not item.required for item, place in picked)
    worth = [item.values[place] for item, place in zip(items, solution.chosen, strict=True) if place is not None]
    assert solution.value == math.fsum(worth)
    assert solution.bound >= solution.value
    assert solution.gap == (0.0 if solution.optimal else solution.bound - solution.value)


def by_milp(items: Sequence[Item], capacity: Sequence[int]) -> float:
    """The optimal value by HiGHS."""
    columns = [(at, place) for at, item in enumerate(items) for place in range(len(item.units))]
    rows = np.zeros((len(items) + len(capacity), len(columns)))
    for column, (at, place) in enumerate(columns):
        rows[at, column] = 1
        rows[len(items) + items[at].pools[place], column] = items[at].units[place]
    least = [*(1.0 if item.required else 0.0 for item in items), *(0.0 for _ in capacity)]
    most = [*(1.0 for _ in items), *map(float, capacity)]
    done = milp(
        [-items[at].values[place] for at, place in columns],
        constraints=LinearConstraint(rows, least, most),
        integrality=np.ones(len(columns)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    assert done.status == 0
    return float(-done.fun)


def curve(draw: random.Random, sizes: Sequence[int], noise: float = 0.1) -> tuple[float, ...]:
    power, weight = draw.uniform(0.4, 1.0), draw.uniform(1, 100)
    return tuple(weight * size**power * (1 + noise * draw.uniform(-1, 1)) for size in sizes)


def jobs(draw: random.Random, many: int, pools: int = 1, sizes: Sequence[int] = SIZES) -> list[Item]:
    """Jobs with a curve for each pool."""
    where = tuple(pool for pool in range(pools) for _ in sizes)
    return [
        Item(where, tuple(sizes) * pools, tuple(itertools.chain(*(curve(draw, sizes) for _ in range(pools)))))
        for _ in range(many)
    ]


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest problems go by bound and core, with a first core that is too small."""
    monkeypatch.setattr(solver, "SMALL", -1)
    monkeypatch.setattr(solver, "FIRST_ROWS", 1)


@st.composite
def problems(draw: st.DrawFn, most_pools: int = 3, required: bool = True) -> tuple[list[Item], list[int]]:
    """Few items with small whole values, so that ties are common; unsorted options, some that never fit."""
    pools = draw(st.integers(1, most_pools))
    capacity = draw(st.lists(st.integers(0, 8), min_size=pools, max_size=pools))
    option = st.tuples(st.integers(0, pools - 1), st.integers(0, 7), st.integers(-3, 8))
    items = []
    for options in draw(st.lists(st.lists(option, max_size=4), max_size=5)):
        columns = tuple(zip(*options, strict=True)) or ((), (), ())
        must = required and draw(st.sampled_from([False, False, False, True]))
        items.append(Item(columns[0], columns[1], tuple(map(float, columns[2])), must))
    return items, capacity


def assert_best(items: list[Item], capacity: list[int]) -> None:
    best = every_choice(items, capacity)
    for found in (solve, dynamic):
        if best is None:
            with pytest.raises(InfeasibleError) as error:
                found(items, capacity)
            assert error.value.proven
        else:
            solution = found(items, capacity)
            check(items, capacity, solution)
            assert (solution.value, solution.chosen, solution.optimal) == (*best, True)


@given(problems())
def test_it_finds_the_best_choice_and_the_first_of_its_equals(problem: tuple[list[Item], list[int]]) -> None:
    assert_best(*problem)


@given(problems())
@settings(max_examples=seeds(200))
def test_bound_and_core_find_the_same(problem: tuple[list[Item], list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "SMALL", -1)
        patch.setattr(solver, "FIRST_ROWS", 1)
        assert_best(*problem)


@given(problems(required=False), st.integers(0, 200))
def test_within_any_budget_the_bound_holds(problem: tuple[list[Item], list[int]], budget: int) -> None:
    items, capacity = problem
    best = every_choice(items, capacity)
    assert best is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "SMALL", -1)
        solution = solve(items, capacity, budget)
    check(items, capacity, solution)
    assert solution.value <= best[0] <= solution.bound
    assert not solution.optimal or solution.value == best[0]
    assert solution.optimal or len(capacity) > 1


@given(problems(required=False), st.data())
def test_one_more_unit_never_makes_it_worse(problem: tuple[list[Item], list[int]], data: st.DataObject) -> None:
    items, capacity = problem
    more = list(capacity)
    more[data.draw(st.integers(0, len(capacity) - 1))] += 1
    assert solve(items, more).value >= solve(items, capacity).value


@given(problems())
def test_the_same_input_has_the_same_answer(problem: tuple[list[Item], list[int]]) -> None:
    items, capacity = problem
    if every_choice(items, capacity) is not None:
        assert solve(items, capacity) == solve(list(items), list(capacity))


@pytest.mark.parametrize("seed", range(6))
def test_one_pool_agrees_with_a_milp_and_the_plain_dynamic_program(seed: int) -> None:
    draw = random.Random(seed)
    many, units = draw.choice([(20, 60), (60, 200), (200, 150)])
    items = jobs(draw, many)
    items[3] = Item((0, 0), (5, 9), (-50.0, -40.0), required=True)
    found = solve(items, [units])
    check(items, [units], found)
    assert found.optimal
    assert found == dynamic(items, [units])
    assert found.value == pytest.approx(by_milp(items, [units]), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_several_pools_agree_with_a_milp(seed: int) -> None:
    draw = random.Random(seed)
    pools = draw.choice([2, 3])
    items = jobs(draw, draw.choice([15, 30]), pools, SIZES[:8])
    items[2] = Item(items[2].pools, items[2].units, items[2].values, required=True)
    capacity = [draw.randint(10, 40) for _ in range(pools)]
    found = solve(items, capacity)
    check(items, capacity, found)
    assert found.optimal
    assert found.value == pytest.approx(by_milp(items, capacity), rel=1e-6)


def test_a_budget_that_is_too_small_is_said_and_costs_little() -> None:
    draw = random.Random(3)
    items, capacity = jobs(draw, 60, 3), [50, 40, 30]
    exact = solve(items, capacity, budget=10**9)
    assert exact.optimal
    for budget in (0, 10_000, 1_000_000):
        found = solve(items, capacity, budget)
        check(items, capacity, found)
        assert found.value <= exact.value <= found.bound
        assert found.gap <= 0.05 * exact.value
    assert not solve(items, capacity, 0).optimal


def test_many_nodes_as_pools() -> None:
    draw = random.Random(4)
    nodes, sizes = 16, (1, 2, 3, 4)
    where = tuple(node for node in range(nodes) for _ in sizes)
    items = [Item(where, sizes * nodes, curve(draw, sizes) * nodes) for _ in range(40)]
    found = solve(items, [4] * nodes)
    check(items, [4] * nodes, found)
    # Nodes of one kind cannot do better than their GPUs in one pool.
    together = solve([Item((0,) * 4, sizes, item.values[:4]) for item in items], [4 * nodes])
    assert found.value <= together.value * (1 + 1e-12)
    assert found.value >= 0.98 * together.value


def test_identical_items_are_no_trap(bounded: None) -> None:
    draw = random.Random(5)
    six = jobs(draw, 6)
    items = [six[at % 6] for at in range(300)]
    assert solve(items, [500]) == dynamic(items, [500])


def test_identical_items_in_several_pools_are_shared_out() -> None:
    draw = random.Random(6)
    kinds = [(curve(draw, SIZES), draw.uniform(1.5, 3)) for _ in range(6)]
    where = (0,) * len(SIZES) + (1,) * len(SIZES)
    six = [Item(where, SIZES * 2, (*slow, *(faster * value for value in slow))) for slow, faster in kinds]
    items, capacity = [six[at % 6] for at in range(300)], [200, 150]
    found = solve(items, capacity)
    check(items, capacity, found)
    assert found.gap <= 0.002 * found.value
    assert found == solve(items, capacity)
    assert found.value <= by_milp(items, capacity) * (1 + 1e-6) <= found.bound * (1 + 2e-6)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_where_the_budget_is_short(seed: int) -> None:
    draw = random.Random(seed)
    pools = draw.randint(2, 4)
    items = jobs(draw, 30, pools, SIZES[:8])
    for at in draw.sample(range(30), 5):
        items[at] = Item(items[at].pools, items[at].units, items[at].values, required=True)
    capacity = [draw.randint(0, 60) for _ in range(pools - 1)] + [draw.randint(10, 60)]
    best = by_milp(items, capacity)
    for budget in (0, 1000, 100_000):
        found = solve(items, capacity, budget)
        check(items, capacity, found)
        assert found.value <= best * (1 + 1e-6)
        assert found.bound >= best * (1 - 1e-6)
        assert not found.optimal or found.value == pytest.approx(best, rel=1e-6)


def test_items_that_use_nothing_beside_pools_that_are_full() -> None:
    full = Item((2,), (1,), (0.0,), required=True)
    idle = Item((0,), (0,), (0.0,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "SMALL", -1)
        assert solve([full, idle], [0, 0, 1]).chosen == (0, None)
        with pytest.raises(InfeasibleError) as error:
            solve([full, idle, full], [0, 0, 1])
    assert error.value.proven


def test_ties_go_to_fewer_units_then_to_earlier_items_then_to_the_first_option() -> None:
    same = Item((0, 0, 0), (1, 2, 3), (5.0, 5.0, 5.0))
    assert solve([same], [8]).chosen == (0,)
    one = Item((0,), (1,), (5.0,))
    assert solve([one, one, one], [2]).chosen == (0, 0, None)
    stairs = Item((0, 0), (1, 3), (2.0, 6.0))
    assert solve([stairs, stairs], [4]).chosen == (1, 0)
    assert solve([Item((0, 0), (2, 2), (5.0, 5.0))], [2]).chosen == (0,)
    either = Item((1, 0), (1, 1), (5.0, 5.0))
    assert solve([either, either], [1, 1]).chosen == (1, 0)
    assert solve([either], [1, 1]).chosen == (1,)


def test_values_that_differ_by_less_than_the_grid_are_equal() -> None:
    assert solve([Item((0, 0), (1, 2), (1.0, 1.0 + 2**-52))], [2]).chosen == (0,)
    assert solve([Item((0, 0), (1, 2), (1.0, 1.0 + 2**-48))], [2]).chosen == (1,)


def test_nothing_to_choose() -> None:
    nothing = Solution((), 0.0, 0.0, True)
    assert solve([], []) == solve([], [4]) == dynamic([], [4]) == nothing
    assert solve([Item((), (), ())], []) == Solution((None,), 0.0, 0.0, True)
    assert solve([Item((0,), (1,), (3.0,))], [0]).chosen == (None,)
    assert solve([Item((0, 0), (1, 2), (-3.0, 0.0))], [4]).chosen == (None,)


def test_options_without_units() -> None:
    assert solve([Item((0, 0), (0, 1), (2.0, 3.0))], [0]).chosen == (0,)
    assert solve([Item((0, 0), (0, 1), (-2.0, -3.0), required=True)], [4]) == Solution((0,), -2.0, -2.0, True)
    assert solve([Item((0,), (0,), (0.0,))], [4]).chosen == (None,)


def test_values_of_any_size() -> None:
    for scale in (1e-300, 1e-3, 1e300):
        found = solve([Item((0, 0), (1, 2), (3 * scale, 4 * scale)), Item((0,), (1,), (2 * scale,))], [2])
        assert found.chosen == (0, 0)
        assert found.value == pytest.approx(5 * scale)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers(bad: float) -> None:
    with pytest.raises(ValueError, match=r"item 1, option 1: .* is a value that is not finite"):
        solve([Item((0,), (1,), (1.0,)), Item((0, 0), (1, 2), (1.0, bad))], [4])


@pytest.mark.parametrize("units", [-1, 1.5, math.nan, math.inf])
def test_units_that_are_none(units: float) -> None:
    with pytest.raises(ValueError, match=r"item 0, option 0: .* is no number of units"):
        solve([Item((0,), (units,), (1.0,))], [4])  # type: ignore[arg-type]


@pytest.mark.parametrize("pool", [-1, 2, 0.5])
def test_pools_that_are_not_there(pool: float) -> None:
    with pytest.raises(ValueError, match=r"item 0, option 0: .* is no pool of the 2"):
        solve([Item((pool,), (1,), (1.0,))], [4, 4])  # type: ignore[arg-type]


@pytest.mark.parametrize("units", [-1, 2.5, 10**10, math.nan])
def test_capacities_that_make_no_sense(units: float) -> None:
    with pytest.raises(ValueError, match=r"pool 1 has .* units"):
        solve([], [1, units])  # type: ignore[list-item]


def test_other_input_without_sense() -> None:
    with pytest.raises(ValueError, match="an item has 1 pools, 2 units and 1 values"):
        Item((0,), (1, 2), (1.0,))
    with pytest.raises(ValueError, match="units of an item are not all numbers"):
        solve([Item((0,), ("two",), (1.0,))], [4])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too large"):
        solve([Item((0,), (1,), (1.7e308,))] * 2, [4])
    with pytest.raises(ValueError, match="budget of -1"):
        solve([], [4], -1)


def test_required_items_that_do_not_fit() -> None:
    with pytest.raises(InfeasibleError, match="item 1 is required, and none of its 2 options fits") as error:
        solve([Item((), (), ()), Item((0, 0), (5, 6), (1.0, 1.0), required=True)], [4])
    assert error.value.proven
    with pytest.raises(InfeasibleError, match="do not fit together"):
        solve([Item((0,), (3,), (1.0,), required=True)] * 2, [4])


def test_required_items_may_not_be_found_to_fit(bounded: None) -> None:
    # As hard as packing: 8 of 6 fill two pools of 24 only if split evenly.
    items = [Item((0, 1), (6, 6), (2.0, 1.0), required=True)] * 8
    assert solve(items, [24, 24]).optimal
    with pytest.raises(InfeasibleError):
        solve([*items, items[0]], [24, 24])
    draw = random.Random(1)
    odd = [Item((0, 1, 2), (many,) * 3, (1.0,) * 3, required=True) for many in draw.choices(range(3, 20), k=12)]
    room = sum(item.units[0] for item in odd) // 3
    with pytest.raises(InfeasibleError, match="within the budget") as error:
        solve(odd, [room, room, room - 1], 0)
    assert not error.value.proven


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_worth_no_less_than_what_items_hold(seed: int) -> None:
    draw = random.Random(seed)
    pools = draw.randint(2, 4)
    items, capacity = jobs(draw, 30, pools, SIZES[:8]), [draw.randint(8, 40) for _ in range(pools)]
    free, held = list(capacity), list[int | None]()
    for item in items:
        fits = [place for place, pool in enumerate(item.pools) if item.units[place] <= free[pool]]
        held.append(draw.choice(fits) if fits and draw.random() < 0.9 else None)
        if (place := held[-1]) is not None:
            free[item.pools[place]] -= item.units[place]
    own = [replace(item, held=place) for item, place in zip(items, held, strict=True)]
    worth = math.fsum(item.values[place] for item, place in zip(items, held, strict=True) if place is not None)
    for budget in (0, 1000, 10**7):
        found = solve(own, capacity, budget)
        check(own, capacity, found)
        assert found.value >= worth
        stays = [replace(item, held=place) for item, place in zip(items, found.chosen, strict=True)]
        assert solve(stays, capacity, budget).value >= found.value
        assert not found.optimal or found.chosen == solve(items, capacity, 10**9).chosen


def test_what_items_hold_and_does_not_fit_is_no_answer() -> None:
    held = [Item((0, 0, 1), (4, 2, 2), (3.0, 2.0, 1.0), held=0) for _ in range(3)]
    assert solve(held, [6, 2], 0) == solve([replace(item, held=None) for item in held], [6, 2], 0)
