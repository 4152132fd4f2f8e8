"""Counts on the nodes of one group: bound and core, always exact.

A price per node, at which every trainer picks for itself, bounds the value of every choice: L(p) = p N + sum_j max_n
(v_j(n) - p n), and its least value is the bound of the linear relaxation: the slopes of the trainers' upper hulls,
merged. All hulls are among the knots (hpcdl/counts/rows.py), however many counts there are between them. What a count
loses at that price against the best of its trainer is its reduced cost. A choice made greedily leaves a gap; every
choice that is as good or better is made of counts that lose no more than the gap, and among these the (max,+) dynamic
program finds the best.
"""

from dataclasses import dataclass, replace

import numpy as np

from hpcdl.counts import kernels
from hpcdl.counts.fast import loops
from hpcdl.counts.pieces import NEVER, Pieces, best, pieces
from hpcdl.counts.rows import Rows
from hpcdl.counts.table import Ints, Mask

FIRST_ROWS = 64  # of the first core, beyond the best row of each trainer
FILLS = 8  # changes that the greedy choice makes one by one
CHEAP = 200_000  # additions of a dynamic program that is cheaper than to branch
COMPILED_CHEAP = 3_000_000  # the same with compiled loops
BRANCH = 200  # additions, for each row, that cost as much as a branch


@dataclass(frozen=True, slots=True)
class Found:
    """The nodes of each trainer; value, nodes in all and key of the choice."""

    nodes: Ints
    value: int
    total: int
    key: int

    @property
    def bound(self) -> int:
        """No choice is worth more."""
        return self.value

    def before(self, other: "Found | None") -> bool:
        """Whether this choice is the better one, or comes first among equals."""
        if other is None:
            return True
        mine, its = (self.value, -self.total, self.key), (other.value, -other.total, other.key)
        return mine > its if mine != its else self.nodes.tolist() > other.nodes.tolist()


@dataclass(frozen=True, slots=True)
class _Priced:
    """Rows at the best price: no choice is worth more than `bound`."""

    rows: Rows
    bound: int
    reduced: Ints
    slant: Ints  # what each node after a row loses, up to the next row
    lower: int  # value of a choice that is there
    cut: tuple[int, int] | None  # a trainer that is cut by the capacity, and the nodes that are left for it


def one_group(rows: Rows, capacity: int) -> Found | None:
    """The best choice on so many nodes of one group; None: not even the fewest nodes of all fit.

    Where a trainer that is worth its price with a great many nodes or with few is cut by the capacity, the bound is
    far from any choice. Then it is tried with no more nodes than the relaxation gives it, and with more, each with a
    bound of its own: the highest bound first, as long as that costs less than the dynamic program would.
    """
    compiled = loops()
    if compiled:
        state, chosen, reached = compiled.solved(
            rows.trainer, rows.nodes, rows.value, rows.distance, rows.inner, rows.slope, rows.starts,
            capacity, rows.shift, COMPILED_CHEAP,
        )  # fmt: skip
        if state == kernels.INFEASIBLE:
            return None
        if state == kernels.DONE:
            return Found(chosen, rows.valued(reached), int(chosen.sum()), reached)
    cheap = COMPILED_CHEAP if compiled else CHEAP
    answer: Found | None = None
    value, branches = NEVER, 0
    untried: list[tuple[int, int, _Priced | Found]] = []

    def add(part: Rows) -> None:
        at = _priced(part, capacity)
        if at is not None:
            untried.append((at.bound, len(untried), at))

    add(rows)
    while untried:
        untried.sort(key=lambda entry: entry[0])
        bound, _, at = untried.pop()
        if bound < value:
            break
        found: Found | None
        if isinstance(at, Found):
            found = at
        else:
            value = max(value, at.lower)
            core = pieces(at.rows, at.reduced, at.slant, bound - value)
            work = core.work(capacity)
            if at.cut and work > cheap + branches * BRANCH * len(rows.nodes):
                branches += 1
                for part in _branches(at.rows, *at.cut):
                    add(part)
                continue
            found = _searched(at, capacity, bound - value, core)
        if found is not None:
            answer = found if found.before(answer) else answer
            value = max(value, found.value)
    return answer


def _priced(rows: Rows, capacity: int) -> _Priced | Found | None:
    """The rows at their best price; the best choice, where all get what is best for them; None: they do not fit."""
    if rows.nodes[rows.starts].sum() > capacity:
        return None
    top = np.maximum.reduceat(rows.value, rows.starts)
    free = _first(rows, rows.value == top[rows.trainer])
    if rows.nodes[free].sum() <= capacity:
        nodes = rows.nodes[free]
        return Found(nodes, int(top.sum()), int(nodes.sum()), int(rows.keys[free].sum()))
    compiled = loops()
    if compiled:
        low, high = np.empty_like(free), free.copy()
        price = int(compiled.price_of(rows.nodes, rows.value, rows.starts, capacity, high, low))
    else:
        price, low, high = _price(rows, capacity, free)
    score = rows.value - price * rows.nodes
    top = np.maximum.reduceat(score, rows.starts)
    reduced = top[rows.trainer] - score
    bound = price * capacity + int(top.sum())
    # What is linear from the one row to the other may be cut anywhere.
    jump = np.where(rows.inner[low] & (low + 1 == high), 0, rows.nodes[high] - rows.nodes[low])
    widest = int(np.argmax(jump))
    left = int(rows.nodes[low[widest]]) + capacity - int(rows.nodes[low].sum())
    cut = (widest, min(left, int(rows.nodes[high[widest]]) - 1)) if jump[widest] > 0 else None
    if compiled:
        lower = compiled.greedy(
            rows.trainer, rows.nodes, rows.value, rows.inner, rows.slope, capacity, reduced, low
        )  # fmt: skip
    else:
        lower = _greedy(rows, capacity, reduced, low)
    return _Priced(rows, bound, reduced, price - rows.slope, lower, cut)


def _branches(rows: Rows, trainer: int, nodes: int) -> tuple[Rows, Rows]:
    """The same rows where a trainer takes at most so many nodes, and where it takes more."""
    last = int(np.flatnonzero((rows.trainer == trainer) & (rows.nodes <= nodes))[-1])
    if rows.inner[last] and rows.nodes[last] < nodes:
        rows, last = with_row(rows, last, nodes), last + 1
    if rows.inner[last]:
        rows = with_row(rows, last, nodes + 1)
    at, others = np.arange(len(rows.nodes)), rows.trainer != trainer
    return only(rows, others | (at <= last)), only(rows, others | (at > last))


def with_row(rows: Rows, last: int, nodes: int) -> Rows:
    """The same with a row for a count between row `last` and the next one."""
    more = nodes - int(rows.nodes[last])
    drift = int(np.sign(rows.distance[last + 1] - rows.distance[last]))
    inner = np.insert(rows.inner, last + 1, rows.nodes[last + 1] - nodes > 1)
    inner[last] = more > 1
    return replace(
        rows,
        trainer=np.insert(rows.trainer, last + 1, rows.trainer[last]),
        group=np.insert(rows.group, last + 1, rows.group[last]),
        nodes=np.insert(rows.nodes, last + 1, nodes),
        value=np.insert(rows.value, last + 1, rows.value[last] + more * rows.slope[last]),
        distance=np.insert(rows.distance, last + 1, rows.distance[last] + more * drift),
        inner=inner,
        slope=np.insert(rows.slope, last + 1, rows.slope[last]),
    )


def only(rows: Rows, keep: Mask) -> Rows:
    """The same with some of the rows; every trainer has one or more of them."""
    trainer = rows.trainer[keep]
    return replace(
        rows,
        trainer=trainer,
        group=rows.group[keep],
        nodes=rows.nodes[keep],
        value=rows.value[keep],
        distance=rows.distance[keep],
        inner=rows.inner[keep],
        slope=rows.slope[keep],
        starts=np.searchsorted(trainer, np.arange(rows.trainers)),
    )


def _searched(at: _Priced, capacity: int, gap: int, core: Pieces) -> Found | None:
    """The best choice of those that are within the gap of the bound, which are made of `core`; None: there is none."""
    all_of_it = gap
    many = FIRST_ROWS
    while True:
        loss = min(gap, _threshold(at.reduced, at.rows.trainers + many, gap))
        part = core if loss == all_of_it else pieces(at.rows, at.reduced, at.slant, loss)
        found = best(part, capacity, at.rows.shift)
        if found is not None:
            nodes, key = found
            value = at.rows.valued(key)
            gap = min(gap, at.bound - value)
            # Whoever picks a count that loses more is worth less than these: nothing better is left out.
            if gap <= loss:
                return Found(nodes, value, int(nodes.sum()), key)
        elif loss == gap:
            return None
        many *= 4


def _threshold(reduced: Ints, many: int, most: int) -> int:
    return int(np.partition(reduced, many)[many]) if many < len(reduced) else most


def _first(rows: Rows, flags: Mask) -> Ints:
    """Of each trainer the first row that is flagged; each must have one."""
    found = np.flatnonzero(flags)
    owner = rows.trainer[found]
    return found[np.flatnonzero(np.diff(owner, prepend=-1))]


def _price(rows: Rows, capacity: int, high: Ints) -> tuple[int, Ints, Ints]:
    """The best price, rounded down, and rows that fit and rows that do not, best of their trainers at about that price.

    Secants between rows that use too much and rows that fit, from `high` and from the fewest nodes.
    """
    low = rows.starts
    more = (int(rows.value[high].sum()), int(rows.nodes[high].sum()))
    less = (int(rows.value[low].sum()), int(rows.nodes[low].sum()))
    while True:
        price = (more[0] - less[0]) // (more[1] - less[1])
        score = rows.value - price * rows.nodes
        picked = _first(rows, score == np.maximum.reduceat(score, rows.starts)[rows.trainer])
        found = (int(rows.value[picked].sum()), int(rows.nodes[picked].sum()))
        # No higher than the line through both: the price is where L bends.
        done = found[0] - price * found[1] <= more[0] - price * more[1]
        if found[1] <= capacity:
            low, less = picked, found
        else:
            high, more = picked, found
        if done:
            return price, low, high


def _greedy(rows: Rows, capacity: int, reduced: Ints, picked: Ints) -> int:
    """The value of a choice: rows that fit, raised with what is left to what loses least."""
    nodes, value = rows.nodes[picked].copy(), rows.value[picked].copy()
    room = capacity - int(nodes.sum())
    # First whatever loses nothing, as long as it fits, in the order of the trainers.
    top = np.maximum.reduceat(np.where(reduced == 0, np.arange(len(reduced)), -1), rows.starts)
    extra = np.where(top >= 0, rows.nodes[top] - nodes, 0)
    fit = np.cumsum(np.maximum(extra, 0)) <= room
    taken = fit & (extra > 0)
    nodes[taken], value[taken] = rows.nodes[top[taken]], rows.value[top[taken]]
    room -= int(extra[taken].sum())
    step = np.append(np.diff(rows.nodes), 0)
    for _ in range(FILLS):
        more = rows.nodes - nodes[rows.trainer]
        # Where the next row is too far, as far towards it as there is room.
        part = np.where(rows.inner, np.clip(room - more, 0, step), 0)
        gain = rows.value + part * rows.slope - value[rows.trainer]
        gain = np.where((more <= room) & (more + part > 0), gain, -1)
        at = int(np.argmax(gain))
        if gain[at] <= 0:
            break
        trainer = int(rows.trainer[at])
        room -= int(more[at] + part[at])
        nodes[trainer] += more[at] + part[at]
        value[trainer] += gain[at]
    return int(value.sum())
