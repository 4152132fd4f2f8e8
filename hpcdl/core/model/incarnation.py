"""One start of a job's processes (an attempt, for users): what it holds, its parts on the nodes, and how it ended.

Values only. Apart from `job.py`, which every `hpcdl submit` loads: making these classes takes 10 ms.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from hpcdl.core.model.profile import AttemptRate
from hpcdl.core.model.units import GpuRef, seconds_text


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
    TIME = "time"

    @property
    def words(self) -> str:
        """As people read it behind `suspended`."""
        return _WORDS[self]


_WORDS = {
    Purpose.RESCALE: "to go on with other GPUs",
    Purpose.PREEMPT: "for other jobs",
    Purpose.HOLD: "by its user",
    Purpose.STOP: "since the daemon stopped",
    Purpose.TIME: "at its time limit",
}


class Role(StrEnum):
    """PRIMARY: its best number of GPUs; SECONDARY: what was left (MARBLE); BACKGROUND: shares GPUs (DeepPool)."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    BACKGROUND = "background"

    @property
    def told(self) -> str:
        """Behind what holds GPUs: ` as secondary`; "" of the usual role."""
        return "" if self is Role.PRIMARY else f" as {self}"


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
    """One node's share of an incarnation, as its agent reported it. Times are the daemon's."""

    node: str
    gpus: tuple[int, ...] = ()  # the indices of those that it holds; () at the gate
    since: int = 1  # the membership for which it was asked to come
    address: str = ""  # HOST:PORT where its ranks would let the others meet; "" before it is ready
    leaving: bool = False  # it was asked to go while the others stay
    asked_at: float = 0.0  # when it was asked to join a running incarnation; 0.0: it was not
    gate_at: float = 0.0  # when it was at the gate, or ready to join; 0.0 before
    started: bool = False  # its processes run
    at_gate: bool = False  # they wait at the gate, or are ready to join
    exited: bool = False  # none of its processes is left
    code: int | None = None  # exit code of its first process; None: a signal ended it, or nobody saw its end
    signal: str | None = None  # that ended its first process; None: none did
    ended_by: str | None = None  # what was asked of it then: suspend, end, leave, absence (of an agent); None: nothing
    done: bool = False  # its trainer reported that the training is complete
    left: bool = False  # its script had come to its end
    by_itself: bool = False  # it exited before it was sent a signal, and nothing that it saved answered a suspend
    hint: Cause | None = None  # the cause, where the agent knows more than the code says; None: it does not
    detail: str = ""  # of its end, in words
    exited_at: float | None = None  # None before
    freed: bool = False  # its GPUs were seen free
    lost: bool = False  # its node is gone
    repeats: int = 1  # times that its ranks had failed alike, started again by their launcher
    kept: str = ""  # the checkpoint that its program wrote by itself since it was asked to go; "": none was seen
    older: str = ""  # the newest checkpoint that its program wrote before; "": none was seen
    permanent: bool = False  # another start comes no further there, as its agent knows
    node_fault: bool = False  # its node failed it, as its agent knows: another one may not
    missing: int | None = None  # a step that was saved, and it would have begun at step 0; None: nothing is missing

    @property
    def gone(self) -> bool:
        """No process of it is left and its GPUs are free, or its node is gone."""
        return self.lost or (self.exited and self.freed)

    @property
    def stays(self) -> bool:
        """Its processes are there, as far as is known, and nobody asked it to go while the others stay."""
        return not (self.leaving or self.exited or self.lost)

    @property
    def ended_from_outside(self) -> bool:
        """It went by no doing of the job's: with its node, for lack of a daemon, or killed."""
        if self.lost or not self.exited:
            return self.lost
        if self.ended_by is not None:
            return self.ended_by == "absence"
        return killed_from_outside(self) or self.hint in OUTSIDE_CAUSES

    @property
    def ended_itself(self) -> bool:
        """It failed, or completed: that ends the others too, and what they held is what a failure was on."""
        return self.exited and not self.leaving and not self.ended_from_outside


NO_STEP, NOT_READY, NO_OUTPUT = "no step", "not ready to train", "no output and no CPU time"
"""Which kind of progress a stalled incarnation lacks, in words; they are stored."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A running incarnation of which nothing moves."""

    at: float  # since when, the daemon's time
    what: str  # NO_STEP, NOT_READY or NO_OUTPUT
    restart: bool = False  # it is to be started again from its last durable checkpoint

    def text(self, step: int | None, now: float) -> str:
        """In words, of a job whose last step is `step`: `no step for 12 min 00 s; at step 400`."""
        words = seconds_text(max(0.0, now - self.at))
        where = "" if step is None else f"; at step {step}"
        return f"{NOT_READY} {words} after its start" if self.what == NOT_READY else f"{self.what} for {words}{where}"


@dataclass(frozen=True, slots=True)
class Throttle:
    """For how much of its time a background may run, as the agent found that the job beside it bears it."""

    foreground: int  # the job beside it
    duty: float  # from 0 to 1
    limit: float  # of that job's slowdown, 0.1 for 10 %
    slowdown: float | None  # of that job, as measured at this duty; None: it is being measured

    @property
    def text(self) -> str:
        """In words."""
        opens = f"may run {100 * self.duty:.0f} % of its time" if self.duty else "is held at a step"
        if self.slowdown is None:
            what = "how much that slows it down" if self.duty else "how fast that is alone"
            return f"{opens} beside job {self.foreground}: {what} is being measured"
        slowed = f"job {self.foreground} is slowed down by {max(0.0, 100 * self.slowdown):.1f} %"
        limit = f"limit {100 * self.limit:.3g} %"
        return f"{opens}: {slowed} ({limit})" if self.duty else f"{opens}: {slowed} now, and was by more ({limit})"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """An incarnation was asked to suspend, to end, or first the one and then the other."""

    at: float  # of the newest of them
    purpose: Purpose | None = None  # what the suspend is for; None: it was not asked to suspend
    cause: Cause | None = None  # that its end will have; None: it was not asked to end
    detail: str = ""  # of that cause, in words


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """What the training loop of an incarnation reported: where it began, and the newest step."""

    ready_at: float  # when the loop began, the daemon's time
    ready_step: int  # the step from which it went on
    at: float  # of the newest report; `ready_at` before the first step
    step: int  # of the newest report
    # What its reports show, on what it holds; None: nothing yet. Snapshots of earlier versions lack it.
    rate: AttemptRate | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
    """The newest checkpoint that an incarnation made durable."""

    step: int
    final: bool = False  # it was the answer to a suspend


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """How an incarnation came to train; the exemption from preemption is counted from here."""

    at: float  # since when it is known to train, the daemon's time
    took_s: float  # seconds of its start, the wait at the gate left out


@dataclass(frozen=True, slots=True)
class InPlaceRescale:
    """The ranks of an incarnation formed a new membership, and train on."""

    at: float  # when they did, the daemon's time
    took_s: float  # seconds for which they did not train


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One start of a job's processes. Times are the daemon's, in seconds since the epoch."""

    number: int
    state: IncarnationState
    parts: tuple[Part, ...]
    placement: Placement | None  # None at the gate

    # Its membership: a numbered set of nodes whose ranks train together; a rescale in place makes a new one.
    membership: int = 1  # the newest that its ranks were to form; 0 before the first one
    members: tuple[str, ...] = ()  # nodes of that, in the order of their ranks, the writer's first; () before
    formed: tuple[str, ...] = ()  # members that its ranks formed last: they have the training's state; () before
    asked_for: int = 0  # the highest that a part was asked to join, or one that is gone was
    rescale_at: float | None = None  # when its ranks were asked to form it; None while they train
    broken_at: float | None = None  # when a rank said since then that others do not answer; None: none did
    members_before: int = 0  # nodes that trained before it
    rendezvous: str = ""  # HOST:PORT where its first members met; "" before
    join_failures: int = 0  # nodes that ended before they joined, since the last one that formed
    breaks: int = 0  # times that the same members had to form anew since the last step

    placed_at: float | None = None  # when `placement` last changed; None: not since `granted_at`
    warm: bool = False  # it was started at the gate
    requested_at: float = 0.0  # the start was asked for
    granted_at: float | None = None  # it was given GPUs; None at the gate
    started_at: float | None = None  # its processes run on every node; None before
    attached: bool = False  # its trainer talks to its supervisor
    preempt: bool = False  # it is to be suspended, whatever the plan says

    training_start: TrainingStart | None = None  # None until it is known to train
    progress: TrainingProgress | None = None  # None until its training loop says that it begins
    checkpoint: DurableCheckpoint | None = None  # None before the first one
    end_at: float | None = None  # since when all of its steps are done, and its script's end runs; None before
    stall: Stall | None = None  # None while it moves
    stop: StopRequest | None = None  # None while nothing was asked of it

    last_rescale: InPlaceRescale | None = None  # None before the first one
    idle_noted: bool = False  # GPUs that it leaves idle were recorded
    damaged: tuple[str, ...] = ()  # checkpoints that it passed over, in words
    throttle: Throttle | None = None  # of a background; None: nobody's slowdown holds it up
    nonce: str = ""  # random, of its start; "" of those of earlier versions

    @property
    def is_background(self) -> bool:
        """Whether it runs on GPUs that another job may have as its foreground."""
        return self.placement is not None and self.placement.role is Role.BACKGROUND

    @property
    def purpose(self) -> Purpose | None:
        """What the suspend is for that it was asked for, None where it was not."""
        return None if self.stop is None else self.stop.purpose

    @property
    def holds_since(self) -> float:
        """When it was given GPUs, or asked for; at the gate, when its start was asked for."""
        return self.requested_at if self.granted_at is None else self.granted_at

    @property
    def ending(self) -> Cause | None:
        """The cause that its end will have, None where it was not asked to end."""
        return None if self.stop is None else self.stop.cause

    @property
    def restarts(self) -> bool:
        """It stalls, and is to be started again for it."""
        return self.stall is not None and self.stall.restart

    @property
    def steps(self) -> int:
        """Steps that its training loop reported since it began."""
        return 0 if self.progress is None else self.progress.step - self.progress.ready_step

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have a part of it."""
        return tuple(part.node for part in self.parts)

    @property
    def trains(self) -> bool:
        """Its training loop runs, as far as is known, and nobody has asked it to stop."""
        if self.progress is None or self.stop is not None or self.rescale_at is not None:
            return False
        return not any(part.gone and not part.leaving for part in self.parts)

    @property
    def writer(self) -> str:
        """The node of the rank that writes checkpoints."""
        return self.members[0] if self.members else self.parts[0].node

    @property
    def training(self) -> tuple[Part, ...]:
        """The parts that train: those of its members, or all before the first membership."""
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


OUTSIDE_SIGNALS = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU"})
"""Signals that somebody sends; the others (SIGSEGV, SIGABRT, ...) are a program's own doing."""


OUTSIDE_CODES = {137: "SIGKILL", 143: "SIGTERM", 247: "SIGKILL", 241: "SIGTERM"}
"""What a shell, or a program in Python, exits with when such a signal ended the program that it ran."""


OUTSIDE_CAUSES = frozenset({Cause.INFRASTRUCTURE, Cause.NODE_LOST, Cause.PREEMPTED})
"""Causes that are no doing of the job's program."""


def killed_from_outside(part: Part) -> bool:
    """Whether a signal that somebody sends ended it, or the program that it ran."""
    return part.signal in OUTSIDE_SIGNALS or (part.hint is None and part.code in OUTSIDE_CODES)
