"""The (max,+) dynamic program over pieces: ranges of counts on which a trainer's value is linear, or single counts.

g_k(s) = the best key with which trainers k, k+1, ... use exactly s nodes beyond the least that each of them needs. A
long piece costs no more than a few single counts: what it makes of g is a maximum over a window that slides, by van
Herk's method (a running maximum from each side of every block).
"""

from dataclasses import dataclass

import numpy as np

from hpcdl.counts.fast import loops
from hpcdl.counts.rows import Rows
from hpcdl.counts.table import Ints

NEVER = -(2**62)  # the key of what cannot be; with any sum of keys it is still the lowest
SHORT = 12  # a piece with no more counts is taken as so many single ones


@dataclass(frozen=True, slots=True)
class Pieces:
    """Counts among which each trainer has a choice, sorted by trainer; every trainer has one or more."""

    trainer: Ints
    low: Ints  # the first count
    many: Ints  # counts: low, low + 1, ...
    key: Ints  # of the first
    slope: Ints  # of the keys
    trainers: int

    def work(self, capacity: int) -> int:
        """Additions that the dynamic program makes, roughly."""
        starts = np.searchsorted(self.trainer, np.arange(self.trainers))
        least = self.low[starts]
        reach = np.maximum.reduceat(self.low + self.many - 1, starts) - least
        states = min(capacity - int(least.sum()), int(reach.sum())) + 1
        return max(0, states) * int(np.minimum(self.many, SHORT).sum())


def pieces(rows: Rows, reduced: Ints, slant: Ints, loss: int) -> Pieces:
    """All counts that lose at most `loss`: `reduced` at each row, and `slant` more with each node after it."""
    single = np.flatnonzero(reduced <= loss)
    left = np.flatnonzero(rows.inner)
    width = rows.nodes[left + 1] - rows.nodes[left] - 1
    here, there, slope = reduced[left], reduced[left + 1], slant[left]
    # What is between two rows loses ever more from the one that loses less.
    rising = here <= there
    spare = loss - np.minimum(here, there)
    many = np.where(slope == 0, width, spare // np.maximum(np.abs(slope), 1))
    many = np.where(spare < 0, 0, np.minimum(many, width))
    some = many > 0
    left, many, width, rising = left[some], many[some], width[some], rising[some]
    offset = np.where(rising, 1, width + 1 - many)
    step = (rows.slope[left] << rows.shift) - np.sign(rows.distance[left + 1] - rows.distance[left])
    keys = rows.keys
    order = np.argsort(np.concatenate([2 * single, 2 * left + 1]), kind="stable")
    return Pieces(
        np.concatenate([rows.trainer[single], rows.trainer[left]])[order],
        np.concatenate([rows.nodes[single], rows.nodes[left] + offset])[order],
        np.concatenate([np.ones(len(single), np.int64), many])[order],
        np.concatenate([keys[single], keys[left] + offset * step])[order],
        np.concatenate([np.zeros(len(single), np.int64), step])[order],
        rows.trainers,
    )


def best(choice: Pieces, capacity: int, shift: int) -> tuple[Ints, int] | None:
    """Nodes of each trainer in the best choice, and its key; None: nothing fits.

    Of equal values the one with the fewest nodes in all, then with the best key, then with the most nodes for trainer
    0, then 1, ...
    """
    starts = np.searchsorted(choice.trainer, np.arange(choice.trainers))
    nodes = choice.low[starts]
    room = capacity - int(nodes.sum())
    if room < 0:
        return None
    several = (np.diff(starts, append=len(choice.trainer)) > 1) | (choice.many[starts] > 1)
    fixed = int(choice.key[starts[~several]].sum())
    open_to = np.flatnonzero(several)
    if not len(open_to):
        return nodes, fixed
    mine = np.flatnonzero(several[choice.trainer])
    owner = choice.trainer[mine]
    starts = np.searchsorted(owner, open_to)
    low, many = choice.low[mine] - nodes[owner], choice.many[mine]
    reach = np.maximum.reduceat(low + many - 1, starts)
    room = min(room, int(reach.sum()))
    compiled = loops()
    solver = compiled.plus if compiled else plus
    more, key = solver(starts, low, many, choice.key[mine], choice.slope[mine], reach, room, shift)
    nodes[open_to] += more
    return nodes, fixed + key


def plus(
    starts: Ints, low: Ints, many: Ints, key: Ints, slope: Ints, reach: Ints, room: int, shift: int
) -> tuple[Ints, int]:
    """Counts of each trainer, and their key. Piece i is many[i] counts from low[i] on; `starts`: those of each."""
    bounds = [*starts.tolist(), len(low)]
    columns = (low.tolist(), many.tolist(), key.tolist(), slope.tolist())
    stages = [np.zeros(1, np.int64)]
    for trainer in range(len(starts) - 1, -1, -1):
        before = stages[-1]
        after = np.full(min(room + 1, len(before) + int(reach[trainer])), NEVER, np.int64)
        for at in range(bounds[trainer], bounds[trainer + 1]):
            first, counts, worth, step = (column[at] for column in columns)
            if counts <= SHORT:
                for more in range(counts):
                    _raise(after, before, first + more, worth + more * step)
            elif first < len(after):
                _raise(after, _slid(before, min(counts, len(after) - first), step), first, worth)
        stages.append(after)
    value = -(-stages[-1] >> shift)
    state = int(np.argmax(value == value.max()))
    found = int(stages[-1][state])
    chosen = np.zeros(len(starts), np.int64)
    for trainer in range(len(starts)):
        pieces_of = range(bounds[trainer], bounds[trainer + 1])
        reached, before = int(stages[-1 - trainer][state]), stages[-2 - trainer]
        chosen[trainer] = max(_traced(before, state, reached, *(column[at] for column in columns)) for at in pieces_of)
        state -= int(chosen[trainer])
    return chosen, found


def _raise(after: Ints, before: Ints, by: int, worth: int) -> None:
    """Raise `after` where `before`, so many nodes further, is worth more."""
    many = min(len(before), len(after) - by)
    if many > 0:
        there = after[by : by + many]
        np.maximum(there, before[:many] + worth, out=there)


def _slid(before: Ints, many: int, slope: int) -> Ints:
    """max over i < many of before[s - i] + slope * i, for each s that can be reached."""
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
    found: Ints = upto.reshape(-1)[: len(before) + many - 1]
    return found


def _traced(before: Ints, state: int, reached: int, low: int, many: int, key: int, slope: int) -> int:
    """The most nodes of a piece with which a state is reached with that key; -1: there is none."""
    if many == 1:
        source = state - low
        return low if 0 <= source < len(before) and before[source] + key == reached else -1
    first = max(0, state - low - len(before) + 1)
    last = min(many - 1, state - low)
    if first > last:
        return -1
    counts = np.arange(last, first - 1, -1)
    right = before[state - low - counts] + (key + slope * counts) == reached
    return low + int(counts[np.argmax(right)]) if right.any() else -1
