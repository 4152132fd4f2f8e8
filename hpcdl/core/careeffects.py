"""What the events of stalls and of avoided GPUs do to the world; `effects` has the table."""

from hpcdl.core import careevents as ce
from hpcdl.core.changed import changed
from hpcdl.core.changing import put, step_of, story
from hpcdl.core.eventbase import NodeEvent
from hpcdl.core.health import KEPT, Avoided, Failed
from hpcdl.core.model import Cause, Incarnation, Node, World


def job_stalled(world: World, event: ce.JobStalled, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(
        world,
        job,
        changed(incarnation, stalled_at=event.since, stalled_what=event.what, stalled_restart=event.restart),
    )


def stall_over(world: World, event: ce.StallOver, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, changed(incarnation, stalled_at=None, stalled_what="", stalled_restart=False))


def _known_node(world: World, event: NodeEvent) -> Node:
    node = world.nodes.get(event.node)
    if node is None:
        raise story(world, event, f"no such node {event.node}")
    return node


def gpu_faulted(world: World, event: ce.GpuFaulted, at: float) -> None:
    """Told to people; what follows from it is an event of its own."""
    _known_node(world, event)


def gpu_avoided(world: World, event: ce.GpuAvoided, at: float) -> None:
    node = _known_node(world, event)
    uuid = next((gpu.uuid for gpu in node.gpus if gpu.index == event.index), None)
    if event.index is not None and uuid is None:
        raise story(world, event, f"{event.node} has no GPU {event.index}")
    avoided = Avoided(event.index, uuid or "", at, event.until, event.reason, event.times, event.moves)
    others = tuple(each for each in node.avoided if each.index != event.index)
    world.nodes[event.node] = changed(node, avoided=(*others, avoided))


def avoid_lifted(world: World, event: ce.AvoidLifted, at: float) -> None:
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
