"""Nodes that fail a job though nothing is wrong with it: a mount of theirs is stale, say. The job is tried elsewhere.

Agents say which error is of that kind (hpcdl/agent/supervisor/node_faults.py). Such a node is excluded for a while, as
long as the job has others to go to; what fails on all of them is common to them, or the job's own. What may be its
user's doing excludes a node for no longer than it takes to try another one that is free: other jobs want it.
"""

from collections.abc import Iterator

from hpcdl.core.model import events as ev
from hpcdl.core.model.health import again
from hpcdl.core.model.incarnation import Cause, Incarnation
from hpcdl.core.model.units import GpuRef, fold_nodes
from hpcdl.core.model.world import Job, World

TRY_S = 60.0
"""For a start elsewhere."""


def unfit_nodes(job: Job, ended: Incarnation) -> tuple[str, ...]:
    """The nodes that failed the job since it last began on any, now that this incarnation has ended."""
    lasting = {part.node for part in ended.parts if part.permanent and part.hint is not Cause.OUT_OF_MEMORY}
    here = lasting | {part.node for part in ended.parts if part.node_fault}
    if not here and ended.started_at is not None:
        return ()
    return tuple(sorted({*job.unfit_nodes, *here}))


def is_left_elsewhere(world: World, job: Job, unfit: tuple[str, ...], *, free: bool = False) -> bool:
    """Whether there are nodes for the job, busy or not (or `free` ones), besides those that failed it."""
    found = 0
    for node in world.nodes.values():
        if node.name not in unfit:
            gpus = [gpu for gpu in node.usable if not (free and GpuRef(node.name, gpu) in world.holders)]
            found += len(gpus) >= job.spec.gpus_min
    return found >= job.spec.nodes


def fails_everywhere(world: World, job: Job, unfit: tuple[str, ...]) -> bool:
    """Whether what no other attempt changes on a node is the job's own: several nodes have it, or there is no other."""
    return len(unfit) > 1 or not is_left_elsewhere(world, job, unfit)


def exclusions(
    world: World, event: ev.IncarnationEnded, now: float, avoid_s: float
) -> Iterator[ev.GpuAvoided | ev.AvoidLifted]:
    """What follows for the nodes that failed the job, `event` being in the world: they are excluded while it has others
    to go to. Once it has none, or has failed, these were not at fault: they are given to jobs again."""
    if not event.unfit_nodes:
        return
    job = world.jobs[event.job]
    why = f"job {job.id} could not run there"
    if event.final is not None or not is_left_elsewhere(world, job, event.unfit_nodes):
        for name in event.unfit_nodes:
            node = world.nodes.get(name)
            entry = None if node is None else node.avoids(None)
            if entry is not None and entry.reason.startswith(f"{why}: "):
                yield ev.AvoidLifted(name, None, f"job {job.id} fails on {fold_nodes(event.unfit_nodes)} alike")
        return
    if event.perhaps_own and not is_left_elsewhere(world, job, event.unfit_nodes, free=True):
        return
    held = () if job.last.placement is None else job.last.placement.nodes
    for name in held if avoid_s > 0 else ():
        node = world.nodes.get(name)
        if name not in event.unfit_nodes or node is None or node.lost or node.avoids(None) is not None:
            continue
        before = next((each for each in node.avoided if each.index is None), None)
        times, until = (1, now + min(TRY_S, avoid_s)) if event.perhaps_own else again(before, now, avoid_s)
        yield ev.GpuAvoided(name, None, until, f"{why}: {event.detail}", times)
