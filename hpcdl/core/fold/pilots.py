"""Effects of the events of pilots: the batch jobs that hpcdl submits to hold nodes.

What a poll of the batch system means for them is concluded in `rules/batch_poll.py`.
"""

from dataclasses import replace

from hpcdl.core.fold.effect import effect
from hpcdl.core.fold.write import story
from hpcdl.core.model import events as ev
from hpcdl.core.model.pilot import BatchState, Pilot
from hpcdl.core.model.world import BatchEnd, World

KEPT = 64
"""Pilots that have ended and are remembered."""


KEPT_ENDS = 1_000
"""Ends of batch jobs that are remembered while no job waits for them: it may be retried."""


@effect(
    ev.BatchDependencyEnded,
    writes=("batch_ends", "awaited_batch"),
    jobs=lambda world, event: world.awaited_batch.get(event.batch, ()),
)
def batch_dependency_ended(world: World, event: ev.BatchDependencyEnded, at: float) -> None:
    world.batch_ends.pop(event.batch, None)  # the newest last
    world.batch_ends[event.batch] = BatchEnd(event.done, event.how, at)
    for batch in list(world.batch_ends)[: max(0, len(world.batch_ends) - KEPT_ENDS)]:
        if not any(each in world.active for each in world.awaited_batch.get(batch, ())):
            del world.batch_ends[batch]
            world.awaited_batch.pop(batch, None)


@effect(
    ev.BatchDependencyRequeued,
    writes=("batch_ends",),
    jobs=lambda world, event: world.awaited_batch.get(event.batch, ()),
)
def batch_dependency_requeued(world: World, event: ev.BatchDependencyRequeued, at: float) -> None:
    world.batch_ends.pop(event.batch, None)


@effect(ev.PilotRequested, writes=("pilots",))
def pilot_requested(world: World, event: ev.PilotRequested, at: float) -> None:
    if event.pilot != world.next_pilot:
        raise story(world, event, f"the next pilot is {world.next_pilot}, not {event.pilot}")
    over = [number for number, pilot in world.pilots.items() if pilot.over]
    for number in over[: max(0, len(over) - KEPT)]:
        del world.pilots[number]
    world.pilots[event.pilot] = Pilot(event.pilot, event.spec, since=at, asked_at=at)
    world.next_pilot = event.pilot + 1


def _living(world: World, event: ev.PilotEvent) -> Pilot:
    pilot = world.pilots.get(event.pilot)
    if pilot is None or pilot.over:
        raise story(world, event, f"no pilot {event.pilot} lives")
    return pilot


@effect(ev.PilotSubmitted, writes=("pilots",))
def pilot_submitted(world: World, event: ev.PilotSubmitted, at: float) -> None:
    pilot = _living(world, event)
    if pilot.batch_id:
        raise story(world, event, f"pilot {event.pilot} is batch job {pilot.batch_id} already")
    world.pilots[event.pilot] = replace(pilot, batch_id=event.batch_id, since=at)


@effect(ev.PilotRefused, writes=("pilots",))
def pilot_refused(world: World, event: ev.PilotRefused, at: float) -> None:
    world.pilots[event.pilot] = replace(_living(world, event), how=event.reason or "refused", refused=True, since=at)


@effect(ev.PilotSeen, writes=("pilots",))
def pilot_seen(world: World, event: ev.PilotSeen, at: float) -> None:
    pilot = _living(world, event)
    job, before = event.job, pilot.job
    known = BatchState.PENDING if before is None else before.state
    ran = None if before is None else (before.started_at, before.nodes)
    # Another reason is no news for how long it waits: some batch systems count hosts in theirs.
    same = job.state is known and (job.state is BatchState.PENDING or (job.started_at, job.nodes) == ran)
    world.pilots[event.pilot] = replace(pilot, job=job, since=pilot.since if same else at)


@effect(ev.PilotFound, writes=("pilots",))
def pilot_found(world: World, event: ev.PilotFound, at: float) -> None:
    pilot = world.pilots.get(event.pilot)
    if pilot is None or not pilot.over:
        raise story(world, event, f"no pilot {event.pilot} is over")
    job = event.job
    world.pilots[event.pilot] = replace(pilot, batch_id=job.id, job=job, how="", refused=False, since=at)


@effect(ev.PilotCancelRequested, writes=("pilots",))
def pilot_cancel_requested(world: World, event: ev.PilotCancelRequested, at: float) -> None:
    world.pilots[event.pilot] = replace(_living(world, event), cancelled=event.why or "cancelled")


@effect(ev.PilotEnded, writes=("pilots",))
def pilot_ended(world: World, event: ev.PilotEnded, at: float) -> None:
    pilot = _living(world, event)
    job, before = event.job or pilot.job, pilot.job
    if job is not None and before is not None and job.started_at is None and not job.nodes:
        # Of one that is over, batch systems may tell less; that it ran is not forgotten.
        job = replace(job, started_at=before.started_at, nodes=before.nodes)
    world.pilots[event.pilot] = replace(pilot, job=job, how=event.how or "ended", since=at)
