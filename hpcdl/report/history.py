"""What happened, as values: jobs, their attempts on GPUs, and what each GPU did when.

`spans` reads them from events; every drawing and measure starts from a `History`.
"""

from dataclasses import dataclass
from enum import StrEnum

from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Role
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState


class Phase(StrEnum):
    """What an attempt of a job does with its GPUs. RESCALING: its ranks form a new membership, or have lost each other.
    ENDING: exited or leaving, its GPUs not yet reported free.
    """

    STARTING = "starting"
    TRAINING = "training"
    RESCALING = "rescaling"
    SAVING = "saving"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a span in which neither phase, role nor size changes; times in seconds since the epoch.

    `nodes`, `per_node`, `gpus`: on how many nodes the attempt trains, GPUs on the smallest of them, and on all.
    """

    phase: Phase
    role: Role
    begin: float
    end: float
    nodes: int = 1
    per_node: int = 1
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Span:
    """One GPU held by one attempt, from its grant until it was reported free. A node that comes to a running
    attempt begins later, one that it gives back ends before it. `gpus`: on how many the attempt trained last.

    `ready_at` is when its training began, None if it never did. `cause` is None while it still runs.
    """

    job: int
    name: str
    incarnation: int
    node: str
    gpu: int
    gpus: int
    start_at: float
    ready_at: float | None
    end_at: float
    pieces: tuple[Piece, ...]
    cause: Cause | None

    @property
    def role(self) -> Role:
        """The role that it ended with."""
        return self.pieces[-1].role


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A wait at the gate, without a GPU. `opened`: it was let through."""

    job: int
    name: str
    incarnation: int
    node: str
    start_at: float
    end_at: float
    opened: bool


@dataclass(slots=True)
class Tenure:
    """An attempt's share of one node. `left_at`: it was requested to leave; `end_at`: its GPUs were reported free."""

    node: str
    gpus: tuple[int, ...]
    begin: float
    left_at: float | None = None
    exited_at: float | None = None
    end_at: float | None = None


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """An attempt of a job on its GPUs, of which `placement` is what it began with. `asked_at`, `purpose`: its suspend;
    `exited_at`: its last process was gone; `end_at`: its last GPU was reported free. None: has not happened. `told`,
    `formed`: when its ranks were notified of a membership on these nodes, and when they had formed it; `broken`: when
    they had lost each other.
    """

    number: int
    placement: Placement
    start_at: float
    ready_at: float | None = None
    asked_at: float | None = None
    purpose: Purpose | None = None
    exited_at: float | None = None
    end_at: float | None = None
    cause: Cause | None = None
    started_at: float | None = None
    attached: bool = False
    roles: tuple[tuple[float, Role], ...] = ()
    told: tuple[tuple[float, tuple[str, ...]], ...] = ()
    formed: tuple[tuple[float, tuple[str, ...]], ...] = ()
    broken: tuple[float, ...] = ()
    tenures: tuple[Tenure, ...] = ()

    def sizes(self) -> tuple[tuple[float, int, int, int], ...]:
        """Since when it trains on how many nodes, GPUs on the smallest of them, and GPUs in all."""
        shares = self.placement.shares
        found = [(self.start_at, len(shares), self.placement.per_node, len(self.placement.gpus))]
        for at, members in self.formed:
            there = {tenure.node: len(tenure.gpus) for tenure in self.tenures if tenure.begin <= at}
            gpus = [there[node] for node in members if node in there]
            if gpus and (len(gpus), min(gpus), sum(gpus)) != found[-1][1:]:
                found.append((at, len(gpus), min(gpus), sum(gpus)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """A job and its attempts that held GPUs, in order. `state` is None while it is not finished."""

    id: int
    name: str
    profile: str | None
    submitted_at: float
    finished_at: float | None
    state: JobState | None
    attempts: tuple[JobAttempt, ...]


@dataclass(frozen=True, slots=True)
class History:
    """What happened from `begin`, the first submit, to `end`: the last job's end, or the last event if some go on."""

    begin: float
    end: float
    gpus: tuple[GpuRef, ...]
    jobs: tuple[JobHistory, ...]
    spans: tuple[Span, ...]
    warm: tuple[WarmStart, ...]
