"""What a batch script asks of its batch system, as values: the lines of its head, and what hpcdl makes of them."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

MOST_JOBS = 10_000
"""Of one array: a larger one is refused before it is listed."""

# Why hpcdl leaves an option out.
TIME = "a job of hpcdl has no time limit; --deadline says when it is to be done"
LOGS = "hpcdl keeps a job's output itself: hpcdl logs"
HOST = "hpcdl shares out GPUs; processors and memory are its allocation's"
WHERE = "it is queued by hpcdl, and runs where that has GPUs"
MAIL = "hpcdl submit --notify mailto:ADDRESS sends a mail at its end"
AGAIN = "hpcdl resumes a job by itself: --retries"
NOT = "hpcdl has no such thing"


class BadLine(Exception):
    """An option cannot be understood or carried out; the message is one line and begins with where it stands."""


@dataclass(frozen=True, slots=True)
class Given:
    """One option: where it stands (`train.sh:3`), what it is called, its value, and how it was written."""

    where: str
    name: str
    value: str
    said: str

    def bad(self, why: str) -> BadLine:
        """The error that this option is."""
        return BadLine(f"{self.where}: {self.said}: {why}")


@dataclass(frozen=True, slots=True)
class Option:
    """An option that a batch system knows. `value`: it takes one, and not only after `=`.

    `why`: hpcdl leaves it out, and why; empty: it is carried out. `doubt`: without it the job may not be what its user
    meant, so that the wrappers in jobscripts/ leave the job to the batch system.
    """

    value: bool = True
    why: str = ""
    doubt: bool = False


@dataclass(frozen=True, slots=True)
class Ignored:
    """What hpcdl leaves out of the script's wishes, or does another way, and why. `doubt`: as an Option's."""

    where: str
    said: str
    why: str
    doubt: bool = False
    how: str = "is ignored"

    def __str__(self) -> str:
        return f"{self.where}: {self.said} {self.how}: {self.why}"


@dataclass(frozen=True, slots=True)
class Array:
    """A job array: a job for each index. `step`: between them, where it is even. `most`: at a time, 0 any number."""

    indices: tuple[int, ...]
    step: int = 1
    most: int = 0


@dataclass(frozen=True, slots=True)
class Exports:
    """Which variables the job gets: `every` one of the submitting shell but those `left`, and `named` (K=V or K)."""

    every: bool
    named: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a batch script asks for, as far as hpcdl has it; None where it says nothing.

    `gpus`: on each of `nodes` nodes. `after`: jobs of hpcdl that must be DONE. `cwd`: as written. `brief`: only the id
    is to be printed. `wrapped`: a command in place of a script.
    """

    gpus: int | None = None
    nodes: int | None = None
    name: str | None = None
    after: tuple[int, ...] | None = None
    array: Array | None = None
    cwd: str | None = None
    exports: Exports | None = None
    brief: bool = False
    wrapped: str | None = None
    ignored: tuple[Ignored, ...] = ()


def head_lines(text: str, mark: str, *, everywhere: bool) -> Iterator[tuple[int, str]]:
    """Line numbers and contents behind `mark`, up to the first line that is no comment; or all of them."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(mark) and line[len(mark) :][:1] in ("", " ", "\t"):
            yield number, line[len(mark) :].strip()
        elif not everywhere and line.strip() and not line.lstrip().startswith("#"):
            return


def tokens(line: str, where: str) -> list[str]:
    """The words of a line, quotes and a comment at its end removed. Raises BadLine."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise BadLine(f"{where}: {line}: {str(error).lower()}") from None


Split = Callable[[Sequence[str], str], tuple[list[Given], list[str]]]
"""Options, and what follows them, of words that stand somewhere. Raises BadLine."""


def given_in(text: str, file: str, mark: str, split: Split, *, everywhere: bool) -> list[Given]:
    """The options of a script's lines; see `head_lines`. Raises BadLine."""
    found = []
    for number, line in head_lines(text, mark, everywhere=everywhere):
        where = f"{file}:{number}"
        options, rest = split(tokens(line, where), where)
        if rest:
            raise BadLine(f"{where}: {rest[0]!r} is no option")
        found += options
    return found


def whole(given: Given, text: str, what: str, least: int = 0) -> int:
    """The number. Raises BadLine."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= least):
        raise given.bad(f"{text!r} is not {what}")
    return int(text)


def indices_of(given: Given, text: str) -> Array:
    """`0-9`, `1,3,5-7`, `0-15:4`, `0-9%4`. Raises BadLine."""
    text, percent, percented = text.partition("%")
    most = whole(given, percented, "a number of jobs", 1) if percent else 0
    found: list[int] = []
    steps = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip(), re.ASCII)
        if match is None:
            raise given.bad(f"{part!r} is not an index, FROM-TO or FROM-TO:STEP")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or step < 1 or (high - low) // step >= MOST_JOBS:
            raise given.bad(f"{part!r} must go up, by at least 1, to at most {MOST_JOBS} indices")
        found += range(low, high + 1, step)
        steps.add(step)
    distinct = tuple(dict.fromkeys(found))
    if len(distinct) > MOST_JOBS:
        raise given.bad(f"an array may have {MOST_JOBS} jobs at most")
    return Array(distinct, steps.pop() if len(steps) == 1 else 1, most)


def on_each(given: Given, total: int, nodes: int) -> int:
    """GPUs on each node where they are given for all. Raises BadLine where they do not divide."""
    if total % nodes:
        raise given.bad(f"{total} GPUs cannot be spread evenly over {nodes} nodes: ask for as many on each")
    return total // nodes


def left_out(given: Iterable[Given], known: Mapping[str, Option]) -> list[Ignored]:
    """Those options that hpcdl does not carry out, each once, as it was last written."""
    last = {each.name: each for each in given}
    found = []
    for name, each in last.items():
        option = known.get(name)
        if option is None:
            found.append(Ignored(each.where, each.said, "hpcdl does not know it", doubt=True))
        elif option.why:
            found.append(Ignored(each.where, each.said, option.why, option.doubt))
    return found


STARTERS = re.compile(r"^\s*(?:exec\s+|time\s+)*(srun|mpirun|mpiexec|jsrun|blaunch|lsrun|aprun)\b", re.MULTILINE)
"""Commands that start processes by the batch system's allocation."""


def starters(text: str, file: str) -> list[Ignored]:
    """Lines of a script that would start their processes by the batch system; hpcdl's jobs are not its steps."""
    match = STARTERS.search(text)
    if match is None:
        return []
    where = f"{file}:{text.count(chr(10), 0, match.start(1)) + 1}"
    why = "this job is no step of the batch system: start python, or torchrun, itself"
    return [Ignored(where, match[1], why, doubt=True, how="gets nothing from it")]


def several_nodes(nodes: int, given: Sequence[Given]) -> list[Ignored]:
    """How a script on several nodes is run differs; so that is told."""
    if nodes < 2 or not given:
        return []
    why = "with HPCDL_NODES and HPCDL_NODE_RANK, where a batch system starts it on the first only"
    return [Ignored(given[-1].where, given[-1].said, why, doubt=True, how="starts the script on each node")]
