"""What hpcdl talks about: jobs, placements, incarnations, nodes. Values only; `effects` says how they change."""

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from hpcdl.core.profile import Seen, Timing
from hpcdl.core.units import GpuRef


class JobState(StrEnum):
    """What a user sees of a job; derived from its incarnations (`transitions.state_of`)."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESCALING = "RESCALING"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


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


SIGNAL_PRESETS: dict[str, str | None] = {
    "hpcdl": "SIGTSTP",
    "lightning": "SIGUSR1",
    "submitit": "SIGUSR2",
    "hf": "SIGTERM",
    "none": None,
}
"""How a trainer is asked to checkpoint and exit; None: it cannot be asked, only ended."""


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

    def __post_init__(self) -> None:
        names = [share.node for share in self.shares]
        if not names or names != sorted(set(names)):
            raise ValueError(f"placement: nodes must be sorted and distinct, and at least one, got {names}")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node names, sorted; the first one is the writer's."""
        return tuple(share.node for share in self.shares)

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


ECT_CLASSES: dict[str, float] = {"urgent": 0.0, "prior": 1.0, "normal": 2.0}
"""GENIE's classes of expected completion times: so many times its time alone on one GPU after its submit (eq. 9)."""

LARGEST = 1 << 53
"""Whole numbers beyond this are no counts of anything: JSON's readers round them, and SQLite refuses them."""


def _has_bytes(text: str) -> bool:
    """Whether the text can be passed to the operating system: it may hold undecodable bytes, but no lone surrogate."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


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
    deadline is worked out when it is submitted.
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
            raise ValueError(f"grace must be from 0 to 86400 seconds, got {self.grace_s}")
        if self.signal not in SIGNAL_PRESETS:
            raise ValueError(f"signal must be one of {', '.join(SIGNAL_PRESETS)}, got {self.signal!r}")
        texts = (*self.command, self.cwd, self.checkpoint_dir or "", *(part for pair in self.env for part in pair))
        if any("\0" in text for text in texts):
            raise ValueError("command, folders and environment must not hold NUL characters")
        if not all(map(_has_bytes, texts)):
            raise ValueError("command, folders and environment must be text that can be written as UTF-8")
        for what, path in (("cwd", self.cwd), ("checkpoint folder", self.checkpoint_dir)):
            if path is not None and not path.startswith("/"):
                raise ValueError(f"the {what} must be an absolute path, got {path!r}")
        if self.progress_regex is not None:
            try:
                re.compile(self.progress_regex)
            except re.error as error:
                raise ValueError(f"the progress expression {self.progress_regex!r} is not one: {error}") from error
        if any(not key or "=" in key for key, _ in self.env):
            raise ValueError("an environment variable's name must not be empty or hold '='")

    @property
    def learns_as(self) -> str:
        """What jobs that scale alike have in common: what they train, and by which script."""
        script = next((part for part in self.command if part.endswith(".py")), self.command[0])
        return f"{(self.model or self.name).lower()} @ {script.rpartition('/')[2]}"


@dataclass(frozen=True, slots=True)
class Part:
    """One node's share of an incarnation, as its agent reported it.

    `code` or `signal`: how its first process ended. `ended_by`: what the supervisor had asked of the trainer then:
    suspend, end, absence (of an agent), or None. `done`: the trainer said that its training is complete. `hint`: the
    cause, where the agent knows more than the code says. `freed`: its GPUs were seen free. `lost`: its node is gone.
    """

    node: str
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

    @property
    def gone(self) -> bool:
        """No process of it is left and its GPUs are free, or its node is gone."""
        return self.lost or (self.exited and self.freed)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One start of a job's processes. Times are the daemon's, in seconds since the epoch.

    `placement`: None at the gate. `warm`: it was started at the gate. `requested_at`, `granted_at`: the start was asked
    for; GPUs were given. `started_at`, `ready_at`: its processes run on every node; its training loop has begun, at
    `ready_step`. `progressed_at`, `progressed_step`: of the last report of progress. `asked_at`: it was asked to
    suspend (`purpose`: what for) or to end (`ending`: the cause that its end will have). `saved_step`: of its last
    durable checkpoint; `saved_final`: that was the answer to a suspend.
    """

    number: int
    state: IncarnationState
    parts: tuple[Part, ...]
    placement: Placement | None
    membership: int = 1
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
    ending_detail: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have a part of it."""
        return tuple(part.node for part in self.parts)

    @property
    def trains(self) -> bool:
        """Its training loop runs, as far as is known, and nobody has asked it to stop."""
        return self.ready_at is not None and self.asked_at is None and not any(part.gone for part in self.parts)

    def part(self, node: str) -> Part | None:
        """This incarnation's part on a node, or None."""
        return next((part for part in self.parts if part.node == node), None)


@dataclass(frozen=True, slots=True)
class Job:
    """A job and where it stands. Times are the daemon's, in seconds since the epoch.

    `live` holds at most two incarnations: one with GPUs, one at the gate. `outcome`: None until it is finished.
    `held`: suspended by its user. `step`, `saved_step`: the last one reported, the last one in a durable checkpoint.
    `suspended`: its last incarnation ended with a checkpoint. `can_suspend`: a trainer of it has attached once.
    `repeats`: how many times in a row it failed as `last_failure` says; `retry_at`: it does not start before.
    `last_save_s`: seconds that its last checkpoint took. `warm_failed`: it is not started ahead again. `final`: what it
    becomes as soon as none of its incarnations lives. `held_gpu_s`: GPU seconds of the incarnations that have ended.
    `last`: what the last of them held.
    `accuracy`: (step, metric) as its trainers reported them, thinned out.
    """

    id: int
    spec: JobSpec
    submitted_at: float
    outcome: JobState | None = None
    live: tuple[Incarnation, ...] = ()
    last_incarnation: int = 0
    held: bool = False
    cancelling: bool = False
    step: int | None = None
    total: int | None = None
    saved_step: int | None = None
    first_start_at: float | None = None
    finished_at: float | None = None
    suspended: bool = False
    can_suspend: bool = False
    suspends: int = 0
    failures: int = 0
    retries_used: int = 0
    repeats: int = 0
    last_failure: str = ""
    retry_at: float = 0.0
    last_cause: Cause | None = None
    last_detail: str = ""
    last_save_s: float | None = None
    exit_code: int | None = None
    warm_failed: bool = False
    final: JobState | None = None
    final_detail: str = ""
    held_gpu_s: float = 0.0
    accuracy: tuple[tuple[int, float], ...] = ()
    last: Placement | None = None

    @property
    def finished(self) -> bool:
        """DONE, FAILED or CANCELLED."""
        return self.outcome is not None

    @property
    def running(self) -> Incarnation | None:
        """The incarnation that holds GPUs (also while it saves or ends), or None."""
        for incarnation in self.live:  # asked of every job at every decision: no generator
            if incarnation.placement is not None:
                return incarnation
        return None

    @property
    def gated(self) -> Incarnation | None:
        """The warm start that waits at the gate, or None."""
        return next((inc for inc in self.live if inc.placement is None), None)

    def incarnation(self, number: int) -> Incarnation | None:
        """A live incarnation by its number, or None."""
        return next((inc for inc in self.live if inc.number == number), None)


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU of a node. `state`: ok, lost (fell off the bus) or dirty (held by what should not hold it); `detail`: why.

    `index` is how placements name it; `memory_mib` is 0 where it is not known.
    """

    index: int
    uuid: str
    name: str = ""
    memory_mib: int = 0
    state: str = "ok"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with an agent. `connected` is only what the daemon sees now; `lost` is a conclusion.

    `since`: when it joined, fell silent or was lost. `log_id`: the agent's report log, of which `reports_seen` reports
    were taken in.
    """

    name: str
    gpus: tuple[GpuInfo, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    agent_pid: int = 0
    boot_id: str = ""
    emulated: bool = False
    connected: bool = False
    lost: bool = False
    reason: str = ""
    since: float = 0.0
    log_id: str = ""
    reports_seen: int = 0

    def usable(self) -> tuple[int, ...]:
        """Indices of GPUs that may be granted; none while the node is away."""
        if self.lost or not self.connected:
            return ()
        return tuple(gpu.index for gpu in self.gpus if gpu.state == "ok")


@dataclass(frozen=True, slots=True)
class Target:
    """What a plan wants for one job: a placement, or none (`placement` None), and why in words."""

    job: int
    placement: Placement | None
    reason: str


@dataclass(slots=True)
class World:
    """Everything the daemon knows, made by folding events. Treat as read-only outside `effects`.

    `seq`, `at`: number and time of the last event. `active`: the ids of unfinished jobs, in order of submission (a dict
    for its order). `holders`: which (job, incarnation) holds a GPU. `request_ids`: the jobs of each submit.
    `targets`, `warm`: the plan that was adopted last. `fence`: of the newest daemon. `observed`: what jobs showed, by
    `JobSpec.learns_as`, what was seen last at the end; `usual_times`: how long starts and suspends took all of them.
    `live`: the ids of jobs that have incarnations; `awaited`: by job, those that wait for its end, finished ones too.
    These two follow from `jobs`, and are not stored.
    """

    seq: int = 0
    at: float = 0.0
    jobs: dict[int, Job] = field(default_factory=dict)
    active: dict[int, None] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    holders: dict[GpuRef, tuple[int, int]] = field(default_factory=dict)
    request_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    targets: dict[int, Target] = field(default_factory=dict)  # placements only: a job without one is to hold nothing
    warm: tuple[int, ...] = ()
    policy: str = "marble"
    objective: str = "makespan"
    fence: int = 0
    stopping: bool = False
    stopping_now: bool = False
    next_job: int = 1
    observed: dict[str, Seen] = field(default_factory=dict)
    usual_times: tuple[Timing, ...] = ()
    live: dict[int, None] = field(init=False, repr=False)
    awaited: dict[int, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.awaited = {}
        for number in self.active:
            for before in self.jobs[number].spec.after if number in self.jobs else ():
                self.awaited[before] = (*self.awaited.get(before, ()), number)
        self.live = {number: None for number in self.active if number in self.jobs and self.jobs[number].live}
