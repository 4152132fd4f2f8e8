"""One start of a job's processes: what it holds, its parts on the nodes, and how it ended. Values only."""

from dataclasses import dataclass, field
from enum import StrEnum

from hpcdl.core.units import GpuRef


class IncarnationState(StrEnum):
    """GATED: warm, holds no GPU. RUNNING: GPUs granted. SAVING: asked to suspend. EXITED: gone, its GPUs free."""

    GATED = "GATED"
    RUNNING = "RUNNING"
    SAVING = "SAVING"
    EXITED = "EXITED"


class Cause(StrEnum):
    """Why an incarnation ended. Only USER_ERROR spends the job's retries."""

    DONE = "done"
    SUSPENDED = "suspended"
    PREEMPTED = "preempted"
    WALLTIME = "walltime"
    NODE_LOST = "node lost"
    STALLED = "stalled"
    INFRASTRUCTURE = "infrastructure"
    OUT_OF_MEMORY = "out of memory"
    USER_ERROR = "user error"
    CANCELLED = "cancelled"


class Purpose(StrEnum):
    """Why a suspend was asked for."""

    RESCALE = "rescale"
    PREEMPT = "preempt"
    HOLD = "hold"
    STOP = "stop"


class Role(StrEnum):
    """PRIMARY: its best number of GPUs; SECONDARY: what was left (MARBLE); BACKGROUND: shares GPUs (DeepPool)."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    BACKGROUND = "background"


@dataclass(frozen=True, slots=True)
class Share:
    """The GPUs of one node in a placement, by index, ascending."""

    node: str
    gpus: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.gpus or list(self.gpus) != sorted(set(self.gpus)) or self.gpus[0] < 0:
            raise ValueError(
                f"share of node {self.node!r}: GPU indices must be ascending and distinct, got {self.gpus}"
            )


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs by node, a role, and a layout that only the policy and the trainer read."""

    shares: tuple[Share, ...]
    role: Role = Role.PRIMARY
    layout: str | None = None
    nodes: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    """Node names, sorted; before the first membership the first one is the writer's."""

    def __post_init__(self) -> None:
        names = [share.node for share in self.shares]
        if not names or names != sorted(set(names)):
            raise ValueError(f"placement: nodes must be sorted and distinct, and at least one, got {names}")
        object.__setattr__(self, "nodes", tuple(names))

    @property
    def gpus(self) -> tuple[GpuRef, ...]:
        """Every GPU of the placement."""
        return tuple(GpuRef(share.node, index) for share in self.shares for index in share.gpus)

    @property
    def per_node(self) -> int:
        """GPUs on the node that has the fewest."""
        return min(len(share.gpus) for share in self.shares)

    def same_gpus(self, other: "Placement") -> bool:
        """Whether both name exactly the same GPUs (role and layout aside)."""
        return self.shares == other.shares


@dataclass(frozen=True, slots=True)
class Part:
    """One node's share of an incarnation, as its agent reported it.

    `code` or `signal`: how its first process ended. `ended_by`: what the supervisor had asked of the trainer then:
    suspend, end, absence (of an agent), or None. `done`: the trainer said that its training is complete. `hint`: the
    cause, where the agent knows more than the code says. `freed`: its GPUs were seen free. `lost`: its node is gone.
    `gpus`: those that it holds, by index. `since`: the membership for which it was asked to come. `address`: where its
    ranks would let the others meet. `leaving`: it was asked to go while the others stay. `asked_at`: when it was
    asked to join a running incarnation; `gate_at`: when it was ready to.
    """

    node: str
    gpus: tuple[int, ...] = ()
    since: int = 1
    address: str = ""
    leaving: bool = False
    asked_at: float = 0.0
    gate_at: float = 0.0
    started: bool = False
    at_gate: bool = False
    exited: bool = False
    code: int | None = None
    signal: str | None = None
    ended_by: str | None = None
    done: bool = False
    hint: Cause | None = None
    detail: str = ""
    exited_at: float | None = None
    freed: bool = False
    lost: bool = False
    repeats: int = 1
    """So many times its ranks had failed alike, started again by their launcher."""
    kept: str = ""
    """The checkpoint that its program wrote by itself since it was asked to go; `older`: the newest since its start."""
    older: str = ""

    @property
    def gone(self) -> bool:
        """No process of it is left and its GPUs are free, or its node is gone."""
        return self.lost or (self.exited and self.freed)

    @property
    def stays(self) -> bool:
        """Its processes are there, as far as is known, and nobody asked it to go while the others stay."""
        return not (self.leaving or self.exited or self.lost)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One start of a job's processes. Times are the daemon's, in seconds since the epoch.

    `placement`: None at the gate. `warm`: it was started at the gate. `requested_at`, `granted_at`: the start was asked
    for; GPUs were given. `started_at`, `ready_at`: its processes run on every node; its training loop has begun, at
    `ready_step`. `progressed_at`, `progressed_step`: of the last report of progress. `asked_at`: it was asked to
    suspend (`purpose`: what for) or to end (`ending`: the cause that its end will have). `saved_step`: of its last
    durable checkpoint; `saved_final`: that was the answer to a suspend. `preempt`: it is to be suspended, whatever the
    plan says. `placed_at`: when `placement` last
    changed.

    `stalled_at`: since when nothing of it moved, None where it does; `stalled_what`: of which kind the progress is that
    is missing; `stalled_restart`: it is to be started again.

    `membership`: the newest numbered set of nodes that its ranks were told to form, 0 before the first one; `members`:
    those nodes, in the order of their ranks: the first has the writer. `formed`: the members that its ranks formed
    last: they have the state of the training. `rescale_at`: when they were told, None while they train. `broken_at`: a
    rank has said since then that the others do not answer. `members_before`: how many nodes trained before.
    `rendezvous`: where its first members met. `join_failures`: nodes that ended before they joined. `asked_for`: the
    highest membership that a part was asked to join, or one that is gone was. `breaks`: so many times the same members
    were told to form anew since the last step.

    `begun_at`: since when it is known to train, and `startup_s`: what its start had taken then (`exempt`).
    `reformed_at`, `reform_s`: when its ranks formed a new membership last, and how long they did not train for it.
    """

    number: int
    state: IncarnationState
    parts: tuple[Part, ...]
    placement: Placement | None
    membership: int = 1
    members: tuple[str, ...] = ()
    formed: tuple[str, ...] = ()
    asked_for: int = 0
    rescale_at: float | None = None
    broken_at: float | None = None
    members_before: int = 0
    rendezvous: str = ""
    join_failures: int = 0
    breaks: int = 0
    placed_at: float | None = None
    warm: bool = False
    requested_at: float = 0.0
    granted_at: float | None = None
    started_at: float | None = None
    ready_at: float | None = None
    ready_step: int = 0
    progressed_at: float | None = None
    progressed_step: int = 0
    asked_at: float | None = None
    purpose: Purpose | None = None
    ending: Cause | None = None
    attached: bool = False
    saved_step: int | None = None
    saved_final: bool = False
    preempt: bool = False
    stalled_at: float | None = None
    stalled_what: str = ""
    stalled_restart: bool = False
    ending_detail: str = ""
    begun_at: float | None = None
    startup_s: float | None = None
    reformed_at: float | None = None
    reform_s: float = 0.0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have a part of it."""
        return tuple(part.node for part in self.parts)

    @property
    def trains(self) -> bool:
        """Its training loop runs, as far as is known, and nobody has asked it to stop."""
        if self.ready_at is None or self.asked_at is not None or self.rescale_at is not None:
            return False
        return not any(part.gone and not part.leaving for part in self.parts)

    @property
    def writer(self) -> str:
        """The node of the rank that writes checkpoints."""
        return self.members[0] if self.members else self.parts[0].node

    @property
    def training(self) -> tuple[Part, ...]:
        """The parts that train; all of them, where it was not told of members."""
        if not self.members:
            return self.parts
        members = frozenset(self.members)
        return tuple(part for part in self.parts if part.node in members)

    @property
    def holders(self) -> tuple[str, ...]:
        """Members that have the state of the training, as far as is known; all where none has trained yet."""
        formed = frozenset(self.formed or self.members)
        return tuple(part.node for part in self.training if part.stays and part.node in formed)

    @property
    def next_join(self) -> int:
        """The membership that parts asked to come now may join: no other part of their nodes had that number."""
        return max(self.membership, self.asked_for) + 1

    @property
    def newcomers(self) -> tuple[Part, ...]:
        """Parts that have never been in a membership that formed: nothing of the training is theirs yet."""
        formed = frozenset(self.formed or self.members)
        return tuple(part for part in self.parts if part.stays and part.node not in formed)

    @property
    def joining(self) -> tuple[Part, ...]:
        """Parts that are there to be taken into the next membership."""
        members = frozenset(self.members)
        return tuple(part for part in self.parts if part.stays and part.node not in members)

    def part(self, node: str) -> Part | None:
        """This incarnation's part on a node, or None."""
        for part in self.parts:
            if part.node == node:
                return part
        return None
