"""The events of one job: of a member of an array, its submit is an event of the first member."""

from hpcdl.core.events import ArraySubmitted, Recorded
from hpcdl.core.journal import Journal
from hpcdl.core.model import World
from hpcdl.core.retiring import is_retired


def events_of(journal: Journal, world: World, after: int, limit: int, job: int | None) -> list[Recorded]:
    """At most `limit` events after the seq `after`, of one job where given, oldest first. Raises JournalError."""
    known = None if job is None else world.jobs.get(job)
    if job is not None and is_retired(world, job):
        known = next(iter(journal.retired((job,))), None)
    array = 0 if known is None else known.spec.array
    found: list[Recorded] = []
    if array and array != job:
        found = [each for each in journal.read(0, 1, array) if each.seq > after and _submits(each)]
    return (found + journal.read(after, limit, job))[:limit]


def _submits(record: Recorded) -> bool:
    return isinstance(record.event, ArraySubmitted)
