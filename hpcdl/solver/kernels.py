"""The arithmetic of the exact solvers: price, greedy choice, pieces, dynamic program; and prices of several pools.

Each function is written once, in what numpy and numba both know; compiled.py runs this source compiled where numba is
installed. A few innermost steps also have a loop for the compiler, `_NAME_loop` for `NAME`, because numpy's own call
(`reduceat`, `accumulate`) is not known to it. Only the prices of several pools (`cooled`) are for the compiler alone:
prices.py has what is fast in numpy. A function here takes arrays and numbers, and reads no state.
"""

import math
from typing import NamedTuple

import numpy as np

from hpcdl.solver.table import NEVER, Floats, Ints, Mask

SHORT = 12  # a piece with no more counts is taken as so many single ones
OUT = 2.0**61  # of the range of integers
FILLS = 8  # changes that the greedy choice makes one by one
ROUNDS = 80  # of prices of several pools: temperatures
STEPS = 6  # Newton steps at each of them
HALVINGS = 8  # of a step that goes too far
NEGLIGIBLE = 40.0  # temperatures that a row may lose and still count


class Rows(NamedTuple):
    """The knots of all trainers, a row each, sorted by trainer, group and nodes (hpcdl/solver/rows.py)."""

    trainer: Ints
    group: Ints  # -1: none
    nodes: Ints
    value: Ints  # on the grid
    distance: Ints
    inner: Mask  # whether the counts between this row and the next one are allowed
    slope: Ints  # of the value between them
    starts: Ints  # first row of each trainer
    capacity: Ints  # by group
    shift: int  # a key is value * 2**shift - distance
    exponent: int  # one step of the grid is 2**exponent

    @property
    def trainers(self) -> int:
        """Number of trainers."""
        return len(self.starts)

    @property
    def rounding(self) -> int:
        """By how many steps the grid may have moved the value of a choice."""
        return max(self.capacity.tolist(), default=0) * len(self.capacity) + 2 * self.trainers


class Pieces(NamedTuple):
    """Counts among which each trainer has a choice, sorted by trainer; every trainer has one or more."""

    trainer: Ints
    low: Ints  # the first count
    many: Ints  # counts: low, low + 1, ...
    key: Ints  # of the first
    slope: Ints  # of the keys


class Branch(NamedTuple):
    """What the best price per node says of some rows: no choice among them is worth more than `bound`."""

    state: int  # NONE_FITS, ALL_FIT or PRICED
    bound: int
    nodes: Ints  # ALL_FIT: the best choice
    key: int  # of that choice
    price: int
    reduced: Ints  # by row: what it loses at that price against the best of its trainer
    lower: int  # value of a choice that fits
    cut: int  # a trainer that is cut by the capacity, -1: none
    left: int  # nodes that are left for it


NONE_FITS, ALL_FIT, PRICED, TOO_MUCH = 0, 1, 2, 3


def span_max(values: Ints, starts: Ints) -> Ints:
    """The largest value of each span; the spans begin at `starts`."""
    most: Ints = np.maximum.reduceat(values, starts)
    return most


def _span_max_loop(values: Ints, starts: Ints) -> Ints:
    most = np.empty(len(starts), np.int64)
    for span in range(len(starts)):
        end = starts[span + 1] if span + 1 < len(starts) else len(values)
        top = values[starts[span]]
        for at in range(starts[span] + 1, end):
            top = max(top, values[at])
        most[span] = top
    return most


def first_best(score: Ints, rows: Rows) -> Ints:
    """Of each trainer the first row with its highest score."""
    best = np.flatnonzero(score == np.maximum.reduceat(score, rows.starts)[rows.trainer])
    return best[np.searchsorted(rows.trainer[best], np.arange(len(rows.starts)))]


def _first_best_loop(score: Ints, rows: Rows) -> Ints:
    best = rows.starts.copy()
    for at in range(len(score)):
        trainer = rows.trainer[at]
        if score[at] > score[best[trainer]]:
            best[trainer] = at
    return best


def lay_out(
    places: Ints, nodes: Ints, slopes: Floats, factors: Floats, scale: float
) -> tuple[Ints, Ints, Ints, Ints, Mask, Ints, Ints]:
    """Trainer, group, value, distance, inner, slope and starts of the rows with these nodes (see `Rows`).

    places: by trainer and group a row: trainer, group, nodes that it has there (else -1), nodes that it has anywhere,
    whether the counts between its knots are allowed, number of its knots. slopes: of the curve before each knot.
    factors: by trainer a row: worth of a unit of throughput, cost of a rescale to more nodes, cost of one to fewer.
    scale: steps of the grid in a unit of worth.
    """
    length = places[:, 5]
    first = np.cumsum(length) - length
    lane = np.repeat(np.arange(len(places)), length)
    trainer, group, here, held = places[lane, 0], places[lane, 1], places[lane, 2], places[lane, 3]
    # What is out of reach is out of the range of integers too, perhaps; then it may be anything.
    slant = np.rint(np.minimum(np.maximum(slopes * factors[trainer, 0] * scale, -OUT), OUT)).astype(np.int64)
    span = nodes.copy()
    span[1:] -= np.where(lane[1:] == lane[:-1], nodes[:-1], 0)
    value = np.cumsum(slant * span)
    value -= (value[first] - slant[first] * span[first])[lane]
    costs = np.rint(factors[:, 1:] * scale).astype(np.int64)[trainer]
    value -= np.where(nodes == here, 0, np.where((nodes < here) | (nodes == 0), costs[:, 1], costs[:, 0]))
    distance = np.where(here >= 0, np.abs(nodes - held), nodes + held)
    inner, slope = np.zeros(len(lane), np.bool_), np.zeros(len(lane), np.int64)
    inner[:-1] = (lane[1:] == lane[:-1]) & (span[1:] > 1) & (places[lane[:-1], 4] > 0)
    slope[:-1] = np.where(inner[:-1], (value[1:] - value[:-1]) // np.maximum(span[1:], 1), 0)
    return trainer, group, value, distance, inner, slope, first[places[:, 1] < 0]


def opened(rows: Rows, capacity: int) -> Branch:
    """The rows of one group at the best price, rounded down, or at none where all trainers can have what is best.

    Secants between rows that use too much and rows that fit, from those that are best for free and those with the
    fewest nodes.
    """
    low, high = rows.starts, first_best(rows.value, rows)
    more_value, more_nodes = rows.value[high].sum(), rows.nodes[high].sum()
    less_value, less_nodes = rows.value[low].sum(), rows.nodes[low].sum()
    if less_nodes > capacity or more_nodes <= capacity:
        state = ALL_FIT if more_nodes <= capacity else NONE_FITS
        value, far = int(more_value), int(rows.distance[high].sum())
        return Branch(state, value, rows.nodes[high], (value << rows.shift) - far, 0, rows.value, value, -1, 0)
    while True:
        price = int((more_value - less_value) // (more_nodes - less_nodes))
        score = rows.value - price * rows.nodes
        picked = first_best(score, rows)
        value, nodes = rows.value[picked].sum(), rows.nodes[picked].sum()
        # No higher than the line through both: the price is where the bound bends.
        done = value - price * nodes <= more_value - price * more_nodes
        if nodes <= capacity:
            low, less_value, less_nodes = picked, value, nodes
        else:
            high, more_value, more_nodes = picked, value, nodes
        if done:
            break
    reduced = score[picked][rows.trainer] - score
    # What is linear from the one row to the other may be cut anywhere.
    jump = np.where(rows.inner[low] & (low + 1 == high), 0, rows.nodes[high] - rows.nodes[low])
    cut = int(np.argmax(jump))
    left = int(min(rows.nodes[low[cut]] + capacity - less_nodes, rows.nodes[high[cut]] - 1))
    lower = greedy(rows, capacity, reduced, low)
    bound = int(price * capacity + score[picked].sum())
    return Branch(PRICED, bound, rows.nodes[low], 0, price, reduced, lower, cut if jump[cut] > 0 else -1, left)


def searched(rows: Rows, at: Branch, capacity: int, gap: int, most_work: int, first_rows: int) -> tuple[int, Ints, int]:
    """The best choice of those that are within the gap of the bound: ALL_FIT, its nodes, its key.

    NONE_FITS: there is none. TOO_MUCH: a trainer is cut, and the search would take more than that work.
    """
    trainers = len(rows.starts)
    if at.cut >= 0 and work(pieces(rows, at, gap), trainers, capacity) > most_work:
        return TOO_MUCH, at.nodes, 0
    many = trainers + first_rows
    while True:
        loss = min(gap, np.partition(at.reduced, many)[many]) if many < len(at.reduced) else gap
        fits, nodes, key = best(pieces(rows, at, loss), trainers, capacity, rows.shift)
        if fits:
            gap = min(gap, at.bound + (-key >> rows.shift))
            # Whoever picks a count that loses more is worth less than these: nothing better is left out.
            if gap <= loss:
                return ALL_FIT, nodes, key
        elif loss == gap:
            return NONE_FITS, nodes, 0
        many = trainers + 4 * (many - trainers)


def greedy(rows: Rows, capacity: int, reduced: Ints, picked: Ints) -> int:
    """The value of a choice: rows that fit, raised with what is left to what loses least."""
    nodes, value = rows.nodes[picked], rows.value[picked]
    room = capacity - nodes.sum()
    # First whatever loses nothing, as long as it fits, in the order of the trainers.
    top = span_max(np.where(reduced == 0, np.arange(len(reduced)), -1), rows.starts)
    extra = np.where(top >= 0, np.maximum(rows.nodes[top] - nodes, 0), 0)
    extra = np.where(np.cumsum(extra) <= room, extra, 0)
    value = np.where(extra > 0, rows.value[top], value)
    nodes = nodes + extra
    room -= extra.sum()
    step = np.zeros(len(rows.nodes), np.int64)
    step[:-1] = np.where(rows.inner[:-1], rows.nodes[1:] - rows.nodes[:-1], 0)
    for _ in range(FILLS):
        more = rows.nodes - nodes[rows.trainer]
        # Where the next row is too far, as far towards it as there is room.
        part = np.maximum(np.minimum(room - more, step), 0)
        gain = rows.value + part * rows.slope - value[rows.trainer]
        gain = np.where((more <= room) & (more + part > 0), gain, -1)
        at = np.argmax(gain)
        if gain[at] <= 0:
            break
        trainer = rows.trainer[at]
        room -= more[at] + part[at]
        nodes[trainer] += more[at] + part[at]
        value[trainer] += gain[at]
    return int(value.sum())


def pieces(rows: Rows, at: Branch, loss: int) -> Pieces:
    """All counts that lose at most `loss` against the best of their trainer."""
    single = np.flatnonzero(at.reduced <= loss)
    left = np.flatnonzero(rows.inner)
    width = rows.nodes[left + 1] - rows.nodes[left] - 1
    here, there, slant = at.reduced[left], at.reduced[left + 1], np.abs(at.price - rows.slope[left])
    # What is between two rows loses ever more from the one that loses less.
    spare = loss - np.minimum(here, there)
    many = np.where(slant == 0, width, np.minimum(width, spare // np.maximum(slant, 1)))
    some = (spare >= 0) & (many > 0)
    left, many = left[some], many[some]
    offset = np.where(here[some] <= there[some], 1, width[some] + 1 - many)
    step = (rows.slope[left] << rows.shift) - np.sign(rows.distance[left + 1] - rows.distance[left])
    keys = (rows.value << rows.shift) - rows.distance
    order = np.argsort(np.concatenate((2 * single, 2 * left + 1)))
    return Pieces(
        np.concatenate((rows.trainer[single], rows.trainer[left]))[order],
        np.concatenate((rows.nodes[single], rows.nodes[left] + offset))[order],
        np.concatenate((np.ones(len(single), np.int64), many))[order],
        np.concatenate((keys[single], keys[left] + offset * step))[order],
        np.concatenate((np.zeros(len(single), np.int64), step))[order],
    )


def work(choice: Pieces, trainers: int, capacity: int) -> int:
    """Additions that the dynamic program over these pieces makes, roughly."""
    starts = np.searchsorted(choice.trainer, np.arange(trainers))
    least = choice.low[starts]
    reach = span_max(choice.low + choice.many - 1, starts) - least
    states = min(capacity - least.sum(), reach.sum()) + 1
    return int(max(0, states) * np.minimum(choice.many, SHORT).sum())


def best(choice: Pieces, trainers: int, capacity: int, shift: int) -> tuple[bool, Ints, int]:
    """Whether anything fits, and then the nodes of each trainer in the best choice, and its key.

    g_k(s) = the best key with which trainers k, k+1, ... use exactly s nodes beyond the least that each of them needs.
    Of equal values the choice with the fewest nodes in all, then with the best key, then with the most nodes for
    trainer 0, then 1, ...
    """
    starts = np.searchsorted(choice.trainer, np.arange(trainers + 1))
    nodes = choice.low[starts[:-1]]
    room = capacity - nodes.sum()
    if room < 0:
        return False, nodes, 0
    several = (starts[1:] - starts[:-1] > 1) | (choice.many[starts[:-1]] > 1)
    open_to = np.flatnonzero(several)
    key = choice.key[starts[:-1][~several]].sum()
    reach = span_max(choice.low + choice.many - 1, starts[:-1]) - nodes
    room = min(room, reach[open_to].sum())
    stages = [np.zeros(1, np.int64)]
    for trainer in open_to[::-1]:
        before = stages[-1]
        after = np.full(min(room + 1, len(before) + reach[trainer]), NEVER, np.int64)
        for at in range(starts[trainer], starts[trainer + 1]):
            first, worth, slope = choice.low[at] - nodes[trainer], choice.key[at], choice.slope[at]
            if choice.many[at] <= SHORT:
                for more in range(choice.many[at]):
                    raise_to(after, before, first + more, worth + more * slope)
            elif first < len(after):
                raise_to(after, slid(before, min(choice.many[at], len(after) - first), slope), first, worth)
        stages.append(after)
    state = int(np.argmax(-(-stages[-1] >> shift)))
    key += stages[-1][state]
    for number, trainer in enumerate(open_to):
        before, reached = stages[-2 - number], stages[-1 - number][state]
        most = -1
        for at in range(starts[trainer], starts[trainer + 1]):
            most = max(most, _traced(choice, at, nodes[trainer], before, state, reached))
        nodes[trainer] += most
        state -= most
    return True, nodes, int(key)


def _traced(choice: Pieces, at: int, least: int, before: Ints, state: int, reached: int) -> int:
    """The most nodes of a piece beyond the least with which a state is reached with that key; -1: there is none."""
    low = choice.low[at] - least
    first = max(0, state - low - len(before) + 1)
    last = min(choice.many[at] - 1, state - low)
    if first > last:
        return -1
    if first == last:
        return low + last if before[state - low - last] + choice.key[at] + choice.slope[at] * last == reached else -1
    counts = np.arange(first, last + 1)
    right = np.flatnonzero(before[state - low - counts] + (choice.key[at] + choice.slope[at] * counts) == reached)
    return low + counts[right[-1]] if len(right) else -1


def raise_to(after: Ints, before: Ints, by: int, worth: int) -> None:
    """Raise `after` where `before`, so many nodes further, is worth more."""
    many = min(len(before), len(after) - by)
    if many > 0:
        there = after[by : by + many]
        np.maximum(there, before[:many] + worth, out=there)


def _raise_to_loop(after: Ints, before: Ints, by: int, worth: int) -> None:
    there = after[by : by + len(before)]
    for state in range(len(there)):  # several at a time, where nothing but a maximum is in the loop
        there[state] = max(there[state], before[state] + worth)


def slid(before: Ints, many: int, slope: int) -> Ints:
    """max over i < many of before[s - i] + slope * i, for each s that can be reached.

    A maximum over a window that slides, by van Herk's method: a running maximum from each side of every block. So a
    long piece costs no more than a few single counts.
    """
    blocks = -(-(len(before) + many - 1) // many)
    grid = np.full((blocks + 1) * many, NEVER, np.int64)
    grid[many : many + len(before)] = before
    local = slope * np.arange(many)
    level = grid.reshape(blocks + 1, many) - local
    upto = np.maximum.accumulate(level[1:], axis=1)
    upto += local
    # From the block before: what is after the place in it.
    since = np.maximum.accumulate(level[:-1, :0:-1], axis=1)[:, ::-1]
    since += local[:-1] + slope * many
    np.maximum(upto[:, :-1], since, out=upto[:, :-1])
    most: Ints = upto.reshape(-1)[: len(before) + many - 1]
    return most


def _slid_loop(before: Ints, many: int, slope: int) -> Ints:
    most = np.empty(len(before) + many - 1, np.int64)
    queue = np.empty(len(before), np.int64)  # of states, each better than all after it; the first is the best
    head, tail = 0, 0
    for state in range(len(most)):
        if state < len(before):
            while tail > head and before[queue[tail - 1]] + slope * (state - queue[tail - 1]) <= before[state]:
                tail -= 1
            queue[tail] = state
            tail += 1
        if queue[head] <= state - many:
            head += 1
        most[state] = before[queue[head]] + slope * (state - queue[head])
    return most


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
