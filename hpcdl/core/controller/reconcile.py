"""From what is wanted to what must be asked: the difference between a plan and the world, in a safe order.

Releases come before grants. A GPU is granted only when nothing holds it, and an agent has said so. The means is a
rescale in place where the job can (`rescaling`), else suspend and resume. Whatever a plan says, no GPU can be given
twice: `holders` decides, not the plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hpcdl.core.endings import slipped
from hpcdl.core.events import EndRequested, Event, OpenRequested, RoleChanged, StartRequested, SuspendRequested
from hpcdl.core.journal import Request
from hpcdl.core.model import Cause, Incarnation, IncarnationState, Job, Part, Placement, Purpose, World
from hpcdl.core.numbering import floor_of
from hpcdl.core.rescaling import Way, dismiss, settled, steer
from hpcdl.core.stalls import stalled
from hpcdl.core.units import GpuRef

END_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL for what is ended without a checkpoint, at most."""

STRAGGLER_S = 60.0
"""When the writer's part of a job ended well, the others may take this long to follow before they are ended."""

GATE_PATIENCE_S = 600.0
"""A warm start that keeps free GPUs waiting for longer is given up for a cold one."""


@dataclass(slots=True)
class Steps:
    """Events to record and, with them, requests to send; and when some steps are due that only time brings."""

    events: list[Event] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    wake_at: float | None = None

    def take(self, way: Way) -> None:
        """Adds what leads a job on in place."""
        self.events += way.events
        self.requests += way.requests
        if way.wake_at is not None:
            self.wake_at = way.wake_at if self.wake_at is None else min(self.wake_at, way.wake_at)

    def suspend(self, job: Job, incarnation: Incarnation, purpose: Purpose) -> None:
        """Asks for the handshake on every node of the incarnation."""
        self.events.append(SuspendRequested(job.id, incarnation.number, purpose, job.spec.grace_s))
        self._ask("suspend", job, incarnation, job.spec.grace_s)

    def end(self, job: Job, incarnation: Incarnation, cause: Cause, grace_s: float, detail: str = "") -> None:
        """Asks for the end without a checkpoint."""
        self.events.append(EndRequested(job.id, incarnation.number, cause, grace_s, detail))
        self._ask("end", job, incarnation, grace_s)

    def start(self, world: World, job: Job, nodes: tuple[str, ...], placement: Placement | None) -> None:
        """Asks for the next incarnation, at the gate where `placement` is None."""
        number = _last_number(world, job) + 1
        self.events.append(StartRequested(job.id, number, nodes, placement))
        self.requests += [Request("start", node, job.id, number, nodes=nodes, placement=placement) for node in nodes]

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


def reconcile(world: World, now: float, still: set[int] | None = None) -> Steps:
    """The events and requests that lead from the world towards its adopted targets.

    Once the events are folded in, a second call at the same time gives nothing. `still`: jobs that were found to run as
    planned, and to which nothing has happened since; those that are found now are added.
    """
    still = set() if still is None else still
    steps = Steps()
    grants: list[tuple[Job, Placement]] = []
    warm: list[tuple[Job, Placement]] = []
    in_place: list[tuple[Job, Placement]] = []
    for number in sorted({*world.targets, *world.live} - still):  # ids rise with the submits
        job = world.jobs[number]
        target = world.targets.get(number)
        placement = None if target is None else _without_leaving(world, job, target.placement)
        if placement is not None and _goes_on(world, job, placement):
            still.add(number)
            continue
        if placement is not None and _may_steer(world, job):
            in_place.append((job, placement))
            continue
        _release(world, job, placement, steps, now)
        if placement is None or job.held or job.cancelling or job.final is not None or world.stopping:
            continue
        if job.running is None:
            grants.append((job, placement))
        elif number in world.warm and job.gated is None and not placement.same_gpus(job.running.placement or placement):
            warm.append((job, placement))
    taken: set[GpuRef] = set()
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
    if len(job.live) != 1 or job.held or job.cancelling or job.final is not None or world.stopping:
        return False
    running = job.live[0]
    if running.state is not IncarnationState.RUNNING or running.ending is not None:
        return False
    if running.preempt or running.stalled_restart:
        return False
    if job.spec.rescale != "restart":
        return running.placement == target and settled(running)
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
        and not (running.preempt or running.stalled_restart)
        and running.state is IncarnationState.RUNNING
        and not (job.held or job.cancelling or job.final is not None or world.stopping)
        and _failed(running) is None
        and any(part.stays for part in running.parts)
    )


def _rescale(world: World, job: Job, target: Placement, taken: set[GpuRef], steps: Steps, now: float) -> None:
    """Leads a running job on in place; or else suspends it, as any other."""
    running = job.running
    if running is None:
        return

    mine: set[GpuRef] = set()

    def free(gpus: Iterable[GpuRef]) -> bool:
        wanted = tuple(gpus)
        if not _free(world, wanted, taken):
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
        taken |= mine


def _failed(running: Incarnation) -> Part | None:
    """A member that ended by its own doing, or as the training did; None: at most some slipped away."""
    return next((part for part in running.training if part.exited and not part.leaving and not slipped(part)), None)


def _release(world: World, job: Job, target: Placement | None, steps: Steps, now: float) -> None:
    """Asks incarnations to go that the world or the plan has no place for."""
    unwanted = job.held or job.cancelling or job.final is not None or world.stopping
    gated, running = job.gated, job.running
    if gated is not None and gated.ending is None:
        elsewhere = target is not None and target.nodes != gated.nodes
        if unwanted or target is None or elsewhere or _stays(running, target):
            steps.end(job, gated, Cause.CANCELLED, 5.0, "its warm start is not needed")
        elif _gate_broken(gated):
            steps.end(job, gated, Cause.INFRASTRUCTURE, 5.0, "a part of its warm start ended")
    if running is None or running.ending is not None:
        return
    over = bool(running.members) and running.state is IncarnationState.RUNNING and _failed(running) is not None
    if over:
        steps.take(dismiss(job, running))
    if job.cancelling:
        steps.end(job, running, Cause.CANCELLED, min(job.spec.grace_s, END_GRACE_S), "cancelled by its user")
        return
    broken = _gang_broken(job, running, now)
    if world.stopping_now:
        steps.end(job, running, Cause.PREEMPTED, 0.0, "the daemon was stopped at once")
    elif broken is not None:
        steps.end(job, running, Cause.INFRASTRUCTURE, END_GRACE_S, broken)
    elif running.stalled_restart and running.state is IncarnationState.RUNNING:
        steps.end(job, running, Cause.STALLED, min(job.spec.grace_s, END_GRACE_S), stalled(job, running, now))
    elif over and target is not None and not (job.held or world.stopping):
        return  # a member is through: the others follow, there is nothing to rescale
    elif running.state is IncarnationState.RUNNING:
        _suspend_or_keep(world, job, running, target, steps, now)


def _suspend_or_keep(
    world: World, job: Job, running: Incarnation, target: Placement | None, steps: Steps, now: float
) -> None:
    held = running.placement
    if job.held:
        steps.suspend(job, running, Purpose.HOLD)
    elif world.stopping:
        steps.suspend(job, running, Purpose.STOP)
    elif target is None or running.preempt:
        steps.suspend(job, running, Purpose.PREEMPT)
    elif held is not None and not target.same_gpus(held):
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
    return running.state is IncarnationState.RUNNING and running.placement.same_gpus(target)


def _gate_broken(gated: Incarnation) -> bool:
    return any(part.exited or part.lost for part in gated.parts)


def _gang_broken(job: Job, incarnation: Incarnation, now: float) -> str | None:
    """Why the remaining parts of a job on several nodes have to end, or None.

    Either a part failed or was lost, or the writer's part ended well more than STRAGGLER_S ago.
    """
    elastic = job.spec.rescale != "restart"  # the others go on without what slipped away
    parts = [part for part in incarnation.training if not (part.leaving or (elastic and slipped(part)))]
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


def _grant(world: World, job: Job, placement: Placement, taken: set[GpuRef], steps: Steps, now: float) -> bool:
    """Starts the job, or opens its gate, if every GPU of the placement is free. False if one is not."""
    if not _free(world, placement.gpus, taken):
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
    taken.update(placement.gpus)
    return True


def _free(world: World, gpus: Iterable[GpuRef], taken: set[GpuRef]) -> bool:
    for gpu in gpus:
        node = world.nodes.get(gpu.node)
        if gpu in world.holders or gpu in taken or node is None or gpu.number not in node.usable():
            return False
    return True


def _last_number(world: World, job: Job) -> int:
    """The highest incarnation that has claimed the job's checkpoint folder, by this job or an earlier one."""
    floor = floor_of(world, job).incarnation
    if job.spec.checkpoint_dir is None:
        return max(job.last_incarnation, floor)
    folder = job.spec.checkpoint_dir
    there = (each.last_incarnation for each in world.jobs.values() if each.spec.checkpoint_dir == folder)
    return max(world.folders.get(folder, (0, 0))[0], floor, *there)


def _connected(world: World, names: Iterable[str]) -> bool:
    return all((node := world.nodes.get(name)) is not None and node.connected for name in names)
