"""From numbers of nodes to GPUs on nodes: who keeps which, and who gets which of what is free.

hpcdl/placement/nodes.py chooses the nodes; this file says which trainers change, and makes placements of their nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import NodeView
from hpcdl.milp.case import AllocationCase, TrainerCandidate
from hpcdl.placement.nodes import WholeNode, choose

FAR = 10.0
"""When a node leaves does not matter beyond so many horizons."""


@lru_cache(maxsize=16384)
def _share(node: str, gpus: tuple[int, ...]) -> Share:
    return Share(node, gpus)


def nodes_of(
    case: AllocationCase, counts: Sequence[int], groups: Sequence[int | None], loss: Sequence[float], horizon_s: float
) -> list[tuple[str, ...]]:
    """The nodes of each candidate: `counts[j]` of group `groups[j]`, of its own as many as can be.

    `loss`: what a trainer loses with a node, in any one unit (empty: all the same); who loses most gets what stays
    longest.
    """
    found: list[tuple[str, ...]] = [()] * len(case.candidates)
    changed: dict[int, list[int]] = {}
    quiet: set[str] = set()
    for number, (each, many) in enumerate(zip(case.candidates, counts, strict=False)):
        group = groups[number] if many else None
        if many == len(each.current) and (group == each.group or not many):
            found[number] = each.current
            quiet.update(each.current)
            continue
        if each.current:
            changed.setdefault(each.group, []).append(number)
        if group is not None and (group != each.group or not each.current):
            changed.setdefault(group, []).append(number)
    for group, numbers in sorted(changed.items()):
        moving = [case.candidates[number] for number in numbers]
        wanted = [counts[number] if groups[number] == group else 0 for number in numbers]
        if not any(wanted):
            continue
        names = [name for name in case.names[group] if name not in quiet]
        chosen = choose(
            [each.current if each.group == group else () for each in moving],
            wanted,
            [_node(case.nodes[name], case.view.now, horizon_s) for name in names],
            [loss[number] for number in numbers] if loss else (),
            [_first_stays(each) for each in moving],
        )
        for number, names_of, many in zip(numbers, chosen, wanted, strict=True):
            if many:
                found[number] = names_of
    return found


def _first_stays(each: TrainerCandidate) -> bool:
    """Whether the first of its nodes, a member, must stay for a rescale in place: else no member might."""
    job = each.job
    return job.in_place and (job.rescale == "torchrun" or not set(job.members).issuperset(each.current))


def _node(node: NodeView, now: float, horizon_s: float) -> WholeNode:
    until = node.until if node.until is not None and node.until - now <= FAR * horizon_s else None
    return _whole(node.name, until, node.place)


@lru_cache(maxsize=16384)
def _whole(name: str, until: float | None, place: tuple[str, ...]) -> WholeNode:
    return WholeNode(name, until, place)


def placement_of(case: AllocationCase, candidate: TrainerCandidate, names: tuple[str, ...]) -> Placement | None:
    """All that the candidate takes of these nodes; what it has, or is about to get, where that is the same."""
    if not names:
        return None
    job, aim = candidate.job, candidate.aim
    if aim is not None and names == candidate.current and len(names) == len(aim.shares):
        return aim
    gpus = candidate.its.takes[case.where[names[0]]]
    held = {share.node: share for share in aim.shares} if aim is not None else {}
    own = set(candidate.current)
    shares = [held[name] if name in own else _share(name, case.nodes[name].gpus[:gpus]) for name in sorted(names)]
    found = Placement(tuple(shares))
    for known in (job.target, job.placement):
        if known is not None and known.shares == found.shares and known.role is found.role:
            return known
    return found


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How many nodes of which group each candidate of a case gets (group None: none), for `horizon_s`.

    `optimal`, `bound`, `gap`: as the solver says; `wake_at`: when to decide again. `solver`, `trouble`: see
    `CountedNodes`. `why`: by job, why it has fewer than the solver says.
    """

    counts: Sequence[int]
    groups: Sequence[int | None]
    horizon_s: float
    optimal: bool = False
    bound: float | None = None
    gap: float | None = None
    wake_at: float | None = None
    solver: str = ""
    trouble: str = ""
    why: Mapping[int, str] = field(default_factory=dict)
