"""The events of arrays and retries. `events` has them with all the others."""

from dataclasses import dataclass

from hpcdl.core.arrays import Array, expand
from hpcdl.core.eventbase import JobEvent
from hpcdl.core.jobspec import JobSpec


@dataclass(frozen=True, slots=True)
class ArraySubmitted(JobEvent):
    """Acknowledges an array, whose first member is `job`; the others follow it. `arrays.expand` says what they are.

    `spec`: their template. `indices`, `sweep`, `max_parallel`: of an `arrays.Array`. `held`: they are held at once.
    """

    spec: JobSpec
    request_id: str
    indices: tuple[tuple[int, int, int], ...] = ()
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    max_parallel: int = 0
    held: bool = False
    nonce: str = ""

    @property
    def array(self) -> Array:
        """Which jobs it has."""
        return Array(self.indices, self.sweep, self.max_parallel)

    @property
    def members(self) -> range:
        """Their ids."""
        return range(self.job, self.job + self.array.size)

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """Of its members, in order."""
        return expand(self.spec, self.array, self.job)


@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    """Its user has a job that FAILED or was CANCELLED queued again; it resumes from its last checkpoint.

    `beginning`: with it its checkpoint folder is begun anew, for the time of that number; 0: it is not. `failures`: so
    often it has failed until then, which is still told; earlier versions began at 0 again, and their events still do.
    """

    beginning: int = 0
    failures: int = 0
