"""What a user submits. Values only."""

import math
import re
from dataclasses import dataclass

from hpcdl.core.model.notice import check_destinations

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
