"""The solver of one group in plain loops, for numba to compile (hpcdl/counts/fast.py does).

They are the same steps as in exact.py and pieces.py, with the same answers: numpy's calls cost more than the work where
there are few trainers, and its passes over arrays more than loops where there are many pieces. Uncompiled they are
slow, but right.
"""

import math

import numpy as np

from hpcdl.counts.table import Floats, Ints, Mask

NEVER = -(2**62)
OUT = 2.0**61
SHORT = 12
FILLS = 8
DONE, TOO_MUCH, INFEASIBLE = 0, 1, 2


def plus(
    starts: Ints, low: Ints, many: Ints, key: Ints, slope: Ints, reach: Ints, room: int, shift: int
) -> tuple[Ints, int]:
    """As hpcdl.counts.pieces.plus."""
    trainers = len(starts)
    # g of the last k trainers begins at place[k] and has width[k] states.
    place = np.zeros(trainers + 2, np.int64)
    width = np.ones(trainers + 1, np.int64)
    place[1] = 1
    for done in range(trainers):
        width[done + 1] = min(room + 1, width[done] + reach[trainers - 1 - done])
        place[done + 2] = place[done + 1] + width[done + 1]
    cells = np.full(place[trainers + 1], NEVER, np.int64)
    cells[0] = 0
    queue = np.empty(room + 1, np.int64)
    for done in range(trainers):
        trainer = trainers - 1 - done
        before = cells[place[done] : place[done] + width[done]]
        after = cells[place[done + 1] : place[done + 1] + width[done + 1]]
        end = starts[trainer + 1] if trainer + 1 < trainers else len(low)
        for at in range(starts[trainer], end):
            first, step = low[at], slope[at]
            if many[at] <= SHORT:
                for more in range(many[at]):
                    worth, by = key[at] + more * step, first + more
                    there = after[by : by + len(before)]
                    for state in range(len(there)):  # several at a time, where nothing but a maximum is in the loop
                        there[state] = max(there[state], before[state] + worth)
                continue
            # A queue of states, each better than all after it; the first is the best of the window.
            head, tail = 0, 0
            for state in range(min(len(before) + many[at] - 1, len(after) - first)):
                if state < len(before):
                    while tail > head and before[queue[tail - 1]] + step * (state - queue[tail - 1]) <= before[state]:
                        tail -= 1
                    queue[tail] = state
                    tail += 1
                if queue[head] <= state - many[at]:
                    head += 1
                worth = before[queue[head]] + step * (state - queue[head]) + key[at]
                if worth > after[first + state]:
                    after[first + state] = worth
    last = cells[place[trainers] : place[trainers] + width[trainers]]
    top = NEVER
    state = 0
    for at in range(len(last)):
        value = -(-last[at] >> shift)
        if value > top:
            top, state = value, at
    found = last[state]
    chosen = np.zeros(trainers, np.int64)
    for trainer in range(trainers):
        done = trainers - trainer
        reached = cells[place[done] + state]
        most = -1
        end = starts[trainer + 1] if trainer + 1 < trainers else len(low)
        for at in range(starts[trainer], end):
            for more in range(min(many[at] - 1, state - low[at]), -1, -1):
                count = low[at] + more
                if count <= most or state - count >= width[done - 1]:
                    break
                if cells[place[done - 1] + state - count] + key[at] + more * slope[at] == reached:
                    most = count
                    break
        chosen[trainer] = most
        state -= most
    return chosen, found


def price_of(nodes: Ints, value: Ints, starts: Ints, capacity: int, high: Ints, low: Ints) -> int:
    """As hpcdl.counts.exact._price: the best price; `high` and `low` become the rows that it names."""
    trainers = len(starts)
    more_value, more_nodes, less_value, less_nodes = 0, 0, 0, 0
    picked = np.empty(trainers, np.int64)
    for trainer in range(trainers):
        low[trainer] = starts[trainer]
        more_value += value[high[trainer]]
        more_nodes += nodes[high[trainer]]
        less_value += value[starts[trainer]]
        less_nodes += nodes[starts[trainer]]
    while True:
        price = (more_value - less_value) // (more_nodes - less_nodes)
        found_value, found_nodes = 0, 0
        for trainer in range(trainers):
            end = starts[trainer + 1] if trainer + 1 < trainers else len(nodes)
            best = starts[trainer]
            score = value[best] - price * nodes[best]
            for row in range(best + 1, end):
                if value[row] - price * nodes[row] > score:
                    best, score = row, value[row] - price * nodes[row]
            picked[trainer] = best
            found_value += value[best]
            found_nodes += nodes[best]
        done = found_value - price * found_nodes <= more_value - price * more_nodes
        if found_nodes <= capacity:
            low[:] = picked
            less_value, less_nodes = found_value, found_nodes
        else:
            high[:] = picked
            more_value, more_nodes = found_value, found_nodes
        if done:
            return price


def greedy(
    trainer: Ints, nodes: Ints, value: Ints, inner: Mask, slope: Ints, capacity: int, reduced: Ints, picked: Ints
) -> int:
    """As hpcdl.counts.exact._greedy: the value of a choice that fits."""
    held, worth = nodes[picked], value[picked]
    room = capacity - held.sum()
    # First whatever loses nothing, as long as it fits, in the order of the trainers.
    for row in range(len(nodes)):
        owner = trainer[row]
        if reduced[row] == 0 and 0 < nodes[row] - held[owner] <= room:
            room -= nodes[row] - held[owner]
            held[owner], worth[owner] = nodes[row], value[row]
    for _ in range(FILLS):
        most, best, extra = 0, -1, 0
        for row in range(len(nodes)):
            more = nodes[row] - held[trainer[row]]
            if more > room:
                continue
            part = 0
            if inner[row]:
                part = max(0, min(room - more, nodes[row + 1] - nodes[row]))
            gain = value[row] + part * slope[row] - worth[trainer[row]]
            if more + part > 0 and gain > most:
                most, best, extra = gain, row, more + part
        if best < 0:
            break
        room -= extra
        held[trainer[best]] += extra
        worth[trainer[best]] += most
    return int(worth.sum())


def solved(
    trainer: Ints, nodes: Ints, value: Ints, distance: Ints, inner: Mask, slope: Ints, starts: Ints,
    capacity: int, shift: int, most_work: int,
) -> tuple[int, Ints, int]:  # fmt: skip
    """DONE, the nodes of each trainer in the best choice, and its key; TOO_MUCH: it would take more than that work;
    INFEASIBLE: not even the fewest nodes of all fit. Columns as in hpcdl.counts.rows.Rows."""
    trainers = len(starts)
    chosen = np.zeros(trainers, np.int64)
    high, low = np.empty(trainers, np.int64), np.empty(trainers, np.int64)
    total, least, key = 0, 0, 0
    for each in range(trainers):
        end = starts[each + 1] if each + 1 < trainers else len(nodes)
        best = starts[each]
        for row in range(best + 1, end):
            if value[row] > value[best]:
                best = row
        high[each] = best
        chosen[each] = nodes[best]
        total += nodes[best]
        least += nodes[starts[each]]
        key += (value[best] << shift) - distance[best]
    if least > capacity:
        return INFEASIBLE, chosen, 0
    if total <= capacity:
        return DONE, chosen, key
    price = price_of(nodes, value, starts, capacity, high, low)
    reduced = np.empty(len(nodes), np.int64)
    bound = price * capacity
    for each in range(trainers):
        end = starts[each + 1] if each + 1 < trainers else len(nodes)
        top = value[starts[each]] - price * nodes[starts[each]]
        for row in range(starts[each], end):
            top = max(top, value[row] - price * nodes[row])
        for row in range(starts[each], end):
            reduced[row] = top - (value[row] - price * nodes[row])
        bound += top
    gap = bound - greedy(trainer, nodes, value, inner, slope, capacity, reduced, low)

    # Pieces, as in hpcdl.counts.pieces.pieces and best.
    size = 2 * len(nodes)
    first, many, keys, steps = (
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
    )
    begins, reach, open_to = np.empty(trainers, np.int64), np.empty(trainers, np.int64), np.empty(trainers, np.int64)
    count, fixed, room, counts, opened = 0, 0, capacity, 0, 0
    for each in range(trainers):
        end = starts[each + 1] if each + 1 < trainers else len(nodes)
        begin = count
        for row in range(starts[each], end):
            worth = (value[row] << shift) - distance[row]
            if reduced[row] <= gap:
                first[count], many[count], keys[count], steps[count] = nodes[row], 1, worth, 0
                count += 1
            if inner[row]:
                here, there = reduced[row], reduced[row + 1]
                if min(here, there) > gap:
                    continue
                width = nodes[row + 1] - nodes[row] - 1
                slant = abs(price - slope[row])
                some = width if slant == 0 else min(width, (gap - min(here, there)) // slant)
                if some > 0:
                    offset = 1 if here <= there else width + 1 - some
                    step = (slope[row] << shift) - (1 if distance[row + 1] > distance[row] else -1)
                    first[count], many[count], keys[count], steps[count] = (
                        nodes[row] + offset,
                        some,
                        worth + offset * step,
                        step,
                    )
                    count += 1
        bottom, top = first[begin], 0
        chosen[each] = bottom
        room -= bottom
        if count == begin + 1 and many[begin] == 1:
            fixed += keys[begin]
            count = begin
            continue
        for at in range(begin, count):
            first[at] -= bottom
            top = max(top, first[at] + many[at] - 1)
            counts += min(many[at], SHORT)
        begins[opened], reach[opened], open_to[opened] = begin, top, each
        opened += 1
    if room < 0:
        return TOO_MUCH, chosen, 0
    room = min(room, reach[:opened].sum())
    if counts * (room + 1) > most_work:
        return TOO_MUCH, chosen, 0
    if opened == 0:
        return DONE, chosen, fixed
    more, found = plus(
        begins[:opened], first[:count], many[:count], keys[:count], steps[:count], reach[:opened], room, shift
    )
    for at in range(opened):
        chosen[open_to[at]] += more[at]
    return DONE, chosen, fixed + found


def columns(
    numbers: Ints, factors: Floats, lanes: Ints, extremes: Floats, at: Ints, slopes: Floats, sizes: Ints,
    capacity: Ints, bits: int, limit: float,
) -> tuple[int, Ints, Mask]:  # fmt: skip
    """As hpcdl.counts.rows.read: the exponent of the grid, the columns of numbers of the rows, and `inner`.

    `numbers`: of each trainer fewest, most, now, group and how many sizes are listed. `factors`: weight, horizon, rate
    now, and seconds of a rescale up and down. `lanes`, by trainer and group: trainer, group, first point and number of
    points of the curve; `extremes`: the highest rate, and that for a node. No row: the values are too large.
    """
    trainers, points = len(numbers), 0
    highest = np.zeros(trainers)
    steepest = np.zeros(len(capacity))
    for lane in range(len(lanes)):
        owner, group = lanes[lane, 0], lanes[lane, 1]
        gain = factors[owner, 0] * factors[owner, 1]
        highest[owner] = max(highest[owner], gain * extremes[lane, 0])
        steepest[group] = max(steepest[group], gain * extremes[lane, 1])
        points += lanes[lane, 3] + 5 + numbers[owner, 4]
    most = min(highest.sum(), (steepest * capacity).sum())
    for trainer in range(trainers):
        held = factors[trainer, 0] * abs(factors[trainer, 2])
        most += max(held * factors[trainer, 3], held * factors[trainer, 4])
    found = np.zeros((7, points + trainers), np.int64)
    inner = np.zeros(points + trainers, np.bool_)
    if not most < limit:
        return 0, found[:, :0], inner[:0]
    exponent = math.frexp(max(most, 1 / limit))[1] - bits
    knots = np.empty(points, np.int64)
    row, lane, size = 0, 0, 0
    for trainer in range(trainers):
        now, sized = numbers[trainer, 2], numbers[trainer, 4]
        held = factors[trainer, 0] * factors[trainer, 2]
        up = int(np.rint(math.ldexp(held * factors[trainer, 3], -exponent)))
        down = int(np.rint(math.ldexp(held * factors[trainer, 4], -exponent)))
        gain = factors[trainer, 0] * factors[trainer, 1]
        found[0, row], found[1, row], found[3, row], found[4, row] = trainer, -1, -down, now
        found[6, trainer] = row  # where the rows of each trainer begin
        row += 1
        while lane < len(lanes) and lanes[lane, 0] == trainer:
            group, first, length = lanes[lane, 1], lanes[lane, 2], lanes[lane, 3]
            lane += 1
            home = now > 0 and group == numbers[trainer, 3]
            low, high = numbers[trainer, 0], min(numbers[trainer, 1], capacity[group])
            count = 0
            if sized:
                for each in range(size, size + sized):
                    if low <= sizes[each] <= high:
                        knots[count] = sizes[each]
                        count += 1
            elif low <= high:
                knots[0], knots[1], count = low, high, 2
                for node in range(now - 1, now + 2):
                    if home and low < node < high:
                        knots[count] = node
                        count += 1
                for point in range(first, first + length):
                    if low < at[point] < high:
                        knots[count] = at[point]
                        count += 1
                knots[:count].sort()
            # Along the curve with the knots: what is reached at the last point, and the line to the next one.
            point, base, worth, begun, before = first, 0, 0, row, -1
            slant = int(np.rint(min(max(math.ldexp(slopes[first] * gain, -exponent), -OUT), OUT)))
            for each in range(count):
                node = knots[each]
                if node == before:
                    continue
                before = node
                while point < first + length and at[point] < node:
                    worth += slant * (at[point] - base)
                    base = at[point]
                    point += 1
                    slant = 0
                    if point < first + length:
                        # What is out of reach is out of the range of integers too, perhaps.
                        slant = int(np.rint(min(max(math.ldexp(slopes[point] * gain, -exponent), -OUT), OUT)))
                value, far = worth + slant * (node - base), node + now
                if home:
                    far = abs(node - now)
                    value -= 0 if node == now else (down if node < now else up)
                else:
                    value -= up
                found[0, row], found[1, row], found[2, row], found[3, row], found[4, row] = (
                    trainer,
                    group,
                    node,
                    value,
                    far,
                )
                if row > begun and not sized and node - found[2, row - 1] > 1:
                    inner[row - 1] = True
                    found[5, row - 1] = (value - found[3, row - 1]) // (node - found[2, row - 1])
                row += 1
        size += sized
    return exponent, found[:, :row], inner[:row]
