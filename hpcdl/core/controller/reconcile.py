"""From a plan to requests: what leads from the world to the plan's targets, in a safe order.

Releases come before grants. A GPU is granted only when nothing holds it, and an agent has said so. The means is a
rescale in place where the job can (`steer`), else suspend and resume. Whatever a plan says, no GPU can be given twice:
`World.holders` decides, not the plan. Nothing is sent here: the Controller records the events with the requests.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from hpcdl.core.fold import membership as ms
from hpcdl.core.model.commands import Request
from hpcdl.core.model.events import (
    EndRequested,
    Event,
    JoinRequested,
    LeaveRequested,
    OpenRequested,
    RescaleRequested,
    RoleChanged,
    StartRequested,
    SuspendRequested,
)
from hpcdl.core.model.incarnation import Cause, Incarnation, IncarnationState, Part, Placement, Purpose, Role, Share
from hpcdl.core.model.sharing import grant_refusal, pair_refusal, takers
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import RESTARTED, Job, World, cancelled_text, last_number, start_nonce

BROKEN_PATIENCE_S = 5.0
"""Ranks whose collective failed although all are there have to form the same membership anew after so long."""

FORM_PATIENCE_S = 15.0
"""A membership that does not form for so long goes on without members whose agents are silent."""

JOIN_PATIENCE_S = 10.0
"""Nodes that are ready to join wait this long for others that are on their way."""

SWAP_PATIENCE_S = 600.0
"""A job that would have too few nodes without those that it gives back keeps them this long for others to join."""

MOST_JOIN_FAILURES = 3
"""So many nodes that ended before they joined, one after another, and the job is suspended and resumed instead."""

MOST_BREAKS = 5
"""So many times the same members form anew without a step in between; then processes start afresh."""

_Free = Callable[[Iterable[GpuRef]], bool]


@dataclass(frozen=True, slots=True)
class RescaleStep:
    """What leads a running job on in place. Without events and requests it goes on as it is."""

    events: tuple[Event, ...] = ()
    requests: tuple[Request, ...] = ()
    wake_at: float | None = None  # when to look again, the daemon's time; None: when something happens
    suspend: bool = False  # it cannot go on in place, but its ranks can save what they have
    over: str = ""  # why it can do neither, in words; "": it can
    cause: Cause = Cause.NODE_LOST  # of its end then

    def then(self, other: "RescaleStep") -> "RescaleStep":
        """This, and then another."""
        wakes = [at for at in (self.wake_at, other.wake_at) if at is not None]
        return RescaleStep((*self.events, *other.events), (*self.requests, *other.requests), min(wakes, default=None))


def trains_whole(running: Incarnation) -> bool:
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


def steer(
    world: World, job: Job, running: Incarnation, target: Placement, free: _Free, now: float
) -> RescaleStep | None:
    """What takes a running job to a placement in place: join, rescale, leave; None where only a suspend does.

    Its ranks keep running while others come and go. Nodes join first, while the others train on; only then is the new
    membership sent to all. A member that is lost is left out at once. `free`: whether these GPUs can be granted now;
    then they are taken, unless None is the answer.
    """
    too_few = len(target.shares) < job.spec.nodes  # a policy that keeps what the job holds has to be asked anew
    if running.membership == 0:
        return RescaleStep(suspend=True) if too_few else _begin(world, job, running, target, free, now)
    lost, wake_at = _lost(world, job, running, now)
    needed = running.members[:1] if job.spec.rescale == "torchrun" else running.holders
    there = [part.node for part in running.training if part.stays and part.node in needed]
    if not there:
        return RescaleStep(
            over="the node where its ranks meet is gone" if needed else "every node that trained is gone"
        )
    if lost.issuperset(there):
        return RescaleStep(wake_at=wake_at)  # all of these are silent: they come back, or are concluded to be lost
    if too_few:
        return RescaleStep(suspend=True)
    again = running.broken_at is not None and now >= running.broken_at + BROKEN_PATIENCE_S
    if again and running.breaks >= MOST_BREAKS and not lost:
        return _given_up(running)
    if not fits_in_place(job, running, target, lost):
        # Where a membership is forming, those that have the state only then may be all that is wanted.
        forming = running.rescale_at is not None and not (lost or again)
        return RescaleStep(wake_at=wake_at) if forming and running.formed else None
    if running.broken_at is not None and not again:
        wake_at = _sooner(wake_at, running.broken_at + BROKEN_PATIENCE_S)
    if not lost and not again:
        way = _towards(world, job, running, target, free, now)
        return None if way is None else RescaleStep(wake_at=wake_at).then(way)
    able = {part.node for part in running.training if part.stays} - lost
    members = [*(node for node in running.members if node in able), *(part.node for part in _ready(world, running))]
    wanted = frozenset(target.nodes)
    if sum(node in wanted for node in members) >= job.spec.nodes:
        members = [node for node in members if node in wanted]
    elif len(members) < job.spec.nodes:
        return RescaleStep(suspend=True)
    return _onward(world, job, running, target, tuple(members), free, now)


def dismiss(job: Job, running: Incarnation) -> RescaleStep:
    """Has those leave that were to join a training which is over, also where they are forming its membership."""
    nodes = tuple(part.node for part in running.newcomers)
    return _left(job, running, nodes) if nodes and running.members else RescaleStep()


def _begin(
    world: World, job: Job, running: Incarnation, target: Placement, free: _Free, now: float
) -> RescaleStep | None:
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
    way = RescaleStep()
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
        return way.then(RescaleStep(wake_at=patience))
    nodes = sorted((part.node for part in ready), key=lambda node: node not in shares)  # the first one may have to stay
    told, after = _told(job, running, tuple(nodes), {part.node for part in coming}, now)
    rest = _towards(world, job, after, target, free, now) if fits_in_place(job, after, target) else None
    return None if rest is None else way.then(told).then(rest)


def _lost(world: World, job: Job, running: Incarnation, now: float) -> tuple[frozenset[str], float | None]:
    """Members that the others have to go on without, and when to look again."""
    gone = {part.node for part in running.training if part.ended_from_outside}
    wake_at = None
    if running.broken_at is not None:
        since = -math.inf
    elif running.rescale_at is not None and job.spec.rescale == "in-process":
        since = running.rescale_at + FORM_PATIENCE_S  # until then a silent one may have heard of it, and be on its way
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


def _given_up(running: Incarnation) -> RescaleStep:
    """Its ranks do not find together. What they have is worth a suspend where they have got on at all."""
    if running.steps > 0:
        return RescaleStep(suspend=True)
    why = f"its ranks did not get on together, {MOST_BREAKS} times on the same nodes"
    return RescaleStep(over=why, cause=Cause.INFRASTRUCTURE)


def _ready(world: World, running: Incarnation) -> list[Part]:
    """Parts that can be taken into a membership now."""
    ready = [part for part in running.joining if part.at_gate]
    return [part for part in ready if (node := world.nodes.get(part.node)) is not None and node.connected]


def _onward(
    world: World, job: Job, running: Incarnation, target: Placement, members: tuple[str, ...], free: _Free, now: float
) -> RescaleStep | None:
    """A membership that has to be, and what leads from there to the target."""
    told, after = _told(job, running, members, {part.node for part in running.joining}, now)
    rest = _towards(world, job, after, target, free, now)
    return None if rest is None else told.then(rest)


def _towards(
    world: World, job: Job, running: Incarnation, target: Placement, free: _Free, now: float
) -> RescaleStep | None:
    shares = {share.node: share for share in target.shares}
    there = frozenset(running.nodes)
    wanted = [share for node, share in shares.items() if node not in there]
    granted = [share for share in wanted if free(GpuRef(share.node, index) for index in share.gpus)]
    coming = [part for part in running.joining if part.node in shares]
    ready = [part for part in _ready(world, running) if part.node in shares]
    staying = [node for node in running.members if node in shares]
    shrinks = len(staying) < len(running.members)
    way = RescaleStep()
    if shrinks and len(staying) + len(ready) < job.spec.nodes:
        # It cannot give back nodes before others have joined. Where these wait for each other it has to be suspended.
        since = min([part.asked_at for part in coming], default=now)
        known = {share.node for share in granted}.union(staying, [part.node for part in coming])
        soon = [share for share in target.shares if share.node not in known and _soon_free(world, share)]
        if len(known) + len(soon) < job.spec.nodes or now >= since + SWAP_PATIENCE_S:
            return None
        shrinks, ready, way = False, [], RescaleStep(wake_at=since + SWAP_PATIENCE_S)
    unwanted = tuple(part.node for part in running.joining if part.node not in shares)
    if unwanted:
        way = way.then(_left(job, running, unwanted))
    if granted:
        way = way.then(_joins(job, running, Placement(tuple(granted), target.role), target))
    if running.placement is not None and running.placement.role is not target.role:
        way = way.then(RescaleStep((RoleChanged(job.id, running.number, target.role),)))
    if ready and not shrinks:
        patience = min(part.gate_at for part in ready) + JOIN_PATIENCE_S
        if len(ready) < len(coming) and now < patience:
            ready, way = [], way.then(RescaleStep(wake_at=patience))
    if ready or shrinks:
        joining = {part.node for part in running.joining}
        told, _ = _told(job, running, (*staying, *(part.node for part in ready)), joining, now)
        way = way.then(told)
    return way


def _soon_free(world: World, share: Share) -> bool:
    """Whether all that holds these GPUs is on its way out, whatever becomes of the plan."""
    node = world.nodes.get(share.node)
    if node is None or not frozenset(node.usable).issuperset(share.gpus):
        return False
    for holder in {world.holders.get(GpuRef(share.node, index)) for index in share.gpus} - {None}:
        incarnation = None if holder is None else world.jobs[holder[0]].incarnation(holder[1])
        part = None if incarnation is None else incarnation.part(share.node)
        if incarnation is None or part is None:
            continue
        if part.stays and incarnation.stop is None:
            return False
    return True


def _joins(job: Job, running: Incarnation, granted: Placement, target: Placement) -> RescaleStep:
    number = running.next_join
    starts = [Request("start", node, job.id, running.number, number, target.nodes, target) for node in granted.nodes]
    return RescaleStep((JoinRequested(job.id, running.number, granted),), tuple(starts))


def _told(
    job: Job, running: Incarnation, members: tuple[str, ...], joining: set[str], now: float
) -> tuple[RescaleStep, Incarnation]:
    """The members are sent where to meet, and the rest that they leave, but for those that go on `joining`."""
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
    return RescaleStep((event,), tuple(requests)), ms.form_membership(running, number, members, leaving, now)


def _left(job: Job, running: Incarnation, nodes: tuple[str, ...]) -> RescaleStep:
    event = LeaveRequested(job.id, running.number, nodes)
    since = {part.node: part.since for part in running.parts}
    return RescaleStep((event,), tuple(_leave(job, running, node, since[node]) for node in nodes))


def _leave(job: Job, running: Incarnation, node: str, number: int) -> Request:
    return Request("leave", node, job.id, running.number, number, grace_s=job.spec.grace_s)


def _sooner(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)


END_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL for what is ended without a checkpoint, at most."""

STRAGGLER_S = 60.0
"""When the writer's part of a job ended well, the others may take this long to follow before they are ended."""

GATE_PATIENCE_S = 600.0
"""A warm start that keeps free GPUs waiting for longer is given up for a cold one."""


@dataclass(slots=True)
class _Granted:
    """The GPUs that are granted in this step, with the job of each."""

    foreground: dict[GpuRef, Job] = field(default_factory=dict)
    background: dict[GpuRef, Job] = field(default_factory=dict)

    def note(self, job: Job, gpus: Iterable[GpuRef], role: Role) -> None:
        """These are the job's."""
        there = self.background if role is Role.BACKGROUND else self.foreground
        there.update((gpu, job) for gpu in gpus)

    def refuses(self, world: World, gpu: GpuRef, job: Job, *, background: bool) -> bool:
        """Whether the GPU went to a job that does not share it with this one."""
        if gpu in (self.background if background else self.foreground):
            return True
        other = (self.foreground if background else self.background).get(gpu)
        if other is None:
            return False
        return bool(pair_refusal(world, gpu, *((other, job) if background else (job, other))))


@dataclass(slots=True)
class Reconciliation:
    """Events to record and, with them, requests to send; and when some steps are due that only time brings."""

    events: list[Event] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    wake_at: float | None = None

    def take(self, way: RescaleStep) -> None:
        """Adds what leads a job on in place."""
        self.events += way.events
        self.requests += way.requests
        if way.wake_at is not None:
            self.wake_at = way.wake_at if self.wake_at is None else min(self.wake_at, way.wake_at)

    def suspend(self, job: Job, incarnation: Incarnation, purpose: Purpose, wanted_by: Iterable[int] = ()) -> None:
        """Asks for the handshake on every node of the incarnation. `wanted_by`: the jobs that are to have its GPUs."""
        self.events.append(SuspendRequested(job.id, incarnation.number, purpose, job.spec.grace_s, tuple(wanted_by)))
        self._ask("suspend", job, incarnation, job.spec.grace_s)

    def end(self, job: Job, incarnation: Incarnation, cause: Cause, grace_s: float, detail: str = "") -> None:
        """Asks for the end without a checkpoint."""
        self.events.append(EndRequested(job.id, incarnation.number, cause, grace_s, detail))
        self._ask("end", job, incarnation, grace_s)

    def start(self, world: World, job: Job, nodes: tuple[str, ...], placement: Placement | None) -> None:
        """Asks for the next incarnation, at the gate where `placement` is None."""
        number = last_number(world, job) + 1
        self.events.append(StartRequested(job.id, number, nodes, placement, start_nonce(world, job.id, number)))
        address = ",".join(world.nodes[node].address for node in nodes) if len(nodes) > 1 else ""
        self.requests += [
            Request("start", node, job.id, number, nodes=nodes, placement=placement, address=address) for node in nodes
        ]

    def open(self, job: Job, incarnation: Incarnation, placement: Placement) -> None:
        """Opens the gate."""
        self.events.append(OpenRequested(job.id, incarnation.number, placement))
        for node in incarnation.nodes:
            self.requests.append(
                Request("open", node, job.id, incarnation.number, incarnation.membership, placement=placement)
            )

    def _ask(self, kind: str, job: Job, incarnation: Incarnation, grace_s: float) -> None:
        for part in incarnation.parts:
            if not part.gone:
                newest = max(incarnation.membership, part.since)
                self.requests.append(Request(kind, part.node, job.id, incarnation.number, newest, grace_s=grace_s))


def reconcile(world: World, now: float, still: set[int] | None = None) -> Reconciliation:
    """The events and requests that lead from the world towards its adopted targets.

    Once the events are folded in, a second call at the same time gives nothing. `still`: jobs that were found to run as
    planned, and to which nothing has happened since; those that are found now are added.
    """
    still = set() if still is None else still
    steps = Reconciliation()
    grants: list[tuple[Job, Placement]] = []
    warm: list[tuple[Job, Placement]] = []
    in_place: list[tuple[Job, Placement]] = []
    promoted: list[tuple[Job, Placement]] = []
    for number in sorted({*world.targets, *world.live} - still):  # ids rise with the submits
        job = world.jobs[number]
        target = world.targets.get(number)
        placement = None if target is None else _without_leaving(world, job, target.placement)
        if placement is not None and _goes_on(world, job, placement):
            still.add(number)
            continue
        if placement is not None and _is_promoted(world, job, placement):
            if all(part.stays for part in job.live[0].parts) and job.live[0].rescale_at is None:
                promoted.append((job, placement))
                continue
            placement = replace(placement, role=Role.BACKGROUND)  # first its nodes find together as they are
        if placement is not None and _may_steer(world, job) and not _changes_sides(job.running, placement):
            in_place.append((job, placement))
            continue
        _release(world, job, placement, steps, now)
        if placement is None or job.held or job.cancelling or job.verdict is not None or world.stopping:
            continue
        if job.running is None:
            grants.append((job, placement))
        elif number in world.warm and job.gated is None and not placement.same_gpus(job.running.placement or placement):
            warm.append((job, placement))
    taken = _Granted()
    for job, placement in promoted:
        _promote(world, job, placement, taken, steps)
    for job, placement in in_place:
        _rescale(world, job, placement, taken, steps, now)
    for job, placement in grants:
        if not _grant(world, job, placement, taken, steps, now) and job.id in world.warm and job.gated is None:
            warm.append((job, placement))
    for job, placement in warm:
        if job.spec.gate and not job.warm_failed and _connected(world, placement.nodes):
            steps.start(world, job, placement.nodes, None)
    return steps


def _goes_on(world: World, job: Job, target: Placement) -> bool:
    """Whether the job runs exactly as the plan has it, and nobody waits for anything: most jobs, at most decisions."""
    if len(job.live) != 1 or job.held or job.cancelling or job.verdict is not None or world.stopping:
        return False
    running = job.live[0]
    if running.state is not IncarnationState.RUNNING or running.ending is not None:
        return False
    if running.preempt or running.restarts:
        return False
    if job.spec.rescale != "restart":
        return running.placement == target and trains_whole(running)
    return running.placement is target and len(running.parts) == 1


def _without_leaving(world: World, job: Job, target: Placement | None) -> Placement | None:
    """A target without the nodes that are to be left now; None where too few remain for the job.

    The policy gives such nodes to nobody new; but one that has not heard of it keeps what runs there.
    """
    if target is None or not any(world.nodes[node].leaving for node in target.nodes if node in world.nodes):
        return target
    shares = tuple(share for share in target.shares if not world.nodes[share.node].leaving)
    return replace(target, shares=shares) if len(shares) >= job.spec.nodes else None


def _may_steer(world: World, job: Job) -> bool:
    """Whether the job runs, is to go on running, and its ranks can form new memberships."""
    running = job.running
    return (
        job.spec.rescale != "restart"
        and running is not None
        and running.ending is None
        and not (running.preempt or running.restarts)
        and running.state is IncarnationState.RUNNING
        and not (job.held or job.cancelling or job.verdict is not None or world.stopping)
        and not any(part.ended_itself for part in running.training)
        and any(part.stays for part in running.parts)
    )


def _rescale(world: World, job: Job, target: Placement, taken: _Granted, steps: Reconciliation, now: float) -> None:
    """Leads a running job on in place; or else suspends it, as any other."""
    running = job.running
    if running is None:
        return

    mine: set[GpuRef] = set()

    def free(gpus: Iterable[GpuRef]) -> bool:
        wanted = tuple(gpus)
        if not _free(world, job, wanted, target.role, taken):
            return False
        mine.update(wanted)
        return True

    way = steer(world, job, running, target, free, now)
    if way is None:
        _release(world, job, target, steps, now)
    elif way.over:
        steps.end(job, running, way.cause, END_GRACE_S, way.over)
    elif way.suspend:
        steps.suspend(job, running, Purpose.PREEMPT)
    else:
        steps.take(way)
        taken.note(job, mine, target.role)


def _release(world: World, job: Job, target: Placement | None, steps: Reconciliation, now: float) -> None:
    """Asks incarnations to go that the world or the plan has no place for."""
    unwanted = job.held or job.cancelling or job.verdict is not None or world.stopping
    gated, running = job.gated, job.running
    if gated is not None and gated.ending is None:
        elsewhere = target is not None and target.nodes != gated.nodes
        if unwanted or target is None or elsewhere or _stays(running, target):
            steps.end(job, gated, Cause.CANCELLED, 5.0, "its warm start is not needed")
        elif _gate_broken(gated):
            steps.end(job, gated, Cause.INFRASTRUCTURE, 5.0, "a part of its warm start ended")
    if running is None or running.ending is not None:
        return
    trains = running.state is IncarnationState.RUNNING
    over = trains and bool(running.members) and any(part.ended_itself for part in running.training)
    if over:
        steps.take(dismiss(job, running))
    if job.cancelling:
        steps.end(job, running, Cause.CANCELLED, min(job.spec.grace_s, END_GRACE_S), cancelled_text(job))
        return
    broken = _gang_broken(job, running, now)
    if world.stopping_now:
        steps.end(job, running, Cause.PREEMPTED, 0.0, "the daemon was stopped at once")
    elif broken is not None:
        steps.end(job, running, Cause.INFRASTRUCTURE, END_GRACE_S, broken)
    elif trains and running.stall is not None and running.restarts:
        grace_s, why = min(job.spec.grace_s, END_GRACE_S), running.stall.text(job.progress.step, now)
        steps.end(job, running, Cause.STALLED, grace_s, why)
    elif over and target is not None and not (job.held or world.stopping):
        return  # a member is through: the others follow, there is nothing to rescale
    elif trains:
        _suspend_or_keep(world, job, running, target, steps, now)


def _suspend_or_keep(
    world: World, job: Job, running: Incarnation, target: Placement | None, steps: Reconciliation, now: float
) -> None:
    held = running.placement
    if job.held:
        steps.suspend(job, running, Purpose.HOLD)
    elif world.stopping:
        steps.suspend(job, running, Purpose.STOP)
    elif job.out_of_time:
        steps.suspend(job, running, Purpose.TIME)
    elif (target is None or running.preempt) and job.spec.light_steps is not None:
        steps.end(job, running, Cause.PREEMPTED, 0.0, "others are to have its GPUs")  # it has nothing to lose
    elif target is None or running.preempt:
        steps.suspend(job, running, Purpose.PREEMPT, takers(world, job, running))
    elif held is not None and (not target.same_gpus(held) or _changes_sides(running, target)):
        if not _trains_meanwhile(world, job, held, target, now):
            steps.suspend(job, running, Purpose.RESCALE)
    elif held is not None and target.role is not held.role:
        steps.events.append(RoleChanged(job.id, running.number, target.role))


def _trains_meanwhile(world: World, job: Job, held: Placement, target: Placement, now: float) -> bool:
    """Whether the job is to train on until its next incarnation is at the gate: one is being warmed up, or is about to
    be, and nobody else waits for what the job is to give back."""
    if job.id not in world.warm or not job.spec.gate or job.warm_failed or not _connected(world, target.nodes):
        return False
    if any(node.leaving for name in held.nodes if (node := world.nodes.get(name)) is not None):
        return False  # whoever wants it back does not wait for a gate
    gated = job.gated
    if gated is not None:
        late = now - gated.requested_at > GATE_PATIENCE_S
        if late or gated.ending is not None or gated.nodes != target.nodes or _gate_broken(gated):
            return False
        if all(part.at_gate for part in gated.parts):
            return False
    given = set(held.gpus).difference(target.gpus)
    others = (each.placement for each in world.targets.values() if each.job != job.id and given)
    return not any(each is not None and not given.isdisjoint(each.gpus) for each in others)


def _stays(running: Incarnation | None, target: Placement) -> bool:
    """Whether it is to keep the GPUs that it has."""
    if running is None or running.ending is not None or running.placement is None:
        return False
    if _changes_sides(running, target):
        return False
    return running.state is IncarnationState.RUNNING and running.placement.same_gpus(target)


def _gate_broken(gated: Incarnation) -> bool:
    return any(part.exited or part.lost for part in gated.parts)


def _gang_broken(job: Job, incarnation: Incarnation, now: float) -> str | None:
    """Why the remaining parts of a job on several nodes have to end, or None.

    Either a part failed or was lost, or the writer's part ended well more than STRAGGLER_S ago.
    """
    elastic = job.spec.rescale != "restart"  # the others go on without what slipped away
    parts = [part for part in incarnation.training if not (part.leaving or (elastic and part.ended_from_outside))]
    gone = [part for part in parts if part.exited or part.lost]
    if not gone or len(gone) == len(parts):
        return None
    writer = incarnation.part(incarnation.writer) or parts[0]
    saving = incarnation.state is IncarnationState.SAVING
    bad = next((part for part in gone if _broke(part, saving)), None)
    if saving and bad is not writer:
        return None  # the writer may still save; the agents' own grace bounds it
    if bad is not None:
        return f"its part on {bad.node} ended"
    # While the writer goes on the job does: it may evaluate or export long after the others are through.
    since = writer.exited_at
    late = since is not None and now - since > STRAGGLER_S
    return f"its part on {gone[0].node} ended {STRAGGLER_S:.0f} s ago" if late else None


def _broke(part: Part, saving: bool) -> bool:
    """Whether this part ended otherwise than by completing: lost, failed, never started, or ended on request."""
    return part.lost or part.code != 0 or part.hint is not None or (part.ended_by is not None and not saving)


def _grant(world: World, job: Job, placement: Placement, taken: _Granted, steps: Reconciliation, now: float) -> bool:
    """Starts the job, or opens its gate, if every GPU of the placement is free. False if one is not."""
    if not _free(world, job, placement.gpus, placement.role, taken):
        return False
    gated = job.gated
    if gated is not None:
        if gated.ending is not None or gated.nodes != placement.nodes or _gate_broken(gated):
            return True  # the warm start must be gone before another incarnation may start
        if not all(part.at_gate for part in gated.parts):
            if now - gated.requested_at > GATE_PATIENCE_S:
                steps.end(job, gated, Cause.INFRASTRUCTURE, 5.0, f"not at the gate after {GATE_PATIENCE_S:.0f} s")
            return True  # a cold start now would not be sooner
        steps.open(job, gated, placement)
    else:
        steps.start(world, job, placement.nodes, placement)
    taken.note(job, placement.gpus, placement.role)
    return True


def _free(world: World, job: Job, gpus: Iterable[GpuRef], role: Role, taken: _Granted) -> bool:
    """Whether the job can be granted these GPUs: nobody has them, or who has them shares them with it."""
    background = role is Role.BACKGROUND
    for gpu in gpus:
        node = world.nodes.get(gpu.node)
        if node is None or gpu.number not in node.usable or taken.refuses(world, gpu, job, background=background):
            return False
        if (gpu in world.holders or gpu in world.backgrounds) and grant_refusal(world, gpu, job, background=background):
            return False
    return True


def _changes_sides(running: Incarnation | None, target: Placement) -> bool:
    """Whether it is a background and is to be none any more, or the other way round."""
    return running is not None and running.is_background != (target.role is Role.BACKGROUND)


def _is_promoted(world: World, job: Job, target: Placement) -> bool:
    """Whether a background goes on where it is as the foreground: nothing is asked of its trainer for that."""
    running = job.running
    if running is None or running.placement is None or not running.is_background or len(job.live) > 1:
        return False
    if job.held or job.cancelling or job.verdict is not None or world.stopping:
        return False
    if running.state is not IncarnationState.RUNNING or running.ending is not None:
        return False
    goes_on = not (running.preempt or running.restarts)
    return goes_on and target.role is not Role.BACKGROUND and target.same_gpus(running.placement)


def _promote(world: World, job: Job, target: Placement, taken: _Granted, steps: Reconciliation) -> None:
    """Makes a background the foreground of its GPUs once the one before has left all of them."""
    running = job.running
    if running is None or not _free(world, job, target.gpus, target.role, taken):
        return
    steps.events.append(RoleChanged(job.id, running.number, target.role))
    steps.requests += [
        Request("role", node, job.id, running.number, running.membership, placement=target) for node in target.nodes
    ]
    taken.note(job, target.gpus, target.role)


def _connected(world: World, names: Iterable[str]) -> bool:
    return all((node := world.nodes.get(name)) is not None and node.connected for name in names)
