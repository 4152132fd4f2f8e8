"""The event of jobs that leave the world. `events` has it with all the others."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hpcdl.core.eventbase import Event
from hpcdl.core.units import runs


@dataclass(frozen=True, slots=True)
class JobsRetired(Event):
    """These jobs ended long ago, and are kept as history only: the ledger has them in a table, the world no more.

    `ranges`: the first and the last id of those that follow each other.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "JobsRetired":
        """Of these ids, which go up."""
        return cls(tuple(runs(numbers)))

    @property
    def jobs(self) -> Iterator[int]:
        """The ids."""
        for first, last in self.ranges:
            yield from range(first, last + 1)
