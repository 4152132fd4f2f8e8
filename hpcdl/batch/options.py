"""Options of a command that submits batch jobs, as values: what is written, what hpcdl makes of it, what it leaves out.

Which options a command has is said in its batch system's package; how its command line and its scripts are read, and
what becomes of them, is in `script.py`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter

from hpcdl.core.model.dependency import Condition

MOST_JOBS = 10_000
"""Of one array: a larger one is refused before it is listed."""


class BadLine(Exception):
    """An option cannot be understood or carried out; the message is one line and begins with where it stands."""


class NotForHpcdl(BadLine):
    """The job is the batch system's; the message says why."""


class Reason(Enum):
    """What hpcdl makes of an option: it is carried out (READ), or left out, and why.

    `doubt`: without it the job may not be what its user meant, so that the wrappers in jobscripts/ leave the job to the
    batch system.
    """

    READ = ("", False)
    TIME = ("a job of hpcdl has no time limit but --time; --deadline says when it is to be done", False)
    HOST = ("hpcdl shares out GPUs; processors and memory are its allocation's", False)
    WHERE = ("it is queued by hpcdl, and runs where that has GPUs", False)
    MAIL = ("hpcdl submit --notify mailto:ADDRESS sends a mail at its end", False)
    AGAIN = ("hpcdl resumes a job by itself: --retries", False)
    NEVER = ("hpcdl cancels a job whose dependency can never be DONE", False)
    SHELL = ("it gets the variables of this shell", False)
    NOTHING = ("hpcdl has no such thing", False)
    SIGNAL = ("hpcdl asks for a checkpoint by USR1, USR2, TERM or TSTP", True)
    NODES = ("hpcdl chooses among the nodes that it has", True)
    START = ("hpcdl starts it when there are GPUs", True)
    HOLD = ("hpcdl suspend holds a job", True)
    WAIT = ("hpcdl wait waits", True)
    INPUT = ("a job of hpcdl has no standard input", True)
    TERMINAL = ("a job of hpcdl is not interactive", True)
    LACKS = ("hpcdl has no such thing", True)
    GPUS = ("hpcdl chooses among the GPUs that it has", True)
    GPUS_ONLY = ("hpcdl shares out GPUs only", True)
    EACH_NODE = ("hpcdl counts GPUs on each node", True)
    LINKS = ("hpcdl chooses among the GPUs that it has", False)

    def __init__(self, text: str, doubt: bool) -> None:
        self.text = text
        self.doubt = doubt


@dataclass(frozen=True, slots=True)
class SubmitOption:
    """An option that a batch system knows. `value`: it takes one, and not only after `=`."""

    reason: Reason
    value: bool = True


def option_table(names: Mapping[Reason, str], flags: str) -> dict[str, SubmitOption]:
    """A command's options by name. `names`: by what hpcdl makes of them; `flags`: those of them without a value."""
    plain = frozenset(flags.split())
    return {name: SubmitOption(why, name not in plain) for why, text in names.items() for name in text.split()}


IGNORED = "is ignored"


@dataclass(frozen=True, slots=True)
class IgnoredOption:
    """What hpcdl leaves out of the script's wishes, or does another way, and why. `doubt`: as a Reason's."""

    where: str
    said: str
    why: str
    doubt: bool = False
    how: str = IGNORED
    needs: str = ""
    """What each node must have for nothing to be lost: `TYPE` of a GPU, or an expression of such and numbers."""

    def __str__(self) -> str:
        return f"{self.where}: {self.said} {self.how}: {self.why}"

    @property
    def objection(self) -> str:
        """Why a job with it is left to the batch system, which ignores nothing."""
        return str(replace(self, how="would be ignored") if self.how == IGNORED else self)


@dataclass(frozen=True, slots=True)
class WrittenOption:
    """One option: where it stands (`train.sh:3`), what it is called, its value, and how it was written."""

    where: str
    name: str
    value: str
    said: str

    def bad(self, why: str) -> BadLine:
        """The error that this option is."""
        return BadLine(f"{self.where}: {self.said}: {why}")

    def without(self, part: str, reason: Reason, needs: str = "") -> IgnoredOption:
        """A part of its value, or the whole of it (""), that hpcdl leaves out. `needs`: as an IgnoredOption's."""
        said = f"{part} of {self.said}" if part else self.said
        return IgnoredOption(self.where, said, reason.text, reason.doubt, needs=needs)

    def whole(self, text: str, what: str, least: int = 0) -> int:
        """The number in this part of its value. Raises BadLine."""
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= least):
            raise self.bad(f"{text!r} is not {what}")
        return int(text)


VALUE = attrgetter("value")
"""Reads an option's value as it is written."""


@dataclass(frozen=True, slots=True)
class IndexArray:
    """A job array: a job for each index. `step`: between them, where it is even. `most`: at a time, 0 any number."""

    indices: tuple[int, ...]
    step: int = 1
    most: int = 0


@dataclass(frozen=True, slots=True)
class ExportedVariables:
    """Which variables the job gets: `every` one of the submitting shell but those `left`, and `named` (K=V or K)."""

    every: bool
    named: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch script asks for, as far as hpcdl has it; None where it says nothing.

    `gpus`: on each of `nodes` nodes. `tasks`: in all, or on each node. `output`, `error`: patterns of files. `signal`:
    the preset by which it is asked for a checkpoint, and the grace period in seconds. `set`: variables that it reads.
    `after`: jobs of hpcdl that must be DONE; `conditions`, `singleton`: as in a `JobSpec`. `cwd`: as written. `brief`:
    only the id is to be printed. `wrapped`: a command in place of a script.
    """

    gpus: int | None = None
    nodes: int | None = None
    name: str | None = None
    after: tuple[int, ...] | None = None
    conditions: tuple[tuple[Condition, ...], ...] = ()
    singleton: bool = False
    array: IndexArray | None = None
    cwd: str | None = None
    exports: ExportedVariables | None = None
    brief: bool = False
    wrapped: str | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    output: str | None = None
    error: str | None = None
    append: bool | None = None
    signal: tuple[str, float] | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    time_s: float | None = None
    set: tuple[tuple[str, str], ...] = ()
    ignored: tuple[IgnoredOption, ...] = ()

    @property
    def awaits(self) -> tuple[tuple[Condition, ...], ...]:
        """All conditions on other jobs; of each group one suffices."""
        return (*((Condition("done", each),) for each in self.after or ()), *self.conditions)


def indices_of(option: WrittenOption, text: str) -> IndexArray:
    """`0-9`, `1,3,5-7`, `0-15:4`, `0-9%4`. Raises BadLine."""
    text, percent, percented = text.partition("%")
    most = option.whole(percented, "a number of jobs", 1) if percent else 0
    found: list[int] = []
    steps = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip(), re.ASCII)
        if match is None:
            raise option.bad(f"{part!r} is not an index, FROM-TO or FROM-TO:STEP")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or step < 1 or (high - low) // step >= MOST_JOBS:
            raise option.bad(f"{part!r} must go up, by at least 1, to at most {MOST_JOBS} indices")
        found += range(low, high + 1, step)
        steps.add(step)
    distinct = tuple(dict.fromkeys(found))
    if len(distinct) > MOST_JOBS:
        raise option.bad(f"an array may have {MOST_JOBS} jobs at most")
    return IndexArray(distinct, steps.pop() if len(steps) == 1 else 1, most)


def exports_of(option: WrittenOption, every: str, *none: str) -> ExportedVariables:
    """`ALL,NAME=VALUE,NAME`, `all,~NAME`. `every`, `none`: the words for all variables and for none. Raises BadLine."""
    parts = [part.strip() for part in option.value.split(",") if part.strip()]
    named = tuple(part for part in parts if part not in (every, *none) and not part.startswith("~"))
    if any(part.startswith("=") for part in named):
        raise option.bad(f"a variable has no name: write {every}, {none[0]}, or NAME=VALUE with commas between")
    return ExportedVariables(every in parts, named, tuple(part[1:] for part in parts if part.startswith("~")))


def on_each(option: WrittenOption, total: int, nodes: int) -> int:
    """GPUs on each node where they are given for all. Raises BadLine where they do not divide."""
    if total % nodes:
        raise option.bad(f"{total} GPUs cannot be spread evenly over {nodes} nodes: ask for as many on each")
    return total // nodes


def left_out(written: Iterable[WrittenOption], known: Mapping[str, SubmitOption]) -> list[IgnoredOption]:
    """Those options that hpcdl does not carry out, each once, as it was last written."""
    last = {each.name: each for each in written}
    found = []
    for name, each in last.items():
        option = known.get(name)
        if option is None:
            found.append(IgnoredOption(each.where, each.said, "hpcdl does not know it", doubt=True))
        elif option.reason.text:
            found.append(each.without("", option.reason))
    return found


ONE_NODE = "one-node"
"""What an IgnoredOption needs that does no harm where the script starts nothing on other nodes."""

SIGNALS = {"USR1": "lightning", "USR2": "submitit", "TERM": "hf", "TSTP": "hpcdl"}
"""The presets by the signals that they send."""

DEFAULT_GRACE_S = 60.0
"""Before the end of a job where --signal says none, in Slurm as in hpcdl."""


def count_of(option: WrittenOption) -> int:
    """A number of tasks. Raises BadLine."""
    return option.whole(option.value.split(",")[0], "a number of tasks", 1)
