"""Which GPUs and nodes are excluded: those with faults, those on which several jobs fail, and those that users name.

Decided by the world and the time alone; what a fault means is in `model/health.py`. The end of an exclusion is
recorded too, so that a replay needs no clock.
"""

from collections.abc import Iterator

from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import Avoid, CommandRefused, Lift
from hpcdl.core.model.health import Avoided, FaultAction, again, fault_of, suspects
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.units import count
from hpcdl.core.model.world import Node, World
from hpcdl.core.rules.jobs import preemptible

MOST_S = 30 * 24 * 3600.0
"""For longer than this nothing is avoided at a user's wish: `hpcdl drain` is for that."""


def wished(world: World, command: Avoid | Lift, now: float) -> ev.GpuAvoided | ev.AvoidLifted:
    """What `hpcdl avoid` amounts to. Raises CommandRefused."""
    return _avoided(world, command, now) if isinstance(command, Avoid) else _lifted(world, command)


def _avoided(world: World, command: Avoid, now: float) -> ev.GpuAvoided:
    node = _known(world, command.node, command.index)
    if not 0 < command.for_s <= MOST_S:
        raise CommandRefused(
            f"it can be excluded for 1 s to {MOST_S / 86_400:g} days; hpcdl drain {command.node} has no end"
        )
    times = getattr(_entry(node, command.index), "times", 0) + 1
    reason = command.reason or "its user says so"
    return ev.GpuAvoided(command.node, command.index, now + command.for_s, reason, times, command.moves, by_user=True)


def _lifted(world: World, command: Lift) -> ev.AvoidLifted:
    node = _known(world, command.node, command.index)
    before = _entry(node, command.index)
    name = command.node if command.index is None else f"{command.node}:{command.index}"
    if before is None or before.over:
        whole = node.avoids(command.index)
        hint = f"; all of {command.node} is: hpcdl avoid --lift {command.node}" if whole is not None else ""
        raise CommandRefused(f"{name} is not excluded{hint} (hpcdl avoid lists what is)", "not-avoided")
    return ev.AvoidLifted(command.node, command.index, "its user says so")


def _known(world: World, name: str, index: int | None) -> Node:
    node = world.nodes.get(name)
    if node is None or node.lost:
        raise CommandRefused(f"there is no node {name!r}: hpcdl nodes lists them", "unknown-node")
    if index is not None and all(gpu.index != index for gpu in node.gpus):
        has = ", ".join(str(gpu.index) for gpu in node.gpus) or "none"
        raise CommandRefused(f"{name} has no GPU {index}; it has {has}", "unknown-gpu")
    return node


def _entry(node: Node, index: int | None) -> Avoided | None:
    return next((each for each in node.avoided if each.index == index), None)


def faulted(world: World, event: ev.GpuFaulted, now: float, avoid_s: float) -> ev.GpuAvoided | None:
    """What follows from a fault that an agent saw; None where nothing does. A fault that goes on adds time only."""
    fault, node = fault_of(event.fault), world.nodes.get(event.node)
    if fault is None or fault.action is FaultAction.NOTE or node is None or avoid_s <= 0:
        return None
    if all(gpu.index != event.index for gpu in node.gpus):
        return None
    before = _entry(node, event.index)
    times, until = again(before, now, avoid_s)
    reason = f"{_titled(event.fault)}: {fault.said}"
    if before is not None and not before.over:
        until, times = max(before.until, now + avoid_s), before.times
        if before.reason == reason and until - before.until < avoid_s / 4:
            return None  # drivers often report one fault several times
    return ev.GpuAvoided(event.node, event.index, until, reason, times, fault.action is FaultAction.MOVE)


def _titled(fault: str) -> str:
    return fault[:1].upper() + fault[1:] if fault != "ecc" else "ECC"


def suspected(world: World, event: ev.IncarnationEnded, now: float, limit: int, avoid_s: float) -> list[ev.GpuAvoided]:
    """What follows from one more failure by no doing of the job's: GPUs on which several jobs fail are avoided.

    Only where others are left on which jobs do not fail: a machine must not stand still for what is common to all.
    """
    if event.cause not in (Cause.INFRASTRUCTURE, Cause.STALLED) or limit < 1 or avoid_s <= 0:
        return []
    held = world.jobs[event.job].last.placement
    found = []
    for name in () if held is None else held.nodes:
        node = world.nodes.get(name)
        if node is None or node.lost or not node.connected:
            continue
        gpus = suspects(node.failed, now, limit)
        if gpus is None or not _others_are_well(world, name, gpus):
            continue
        if not {gpu.index for gpu in node.gpus}.issuperset(gpus):
            continue  # its agent came back without them while the job still had them
        many = count(len([each for each in node.failed if set(each.gpus) & set(gpus) or not gpus]), "job")
        for index in gpus or (None,):
            if node.avoids(index) is None:
                times, until = again(_entry(node, index), now, avoid_s)
                found.append(ev.GpuAvoided(name, index, until, f"{many} failed there in a row: {event.detail}", times))
    return found


def _others_are_well(world: World, name: str, gpus: tuple[int, ...]) -> bool:
    for node in world.nodes.values():
        usable = set(node.usable)
        if node.name == name:
            usable = usable - set(gpus) if gpus else set()
        if usable and not any(usable & set(each.gpus) for each in node.failed):
            return True
    return False


def expired(world: World, now: float) -> Iterator[ev.AvoidLifted]:
    """What has been avoided for long enough."""
    for node in world.nodes.values():
        for each in node.avoided:
            if not each.over and each.until <= now:
                yield ev.AvoidLifted(node.name, each.index, "its time is over")


def moved(world: World, event: ev.GpuAvoided) -> Iterator[ev.PreemptRequested]:
    """The jobs on what is avoided that are to leave it: those that lose nothing but time by that."""
    for number in world.live if event.moves else ():
        job = world.jobs[number]
        running = job.running
        part = None if running is None else running.part(event.node)
        if running is None or part is None or part.gone or running.preempt:
            continue
        if event.index is not None and event.index not in part.gpus:
            continue
        try:
            preemptible(world, job)
        except CommandRefused:
            continue  # it would start over: better that it goes on for as long as it can
        yield ev.PreemptRequested(number, running.number)
