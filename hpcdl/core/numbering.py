"""Numbers that are given once: what `IdsRaised` does to the world, and what is known of the ids that it jumped over."""

from hpcdl.core.changing import story
from hpcdl.core.idevents import IdsRaised
from hpcdl.core.model import Floor, Job, World


def ids_raised(world: World, event: IdsRaised, at: float) -> None:
    """What the event does to the world; only `effects` calls it."""
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


def is_unknown(world: World, number: int) -> bool:
    """Whether the id is one that this ledger never gave and never will: its job, if there was one, is forgotten."""
    return any(first <= number <= last for first, last in world.unknown)


def floor_of(world: World, job: Job) -> Floor:
    """Incarnation and new beginning that the job, or another in its checkpoint folder, may have had unseen."""
    if job.id < world.floor.job or job.spec.checkpoint_dir is not None:
        return world.floor
    return Floor()


def no_such_job(world: World, number: int) -> str:
    """What is said to whoever names a job that is not there."""
    if is_unknown(world, number):
        return f"nothing is known of a job {number}, whose id was left out: hpcdl ls --all lists those that are known"
    return f"there is no job {number}: hpcdl ls --all lists them"
