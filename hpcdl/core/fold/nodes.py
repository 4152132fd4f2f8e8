"""Effects of the events of nodes, GPUs and the daemon."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hpcdl.core.fold.effect import Decision, anything, effect, nothing
from hpcdl.core.fold.write import free_gpus, jobs_near, jobs_on, put_part, put_without_gone_parts, story
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import changed
from hpcdl.core.model.health import KEPT, Avoided, Failed
from hpcdl.core.model.incarnation import Cause, Incarnation
from hpcdl.core.model.notice import NoticeKind
from hpcdl.core.model.world import RESTARTED, Floor, GpuInfo, Node, World

GAPS = 64
"""Changes of the set of nodes that are remembered."""

UNTIL_CHANGED_S = 30.0
"""An end that is reported this much otherwise than before is another one; less is rounding."""


def _another_run(old: Node, event: ev.NodeJoined, at: float) -> bool:
    """Whether the batch job has begun anew under the same id: another agent, past the reported end, or later."""
    if old.until is None or old.agent_pid == event.agent_pid:
        return False
    return at > old.until or (event.until is not None and event.until > old.until + UNTIL_CHANGED_S)


@effect(ev.NodeJoined, writes=("nodes",), jobs=jobs_near)
def node_joined(world: World, event: ev.NodeJoined, at: float) -> None:
    old = world.nodes.get(event.node)
    same_log = old is not None and old.log_id == event.log_id
    stayed = old is not None and not old.lost
    same_place = old is not None and old.allocation == event.allocation and not _another_run(old, event, at)
    if old is None or not stayed:
        _changed_nodes(world, at)
    world.nodes[event.node] = Node(
        name=event.node,
        gpus=event.gpus,
        cpus=event.cpus,
        memory_mib=event.memory_mib,
        agent_pid=event.agent_pid,
        boot_id=event.boot_id,
        emulated=event.emulated,
        connected=True,
        since=at,
        log_id=event.log_id,
        reports_seen=old.reports_seen if old is not None and same_log else 0,
        joined_at=old.joined_at if old is not None and stayed else at,
        until=old.until if old is not None and stayed and event.until is None and same_place else event.until,
        place=event.place,
        leaving=old is not None and stayed and same_log and same_place and old.leaving,
        allocation=event.allocation,
        address=event.address,
        avoided=() if old is None else tuple(_still_avoided(old, event)),
        failed=() if old is None or _numbers(old.gpus) != _numbers(event.gpus) else old.failed,
    )


def _numbers(gpus: Iterable[GpuInfo]) -> dict[int, str]:
    return {gpu.index: gpu.uuid for gpu in gpus}


def _still_avoided(old: Node, event: ev.NodeJoined) -> Iterator[Avoided]:
    """What is avoided stays so, by the numbers that the GPUs have now."""
    now = {gpu.uuid: gpu.index for gpu in event.gpus}
    for each in old.avoided:
        if each.index is None:
            yield each
        elif each.uuid in now:
            yield changed(each, index=now[each.uuid])


def _changed_nodes(world: World, at: float) -> None:
    """What comes or goes at the same moment is one change of the set of nodes."""
    if at > world.nodes_changed_at:
        if world.nodes_changed_at:
            world.gaps = (*world.gaps[1 - GAPS :], at - world.nodes_changed_at)
        world.nodes_changed_at = at


def _known_node(world: World, event: ev.NodeEvent) -> Node:
    node = world.nodes.get(event.node)
    if node is None:
        raise story(world, event, f"no such node {event.node}")
    return node


@effect(ev.NodeSilent, writes=("nodes",), jobs=jobs_near)
def node_silent(world: World, event: ev.NodeSilent, at: float) -> None:
    node = _known_node(world, event)
    reason = node.reason if node.leaving and node.reason else event.reason  # its agent had announced that it goes
    world.nodes[event.node] = changed(node, connected=False, reason=reason, since=at)


@effect(ev.NodeLost, writes=("nodes", "jobs", "holders", "backgrounds"), jobs=jobs_near)
def node_lost(world: World, event: ev.NodeLost, at: float) -> None:
    node = _known_node(world, event)
    _changed_nodes(world, at)
    world.nodes[event.node] = changed(node, connected=False, lost=True, reason=event.reason, since=at)
    for number in dict.fromkeys(jobs_on(world, event.node)):
        for incarnation in world.jobs[number].live:
            part = incarnation.part(event.node)
            if part is not None and not part.gone:
                free_gpus(world, (number, incarnation.number), part)
                # What has exited was not ended by the loss; only its GPUs went with the node.
                gone = changed(part, freed=True) if part.exited else changed(part, lost=True, detail=event.reason)
                put_without_gone_parts(world, world.jobs[number], put_part(incarnation, gone), at)


@effect(ev.NodeLeaves, writes=("nodes",), jobs=jobs_near)
def node_leaves(world: World, event: ev.NodeLeaves, at: float) -> None:
    node = _known_node(world, event)
    _changed_nodes(world, at)
    world.nodes[event.node] = changed(node, leaving=event.now, until=event.until, reason=event.reason)


@effect(ev.GpuChanged, writes=("nodes",))
def gpu_changed(world: World, event: ev.GpuChanged, at: float) -> None:
    node = _known_node(world, event)
    gpus = tuple(
        replace(gpu, state=event.state, detail=event.detail) if gpu.index == event.index else gpu for gpu in node.gpus
    )
    world.nodes[event.node] = changed(node, gpus=gpus)


@effect(ev.ReportsSeen, writes=("nodes",), nodes=nothing, decides=Decision.NONE)
def reports_seen(world: World, event: ev.ReportsSeen, at: float) -> None:
    world.nodes[event.node] = changed(_known_node(world, event), reports_seen=event.number)


@effect(ev.DaemonStarted, writes=("nodes",), jobs=anything, nodes=anything)
def daemon_started(world: World, event: ev.DaemonStarted, at: float) -> None:
    if event.fence <= world.fence:
        raise story(world, event, f"fence {event.fence} is not above {world.fence}")
    world.fence, world.nonce = event.fence, event.nonce
    world.stopping = world.stopping_now = False
    for name, node in world.nodes.items():
        if node.connected:
            world.nodes[name] = changed(node, connected=False, reason=RESTARTED, since=at)


@effect(ev.DaemonStopping, writes=(), jobs=anything, nodes=anything)
def daemon_stopping(world: World, event: ev.DaemonStopping, at: float) -> None:
    world.stopping = True
    world.stopping_now = world.stopping_now or event.now


@effect(ev.PolicyChosen, writes=())
def policy_chosen(world: World, event: ev.PolicyChosen, at: float) -> None:
    world.policy = event.policy


@effect(ev.ObjectiveChosen, writes=())
def objective_chosen(world: World, event: ev.ObjectiveChosen, at: float) -> None:
    world.objective = event.objective


@effect(ev.PlanAdopted, writes=(), jobs=lambda world, event: [target.job for target in event.targets])
def plan_adopted(world: World, event: ev.PlanAdopted, at: float) -> None:
    targets = dict(world.targets)
    for target in event.targets:
        if target.placement is None:
            targets.pop(target.job, None)
        else:
            targets[target.job] = target
    world.targets = targets
    world.warm = event.warm


@effect(ev.TroubleSeen, writes=(), decides=Decision.NONE)
def trouble_seen(world: World, event: ev.TroubleSeen, at: float) -> None:
    """Told to people; changes nothing."""


@effect(ev.GpuFaulted, writes=(), decides=Decision.NONE)
def gpu_faulted(world: World, event: ev.GpuFaulted, at: float) -> None:
    """Told to people; what follows from it is an event of its own."""
    _known_node(world, event)


def _fault_notified(event: ev.GpuAvoided) -> NoticeKind | None:
    return None if event.by_user else NoticeKind.GPU  # a user who excludes a GPU knows of it


@effect(ev.GpuAvoided, writes=("nodes",), jobs=jobs_near, notifies=_fault_notified)
def gpu_avoided(world: World, event: ev.GpuAvoided, at: float) -> None:
    node = _known_node(world, event)
    uuid = next((gpu.uuid for gpu in node.gpus if gpu.index == event.index), None)
    if event.index is not None and uuid is None:
        raise story(world, event, f"{event.node} has no GPU {event.index}")
    avoided = Avoided(event.index, uuid or "", at, event.until, event.reason, event.times, event.moves)
    others = tuple(each for each in node.avoided if each.index != event.index)
    world.nodes[event.node] = changed(node, avoided=(*others, avoided))


@effect(ev.AvoidLifted, writes=("nodes",), jobs=jobs_near)
def avoid_lifted(world: World, event: ev.AvoidLifted, at: float) -> None:
    node = _known_node(world, event)
    if all(each.over or each.index != event.index for each in node.avoided):
        raise story(world, event, "it is not excluded")
    avoided = tuple(
        changed(each, over=True, until=min(each.until, at)) if each.index == event.index else each
        for each in node.avoided
    )
    # What failed there before has been paid for.
    failed = tuple(each for each in node.failed if event.index is not None and event.index not in each.gpus)
    world.nodes[event.node] = changed(node, avoided=avoided, failed=failed)


def note_ending(world: World, number: int, incarnation: Incarnation, cause: Cause, at: float) -> None:
    """An incarnation ended: on each of its nodes that is a failure of the machine, or shows that its GPUs are well."""
    machine = cause in (Cause.INFRASTRUCTURE, Cause.STALLED)
    if not machine and cause not in (Cause.DONE, Cause.SUSPENDED):
        return
    for part in incarnation.parts:
        node = world.nodes.get(part.node)
        if node is None or not part.gpus or (not machine and not node.failed):
            continue
        if machine:
            failed = (*node.failed[1 - KEPT :], Failed(at, number, part.gpus))
        else:
            failed = tuple(each for each in node.failed if not set(each.gpus) & set(part.gpus))
        world.nodes[part.node] = changed(node, failed=failed)


# --- ids --------------------------------------------------------------------------------------------------------------


@effect(ev.IdsRaised, writes=())
def ids_raised(world: World, event: ev.IdsRaised, at: float) -> None:
    if min(event.job, event.pilot, event.notice) < 1 or min(event.incarnation, event.beginning) < 0:
        raise story(world, event, "ids begin at 1")
    if event.job > world.next_job:
        # Ids below those of a site were never given; the others may be those of jobs that are forgotten.
        world.unknown = (*world.unknown, (world.next_job, event.job - 1))
    known = world.floor
    world.floor = Floor(
        max(known.job, world.next_job),
        max(known.incarnation, event.incarnation),
        max(known.beginning, event.beginning),
    )
    world.next_job = max(world.next_job, event.job)
    world.next_pilot = max(world.next_pilot, event.pilot)
    world.next_notice = max(world.next_notice, event.notice)
