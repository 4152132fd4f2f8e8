"""What a daemon writes into its lease of the batch job that it runs in, and whether that batch job has ended."""

from dataclasses import dataclass

from hpcdl.batch import Allocation, BatchAdapter, ask_twice
from hpcdl.core.pilot import BatchState

SAME_START_S = 60.0
"""Starts of one run of a batch job, told by its environment and by a poll, differ by less."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run of a batch job: a requeued one has the same id and another start (seconds since the epoch).

    `cluster`: of a batch system that tells its name, "" where it does not; two clusters may share a file system.
    """

    kind: str
    id: str
    started_at: float | None = None
    cluster: str = ""

    def __str__(self) -> str:
        start = "" if self.started_at is None else f"{self.started_at:.0f}"
        return f"{self.kind}:{self.id}:{start}:{self.cluster}"

    @classmethod
    def parse(cls, text: str) -> "BatchRun | None":
        """What `str` made; None where it is no such text."""
        parts = text.split(":", 3)
        if len(parts) != 4 or not parts[0] or not parts[1] or not (parts[2] == "" or parts[2].isdecimal()):
            return None
        return cls(parts[0], parts[1], float(parts[2]) if parts[2] else None, parts[3])

    @classmethod
    def of(cls, allocation: Allocation, cluster: str) -> "BatchRun":
        """The run that this process is in. `cluster`: see `BatchSystem.cluster`."""
        return cls(allocation.kind, allocation.id, allocation.started_at, cluster)


def has_ended(system: BatchAdapter, holder: str, mine: BatchRun | None, cluster: str) -> bool:
    """Whether the batch system says that the run is over which `holder` names. Raises BatchError.

    Not to be listed proves nothing, nor does what another cluster's batch system says. A run is over, too, when its
    batch job waits again, or runs since a later time. `mine`: the run that this process is in, None outside of any;
    `cluster`: this cluster's name, "" where it is not known.
    """
    run = BatchRun.parse(holder)
    if run is None or run.kind != system.kind or (run.cluster and cluster and run.cluster != cluster):
        return False
    job = ask_twice(system, run.id)
    if job.state in (BatchState.MISSING, BatchState.UNKNOWN, BatchState.GONE):
        return False
    later = None  # whether this is another run than the holder's; None: not known
    if run.started_at is not None and job.started_at is not None:
        if job.started_at < run.started_at - SAME_START_S:
            return False  # it cannot be that batch job: another cluster's, of the same number
        later = job.started_at > run.started_at + SAME_START_S
    same_cluster = (run.cluster != "" and run.cluster == cluster) or (mine is not None and mine.id == run.id)
    if later or (job.state is BatchState.PENDING and run.started_at is not None):
        return same_cluster
    return job.state is BatchState.ENDED
