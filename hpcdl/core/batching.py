"""What a poll of the batch system amounts to: pilots seen or ended, nodes that leave or are lost.

An adapter only reports. Not to be listed concludes nothing until `MISSES` polls in a row agree; UNKNOWN never does.
"""

import math
from collections.abc import Iterable, Iterator, MutableMapping

from hpcdl.core import events as ev
from hpcdl.core import pilotevents as pe
from hpcdl.core.model import Node, World
from hpcdl.core.nodeeffects import UNTIL_CHANGED_S
from hpcdl.core.pilot import BatchJob, BatchState, Pilot

MISSES = 3
"""Polls in a row that must miss a batch job, accounting included, before it is concluded to be gone."""


def polled(
    world: World, jobs: Iterable[BatchJob], missed: MutableMapping[str, int], asked_at: float = math.inf
) -> Iterator[ev.Event]:
    """The events of one poll. `missed`: by batch id, how many polls in a row have missed it; kept up here.

    `asked_at`: when it began. A node whose agent came later may be of a batch job that was requeued since.
    """
    pilots = {pilot.batch_id: pilot for pilot in world.pilots.values() if pilot.batch_id and not pilot.over}
    held: dict[str, list[Node]] = {}
    for node in world.nodes.values():
        if node.allocation and not node.lost and not (node.connected and node.since > asked_at):
            held.setdefault(node.allocation, []).append(node)
    for job in jobs:
        pilot, nodes = pilots.get(job.id), held.get(job.id, [])
        if job.state is BatchState.MISSING:
            missed[job.id] = missed.get(job.id, 0) + 1
            if missed[job.id] >= MISSES:
                missed.pop(job.id)
                how = f"its batch system has not listed it in {MISSES} polls, nor does accounting know it"
                yield from _over(pilot, job.id, nodes, how, None)
            continue
        missed.pop(job.id, None)
        if job.state is BatchState.ENDED:
            yield from _over(pilot, job.id, nodes, _how(job), job)
            continue
        if pilot is not None and pilot.job != job and job.state is not BatchState.UNKNOWN:
            yield pe.PilotSeen(pilot.id, job)
        for node in nodes:
            yield from _looked_at(node, job)


def _over(pilot: Pilot | None, batch_id: str, nodes: list[Node], how: str, job: BatchJob | None) -> Iterator[ev.Event]:
    if pilot is not None:
        yield pe.PilotEnded(pilot.id, how, job)
    for node in nodes:
        why = f"batch job {batch_id} is over: {how}"
        if not node.connected:
            yield ev.NodeLost(node.name, why)
        elif not node.leaving:  # its agent still talks, from nodes that are not ours any more
            yield ev.NodeLeaves(node.name, node.until, True, why)


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
    if node.leaving:
        return
    if job.preempted or job.state is BatchState.ENDING:
        why = f"batch job {job.id} {'is being preempted' if job.preempted else 'is ending'}"
        yield ev.NodeLeaves(node.name, node.until, True, why)
    elif job.until is not None and (node.until is None or abs(node.until - job.until) > UNTIL_CHANGED_S):
        yield ev.NodeLeaves(node.name, job.until, False, f"the walltime of batch job {job.id}")
