"""What a poll of the batch system amounts to: pilots seen, ended or found again, nodes that leave, stay or are lost.

An adapter only reports, and no single command concludes anything: `doubted` says of which batch jobs a second one is
asked, `agreed` what both of them say, and only that is handed to `polled`. MISSING and UNKNOWN conclude nothing; GONE
does when `MISSES` polls in a row agree. While an agent of a batch job is connected, or the daemon lives in it, it is
not over, whatever is said. What was concluded is undone when the batch job is listed again.
"""

import math
from collections.abc import Collection, Iterable, Iterator, MutableMapping
from dataclasses import replace

from hpcdl.core.fold.nodes import UNTIL_CHANGED_S
from hpcdl.core.model import events as ev
from hpcdl.core.model.pilot import BatchJob, BatchState, Pilot, pilot_of
from hpcdl.core.model.world import Node, World
from hpcdl.core.rules.dependencies import batch_end

MISSES = 3
"""Polls in a row in which the batch system must not know a batch job before it is concluded to be gone."""

ENDS = 2
"""Polls in a row in which a pilot that waits must have ended: no agent of it can say otherwise."""

SAME_S = 60.0
"""Starts and ends of one run, reported by two commands, differ by less: some are rounded to the minute."""

_LIVES = (BatchState.PENDING, BatchState.RUNNING, BatchState.SUSPENDED)


def poll_events(
    world: World,
    jobs: Iterable[BatchJob],
    missed: MutableMapping[str, int],
    asked_at: float = math.inf,
    own: str = "",
    system: str = "",
) -> Iterator[ev.Event]:
    """The events of one poll. `missed`: by batch id, in how many polls in a row it was GONE; kept up here. `system`:
    the batch system that was asked, as jobs that wait for batch jobs name it.

    `asked_at`: when it began. A node whose agent came later may be of a batch job that was requeued since. `own`: the
    batch job that the daemon runs in, "" outside of any.
    """
    pilots = {pilot.batch_id: pilot for pilot in world.pilots.values() if pilot.batch_id and not pilot.over}
    held = _held(world, asked_at)
    for job in jobs:
        pilot, nodes, awaited = pilots.get(job.id), held.get(job.id, []), f"{system}:{job.id}"
        waits = _is_awaited(world, awaited)
        if job.state is BatchState.GONE and not _is_there(world, job.id, own):
            missed[job.id] = missed.get(job.id, 0) + 1
            if missed[job.id] >= MISSES:
                missed.pop(job.id)
                how = f"its batch system has said {MISSES} times in a row that there is no such batch job"
                yield from _over(pilot, job.id, nodes, how, None)
                if waits:
                    yield ev.BatchDependencyEnded(awaited, None, how)
            continue
        if job.state is BatchState.ENDED and pilot is not None and _waits(pilot) and not pilot.cancelled:
            missed[job.id] = missed.get(job.id, 0) + 1
            if missed[job.id] < ENDS:
                continue
        missed.pop(job.id, None)
        if job.state is BatchState.ENDED and not _is_there(world, job.id, own):
            yield from _over(pilot, job.id, nodes, _how(job), job)
            if waits:
                yield ev.BatchDependencyEnded(awaited, job.done, _how(job))
        if job.state in (BatchState.ENDED, BatchState.GONE, BatchState.MISSING, BatchState.UNKNOWN):
            continue
        if awaited in world.batch_ends and job.state in (BatchState.PENDING, BatchState.RUNNING):
            yield ev.BatchDependencyRequeued(awaited)
        if pilot is not None and pilot.job != job and not (job.state is BatchState.PENDING and _connected(nodes)):
            yield ev.PilotSeen(pilot.id, job)
        for node in nodes:
            yield from _looked_at(node, job)


def awaited_batch_jobs(world: World, system: str) -> set[str]:
    """The ids of batch jobs for whose end unfinished jobs wait, of the batch system of that name."""
    return {
        batch.partition(":")[2]
        for batch in world.awaited_batch
        if batch.startswith(f"{system}:") and _is_awaited(world, batch)
    }


def _waits(pilot: Pilot) -> bool:
    """Whether it was seen, and always waiting."""
    return pilot.job is not None and pilot.job.state is BatchState.PENDING and not pilot.job.nodes


def _is_awaited(world: World, batch: str) -> bool:
    """Whether an unfinished job waits for an end of it that is not known yet."""
    return any(
        number in world.active and batch_end(world, world.jobs[number], batch) is None
        for number in world.awaited_batch.get(batch, ())
    )


def with_agents(world: World) -> tuple[Pilot, ...]:
    """The pilots; one that no poll has shown on any node yet is on those from which its agents have come."""
    held: dict[str, list[str]] = {}
    for node in world.nodes.values():
        if node.connected and node.allocation:
            held.setdefault(node.allocation, []).append(node.name)
    return tuple(_on(pilot, tuple(held.get(pilot.batch_id, ()))) for pilot in world.pilots.values())


def _on(pilot: Pilot, nodes: tuple[str, ...]) -> Pilot:
    if pilot.over or pilot.nodes or not nodes:
        return pilot
    job = pilot.job or BatchJob(pilot.batch_id, BatchState.RUNNING)
    every = tuple(dict.fromkeys((*nodes, *pilot.spec.on)))  # of several the agents come one after the other
    return replace(pilot, job=replace(job, state=BatchState.RUNNING, nodes=every))


def doubted(world: World, jobs: Iterable[BatchJob], asked_at: float = math.inf, own: str = "") -> tuple[str, ...]:
    """The batch jobs of this poll of which something would be concluded, and of which a second command is asked."""
    pilots = {pilot.batch_id: pilot for pilot in world.pilots.values() if pilot.batch_id and not pilot.over}
    return tuple(job.id for job in jobs if _doubts(world, job, pilots.get(job.id), asked_at, own))


def _doubts(world: World, job: BatchJob, pilot: Pilot | None, asked_at: float, own: str) -> bool:
    if job.state in (BatchState.MISSING, BatchState.ENDED, BatchState.GONE):
        return not _is_there(world, job.id, own)
    for event in poll_events(world, (job,), {}, asked_at, own):
        if not isinstance(event, ev.PilotSeen):
            return True
        before = None if pilot is None else pilot.job
        waited = before is None or before.state is BatchState.PENDING
        if not waited or job.state not in (BatchState.PENDING, BatchState.RUNNING):
            return True  # only that what waits still waits, or runs now, is taken from one command
    return False


def agreed(first: BatchJob, second: BatchJob) -> BatchJob:
    """What two commands say of a batch job; UNKNOWN, with what they say, where they differ."""
    if second.state in (BatchState.GONE, BatchState.ENDED) and first.state is BatchState.MISSING:
        return second
    if second.state is BatchState.GONE and first.state is BatchState.ENDED:
        return first  # forgotten in between
    if first.state is second.state and _one_run(first, second) and _one_end(first, second):
        return replace(
            first,
            nodes=first.nodes or second.nodes,
            started_at=second.started_at if first.started_at is None else first.started_at,
        )
    said = first.state.lower() if first.state is not BatchState.MISSING else "not listed"
    again = second.state.lower() + (f": {second.reason}" if second.reason else "")
    return BatchJob(first.id, BatchState.UNKNOWN, reason=f"batch job {first.id} is {said}, asked for alone {again}")


def _one_run(first: BatchJob, second: BatchJob) -> bool:
    """Whether nodes, start and end are the same, as far as both tell them, and whether it is being preempted."""
    if first.state is BatchState.RUNNING and first.preempted != second.preempted:
        return False
    if first.nodes and second.nodes and set(first.nodes) != set(second.nodes):
        return False
    times = ((first.started_at, second.started_at), (first.until, second.until))
    return all(one is None or other is None or abs(one - other) < SAME_S for one, other in times)


def _one_end(first: BatchJob, second: BatchJob) -> bool:
    """Whether it ended well, or not, by both; one that has not the exit code says nothing of that."""
    return first.code is None or second.code is None or first.done == second.done


def strays(
    world: World, instance: str, marked: Iterable[BatchJob]
) -> tuple[tuple[tuple[int, BatchJob], ...], tuple[BatchJob, ...]]:
    """Batch jobs with a mark of ours that live though the world does not know it: those whose pilot goes on with them,
    and those that nobody wants any more. `marked`: all with a mark of ours.
    """
    again: dict[int, BatchJob] = {}
    unwanted = []
    living = [(pilot_of(job.mark, instance), job) for job in marked if job.state in _LIVES]
    for number, job in living:
        pilot = None if number is None else world.pilots.get(number)
        if number is None or (pilot is not None and not pilot.over and pilot.batch_id in ("", job.id)):
            continue
        wanted = pilot is not None and pilot.over and not pilot.cancelled and not pilot.refused and not world.stopping
        if wanted and number not in again:
            again[number] = job
        else:
            unwanted.append(job)
    return tuple(again.items()), tuple(unwanted)


def _held(world: World, asked_at: float) -> dict[str, list[Node]]:
    """The nodes of each batch job, of which the poll can tell something."""
    held: dict[str, list[Node]] = {}
    for node in world.nodes.values():
        if node.allocation and not node.lost and not (node.connected and node.since > asked_at):
            held.setdefault(node.allocation, []).append(node)
    return held


def _connected(nodes: Collection[Node]) -> bool:
    return any(node.connected for node in nodes)


def _is_there(world: World, batch_id: str, own: str) -> bool:
    """Whether something of it answers us: an agent, or we are in it ourselves."""
    return batch_id == own or _connected([node for node in world.nodes.values() if node.allocation == batch_id])


def _over(pilot: Pilot | None, batch_id: str, nodes: list[Node], how: str, job: BatchJob | None) -> Iterator[ev.Event]:
    if pilot is not None:
        yield ev.PilotEnded(pilot.id, how, job)
    for node in nodes:
        yield ev.NodeLost(node.name, f"batch job {batch_id} is over: {how}")


def _how(job: BatchJob) -> str:
    if job.preempted:
        return f"preempted: {job.reason}" if job.reason else "preempted"
    said = job.reason or "ended"
    return said if job.code in (None, 0) else f"{said}, exit code {job.code}"


def _looked_at(node: Node, job: BatchJob) -> Iterator[ev.Event]:
    """A node of an allocation that is not over."""
    waits = job.state is BatchState.PENDING  # requeued, under the same id
    elsewhere = job.state is BatchState.RUNNING and job.nodes and node.name not in job.nodes
    if (waits or elsewhere) and not node.connected:
        how = "waits again" if waits else "goes on without it"
        yield ev.NodeLost(node.name, f"batch job {job.id} {how}")
        return
    ends = job.preempted or job.state is BatchState.ENDING
    if node.leaving:
        if not ends and not elsewhere and job.state is BatchState.RUNNING and _was_concluded(node):
            yield ev.NodeLeaves(node.name, job.until or node.until, False, f"batch job {job.id} goes on")
    elif ends:
        why = f"batch job {job.id} is {'being preempted' if job.preempted else 'ending'}"
        yield ev.NodeLeaves(node.name, node.until, True, why)
    elif job.until is not None and (node.until is None or abs(node.until - job.until) > UNTIL_CHANGED_S):
        yield ev.NodeLeaves(node.name, job.until, False, f"the walltime of batch job {job.id}")


def _was_concluded(node: Node) -> bool:
    """Whether it leaves by the word of the batch system; earlier versions left it for a batch job that `is over`, too.

    Its user, its agent or its walltime give other reasons.
    """
    return node.reason.startswith(f"batch job {node.allocation} is ")
