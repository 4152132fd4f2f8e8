"""What the events of a rescale in place do to an incarnation: parts that join and leave, memberships that form.

A job that is rescaled by suspend and resume has one membership in each incarnation.
"""

from dataclasses import replace

from hpcdl.core.model.frozen import changed
from hpcdl.core.model.incarnation import Incarnation, IncarnationState, Part, Placement, Share


def first_parts(nodes: tuple[str, ...], placement: Placement | None) -> tuple[Part, ...]:
    """The parts of a start."""
    gpus = {} if placement is None else {share.node: share.gpus for share in placement.shares}
    return tuple(Part(node, gpus.get(node, ())) for node in nodes)


def joined(incarnation: Incarnation, placement: Placement, at: float) -> Incarnation:
    """With parts on more nodes."""
    number = incarnation.next_join
    new = tuple(Part(share.node, share.gpus, since=number, asked_at=at) for share in placement.shares)
    return with_living_placement(changed(incarnation, parts=incarnation.parts + new, asked_for=number))


def form_membership(
    incarnation: Incarnation, membership: int, members: tuple[str, ...], leaving: tuple[str, ...], at: float
) -> Incarnation:
    """Told to form a membership. What is gone and no member is forgotten."""
    wanted, out = frozenset(members), frozenset(leaving)
    again = incarnation.broken_at is not None and wanted.issuperset(incarnation.members)
    parts = tuple(
        changed(part, leaving=True) if part.node in out else part
        for part in incarnation.parts
        if part.node in wanted or not part.gone
    )
    forming = incarnation.rescale_at is not None
    return with_living_placement(
        changed(
            incarnation,
            parts=parts,
            membership=membership,
            members=members,
            members_before=incarnation.members_before if forming else len(incarnation.members),
            rescale_at=at,
            broken_at=None,
            breaks=incarnation.breaks + again,
            rendezvous=incarnation.rendezvous or _address(parts, members[0]),
        )
    )


def left(incarnation: Incarnation, nodes: tuple[str, ...]) -> Incarnation:
    """Without those that were to join from these nodes: they are to go."""
    parts = tuple(changed(part, leaving=True) if part.node in nodes else part for part in incarnation.parts)
    return with_living_placement(changed(incarnation, parts=parts))


def without_gone_parts(incarnation: Incarnation, in_place: bool) -> Incarnation:
    """After a part of it changed: without parts that are gone and were no members, and what it holds by what stays.

    A member that slipped away stays in `parts` until the others are asked to go on without it. Before the first
    membership nobody is a member: the others go on starting.
    """
    if not in_place or incarnation.state is IncarnationState.EXITED:
        return incarnation
    dropped = []
    gone = [part for part in incarnation.parts if part.lost or (part.exited and part.freed)]
    if gone:  # of hundreds of parts, at each report
        members = frozenset(incarnation.members)
        dropped = [part for part in gone if part.node not in members and (members or part.ended_from_outside)]
    failed = [part for part in dropped if incarnation.members and not (part.leaving or part.lost)]
    failures = incarnation.join_failures + len(failed)
    if dropped:
        parts = tuple(part for part in incarnation.parts if part not in dropped)
        asked_for = max(
            incarnation.asked_for, *(part.since for part in dropped)
        )  # what comes there next is another part
        incarnation = changed(incarnation, parts=parts, join_failures=failures, asked_for=asked_for)
    return with_living_placement(incarnation)


def with_living_placement(incarnation: Incarnation) -> Incarnation:
    """With the placement that the parts which stay make up; as before where none does."""
    before = incarnation.placement
    if before is None:
        return incarnation
    staying = [part for part in incarnation.parts if not (part.leaving or part.exited or part.lost)]
    if len(staying) < len(incarnation.parts):
        members = frozenset(incarnation.members)
        staying = [part for part in incarnation.parts if part.stays or (part.node in members and part.ended_itself)]
    if not staying:
        # What is left is to go; it holds what it held, unless nothing is left of that.
        there = frozenset(incarnation.nodes)
        staying = [] if there.issuperset(before.nodes) else [part for part in incarnation.parts if not part.gone]
    if not staying or (len(staying) == len(before.nodes) and {part.node for part in staying}.issuperset(before.nodes)):
        return incarnation
    staying.sort(key=lambda part: part.node)
    known = {share.node: share for share in before.shares}
    shares = tuple(
        share
        if (share := known.get(part.node)) is not None and share.gpus == part.gpus
        else Share(part.node, part.gpus)
        for part in staying
    )
    return changed(incarnation, placement=replace(before, shares=shares))


def _address(parts: tuple[Part, ...], node: str) -> str:
    return next((part.address for part in parts if part.node == node), "")
