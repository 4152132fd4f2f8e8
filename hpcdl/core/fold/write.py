"""How effects write to a world: the pieces that they share. Only effects call what is here.

They replace values in the world's outer dicts, which are a draft's own, and never change a value.
"""

from typing import Any

from hpcdl.core.fold import membership as ms
from hpcdl.core.fold.effect import TRANSITIONS
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import changed
from hpcdl.core.model.incarnation import Incarnation, IncarnationState, Part, Placement, Role
from hpcdl.core.model.sharing import grant_refusal
from hpcdl.core.model.transitions import IllegalEvent, state_of
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import Job, World


def story(world: World, event: Any, why: str) -> IllegalEvent:
    job = world.jobs.get(getattr(event, "job", -1))
    told = "unknown job"
    if job is not None:
        lives = ", ".join(f"{inc.number} {inc.state} on {'+'.join(inc.nodes)}" for inc in job.live) or "none"
        told = f"job {job.id} is {state_of(job)}, attempts: {lives}, last number {job.last_incarnation}"
    return IllegalEvent(f"{event.kind} after seq {world.seq}: {why} ({told})")


def job_of(world: World, event: ev.JobEvent) -> Job:
    job = world.jobs.get(event.job)
    if job is None:
        raise story(world, event, "no such job")
    return job


def step_of(world: World, event: ev.IncarnationEvent) -> tuple[Job, Incarnation]:
    """The job and its incarnation with the state that the table gives."""
    job = job_of(world, event)
    incarnation = job.incarnation(event.incarnation)
    if incarnation is None:
        raise story(world, event, f"attempt {event.incarnation} does not live")
    after = TRANSITIONS.get((incarnation.state, type(event)))
    if after is None:
        raise story(world, event, f"not allowed while {incarnation.state}")
    return job, incarnation if after is incarnation.state else changed(incarnation, state=after)


def put(world: World, job: Job, incarnation: Incarnation, **changes: Any) -> None:
    live = tuple(incarnation if inc.number == incarnation.number else inc for inc in job.live)
    world.jobs[job.id] = changed(job, live=live, **changes)


def put_part(incarnation: Incarnation, part: Part) -> Incarnation:
    parts = list(incarnation.parts)
    for place, old in enumerate(parts):
        if old.node == part.node:
            parts[place] = part
            break
    over = part.gone and all(each.gone for each in parts)
    return changed(incarnation, parts=tuple(parts), state=IncarnationState.EXITED if over else incarnation.state)


def jobs_on(world: World, node: str) -> list[int]:
    """The jobs of which something lives that has a part on the node."""
    found = []
    for number in world.live:  # of thousands, for each of thousands of nodes: no generators
        for incarnation in world.jobs[number].live:
            for part in incarnation.parts:
                if part.node == node:
                    found.append(number)
                    break
    return found


def jobs_near(world: World, event: ev.NodeEvent) -> list[int]:
    """The jobs of which something lives that has a part on the event's node, or is to have one there."""
    found = jobs_on(world, event.node)
    for number in world.live:
        target = world.targets.get(number)
        if target is not None and target.placement is not None and event.node in target.placement.nodes:
            found.append(number)
    return found


def part_of(world: World, event: ev.Report, incarnation: Incarnation) -> Part:
    part = incarnation.part(event.node)
    if part is None:
        raise story(world, event, f"it has no part on {event.node}")
    return part


def grant_gpus(world: World, event: ev.IncarnationEvent, placement: Placement) -> None:
    job, background = world.jobs[event.job], placement.role is Role.BACKGROUND
    if background and not (job.spec.share and job.spec.share.as_background):
        raise story(world, event, "it has not agreed to be a background")
    for gpu in placement.gpus:
        why = grant_refusal(world, gpu, job, background=background)
        if why:
            raise story(world, event, why)
    there = world.backgrounds if background else world.holders
    there.update((gpu, (event.job, event.incarnation)) for gpu in placement.gpus)


def put_without_gone_parts(world: World, job: Job, incarnation: Incarnation, at: float, **changes: Any) -> None:
    """After what it holds may have changed: GPU time is counted up to now."""
    before = job.incarnation(incarnation.number)
    incarnation = ms.without_gone_parts(incarnation, job.spec.rescale != "restart")
    if before is not None and before.placement is not None and incarnation.placement is not before.placement:
        changes["held_gpu_s"] = job.held_gpu_s + gpu_s(before, at)
        incarnation = changed(incarnation, placed_at=at)
    put(world, job, incarnation, **changes)


def gpu_s(incarnation: Incarnation, at: float) -> float:
    """GPU seconds that it has held since its placement became what it is."""
    if incarnation.placement is None:
        return 0.0
    since = incarnation.holds_since if incarnation.placed_at is None else incarnation.placed_at
    return max(0.0, at - since) * len(incarnation.placement.gpus)


def free_gpus(world: World, key: tuple[int, int], part: Part) -> None:
    for index in part.gpus:
        gpu = GpuRef(part.node, index)
        for there in (world.holders, world.backgrounds):
            if there.get(gpu) == key:
                del there[gpu]
