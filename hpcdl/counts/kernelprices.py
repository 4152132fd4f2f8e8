"""The prices of several pools in plain loops, for numba to compile: as hpcdl.counts.prices.many_prices."""

import math

import numpy as np

from hpcdl.counts.table import Floats, Ints

ROUNDS = 80
STEPS = 6
HALVINGS = 8
NEGLIGIBLE = 40.0


def softened(
    pool: Ints, units: Ints, value: Floats, starts: Ints, capacity: Floats, price: Floats, heat: float,
    slope: Floats, bend: Floats, weight: Floats,
) -> float:  # fmt: skip
    """L with softened maxima; `slope` and `bend` become its gradient and its Hessian.

    `weight`: room for a number for each row.
    """
    pools, items = len(capacity), len(starts)
    total = 0.0
    use = np.zeros(pools)
    bend[:, :] = 0.0
    for each in range(pools):
        total += price[each] * capacity[each]
        slope[each] = capacity[each]
    for item in range(items):
        end = starts[item + 1] if item + 1 < items else len(units)
        top = -math.inf
        for row in range(starts[item], end):
            top = max(top, value[row] - price[pool[row]] * units[row])
        weights = 0.0
        use[:] = 0.0
        for row in range(starts[item], end):
            below = (value[row] - price[pool[row]] * units[row] - top) / heat
            weight[row] = math.exp(below) if below > -NEGLIGIBLE else 0.0
            weights += weight[row]
        for row in range(starts[item], end):
            if weight[row] and units[row]:
                expected = weight[row] / weights * units[row]
                use[pool[row]] += expected
                bend[pool[row], pool[row]] += expected * units[row] / heat
        total += top + heat * math.log(weights)
        for one in range(pools):
            slope[one] -= use[one]
            for other in range(pools):
                bend[one, other] -= use[one] * use[other] / heat
    return total


def newton(price: Floats, slope: Floats, bend: Floats, step: Floats) -> None:
    """`step` becomes the Newton step of the prices that may move: not those at 0 that would fall."""
    pools = len(price)
    matrix, right = bend.copy(), -slope
    trace = 0.0
    for one in range(pools):
        trace += matrix[one, one]
    for one in range(pools):
        matrix[one, one] += 1e-9 * trace / pools + 1e-30
        if price[one] <= 0 and slope[one] >= 0:
            matrix[one, :], matrix[:, one] = 0.0, 0.0
            matrix[one, one], right[one] = 1.0, 0.0
    # Gauss; the matrix is symmetric and positive definite.
    for one in range(pools):
        for other in range(one + 1, pools):
            factor = matrix[other, one] / matrix[one, one]
            for column in range(one, pools):
                matrix[other, column] -= factor * matrix[one, column]
            right[other] -= factor * right[one]
    for back in range(pools):
        one = pools - 1 - back
        rest = right[one]
        for column in range(one + 1, pools):
            rest -= matrix[one, column] * step[column]
        step[one] = rest / matrix[one, one]


def cooled(
    pool: Ints, units: Ints, value: Floats, starts: Ints, capacity: Floats, price: Floats, heat: float, coldest: float
) -> Floats:
    """Prices at about the minimum of L, from some prices and a temperature on."""
    pools, items = len(capacity), len(starts)
    best, lowest = price.copy(), math.inf
    slope, there, step, trial = np.zeros(pools), np.zeros(pools), np.zeros(pools), np.zeros(pools)
    bend, beyond, weight = np.zeros((pools, pools)), np.zeros((pools, pools)), np.zeros(len(units))
    for _ in range(ROUNDS):
        now = softened(pool, units, value, starts, capacity, price, heat, slope, bend, weight)
        settled = False
        for _ in range(STEPS):
            newton(price, slope, bend, step)
            longest, widest = 0.0, 0.0
            for one in range(pools):
                longest, widest = max(longest, abs(step[one])), max(widest, price[one])
            length = min(1.0, 0.5 * widest / longest) if longest > 0 and widest > 0 else 1.0
            gained, then = False, now
            for _ in range(HALVINGS):
                down = 0.0
                for one in range(pools):
                    trial[one] = max(0.0, price[one] + length * step[one])
                    down += slope[one] * (trial[one] - price[one])
                then = softened(pool, units, value, starts, capacity, trial, heat, there, beyond, weight)
                if then < now + 1e-4 * down:
                    gained = True
                    break
                length /= 4.0
            if not gained:
                settled = True
                break
            gain = now - then
            now = then
            price, trial = trial, price
            slope, there = there, slope
            bend, beyond = beyond, bend
            if gain < 0.05 * heat:
                settled = True
                break
        total = 0.0
        for one in range(pools):
            total += price[one] * capacity[one]
        for item in range(items):
            end = starts[item + 1] if item + 1 < items else len(units)
            top = -math.inf
            for row in range(starts[item], end):
                top = max(top, value[row] - price[pool[row]] * units[row])
            total += top
        if total < lowest:
            lowest = total
            best[:] = price
        if settled:
            heat /= 4.0
            if heat < coldest:
                break
    return best


SOURCE = (softened, newton, cooled)
