"""Counts on the nodes of one group: bound and core, always exact.

A price per node, at which every trainer picks for itself, bounds the value of every choice: L(p) = p N + sum_j max_n
(v_j(n) - p n), and its least value is the bound of the linear relaxation: the slopes of the trainers' upper hulls,
merged. All hulls are among the knots (hpcdl/solver/rows.py), however many counts there are between them. What a count
loses at that price against the best of its trainer is its reduced cost. A choice made greedily leaves a gap; every
choice that is as good or better is made of counts that lose no more than the gap, and among these the (max,+) dynamic
program finds the best. The arithmetic is in kernels.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdl.solver import compiled, kernels
from hpcdl.solver.kernels import Branch, Rows
from hpcdl.solver.table import NEVER, Ints, Mask

FIRST_ROWS = 64  # of the first core, beyond the best row of each trainer
CHEAP = 200_000  # additions of a dynamic program that is cheaper than to branch
COMPILED_CHEAP = 3_000_000  # the same where it is compiled
COLUMNS = ("trainer", "group", "nodes", "value", "distance", "inner", "slope")  # of Rows, a number for each row
BRANCH = 200  # additions, for each row, that cost as much as a branch


@dataclass(frozen=True, slots=True)
class ExactCounts:
    """The nodes of each trainer; value, nodes in all and key of the choice."""

    nodes: Ints
    value: int
    total: int
    key: int

    def before(self, other: "ExactCounts | None") -> bool:
        """Whether this choice is the better one, or comes first among equals."""
        if other is None:
            return True
        mine, its = (self.value, -self.total, self.key), (other.value, -other.total, other.key)
        return mine > its if mine != its else self.nodes.tolist() > other.nodes.tolist()


def one_group(rows: Rows, capacity: int) -> ExactCounts | None:
    """The best choice on so many nodes of one group; None: not even the fewest nodes of all fit.

    Where a trainer that is worth its price with a great many nodes or with few is cut by the capacity, the bound is
    far from any choice. Then it is tried with no more nodes than the relaxation gives it, and with more, each with a
    bound of its own: the highest bound first, as long as that costs less than the dynamic program would.
    """
    arithmetic = compiled.arithmetic()
    cheap = COMPILED_CHEAP if compiled.compiled() else CHEAP
    answer: ExactCounts | None = None
    value, branches = NEVER, 0
    untried: list[tuple[int, Rows, Branch]] = [(0, rows, arithmetic.opened(rows, capacity))]
    while untried:
        untried.sort(key=lambda entry: entry[0])
        _, part, at = untried.pop()
        if at.state == kernels.NONE_FITS:
            continue
        if at.bound < value:
            break
        state, nodes, key = at.state, at.nodes, at.key
        if state == kernels.PRICED:
            value = max(value, at.lower)
            most_work = cheap + branches * BRANCH * len(part.nodes)
            state, nodes, key = arithmetic.searched(part, at, capacity, at.bound - value, most_work, FIRST_ROWS)
        if state == kernels.TOO_MUCH:
            branches += 1
            for half in _branches(part, at.cut, at.left):
                opened = arithmetic.opened(half, capacity)
                untried.append((opened.bound, half, opened))
        elif state == kernels.ALL_FIT:
            found = ExactCounts(nodes, -(-key >> rows.shift), int(nodes.sum()), key)
            answer = found if found.before(answer) else answer
            value = max(value, found.value)
    return answer


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
    """The rows with one more, for a count between row `last` and the next one."""
    more = nodes - int(rows.nodes[last])
    drift = int(np.sign(rows.distance[last + 1] - rows.distance[last]))
    value, distance = rows.value[last] + more * rows.slope[last], rows.distance[last] + more * drift
    inner = rows.nodes[last + 1] - nodes > 1
    row = (rows.trainer[last], rows.group[last], nodes, value, distance, inner, rows.slope[last])
    columns: dict[str, Any] = {
        name: np.insert(getattr(rows, name), last + 1, each) for name, each in zip(COLUMNS, row, strict=True)
    }
    columns["inner"][last] = more > 1
    return rows._replace(**columns)


def only(rows: Rows, keep: Mask) -> Rows:
    """Some of the rows; every trainer has one or more of them."""
    columns: dict[str, Any] = {name: getattr(rows, name)[keep] for name in COLUMNS}
    return rows._replace(**columns, starts=np.flatnonzero(np.diff(columns["trainer"], prepend=-1)))
