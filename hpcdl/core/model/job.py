"""What a user submits: a job's specification and its checks, and what a preemption test finds about a job.

Values only. Every `hpcdl submit` loads this file, so it imports little. Where a job stands is in `world.py`.
"""

import math
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache

from hpcdl.core.model.dependency import Condition
from hpcdl.core.model.member_name import base_name
from hpcdl.core.model.notice import check_destinations
from hpcdl.core.model.tags import Links, check_links, check_tags

SIGNAL_PRESETS: dict[str, str | None] = {
    "hpcdl": "SIGTSTP",
    "lightning": "SIGUSR1",
    "submitit": "SIGUSR2",
    "hf": "SIGTERM",
    "SIGTERM": "SIGTERM",
    "SIGUSR1": "SIGUSR1",
    "SIGUSR2": "SIGUSR2",
    "none": None,
}
"""How a trainer is asked to checkpoint and exit; None: it cannot be asked, only ended."""

PROGRESS = ("tqdm", "hf", "lightning", "keras")
"""Frameworks whose progress bars are known (agent/supervisor/progress_bars.py)."""

RESCALES = ("restart", "torchrun", "in-process")
"""How a job goes to other nodes: suspend and resume; torchrun's elastic agent; or its ranks re-form in place."""

KINDS = ("training", "inference")
"""What a job computes (GENIE's calculation type): the GPUs of an inference do not synchronise."""

SHARES = ("foreground", "background")
"""What a job agrees to beside another one on its GPUs; who agrees to neither shares with nobody."""

SLOWDOWN = 0.10
"""By so much of its speed a foreground may lose to a background unless it says otherwise."""

ECT_CLASSES: dict[str, float] = {"urgent": 0.0, "prior": 1.0, "normal": 2.0}
"""GENIE's classes of expected completion times: so many times its time alone on one GPU after its submit (eq. 9)."""

PRIORITY = 1000
"""Of the highest priority; the lowest is as far below 0."""

LARGEST = 1 << 53
"""Whole numbers beyond this are no counts of anything: JSON's readers round them, and SQLite refuses them."""

MOST_WIDTHS = 10_000
"""In all burst-parallel plans of a job: its trainers get them in an environment variable."""

MOST_CPUS = 1 << 16
LONGEST_S = 3650 * 86_400.0
"""A time limit beyond this is none."""

MOST_BATCH = (1 << 31) - 1
"""The largest batch size."""

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


def parse_batch_size(text: str) -> int:
    """The batch size that a text is. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and 1 <= int(text) <= MOST_BATCH):
        raise ValueError(f"{text[:100]!r} is no batch size: a whole number from 1 to {MOST_BATCH} is")
    return int(text)


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
    """The git work tree that a job was submitted from: what was checked out. Raises ValueError."""

    commit: str  # its whole hash
    branch: str = ""  # "" for none
    dirty: bool | None = None  # files that git knows were changed; None: not known

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{40,64}", self.commit):
            raise ValueError(f"a commit is a hash of 40 to 64 hexadecimal digits, got {self.commit[:80]!r}")
        if len(self.branch) > 500 or not self.branch.isprintable():
            raise ValueError("a branch's name must have at most 500 printable characters")


@dataclass(frozen=True, slots=True)
class BatchTasks:
    """How a batch system would run the job's command, which is a batch script. Raises ValueError."""

    system: str  # by whose variables the script knows where it is: the name of a batch system
    tasks: int | None = None  # in all; None: it does not say
    tasks_per_node: int | None = None
    first_only: bool = True  # it runs on the first node only, and starts what runs on the others by srun or jsrun
    launch_host: bool = False  # its list of hosts begins with one that does not compute, as jsrun's systems have it
    variables: tuple[tuple[str, str], ...] = ()  # that the batch system would set besides, by its options
    output: str = ""  # the file for its output besides the job's log, as a pattern; "": none
    error: str = ""  # the same of its errors alone
    scratch: str = ""  # the variable that names a folder on the node for as long as the script runs; "": none
    append: bool = False  # the files are not emptied at the first start

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z][a-z0-9_-]{0,39}", self.system):
            raise ValueError(f"a batch script is for a batch system, got {self.system[:40]!r}")
        for what, value in (("tasks", self.tasks), ("tasks_per_node", self.tasks_per_node)):
            if value is not None and not 1 <= value <= 1_000_000:
                raise ValueError(f"{what} of a batch script must be from 1 to 1000000, got {value}")
        texts = (self.output, self.error, self.scratch, *(part for pair in self.variables for part in pair))
        if any("\0" in text or not _has_bytes(text) for text in texts):
            raise ValueError("files and variables of a batch script must be text without NUL characters")


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a job agrees to: a background beside it on its GPUs, or to be one beside another job. Raises ValueError."""

    role: str  # one of SHARES
    slowdown: float | None = None  # of a foreground: what it may lose to the other, as a part of its speed

    def __post_init__(self) -> None:
        if self.role not in SHARES:
            raise ValueError(f"a job shares its GPUs as one of {', '.join(SHARES)}, got {self.role[:40]!r}")
        if self.role == "foreground" and self.slowdown is None:
            object.__setattr__(self, "slowdown", SLOWDOWN)
        if self.role == "background" and self.slowdown is not None:
            raise ValueError("only a foreground has a limit of its slowdown")
        if self.slowdown is not None and not 0 < self.slowdown <= 1:
            raise ValueError(f"the slowdown must be above 0, and at most 1 (100 %), got {self.slowdown}")

    @classmethod
    def from_text(cls, text: str) -> "Sharing":
        """`foreground`, `foreground:5` with a limit in percent, `background`; else ValueError."""
        role, colon, percent = text.strip().lower().partition(":")
        number = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%?", percent)
        if role not in SHARES or (colon and (role != "foreground" or number is None)):
            raise ValueError(f"{text[:100]!r}: give foreground, foreground:PERCENT or background")
        return cls(role, float(number[1]) / 100 if number else None)

    @property
    def as_foreground(self) -> bool:
        """Whether a background may run beside it."""
        return self.role == "foreground"

    @property
    def as_background(self) -> bool:
        """Whether it may run as the background of another."""
        return self.role == "background"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """How a burst-parallel job trains on so many GPUs, or on more up to those of its next plan. Raises ValueError."""

    gpus: int  # on all its nodes together
    time_ms: float  # of an iteration, by the planner
    widths: tuple[int, ...]  # GPUs of each stage of its model
    stage_ms: tuple[float, ...] = ()  # of an iteration in each stage; (): not known

    def __post_init__(self) -> None:
        if not self.widths or not all(1 <= width <= self.gpus for width in self.widths):
            raise ValueError(f"a burst-parallel plan for {self.gpus} GPUs must give each stage some of them")
        if not 0 < self.time_ms < math.inf:
            raise ValueError(f"an iteration of a burst-parallel plan must take more than 0 ms, got {self.time_ms}")
        if self.stage_ms and len(self.stage_ms) != len(self.widths):
            raise ValueError(f"{len(self.widths)} stages take {len(self.widths)} times, got {len(self.stage_ms)}")
        if not all(0 <= ms < math.inf for ms in self.stage_ms):
            raise ValueError("a stage of a burst-parallel plan must take 0 ms or more")

    def idle(self, rank: int) -> float:
        """The part of an iteration in which the GPU of this rank, from 0, has no stage to run; 0.0: not known."""
        if not self.stage_ms:
            return 0.0
        busy_ms = sum(ms for width, ms in zip(self.widths, self.stage_ms, strict=True) if rank < width)
        return max(0.0, 1 - busy_ms / self.time_ms)


@lru_cache(maxsize=256)
def _plans_digest(plans: tuple[StagePlan, ...]) -> str:
    """The same for the same widths on the same GPUs, whatever an iteration is planned to take."""
    return f"plans {zlib.crc32(repr([(plan.gpus, plan.widths) for plan in plans]).encode()):08x}"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a user submitted. Raises ValueError where a value makes no sense."""

    command: tuple[str, ...]
    name: str
    user: str = ""
    cwd: str = "/"  # an absolute path

    gpus_min: int = 1  # GPUs on each node
    gpus_max: int | None = 1  # None: as many as a node has
    nodes: int = 1  # at least so many
    profile: str | None = None  # the name of its scaling profile; None: what is learnt of it
    steps: int | None = None  # training steps in all; None: not known
    after: tuple[int, ...] = ()  # jobs that must be DONE before it starts
    env: tuple[tuple[str, str], ...] = ()  # (name, value)
    retries: int = 0  # starts after a user error
    checkpoint_dir: str | None = None  # an absolute path; None: a folder in the daemon's home
    grace_s: float = 60.0  # seconds to checkpoint in
    signal: str = "hpcdl"  # by which it is asked to checkpoint and exit: a key of SIGNAL_PRESETS
    progress_regex: str | None = None  # finds the step in its output; None: it is not looked for
    gate: bool = False  # it runs through `hpcdl.trainer.gate`, so it may be started ahead of its GPUs
    gpus_counts: tuple[
        int, ...
    ] = ()  # the only numbers of GPUs on a node that it takes, ascending; (): its whole range
    nodes_max: int | None = None  # at most so many; None: exactly `nodes`
    deadline: float | None = None  # when it is to be finished, seconds since the epoch; None: it has none
    model: str | None = None  # what it trains: a profile that is learnt is kept under it; None: its name
    accuracy_target: float | None = None  # its script ends once the metric that it reports has reached this
    ect: str | None = None  # a key of ECT_CLASSES, by which its deadline is computed on submit; None: by none
    rescale: str = "restart"  # how it goes to other nodes: one of RESCALES
    weight: float = 1.0  # what it counts under the objective `priority`
    priority: int = 0  # jobs of a higher one come first, whatever the policy

    # Of a member of an array (`arrays.expand` makes them):
    array: int = 0  # the id of the first member; 0 for a job of its own
    array_index: int = 0
    array_most: int = 0  # so many members may hold GPUs at a time; 0: any number
    sweep: tuple[tuple[str, str], ...] = ()  # its own values, by name

    notify: tuple[str, ...] = ()  # where its notifications go (`notice.check_destinations`); (): as the settings say
    stall_s: float | None = None  # seconds without progress after which it stalls; None: as `stalls.limit_s` says
    stall_restart: bool = False  # then it is started again from its last durable checkpoint
    git: GitState | None = None  # of `cwd` on submit; None: it is no work tree
    progress: str | None = None  # whose progress bars its step is read from, one of PROGRESS; None: nobody's
    continue_from: str = ""  # whose checkpoints in `checkpoint_dir` it may use: a job's id, `any`; "": only its own
    resumes: str | None = (
        None  # it resumes by itself: "" by its user's word, else a pattern of its checkpoints; None: no
    )
    trainer_library: bool = True  # agents put hpcdl.trainer on its PYTHONPATH
    cpus: int | None = None  # processors on each node; None: those of its GPUs
    memory_mib: int | None = None  # on each node, past which it is ended; None: no limit
    time_s: float | None = None  # so long it may hold GPUs, all attempts together; None: without limit
    batch: BatchTasks | None = None  # of a batch script, how it is run; None: the command is run as it is
    share: Sharing | None = None  # what it agrees to; None: nobody else runs on its GPUs
    gpu_memory_mib: int | None = None  # that it takes at most of each GPU, as its user says; None: not said
    burst: tuple[
        StagePlan, ...
    ] = ()  # its plans, by GPUs ascending, and so how it scales; (): it is not burst-parallel
    tags: tuple[str, ...] = ()  # its user's words for it; nothing is decided by them
    links: Links = ()  # (name, http(s) URL) that pages link to
    conditions: tuple[tuple[Condition, ...], ...] = ()  # on other jobs: it starts once one of each group is met
    singleton: bool = False  # it waits for the earlier jobs of its name and user to end
    # Files, as patterns (`%j`) from `cwd` on, to which its output is appended besides its log; "": to none.
    output: str = ""
    error: str = ""  # the same of its stderr, which is then kept apart from stdout

    batch_size: int | None = None  # samples of a step, on all of its GPUs together; None: not said
    light_steps: int | None = None
    """It is a run of a light profiling: it has GPUs only while nobody else is to have them, is ended without a
    checkpoint once somebody is, and is over once its rate was seen for so many steps. None: any other job."""
    kind: str = KINDS[0]  # what it computes: one of KINDS
    batch_sweep: str = ""  # of an array that is submitted: the sweep whose values are its jobs' batch sizes; "": none

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
        if self.cpus is not None and not 1 <= self.cpus <= MOST_CPUS:
            raise ValueError(f"the processors must be from 1 to {MOST_CPUS}, got {self.cpus}")
        if self.memory_mib is not None and not 1 <= self.memory_mib <= LARGEST:
            raise ValueError(f"the memory must be 1 MiB or more, got {self.memory_mib}")
        if self.gpu_memory_mib is not None and not 1 <= self.gpu_memory_mib <= LARGEST:
            raise ValueError(f"the memory of a GPU must be 1 MiB or more, got {self.gpu_memory_mib}")
        if self.time_s is not None and not 0 < self.time_s <= LONGEST_S:
            raise ValueError(f"the time limit must be above 0, and at most {LONGEST_S:g} seconds, got {self.time_s}")
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
        check_tags(self.tags)
        check_links(self.links)
        if self.stall_s is not None and not 0 <= self.stall_s <= 30 * 86_400:
            raise ValueError(f"stall_s must be from 0 (never) to 2592000 seconds, got {self.stall_s}")
        if self.signal not in SIGNAL_PRESETS:
            raise ValueError(f"signal must be one of {', '.join(SIGNAL_PRESETS)}, got {self.signal!r}")
        files = (self.cwd, self.checkpoint_dir or "", self.output, self.error)
        joined = "\n".join((*self.command, *files, *(part for pair in self.env for part in pair)))
        if "\0" in joined:
            raise ValueError("command, folders, files and environment must not hold NUL characters")
        if not _has_bytes(joined):
            raise ValueError("command, folders, files and environment must be text that can be written as UTF-8")
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
        if self.burst:
            gpus, stages = [plan.gpus for plan in self.burst], {len(plan.widths) for plan in self.burst}
            if gpus[0] != 1 or gpus != sorted(set(gpus)) or len(stages) > 1:
                raise ValueError(
                    "burst-parallel plans must be for 1 GPU and then for more and more, of the same stages"
                )
            if sum(len(plan.widths) for plan in self.burst) > MOST_WIDTHS:
                raise ValueError(f"burst-parallel plans must have at most {MOST_WIDTHS} widths in all")
        if self.batch_size is not None and not 1 <= self.batch_size <= MOST_BATCH:
            raise ValueError(f"the batch size must be from 1 to {MOST_BATCH}, got {self.batch_size}")
        if self.light_steps is not None and not 2 <= self.light_steps <= MOST_STEPS:
            raise ValueError(f"a light run measures 2 to {MOST_STEPS} steps, got {self.light_steps}")
        if self.light_steps is not None and (self.deadline is not None or self.ect or self.share or self.burst):
            raise ValueError("a light run has no deadline, shares no GPU and is not burst-parallel")
        if self.light_steps is not None and (self.rescale != "restart" or self.gate):
            raise ValueError("a light run is started on all of its GPUs, without a gate")
        if self.kind not in KINDS:
            raise ValueError(f"the kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.batch_size is not None and self.batch_sweep:
            raise ValueError("the batch size is a number, or that of a sweep: give one of them")
        if not all(self.conditions):
            raise ValueError("a group of conditions must have one or more")
        if any(not key or "=" in key for key, _ in self.env):
            raise ValueError("an environment variable's name must not be empty or hold '='")

    def named_alike(self, other: "JobSpec") -> bool:
        """Whether both are jobs of one name and user; of members of arrays that of their submit."""
        return (self.base_name, self.user) == (other.base_name, other.user)

    @property
    def base_name(self) -> str:
        """The name that it was submitted with: of a member of an array without its index and values."""
        return base_name(self.name, self.array_index, self.sweep) if self.array else self.name

    @property
    def awaits(self) -> tuple[int, ...]:
        """The jobs whose end or start it waits for."""
        if not self.conditions:
            return self.after
        return (*self.after, *(each.job for group in self.conditions for each in group if each.job))

    @property
    def awaits_batch(self) -> tuple[str, ...]:
        """The batch jobs whose end it waits for."""
        return tuple(each.batch for group in self.conditions for each in group if each.batch)

    @property
    def total_is_known(self) -> bool:
        """Whether a total that it reports is that of all its steps: read from output, it may be that of any bar."""
        return self.steps is not None or (self.progress is None and self.progress_regex is None)

    @property
    def learns_as(self) -> str:
        """What jobs that are as fast on as many GPUs have in common: their type, and their batch size."""
        return observed_as(self.type_name, self.batch_size)

    @property
    def type_name(self) -> str:
        """GENIE's type of a job, of any batch size: what it trains, or infers with, by which burst-parallel plans, and
        which script."""
        script = next((part for part in self.command if part.endswith(".py")), self.command[0])
        plans = f" {_plans_digest(self.burst)}" if self.burst else ""
        infers = f" {self.kind}" if self.infers else ""
        return f"{(self.model or self.name).lower()}{infers}{plans} @ {script.rpartition('/')[2]}"

    @property
    def infers(self) -> bool:
        """Whether it is an inference: its GPUs do not synchronise."""
        return self.kind == "inference"


def observed_as(type_name: str, batch: int | None) -> str:
    """The name under which is kept what was seen of jobs of this type and batch size; None: they say none."""
    if batch is None:
        return type_name
    model, _, script = type_name.rpartition(" @ ")
    return f"{model} batch {batch} @ {script}"


@dataclass(frozen=True, slots=True)
class Drill:
    """The result of a preemption test (`hpcdl drill`): the job was suspended and killed on purpose, several times.

    Times are medians in seconds. None: it was not measured. Raises ValueError.
    """

    passed: bool  # the job came back each time
    grace_needed_s: float | None = None  # the grace period in which its checkpoint would have been complete
    suspend_s: float | None = None  # from the request until its GPUs were seen free
    save_s: float | None = None  # of this, until its checkpoint was durable
    free_s: float | None = None  # of this, from the end of its last process on
    resume_s: float | None = None  # from the grant of GPUs until its training loop began
    first_step_s: float | None = None  # from there until its first step was done
    lost_steps: int | None = None  # the most that a kill cost
    interval_steps: int | None = None  # the most that a kill may cost: the interval of its checkpoints
    detail: str = ""  # why it did not pass

    def __post_init__(self) -> None:
        for name in ("grace_needed_s", "suspend_s", "save_s", "free_s", "resume_s", "first_step_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"a preemption test's {name} must be seconds from 0 on, got {value}")
        for name in ("lost_steps", "interval_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"a preemption test's {name} must be 0 or more, got {value}")
