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
    """A batch job as one poll shows it."""

    id: str
    state: BatchState
    mark: str = ""  # what its submitter had it carry (`pilot_mark`); "" for others' jobs
    queue: str = ""
    nodes: tuple[str, ...] = ()  # () while it waits
    started_at: float | None = None  # by it a requeued job, whose id is the same, differs from its run before
    until: float | None = None  # when its walltime ends; None: not known
    reason: str = ""  # in the batch system's words: why it waits, who suspended it, how it ended
    preempted: bool = False  # it ends or ended because its nodes were given to somebody else
    code: int | None = None  # exit code; None: not known
    by_hand: bool = False  # somebody ended it (scancel, bkill), which may have been us
    failed: bool = False  # it ended, and not well, whatever its exit code is: out of time, on a node that failed

    @property
    def done(self) -> bool:
        """Whether it ended, and well."""
        return self.state is BatchState.ENDED and self.code == 0 and not (self.failed or self.preempted or self.by_hand)


@dataclass(frozen=True, slots=True)
class Hole:
    """A backfill hole: idle nodes, and until when no batch job can use them."""

    queue: str  # the partition or queue whose batch jobs may take them
    count: int  # nodes
    nodes: tuple[str, ...] = ()  # their names; (): the batch system only says how many
    gpus: int | None = None  # on each node; None: not known
    kind: str = ""  # type of the GPUs, in lower case; "": not known
    until: float | None = None  # None: nothing planned ends it
    why: str = ""  # what ends it, in words
    walltime_s: float | None = None  # the longest that the queue allows; None: no limit
    nodes_max: int | None = None  # the most nodes that the queue gives one batch job; None: no limit
    preemptable: bool = False  # the batch system ends the queue's batch jobs when others want these nodes
    why_not: str = ""  # in words, where it does not

    def __post_init__(self) -> None:
        if self.count < 1 or (self.nodes and len(self.nodes) != self.count):
            raise ValueError(f"a hole has one node or more, and as many names: {self.count}, {len(self.nodes)} names")


@dataclass(frozen=True, slots=True)
class PendingBatchJob:
    """A batch job of others that waits for nodes, and for nothing else as far as the batch system says."""

    id: str
    count: int  # how many nodes it needs
    nodes: tuple[str, ...]  # on which it could run, as far as is known
    queue: str = ""
    preempts: frozenset[str] = frozenset()  # queues whose batch jobs the batch system itself ends for it
    since: float = 0.0  # when it was seen first


@dataclass(frozen=True, slots=True)
class PilotSpec:
    """What a pilot asks of the batch system."""

    nodes: int  # how many
    walltime_s: float
    queue: str = ""
    gpus: int | None = None  # on each node; None: whatever is there
    on: tuple[str, ...] = ()  # names of the nodes; (): any will do
    why: str = ""  # it is submitted, in words for people

    def __post_init__(self) -> None:
        if self.nodes < 1 or not 0 < self.walltime_s < math.inf:
            raise ValueError(f"a pilot has nodes and a walltime, got {self.nodes} nodes, {self.walltime_s} s")
        if self.on and len(self.on) != self.nodes:
            raise ValueError(f"a pilot of {self.nodes} nodes cannot be on {len(self.on)}")


@dataclass(frozen=True, slots=True)
class Pilot:
    """A pilot, from the decision to submit it to its end."""

    id: int
    spec: PilotSpec
    since: float  # when it was decided, taken, seen in another state or on other nodes, or ended
    asked_at: float  # when it was decided
    batch_id: str = ""  # "" until the batch system has taken it
    job: BatchJob | None = None  # as the last poll showed it; None before
    cancelled: str = ""  # why it is to end; "": it is not
    how: str = ""  # it ended; "" while it has not
    refused: bool = False  # the batch system did not take it

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
    """Which pilots to submit, and which to cancel."""

    ask: tuple[PilotSpec, ...] = ()
    cancel: tuple[tuple[int, str], ...] = ()  # (id, why)
    notes: tuple[str, ...] = ()  # why not more, in words for people
    wake_at: float | None = None  # when to look again at the latest, the daemon's time; None: when something happens
