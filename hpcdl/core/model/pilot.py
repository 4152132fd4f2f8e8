"""What batch systems say, as values: batch jobs, holes; and pilots, the batch jobs that hpcdl submits to hold nodes.

An adapter reports, only the core concludes. Times are seconds since the epoch, by the daemon's clock.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class BatchState(StrEnum):
    """What a batch system says of a batch job. MISSING: it does not list it. UNKNOWN: it says what nobody understands.

    Neither of these two concludes anything: a job that is not listed need not be over, and UNKNOWN is not dead. GONE:
    asked for this one alone it says that there is no such batch job.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    ENDING = "ENDING"
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"
    MISSING = "MISSING"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A batch job as one poll shows it. `mark`: what its submitter had it carry (`pilot_mark`), "" for others' jobs.

    `nodes`: () while it waits. `until`: when its walltime ends. `started_at`: tells a requeued job, whose id is the
    same, from its earlier run. `reason`: in the batch system's words: why it waits, who suspended it, how it ended.
    `preempted`: it ends or ended because its nodes were given to somebody else. `code`: exit code, where it is told.
    `by_hand`: somebody ended it (scancel, bkill), which may have been us.
    """

    id: str
    state: BatchState
    mark: str = ""
    queue: str = ""
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    until: float | None = None
    reason: str = ""
    preempted: bool = False
    code: int | None = None
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class Hole:
    """Idle nodes, and until when no batch job can use them.

    `nodes`: their names, () where the batch system only tells how many (`count`). `queue`: the partition or queue whose
    batch jobs may take them. `gpus`: on each node, None where that is not told; `kind`: their type, in lower case.
    `until`: None where nothing planned ends it. `why`: what ends it, in words. `walltime_s`: the longest that the queue
    allows, None without a limit; `nodes_max`: the most nodes that it gives one batch job. `preemptable`: the batch
    system ends its batch jobs when others want these nodes; `why_not`: in words, where it does not.
    """

    queue: str
    count: int
    nodes: tuple[str, ...] = ()
    gpus: int | None = None
    kind: str = ""
    until: float | None = None
    why: str = ""
    walltime_s: float | None = None
    nodes_max: int | None = None
    preemptable: bool = False
    why_not: str = ""

    def __post_init__(self) -> None:
        if self.count < 1 or (self.nodes and len(self.nodes) != self.count):
            raise ValueError(f"a hole has one node or more, and as many names: {self.count}, {len(self.nodes)} names")


@dataclass(frozen=True, slots=True)
class PendingBatchJob:
    """A batch job of others that waits for nodes, and for nothing else as far as the batch system says.

    `count`: how many it needs of `nodes`, those that it could run on as far as that is known. `preempts`: the queues
    whose batch jobs the batch system itself ends for it. `since`: when it was seen first.
    """

    id: str
    count: int
    nodes: tuple[str, ...]
    queue: str = ""
    preempts: frozenset[str] = frozenset()
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class PilotSpec:
    """What is asked of the batch system. `nodes`: how many; `on`: the ones that are wanted, () where any will do.

    `gpus`: on each node, None: whatever is there. `why`: in words, for people.
    """

    nodes: int
    walltime_s: float
    queue: str = ""
    gpus: int | None = None
    on: tuple[str, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        if self.nodes < 1 or not 0 < self.walltime_s < math.inf:
            raise ValueError(f"a pilot has nodes and a walltime, got {self.nodes} nodes, {self.walltime_s} s")
        if self.on and len(self.on) != self.nodes:
            raise ValueError(f"a pilot of {self.nodes} nodes cannot be on {len(self.on)}")


@dataclass(frozen=True, slots=True)
class Pilot:
    """A pilot, from the decision to submit it to its end.

    `batch_id`: "" until the batch system has taken it. `job`: what was seen of it last. `cancelled`: why we want it to
    end, "" while we do not. `how`: how it ended, "" while it has not; `refused`: the batch system did not take it.
    `since`: when it was decided, taken, seen in another state or on other nodes, or ended.
    """

    id: int
    spec: PilotSpec
    since: float
    asked_at: float
    batch_id: str = ""
    job: BatchJob | None = None
    cancelled: str = ""
    how: str = ""
    refused: bool = False

    @property
    def over(self) -> bool:
        """Whether it has ended, or was never taken."""
        return bool(self.how)

    @property
    def state(self) -> str:
        """For people: REQUESTED, REFUSED, or what the batch system says (a BatchState)."""
        if self.over:
            return "REFUSED" if self.refused else BatchState.ENDED
        if not self.batch_id:
            return "REQUESTED"
        return BatchState.PENDING if self.job is None else self.job.state

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it holds; () while it waits and after its end."""
        return () if self.job is None or self.over else self.job.nodes


def pilot_mark(instance: str, pilot: int) -> str:
    """What the batch job of a pilot carries in its comment or description, so that it is known again."""
    return f"hpcdl:{instance}:p{pilot}"


def pilot_of(mark: str, instance: str) -> int | None:
    """The pilot's id, where `mark` is of a pilot of this HPCDL_HOME's daemon."""
    start = f"hpcdl:{instance}:p"
    number = mark.removeprefix(start)
    return int(number) if mark.startswith(start) and number.isascii() and number.isdigit() else None


BY_USER = "cancelled by its user"
"""Why a pilot is not wanted, where it was `hpcdl pilots --cancel`."""


@dataclass(frozen=True, slots=True)
class PilotChoice:
    """Which pilots to submit, and which to cancel (id, why). `notes`: why not more, in words, for people."""

    ask: tuple[PilotSpec, ...] = ()
    cancel: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()
    wake_at: float | None = None
