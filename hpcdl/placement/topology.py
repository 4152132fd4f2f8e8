"""Which nodes are close in the network, and how to pick some that are close to each other or to those at hand.

A node's place is a path from the outermost switch inwards; its host name goes on from there: in `h41n08` and
`x1000c0s2b0n1` the numbers before the last one name rows, racks and chassis, and the last one orders what is within.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import itemgetter, sub

Order = tuple[int, str]
"""Where a node stands among those of its innermost place: its last number, then its name."""
_NO_NUMBER = -1


@dataclass(frozen=True, slots=True)
class Position:
    """Where a node is: `path` from the outermost place inwards, and its `order` within the innermost."""

    path: tuple[str, ...]
    order: Order


@lru_cache(maxsize=1 << 16)
def position(name: str, place: tuple[str, ...] = ()) -> Position:
    """The position of a node of that host name; `place`: what is known of the network, the outermost first.

    `h41n08` -> (h, h41) and 8; `n17` -> (n,) and 17; a domain after the first dot does not count, an address does.
    """
    host = name.split(".", 1)[0]
    parts = re.findall(r"\d+|\D+", name if host.isdigit() else host)
    number = int(parts.pop()) if parts and parts[-1].isdigit() else _NO_NUMBER
    if number != _NO_NUMBER and len(parts) > 1:
        parts.pop()  # the letters before the last number say what is counted, not where it is
    path = list(place)
    so_far = ""
    for part in parts:
        so_far += str(int(part)) if part.isdigit() else part
        path.append(so_far)
    return Position(tuple(path), (number, name))


@dataclass(slots=True)
class Spot:
    """A place in the network: the nodes right in it, ascending, the places within it, and how many nodes in all.

    Places without a node left are not in it.
    """

    name: str
    depth: int
    nodes: list[Order] = field(default_factory=list)
    within: dict[str, "Spot"] = field(default_factory=dict)
    size: int = 0


class Tree:
    """A set of nodes by their places, from which some are picked, and gone then."""

    __slots__ = ("_top",)

    def __init__(self, positions: Iterable[Position]) -> None:
        self._top = Spot("", 0)
        here: dict[tuple[str, ...], list[Order]] = {}
        for each in positions:
            nodes = here.get(each.path)
            if nodes is None:
                nodes = here[each.path] = []
            nodes.append(each.order)
        for path in sorted(here, key=_naturally):
            nodes = here[path]
            nodes.sort()
            spot = self._top
            spot.size += len(nodes)
            for name in path:
                below = spot.within.get(name)
                if below is None:
                    below = spot.within[name] = Spot(name, spot.depth + 1)
                spot = below
                spot.size += len(nodes)
            spot.nodes = nodes

    def pick(self, number: int, near: Sequence[Position] = ()) -> list[str]:
        """Takes `number` nodes out, as near as can be to those in `near`; without any: near to each other.

        Near means: in the same innermost place; there, the closest numbers. Where no single place has enough, few
        places. ValueError: there are not so many.
        """
        if not 0 <= number <= self._top.size:
            raise ValueError(f"{number} nodes of {self._top.size} cannot be picked")
        if not number:
            return []
        if not near:
            return _from(self._roomiest(number), number, [])
        anchors: dict[tuple[str, ...], list[Order]] = {}
        for each in near:
            anchors.setdefault(each.path, []).append(each.order)
        found: list[str] = []
        for path in _outwards(anchors):
            trail = self._trail(path)
            if trail is not None:
                found += _from(trail, number - len(found), anchors.get(path, []))
                if len(found) == number:
                    break
        return found

    def _trail(self, path: tuple[str, ...]) -> list[Spot] | None:
        """The places from the outermost to the one at `path`; None where nothing is left there."""
        trail = [self._top]
        for name in path:
            below = trail[-1].within.get(name)
            if below is None:
                return None
            trail.append(below)
        return trail

    def _roomiest(self, number: int) -> list[Spot]:
        """The way to the innermost place with so many nodes; of several the one with the fewest."""
        best: list[Spot] = [self._top]
        stack = [best]
        while stack:
            trail = stack.pop()
            spot = trail[-1]
            if (spot.depth, -spot.size) > (best[-1].depth, -best[-1].size):
                best = trail
            stack.extend([*trail, below] for below in reversed(spot.within.values()) if below.size >= number)
        return best


def _from(trail: Sequence[Spot], number: int, anchors: list[Order]) -> list[str]:
    """Takes up to `number` nodes from the last place of a trail; those right in it near `anchors` first."""
    found = _taken(trail[-1], number, anchors)
    for outer, inner in pairwise(reversed(trail)):
        inner.size -= len(found)
        if not outer.size:
            del inner.within[outer.name]
    return found


def _taken(spot: Spot, number: int, anchors: list[Order]) -> list[str]:
    """Takes up to `number` nodes from a place, near `anchors` in it, and for the rest from as few places within."""
    if number >= spot.size:
        return _emptied(spot)
    found = _nearest(spot.nodes, min(number, len(spot.nodes)), anchors) if anchors and spot.nodes else []
    spot.size -= len(found)
    if len(found) == number:
        return found
    parts = [(len(spot.nodes), spot), *((inner.size, inner) for inner in spot.within.values())]
    parts.sort(key=itemgetter(0))
    while len(found) < number:
        # The smallest part with enough, else the largest.
        at = min(bisect_left(parts, number - len(found), key=itemgetter(0)), len(parts) - 1)
        size, inner = parts.pop(at)
        wanted = min(number - len(found), size)
        if inner is spot:
            found += _window(spot.nodes, wanted)
        else:
            found += _taken(inner, wanted, [])
            if not inner.size:
                del spot.within[inner.name]
        spot.size -= wanted
    return found


def _emptied(spot: Spot) -> list[str]:
    """Takes all nodes from a place."""
    found = [name for _, name in spot.nodes]
    for inner in spot.within.values():
        found += _emptied(inner)
    spot.nodes, spot.within, spot.size = [], {}, 0
    return found


def _naturally(path: tuple[str, ...]) -> list[tuple[int, str]]:
    """Sorts h2 before h10."""
    return [(len(name), name) for name in path]


def _outwards(anchors: Mapping[tuple[str, ...], Sequence[Order]]) -> Iterator[tuple[str, ...]]:
    """The places of these nodes and all round them, the innermost first; of one depth, those that have most first."""
    here: dict[int, dict[tuple[str, ...], int]] = {}
    for path, orders in anchors.items():
        here.setdefault(len(path), {})[path] = len(orders)
    inner: dict[tuple[str, ...], int] = {}
    for depth in range(max(here), -1, -1):
        count = here.get(depth, {})
        for path, many in inner.items():
            count[path[:depth]] = count.get(path[:depth], 0) + many
        yield from (path for _, path in sorted((-many, path) for path, many in count.items()))
        inner = count


def _nearest(nodes: list[Order], number: int, anchors: list[Order]) -> list[str]:
    """Takes the nodes out whose numbers are closest to an anchor's."""
    gaps: dict[int, tuple[int, int]] = {}  # place in `nodes` -> lowest and highest anchor before it
    for anchor in anchors:
        at = bisect_left(nodes, anchor)
        low, high = gaps.get(at, (anchor[0], anchor[0]))
        gaps[at] = (min(low, anchor[0]), max(high, anchor[0]))
    heap = [(low - nodes[at - 1][0], at - 1, -1, low) for at, (low, _) in gaps.items() if at > 0]
    heap += [(nodes[at][0] - high, at, 1, high) for at, (_, high) in gaps.items() if at < len(nodes)]
    heapify(heap)
    taken: dict[int, None] = {}
    while len(taken) < number:
        _, at, way, start = heappop(heap)
        taken[at] = None
        if 0 <= at + way < len(nodes) and at + way not in taken:
            heappush(heap, (abs(nodes[at + way][0] - start), at + way, way, start))
    found = [nodes[at][1] for at in taken]
    for at in sorted(taken, reverse=True):
        del nodes[at]
    return found


def _window(nodes: list[Order], number: int) -> list[str]:
    """Takes neighbours out: so many whose numbers span the least, the lowest of such."""
    start = 0
    if 0 < number < len(nodes) and nodes[number - 1][0] - nodes[0][0] >= number:
        numbers = [node[0] for node in nodes]
        spans = list(map(sub, numbers[number - 1 :], numbers))
        start = spans.index(min(spans))
    found = [name for _, name in nodes[start : start + number]]
    del nodes[start : start + number]
    return found
