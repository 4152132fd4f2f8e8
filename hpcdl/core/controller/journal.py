"""The journal that the Controller writes to: SQLite in the daemon, memory in the simulator and in tests.

The interface, and the journal in memory. The durable one is `ledger/journal.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import structs

from hpcdl.core.fold.fold import Draft, fold
from hpcdl.core.model.commands import Request
from hpcdl.core.model.events import Event, JobsRetired, Recorded
from hpcdl.core.model.world import Job, World

Stamped = tuple[float, Event]
"""An event and when it happened, in the daemon's seconds since the epoch."""


class JournalError(Exception):
    """Nothing of the batch was recorded; the message says why (disk full, lease lost)."""


class LeaseLost(JournalError):
    """Another daemon holds the lease: this one must write nothing more and end."""


class Journal(Protocol):
    """Durable memory: record, then act, then record the outcome."""

    def append(
        self, events: Sequence[Stamped], requests: Sequence[Request] = (), settled: Sequence[int] = ()
    ) -> tuple[list[Recorded], list[Request]]:
        """One commit: records (at, event) pairs, adds requests to the outbox, removes settled ones. Then it is durable.

        Raises JournalError, and then nothing was recorded.
        """
        ...

    def load(self) -> World:
        """The world: the last snapshot and the events since."""
        ...

    def pending(self) -> list[Request]:
        """Requests not yet taken by their agent, oldest first."""
        ...

    def read(self, after: int = 0, limit: int = 1000, job: int | None = None) -> list[Recorded]:
        """Events with seq > after, oldest first; of one job where given."""
        ...

    def retired(self, ids: Sequence[int] | None = None, before: int | None = None, limit: int = 1000) -> list[Job]:
        """Jobs that have left the world, as they were then: those of these ids, or the newest with an id < before."""
        ...


class MemoryJournal:
    """A journal that lasts as long as its process. Contract: see `Journal`."""

    def __init__(self) -> None:
        self.records: list[Recorded] = []
        self._versions: dict[str, int] = {}
        self._outbox: dict[int, Request] = {}
        self._last_request = 0

    def append(
        self, events: Sequence[Stamped], requests: Sequence[Request] = (), settled: Sequence[int] = ()
    ) -> tuple[list[Recorded], list[Request]]:
        """See `Journal.append`."""
        added = []
        for at, event in events:
            stream = event.stream
            version = self._versions.get(stream, 0) + 1
            self._versions[stream] = version
            record = Recorded(len(self.records) + 1, at, version, event)
            self.records.append(record)
            added.append(record)
        numbered = []
        for request in requests:
            self._last_request += 1
            numbered.append(structs.replace(request, id=self._last_request))
            self._outbox[self._last_request] = numbered[-1]
        for number in settled:
            self._outbox.pop(number, None)
        return added, numbered

    def load(self) -> World:
        """See `Journal.load`."""
        return fold(World(), self.records)

    def pending(self) -> list[Request]:
        """See `Journal.pending`."""
        return list(self._outbox.values())

    def read(self, after: int = 0, limit: int = 1000, job: int | None = None) -> list[Recorded]:
        """See `Journal.read`."""
        chosen: Iterable[Recorded] = self.records[after:]
        if job is not None:
            chosen = (record for record in chosen if getattr(record.event, "job", None) == job)
        return [record for record, _ in zip(chosen, range(limit), strict=False)]

    def retired(self, ids: Sequence[int] | None = None, before: int | None = None, limit: int = 1000) -> list[Job]:
        """See `Journal.retired`."""
        draft, found = Draft(World()), dict[int, Job]()
        for record in self.records:
            if isinstance(record.event, JobsRetired):
                found.update((number, draft.world.jobs[number]) for number in record.event.jobs)
            draft.add(record.event, record.at)
        wanted = sorted(found, reverse=True) if ids is None else [number for number in ids if number in found]
        return [found[number] for number in wanted if before is None or number < before][:limit]
