"""From numbers of whole nodes to nodes: who keeps, gives back and gets which (BFTrainer leaves that free).

The optimum over counts is the optimum over nodes whatever nodes are chosen, as long as who shrinks only gives nodes
back and who grows only adds some (BFTrainer, section 3, equations 6 to 10). That choice is made here: few places of
the network for each trainer, and what leaves soon to those that lose least by it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from hpcdl.placement.topology import Position, Tree, position


@dataclass(frozen=True, slots=True)
class WholeNode:
    """A node that may be given as a whole. `until`: when it leaves (s, any epoch), None: not in sight.

    `place`: its path in the network from the outermost switch inwards; (): its name alone says where it is.
    """

    name: str
    until: float | None = None
    place: tuple[str, ...] = ()


def choose(
    current: Sequence[Sequence[str]],
    counts: Sequence[int],
    nodes: Sequence[WholeNode],
    loss: Sequence[float] = (),
    keep_first: Sequence[bool] = (),
) -> list[tuple[str, ...]]:
    """The nodes of each trainer: `counts[j]` of them, those that it keeps in their order, then the new ones.

    `current[j]`: what trainer j holds, in rank order; names that are not in `nodes` have left. `nodes`: all that may
    be given, held or free; free ones may be left over. `loss[j]`: what it costs, in any one unit, when j loses a
    node (default: all the same). `keep_first[j]`: the first of its nodes that is left stays with it, if any does
    (default: no).

    Nobody moves: who grows keeps all, who shrinks keeps some of its own. Who grows or starts gets what stays
    longest, those with the largest loss first; among nodes that leave at the same time it gets what is close to what
    it holds, or close together. Who shrinks gives back first what leaves soonest, then what is farthest from the
    rest. What stays free is what leaves soonest. Same arguments, same answer.

    ValueError: a node held twice or listed twice, counts below 0 or more than there are nodes, lengths that differ.
    """
    for what, numbers in (("counts", counts), ("losses", loss or counts), ("flags", keep_first or counts)):
        if len(numbers) != len(current):
            raise ValueError(f"{len(numbers)} {what} for {len(current)} trainers")
    by_name = {node.name: node for node in nodes}
    if len(by_name) < len(nodes):
        raise ValueError("a node is listed twice")
    held = [[name for name in names if name in by_name] for names in current]
    taken = set(chain.from_iterable(held))
    if len(taken) < sum(map(len, held)):
        raise ValueError("a node is held twice")
    losses = loss or list(repeat(0.0, len(counts)))
    result: list[tuple[str, ...]] = []
    missing: dict[int, int] = {}  # nodes that trainers which grow are still to get
    for trainer, (names, wanted) in enumerate(zip(held, counts, strict=True)):
        if wanted < 0:
            raise ValueError(f"trainer {trainer} is to get {wanted} nodes")
        if wanted < len(names):
            first = bool(keep_first) and keep_first[trainer]
            kept = _keep(names, wanted, by_name, first)
            taken.difference_update(names)
            taken.update(kept)
            names = kept
        elif wanted > len(names):
            missing[trainer] = wanted - len(names)
        result.append(tuple(names))
    if missing:
        _grow(result, missing, losses, [node for node in nodes if node.name not in taken], by_name)
    return result


def _keep(names: list[str], number: int, by_name: dict[str, WholeNode], first: bool) -> list[str]:
    """So many of the names, in their order: those that stay longest, of these what is close together."""
    if not number:
        return []
    kept = names[:1] if first else []
    for some in _by_end([by_name[name] for name in names[len(kept) :]]):
        wanted = min(number - len(kept), len(some))
        if wanted:
            near = [_position(by_name[name]) for name in kept]
            kept += Tree(map(_position, some)).pick(wanted, near) if wanted < len(some) else [n.name for n in some]
    chosen = set(kept)
    return [name for name in names if name in chosen]


def _grow(
    result: list[tuple[str, ...]],
    missing: dict[int, int],
    losses: Sequence[float],
    free: list[WholeNode],
    by_name: dict[str, WholeNode],
) -> None:
    """Adds free nodes to what the trainers keep that are `missing` some; those with the largest loss come first."""
    wanted = sum(missing.values())
    if wanted > len(free):
        raise ValueError(f"{wanted} more nodes are to be given, and {len(free)} are free")
    by_loss = sorted(missing, key=lambda trainer: (-losses[trainer], trainer))
    for some in _by_end(free):
        tree = Tree(map(_position, some))
        left = len(some)
        now: list[tuple[int, int]] = []  # trainer, nodes of these
        for trainer in by_loss:
            number = min(missing[trainer], left)
            if number:
                now.append((trainer, number))
                missing[trainer] -= number
                left -= number
        # Who holds something can be near to few nodes only; after them the largest needs the most room.
        now.sort(key=lambda each: (not result[each[0]], -each[1], each[0]))
        for trainer, number in now:
            near = [_position(by_name[name]) for name in result[trainer]]
            result[trainer] = (*result[trainer], *tree.pick(number, near))
        if not any(missing.values()):
            return


def _by_end(nodes: Sequence[WholeNode]) -> list[list[WholeNode]]:
    """Nodes that leave at the same time together, those that stay longest first."""
    if all(node.until is None for node in nodes):
        return [list(nodes)]
    ends: dict[float, list[WholeNode]] = {}
    for node in nodes:
        ends.setdefault(math.inf if node.until is None else node.until, []).append(node)
    return [ends[end] for end in sorted(ends, reverse=True)]


def _position(node: WholeNode) -> Position:
    return position(node.name, node.place)
