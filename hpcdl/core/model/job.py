"""What a user submits. Values only."""

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from hpcdl.core.model.notice import check_destinations
from hpcdl.core.model.units import GpuRef

SIGNAL_PRESETS: dict[str, str | None] = {
    "hpcdl": "SIGTSTP",
    "lightning": "SIGUSR1",
    "submitit": "SIGUSR2",
    "hf": "SIGTERM",
    "none": None,
}
"""How a trainer is asked to checkpoint and exit; None: it cannot be asked, only ended."""

PROGRESS = ("tqdm", "hf", "lightning", "keras")
"""Frameworks whose progress bars are known (agent/supervisor/progress_bars.py)."""

RESCALES = ("restart", "torchrun", "in-process")
"""How a job goes to other nodes: suspend and resume; torchrun's elastic agent; or its ranks re-form in place."""

ECT_CLASSES: dict[str, float] = {"urgent": 0.0, "prior": 1.0, "normal": 2.0}
"""GENIE's classes of expected completion times: so many times its time alone on one GPU after its submit (eq. 9)."""

PRIORITY = 1000
"""Of the highest priority; the lowest is as far below 0."""

LARGEST = 1 << 53
"""Whole numbers beyond this are no counts of anything: JSON's readers round them, and SQLite refuses them."""

MOST_GPUS, MOST_RETRIES, MOST_STEPS = 1_024, 1_000_000, 10**12
"""What a submit may ask for: GPUs on a node, retries, steps. A ledger may hold jobs that asked for more."""


def check_counts(spec: "JobSpec") -> None:
    """Raises ValueError where a job that is submitted asks for more than can be meant."""
    gpus = max(spec.gpus_min, spec.gpus_max or 0)
    if gpus > MOST_GPUS:
        raise ValueError(f"{gpus} GPUs on a node are more than any has: at most {MOST_GPUS}; several nodes: --nodes N")
    if spec.retries > MOST_RETRIES:
        raise ValueError(f"{spec.retries} retries are more than a job may have: at most {MOST_RETRIES}")
    if spec.steps is not None and spec.steps > MOST_STEPS:
        raise ValueError(f"{spec.steps} steps are more than a job may have: at most {MOST_STEPS}")


def check_continue_from(text: str) -> None:
    """Raises ValueError unless it is a job's id or `any`."""
    if text != "any" and not (text.isascii() and text.isdigit() and len(text) < 16 and text[0] != "0"):
        raise ValueError(f"continue-from must be a job's id, or any, got {text[:100]!r}")


def _has_bytes(text: str) -> bool:
    """Whether the text can be passed to the operating system: it may hold undecodable bytes, but no lone surrogate."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class GitState:
    """The git work tree that a job was submitted from: what was checked out. Raises ValueError.

    `commit`: its whole hash. `branch`: "" for none. `dirty`: whether files that git knows were changed; None: unknown.
    """

    commit: str
    branch: str = ""
    dirty: bool | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{40,64}", self.commit):
            raise ValueError(f"a commit is a hash of 40 to 64 hexadecimal digits, got {self.commit[:80]!r}")
        if len(self.branch) > 500 or not self.branch.isprintable():
            raise ValueError("a branch's name must have at most 500 printable characters")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a user submitted. Raises ValueError where a value makes no sense.

    `gpus_min`, `gpus_max`: GPUs on each of `nodes` nodes; None as the maximum: as many as a node has. `profile`: the
    name of its scaling profile. `steps`: training steps in all. `after`: jobs that must be DONE before it starts.
    `retries`: starts after a user error. `checkpoint_dir`: None is a folder in the daemon's home. `grace_s`: seconds to
    checkpoint in. `signal`: a key of SIGNAL_PRESETS. `progress_regex`: finds the step in its output. `gate`: its
    command is run through `hpcdl.trainer.gate`, so it may be started ahead of its GPUs. `gpus_counts`: the only numbers
    of GPUs on each node that it can train on, ascending; empty: every one of its range. `nodes_max`: it may have from
    `nodes` to that many; None: exactly `nodes`. `deadline`: when it is to be finished, in seconds since the epoch.
    `model`: what it trains; a profile that is learnt is kept under it. `accuracy_target`: its script ends once the
    metric that it reports has reached this, however many steps that takes. `ect`: a key of ECT_CLASSES, from which its
    deadline is worked out when it is submitted. `rescale`: one of RESCALES. `weight`: what it counts
    under the objective `priority`. `priority`: jobs of a higher one come first, whatever the policy. `notify`: where
    its notices go (`notice.check_destinations`); (): as the settings say. `stall_s`: seconds without progress after
    which it stalls (`stalls.limit_s`); `stall_restart`: then it is started again from its last durable checkpoint.
    `git`: of `cwd`, as it was at the submit. `continue_from`: whose checkpoints in `checkpoint_dir` it may go on from:
    a job's id, `any`, "": only its own and nobody's.

    Of a member of an array (`arrays.expand` makes them): `array` is the id of the first member, 0 for a job of its
    own; `array_most`: so many of them may hold GPUs at a time, 0 any number; `sweep`: its own values by name.
    """

    command: tuple[str, ...]
    name: str
    user: str = ""
    cwd: str = "/"
    gpus_min: int = 1
    gpus_max: int | None = 1
    nodes: int = 1
    profile: str | None = None
    steps: int | None = None
    after: tuple[int, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    retries: int = 0
    checkpoint_dir: str | None = None
    grace_s: float = 60.0
    signal: str = "hpcdl"
    progress_regex: str | None = None
    gate: bool = False
    gpus_counts: tuple[int, ...] = ()
    nodes_max: int | None = None
    deadline: float | None = None
    model: str | None = None
    accuracy_target: float | None = None
    ect: str | None = None
    rescale: str = "restart"
    weight: float = 1.0
    priority: int = 0
    array: int = 0
    array_index: int = 0
    array_most: int = 0
    sweep: tuple[tuple[str, str], ...] = ()
    notify: tuple[str, ...] = ()
    stall_s: float | None = None
    stall_restart: bool = False
    git: GitState | None = None
    progress: str | None = None
    """Whose progress bars its step is read from: one of PROGRESS."""
    continue_from: str = ""
    resumes: str | None = None
    """Its program resumes by itself: "" for its user's word, else a pattern of the checkpoints that it writes."""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError("a job needs a command")
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise ValueError("a job's name must have 1 to 200 printable characters")
        if self.gpus_min < 1 or (self.gpus_max is not None and self.gpus_max < self.gpus_min):
            raise ValueError(f"gpus {self.gpus_min}:{self.gpus_max}: needs 1 <= MIN <= MAX")
        if not 1 <= self.nodes <= 100_000:
            raise ValueError(f"nodes must be from 1 to 100000, got {self.nodes}")
        if self.nodes_max is not None and not self.nodes <= self.nodes_max <= 100_000:
            raise ValueError(f"nodes {self.nodes}:{self.nodes_max}: needs MIN <= MAX <= 100000")
        if self.ect is not None and self.ect not in ECT_CLASSES:
            raise ValueError(f"the deadline's class must be one of {', '.join(ECT_CLASSES)}, got {self.ect!r}")
        if self.gpus_counts:
            counts = self.gpus_counts
            if list(counts) != sorted(set(counts)) or (counts[0], counts[-1]) != (self.gpus_min, self.gpus_max):
                raise ValueError(f"gpus {counts}: must be ascending and distinct, from the minimum to the maximum")
        for what, value in (("deadline", self.deadline), ("accuracy target", self.accuracy_target)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"the {what} must be a finite number, got {value}")
        if self.steps is not None and not 1 <= self.steps <= LARGEST:
            raise ValueError(f"steps must be from 1 to {LARGEST}, got {self.steps}")
        if not 0 <= self.retries <= LARGEST or max(self.gpus_min, self.gpus_max or 0) > LARGEST:
            raise ValueError(f"retries and GPUs must be numbers from 0 to {LARGEST}")
        if not 0 < self.grace_s <= 86_400:
            raise ValueError(f"the grace period must be from 0 to 86400 seconds, got {self.grace_s}")
        if self.rescale not in RESCALES:
            raise ValueError(f"rescale must be one of {', '.join(RESCALES)}, got {self.rescale!r}")
        if self.rescale != "restart" and self.gate:
            raise ValueError(
                f"a job that is rescaled by {self.rescale} waits for its ranks by itself: leave out the gate"
            )
        if not (0 < self.weight <= 1e9):
            raise ValueError(f"the weight must be above 0, and at most 1e9, got {self.weight}")
        if not -PRIORITY <= self.priority <= PRIORITY:
            raise ValueError(f"the priority must be from {-PRIORITY} to {PRIORITY}, got {self.priority}")
        check_destinations(self.notify)
        if self.stall_s is not None and not 0 <= self.stall_s <= 30 * 86_400:
            raise ValueError(f"stall_s must be from 0 (never) to 2592000 seconds, got {self.stall_s}")
        if self.signal not in SIGNAL_PRESETS:
            raise ValueError(f"signal must be one of {', '.join(SIGNAL_PRESETS)}, got {self.signal!r}")
        texts = (*self.command, self.cwd, self.checkpoint_dir or "", *(part for pair in self.env for part in pair))
        joined = "\n".join(texts)
        if "\0" in joined:
            raise ValueError("command, folders and environment must not hold NUL characters")
        if not _has_bytes(joined):
            raise ValueError("command, folders and environment must be text that can be written as UTF-8")
        for what, path in (("cwd", self.cwd), ("checkpoint folder", self.checkpoint_dir)):
            if path is not None and not path.startswith("/"):
                raise ValueError(f"the {what} must be an absolute path, got {path!r}")
        if self.resumes is not None and (len(self.resumes) > 4096 or "\0" in self.resumes):
            raise ValueError("the pattern of checkpoints must have at most 4096 characters, and no NUL")
        if self.progress is not None and self.progress not in PROGRESS:
            raise ValueError(f"progress must be one of {', '.join(PROGRESS)}, got {self.progress!r}")
        if self.progress is not None and self.progress_regex is not None:
            raise ValueError("progress is read from a framework's bars or by an expression: give one of them")
        if self.continue_from:
            check_continue_from(self.continue_from)
            if self.checkpoint_dir is None:
                raise ValueError(
                    f"continue-from {self.continue_from} needs the folder too: --checkpoint-dir DIR (hpcdl show tells "
                    "a job's; the daemon's own are $HPCDL_HOME/checkpoints/ID)"
                )
        if self.progress_regex is not None:
            try:
                re.compile(self.progress_regex)
            except re.error as error:
                raise ValueError(f"the progress expression {self.progress_regex!r} is not one: {error}") from error
        if any(not key or "=" in key for key, _ in self.env):
            raise ValueError("an environment variable's name must not be empty or hold '='")

    @property
    def total_is_known(self) -> bool:
        """Whether a total that it reports is that of all its steps: read from output, it may be that of any bar."""
        return self.steps is not None or (self.progress is None and self.progress_regex is None)

    @property
    def learns_as(self) -> str:
        """What jobs that scale alike have in common: what they train, and by which script."""
        script = next((part for part in self.command if part.endswith(".py")), self.command[0])
        return f"{(self.model or self.name).lower()} @ {script.rpartition('/')[2]}"


# What `hpcdl drill` found out about a job. A value only.


@dataclass(frozen=True, slots=True)
class Drill:
    """The verdict of one drill: the job was suspended and killed on purpose, and came back each time, or did not.

    `grace_needed_s`: what a grace must be for the job to be saved in time. Medians, in seconds: `suspend_s`: asked to
    suspend until its GPUs were seen free; of this, `save_s`: until its checkpoint was durable, and `free_s`: from its
    last process's end on. `resume_s`: given GPUs until its training loop began; `first_step_s`: from there until its
    first step was done. `lost_steps`: the most that a kill cost; `interval_steps`: the most that it may cost, a
    checkpoint's interval. None: it was not seen. `detail`: why it did not pass.
    """

    passed: bool
    grace_needed_s: float | None = None
    suspend_s: float | None = None
    save_s: float | None = None
    free_s: float | None = None
    resume_s: float | None = None
    first_step_s: float | None = None
    lost_steps: int | None = None
    interval_steps: int | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        for name in ("grace_needed_s", "suspend_s", "save_s", "free_s", "resume_s", "first_step_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"a preemption test's {name} must be seconds from 0 on, got {value}")
        for name in ("lost_steps", "interval_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"a preemption test's {name} must be 0 or more, got {value}")


# One start of a job's processes: what it holds, its parts on the nodes, and how it ended. Values only.


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


@dataclass(frozen=True, slots=True)
class Stall:
    """A running incarnation of which nothing moves."""

    at: float  # since when, the daemon's time
    what: str  # which kind of progress is missing, in words (`rules.stalls`)
    restart: bool = False  # it is to be started again from its last durable checkpoint


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
    membership: int = 1  # the newest that its ranks were told to form; 0 before the first one
    members: tuple[str, ...] = ()  # nodes of that, in the order of their ranks, the writer's first; () before
    formed: tuple[str, ...] = ()  # members that its ranks formed last: they have the training's state; () before
    asked_for: int = 0  # the highest that a part was asked to join, or one that is gone was
    rescale_at: float | None = None  # when its ranks were told to form it; None while they train
    broken_at: float | None = None  # when a rank said since then that others do not answer; None: none did
    members_before: int = 0  # nodes that trained before it
    rendezvous: str = ""  # HOST:PORT where its first members met; "" before
    join_failures: int = 0  # nodes that ended before they joined, since the last one that formed
    breaks: int = 0  # so many times the same members were told to form anew since the last step

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
    stall: Stall | None = None  # None while it moves
    stop: StopRequest | None = None  # None while nothing was asked of it

    last_rescale: InPlaceRescale | None = None  # None before the first one

    @property
    def purpose(self) -> Purpose | None:
        """What the suspend is for that it was asked for, None where it was not."""
        return None if self.stop is None else self.stop.purpose

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


OUTSIDE_SIGNALS = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU"})
"""Signals that somebody sends; the others (SIGSEGV, SIGABRT, ...) are a program's own doing."""

OUTSIDE_CODES = {137: "SIGKILL", 143: "SIGTERM", 247: "SIGKILL", 241: "SIGTERM"}
"""What a shell, or a program in Python, exits with when such a signal ended the program that it ran."""

OUTSIDE_CAUSES = frozenset({Cause.INFRASTRUCTURE, Cause.NODE_LOST, Cause.PREEMPTED})
"""What is said of an attempt that was suspended while it started."""


def killed_from_outside(part: Part) -> bool:
    """Whether a signal that somebody sends ended it, or the program that it ran."""
    return part.signal in OUTSIDE_SIGNALS or (part.hint is None and part.code in OUTSIDE_CODES)
