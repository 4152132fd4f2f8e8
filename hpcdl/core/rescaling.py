"""From a plan's nodes for a running job to the requests that take it there in place: join, rescale, leave.

The ranks of a job that can do this keep running while others come and go. Nodes join first, while the others train on;
only then is everybody told of the new membership. A member that is lost is left out at once.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpcdl.core import membership as ms
from hpcdl.core.endings import slipped
from hpcdl.core.events import Event, JoinRequested, LeaveRequested, RescaleRequested, RoleChanged
from hpcdl.core.journal import Request
from hpcdl.core.model import RESTARTED, Cause, Incarnation, Job, Part, Placement, Share, World
from hpcdl.core.units import GpuRef

BROKEN_PATIENCE_S = 5.0
"""Ranks whose collective failed although everybody is there are told to form the same membership anew after so long."""

FORM_PATIENCE_S = 15.0
"""A membership that does not form for so long goes on without members whose agents are silent."""

JOIN_PATIENCE_S = 10.0
"""Nodes that are ready to join wait this long for others that are on their way."""

SWAP_PATIENCE_S = 600.0
"""A job that would have too few nodes without those that it gives back keeps them this long for others to join."""

MOST_JOIN_FAILURES = 3
"""So many nodes that ended before they joined, one after another, and the job is suspended and resumed instead."""

MOST_BREAKS = 5
"""So many times the same members are told to form anew without a step in between; then processes start afresh."""

_Free = Callable[[Iterable[GpuRef]], bool]


@dataclass(frozen=True, slots=True)
class Way:
    """What leads a job on: events and requests (none: it goes on as it is), and when to look again.

    `suspend`: it cannot go on in place, but its ranks can save what they have. `over`: nor that; why in words, and
    `cause`.
    """

    events: tuple[Event, ...] = ()
    requests: tuple[Request, ...] = ()
    wake_at: float | None = None
    suspend: bool = False
    over: str = ""
    cause: Cause = Cause.NODE_LOST

    def then(self, other: "Way") -> "Way":
        """This, and then another."""
        wakes = [at for at in (self.wake_at, other.wake_at) if at is not None]
        return Way((*self.events, *other.events), (*self.requests, *other.requests), min(wakes, default=None))


def settled(running: Incarnation) -> bool:
    """Whether its members are all that there is of it, and train."""
    return (
        running.membership > 0
        and running.rescale_at is None
        and running.broken_at is None
        and len(running.parts) == len(running.members)
        and all(part.stays for part in running.parts)
    )


def fits_in_place(job: Job, running: Incarnation, target: Placement, lost: frozenset[str] = frozenset()) -> bool:
    """Whether the job can go to these nodes without a suspend: some member stays, with the GPUs that it has."""
    there = {part.node: part.gpus for part in running.parts if part.stays and part.node not in lost}
    if any(there.get(share.node, share.gpus) != share.gpus for share in target.shares):
        return False
    wanted = frozenset(target.nodes)
    if not any(node in there and node in wanted for node in running.holders):
        return False
    if job.spec.rescale == "torchrun" and running.members[0] not in there.keys() & wanted:
        return False  # torchrun's ranks meet on their first node: it is the one that cannot leave
    return running.join_failures < MOST_JOIN_FAILURES or there.keys() >= wanted


def steer(world: World, job: Job, running: Incarnation, target: Placement, free: _Free, now: float) -> Way | None:
    """What takes a running job to a placement in place; None where only a suspend does.

    `free`: whether these GPUs can be granted now; then they are taken, unless None is the answer.
    """
    too_few = len(target.shares) < job.spec.nodes  # a policy that keeps what the job holds has to be asked anew
    if running.membership == 0:
        return Way(suspend=True) if too_few else _begin(world, job, running, target, free, now)
    lost, wake_at = _lost(world, job, running, now)
    needed = running.members[:1] if job.spec.rescale == "torchrun" else running.holders
    there = [part.node for part in running.training if part.stays and part.node in needed]
    if not there:
        return Way(over="the node where its ranks meet is gone" if needed else "every node that trained is gone")
    if lost.issuperset(there):
        return Way(wake_at=wake_at)  # all of these are silent: they come back, or are concluded to be lost
    if too_few:
        return Way(suspend=True)
    again = running.broken_at is not None and now >= running.broken_at + BROKEN_PATIENCE_S
    if again and running.breaks >= MOST_BREAKS and not lost:
        return _given_up(running)
    if not fits_in_place(job, running, target, lost):
        # Where a membership is forming, those that have the state only then may be all that is wanted.
        forming = running.rescale_at is not None and not (lost or again)
        return Way(wake_at=wake_at) if forming and running.formed else None
    if running.broken_at is not None and not again:
        wake_at = _sooner(wake_at, running.broken_at + BROKEN_PATIENCE_S)
    if not lost and not again:
        way = _towards(world, job, running, target, free, now)
        return None if way is None else Way(wake_at=wake_at).then(way)
    able = {part.node for part in running.training if part.stays} - lost
    members = [*(node for node in running.members if node in able), *(part.node for part in _ready(world, running))]
    wanted = frozenset(target.nodes)
    if sum(node in wanted for node in members) >= job.spec.nodes:
        members = [node for node in members if node in wanted]
    elif len(members) < job.spec.nodes:
        return Way(suspend=True)
    return _onward(world, job, running, target, tuple(members), free, now)


def dismiss(job: Job, running: Incarnation) -> Way:
    """Has those leave that were to join a training which is over, also where they were told to form it already."""
    nodes = tuple(part.node for part in running.newcomers)
    return _left(job, running, nodes) if nodes and running.members else Way()


def _begin(world: World, job: Job, running: Incarnation, target: Placement, free: _Free, now: float) -> Way | None:
    """Before the first membership: nodes come and go as the plan has it, and those that are up form it.

    All that are coming are waited for, but not for long once there are enough.
    """
    shares = {share.node: share for share in target.shares}
    staying = [part for part in running.parts if part.stays]
    coming = [part for part in staying if part.node in shares]
    if not coming or any(part.gpus != shares[part.node].gpus for part in coming):
        return None
    there = frozenset(running.nodes)
    wanted = [share for node, share in shares.items() if node not in there]
    granted = [share for share in wanted if free(GpuRef(share.node, index) for index in share.gpus)]
    way = Way()
    if granted:
        more = Placement(tuple(granted), target.role)
        way, running = _joins(job, running, more, target), ms.joined(running, more, now)
    if len(coming) + len(granted) < job.spec.nodes:
        coming = staying  # until those that it is to have can be granted
    up = frozenset(part.node for part in _ready(world, running))
    ready = [part for part in coming if part.node in up]
    if len(ready) < job.spec.nodes:
        return way
    patience = min(part.gate_at for part in ready) + JOIN_PATIENCE_S
    if len(ready) < len(coming) + len(granted) and now < patience:
        return way.then(Way(wake_at=patience))
    nodes = sorted((part.node for part in ready), key=lambda node: node not in shares)  # the first one may have to stay
    told, after = _told(job, running, tuple(nodes), {part.node for part in coming}, now)
    rest = _towards(world, job, after, target, free, now) if fits_in_place(job, after, target) else None
    return None if rest is None else way.then(told).then(rest)


def _lost(world: World, job: Job, running: Incarnation, now: float) -> tuple[frozenset[str], float | None]:
    """Members that the others have to go on without, and when to look again."""
    gone = {part.node for part in running.training if slipped(part)}
    wake_at = None
    if running.broken_at is not None:
        since = -math.inf
    elif running.rescale_at is not None and job.spec.rescale == "in-process":
        since = running.rescale_at + FORM_PATIENCE_S  # until then a silent one may have been told, and be on its way
    else:
        return frozenset(gone), None
    for name in running.members:
        # Nobody has concluded anything of a silent node. The others leave it out; what it holds stays held.
        node = world.nodes.get(name)
        if node is not None and node.connected:
            continue
        due = since if node is None or node.reason != RESTARTED else max(since, node.since + BROKEN_PATIENCE_S)
        if now >= due:
            gone.add(name)
        else:
            wake_at = _sooner(wake_at, due)
    return frozenset(gone), wake_at


def _given_up(running: Incarnation) -> Way:
    """Its ranks do not find together. What they have is worth a suspend where they have got on at all."""
    if running.ready_at is not None and running.progressed_step > running.ready_step:
        return Way(suspend=True)
    why = f"its ranks did not get on together, {MOST_BREAKS} times on the same nodes"
    return Way(over=why, cause=Cause.INFRASTRUCTURE)


def _ready(world: World, running: Incarnation) -> list[Part]:
    """Parts that can be told of a membership now."""
    ready = [part for part in running.joining if part.at_gate]
    return [part for part in ready if (node := world.nodes.get(part.node)) is not None and node.connected]


def _onward(
    world: World, job: Job, running: Incarnation, target: Placement, members: tuple[str, ...], free: _Free, now: float
) -> Way | None:
    """A membership that has to be, and what leads from there to the target."""
    told, after = _told(job, running, members, {part.node for part in running.joining}, now)
    rest = _towards(world, job, after, target, free, now)
    return None if rest is None else told.then(rest)


def _towards(world: World, job: Job, running: Incarnation, target: Placement, free: _Free, now: float) -> Way | None:
    shares = {share.node: share for share in target.shares}
    there = frozenset(running.nodes)
    wanted = [share for node, share in shares.items() if node not in there]
    granted = [share for share in wanted if free(GpuRef(share.node, index) for index in share.gpus)]
    coming = [part for part in running.joining if part.node in shares]
    ready = [part for part in _ready(world, running) if part.node in shares]
    staying = [node for node in running.members if node in shares]
    shrinks = len(staying) < len(running.members)
    way = Way()
    if shrinks and len(staying) + len(ready) < job.spec.nodes:
        # It cannot give back nodes before others have joined. Where these wait for each other it has to be suspended.
        since = min([part.asked_at for part in coming], default=now)
        known = {share.node for share in granted}.union(staying, [part.node for part in coming])
        soon = [share for share in target.shares if share.node not in known and _soon_free(world, share)]
        if len(known) + len(soon) < job.spec.nodes or now >= since + SWAP_PATIENCE_S:
            return None
        shrinks, ready, way = False, [], Way(wake_at=since + SWAP_PATIENCE_S)
    unwanted = tuple(part.node for part in running.joining if part.node not in shares)
    if unwanted:
        way = way.then(_left(job, running, unwanted))
    if granted:
        way = way.then(_joins(job, running, Placement(tuple(granted), target.role), target))
    if running.placement is not None and running.placement.role is not target.role:
        way = way.then(Way((RoleChanged(job.id, running.number, target.role),)))
    if ready and not shrinks:
        patience = min(part.gate_at for part in ready) + JOIN_PATIENCE_S
        if len(ready) < len(coming) and now < patience:
            ready, way = [], way.then(Way(wake_at=patience))
    if ready or shrinks:
        joining = {part.node for part in running.joining}
        told, _ = _told(job, running, (*staying, *(part.node for part in ready)), joining, now)
        way = way.then(told)
    return way


def _soon_free(world: World, share: Share) -> bool:
    """Whether all that holds these GPUs is on its way out, whatever becomes of the plan."""
    node = world.nodes.get(share.node)
    if node is None or not frozenset(node.usable()).issuperset(share.gpus):
        return False
    for holder in {world.holders.get(GpuRef(share.node, index)) for index in share.gpus} - {None}:
        incarnation = None if holder is None else world.jobs[holder[0]].incarnation(holder[1])
        part = None if incarnation is None else incarnation.part(share.node)
        if incarnation is None or part is None:
            continue
        if part.stays and incarnation.ending is None and incarnation.purpose is None:
            return False
    return True


def _joins(job: Job, running: Incarnation, granted: Placement, target: Placement) -> Way:
    number = running.next_join
    starts = [Request("start", node, job.id, running.number, number, target.nodes, target) for node in granted.nodes]
    return Way((JoinRequested(job.id, running.number, granted),), tuple(starts))


def _told(
    job: Job, running: Incarnation, members: tuple[str, ...], joining: set[str], now: float
) -> tuple[Way, Incarnation]:
    """Everybody is told: the members where to meet, the rest to leave, but for those that go on `joining`."""
    wanted = frozenset(members)
    parts = {part.node: part for part in running.parts}
    leaving = tuple(
        node
        for node, part in parts.items()
        if node not in wanted and node not in joining and not (part.leaving or part.gone)
    )
    number = max(running.membership + 1, *(parts[node].since for node in members))
    address = running.rendezvous if job.spec.rescale == "torchrun" else ""
    address = address or parts[members[0]].address
    placement = None
    if running.placement is not None:
        shares = tuple(share for share in running.placement.shares if share.node in wanted)
        placement = Placement(shares, running.placement.role) if shares else None
    requests = [
        Request("rescale", node, job.id, running.number, number, members, placement, address=address)
        for node in members
    ]
    requests += [_leave(job, running, node, number) for node in leaving]
    event = RescaleRequested(job.id, running.number, number, members, leaving)
    return Way((event,), tuple(requests)), ms.told(running, number, members, leaving, now)


def _left(job: Job, running: Incarnation, nodes: tuple[str, ...]) -> Way:
    event = LeaveRequested(job.id, running.number, nodes)
    since = {part.node: part.since for part in running.parts}
    return Way((event,), tuple(_leave(job, running, node, since[node]) for node in nodes))


def _leave(job: Job, running: Incarnation, node: str, number: int) -> Request:
    return Request("leave", node, job.id, running.number, number, grace_s=job.spec.grace_s)


def _sooner(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)
