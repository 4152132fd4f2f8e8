"""Batch scripts as jobs of hpcdl: known by their #SBATCH or #BSUB lines, copied on submit, run by their first line.

`SubmitCommand` is what hpcdl has of a command that submits batch jobs: one subclass for each batch system.
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hpcdl.batch import launches, mpi
from hpcdl.batch.options import (
    ONE_NODE,
    BadLine,
    BatchOptions,
    IgnoredOption,
    IndexArray,
    NotForHpcdl,
    SubmitOption,
    WrittenOption,
    left_out,
)
from hpcdl.batch.system import NONE, BatchSystem, systems
from hpcdl.core.model.arrays import literal
from hpcdl.core.model.job import BatchTasks
from hpcdl.core.rules.launchers import SHELLS
from hpcdl.wire.private_files import atomic_write, make_private_folder

LIMIT = 4 << 20
"""Bytes of a script."""

FOLDER = "scripts"
INDEX = "{index}"
"""Stands for the index of each job of an array."""
_PEEK = 4096
_DIGITS = 15
"""Of an id of hpcdl's at most."""


@dataclass(frozen=True, slots=True)
class BatchScript:
    """What a submit command would be given: a script, or a command where `content` is None; and its options."""

    command: "SubmitCommand"
    asked: BatchOptions
    file: str  # for messages
    arguments: tuple[str, ...] = ()
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class BatchDependency:
    """What a batch job waits for. `said`: as it was written.

    `ids`: of jobs, those of arrays without the member. `names`: of LSF's jobs, with `*`. `single`: the job's own name,
    where it waits for all of that name (Slurm's singleton).
    """

    said: str
    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    single: str | None = None


class SubmitCommand(ABC):
    """A command that submits batch jobs, as hpcdl reads its command line and the lines of its scripts."""

    system: BatchSystem
    mark: str
    """What a line of options in a script begins with."""
    options: Mapping[str, SubmitOption]
    """All that it knows, by name."""
    readers: Sequence[tuple[str, str, Callable[[WrittenOption], Any]]] = ()
    """Of options that hpcdl reads: the name, the field of `BatchOptions`, and what reads its value. Sizes: `sizes`."""
    everywhere: bool = False
    """Such lines count wherever they stand; else up to the first line that is no comment."""
    scratch_variable: str = ""
    """The variable with a folder on the node that sites make for the time of a job."""
    folder_variable: str
    """The variable of a job with the folder in which it was submitted."""
    index_variable: str
    """The variable of a job of an array with its index."""
    after: str
    """How a job is said to wait for another one to be done."""
    node_options: tuple[str, ...] = ()
    """The names of the options that say on how many nodes it runs, and with how many GPUs."""
    dependency_option: str
    """The name of the option for what a job waits for."""
    dependency_pattern: re.Pattern[str]
    """How that begins in words that make no command line otherwise."""
    lookups: ClassVar[tuple[tuple[str, ...], ...]]
    """Commands that say whether there is a job, its id behind them."""
    name_lookup: ClassVar[tuple[str, ...]] = ()
    """The command that prints the ids of this user's jobs of a name, the name behind it; (): there is none."""
    name_header: ClassVar[str] = ""
    """What it prints above them: without that it has not answered."""
    job_pattern: str
    """What they print of a job that there is, {} for its id."""
    no_job: re.Pattern[str]
    """What they print where there is none."""
    no_cluster: re.Pattern[str] = NONE
    """What they print where they are installed and serve no cluster: then there is no job, and nobody takes one."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.system.submit_name

    @abstractmethod
    def named(self, word: str, rest: list[str]) -> list[tuple[str, str | None, str]]:
        """The options that a word of them holds: each by name, its value as far as the word has it, and as written.

        None: its value, if it takes one, is the next word. `rest`: what follows, from which words may be taken.
        """

    @abstractmethod
    def sizes(
        self, last: Mapping[str, WrittenOption], written: Sequence[WrittenOption], ignored: list[IgnoredOption]
    ) -> tuple[int | None, int | None]:
        """The numbers of nodes, and of GPUs on each, None where nothing is said. `last`: the last one of each name;
        what hpcdl leaves out is added to `ignored`. Raises BadLine."""

    @abstractmethod
    def job_of(self, words: Sequence[str], around: Mapping[str, str], where: str) -> BatchScript:
        """What the command would submit with these words, in this environment. Raises BadLine, NotForHpcdl."""

    @abstractmethod
    def array_variables(self, array: IndexArray) -> Mapping[str, object]:
        """The variables that it sets for the jobs of an array."""

    @abstractmethod
    def dependency(self, words: Sequence[str], around: Mapping[str, str], text: str) -> BatchDependency | None:
        """What a job waits for that is submitted with these words; None: for nothing. `text`: of its script.

        Finds it also in what neither hpcdl nor the batch system understands otherwise.
        """

    @abstractmethod
    def answer(self, number: int, options: BatchOptions) -> str:
        """What it prints for a job that was taken."""

    def node_features(self) -> Mapping[str, Set[str]]:
        """Features of the nodes by name, as batch jobs may ask for them; {} where the batch system does not say."""
        return {}

    def mpi_default(self) -> str:
        """What gives the tasks of a step their ranks of MPI where it does not say; "": nothing does, or nobody says."""
        return ""

    def split(self, words: Sequence[str], where: str) -> tuple[list[WrittenOption], list[str]]:
        """Options, and what follows them, of words that stand at `where`. Raises BadLine."""
        found: list[WrittenOption] = []
        rest = list(words)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            word = rest.pop(0)
            if word == "--":
                break
            for name, value, said in self.named(word, rest):
                option = self.options.get(name)
                if value is None and option is not None and option.value:
                    if not rest:
                        raise BadLine(f"{where}: {word}: its value is missing")
                    value = rest.pop(0)
                    said = f"{said} {value}"
                found.append(WrittenOption(where, name, value or "", said))
        return found, rest

    def options_of(self, written: Sequence[WrittenOption]) -> BatchOptions:
        """What these options ask for; of one that is written twice the last. Raises BadLine."""
        last = {each.name: each for each in written}
        ignored = left_out(written, self.options)
        nodes, gpus = self.sizes(last, written, ignored)
        read = {field: reader(last[name]) for name, field, reader in self.readers if name in last}
        return BatchOptions(gpus=gpus, nodes=nodes, **read, ignored=tuple(ignored))

    def script_in(self, words: Sequence[str]) -> bytes:
        """The script that it would read with these words, as far as it can be read here."""
        try:
            written, rest = self.split_line(words)
            if any(each.name == "wrap" for each in written):
                return b""
            if not rest:
                return read_stdin()
            return read_file(rest[0] if os.path.exists(rest[0]) else shutil.which(rest[0]) or rest[0])
        except BadLine:
            return b""

    def split_line(self, words: Sequence[str]) -> tuple[list[WrittenOption], list[str]]:
        """All options of its command line, and what follows them. Raises BadLine."""
        return self.split(words, "")

    def lines(self, text: str, *, everywhere: bool = False) -> Iterator[tuple[int, str]]:
        """Line numbers and contents behind the mark, up to the first line that is no comment; or all of them."""
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith(self.mark) and line[len(self.mark) :][:1] in ("", " ", "\t"):
                yield number, line[len(self.mark) :].strip()
            elif not everywhere and line.strip() and not line.lstrip().startswith("#"):
                return

    def marks(self, text: str) -> int | None:
        """The number of the first line with its mark in a script's head."""
        return next((number for number, _ in self.lines(text)), None)

    def read(
        self, file: str, content: bytes, arguments: tuple[str, ...], more: tuple[WrittenOption, ...] = ()
    ) -> BatchScript:
        """The script with what its lines ask for, and `more`, which wins. Raises BadLine."""
        text, name = text_of(content), os.path.basename(file)
        written: list[WrittenOption] = []
        for number, line in self.lines(text, everywhere=self.everywhere):
            where = f"{name}:{number}"
            if "\0" in line:
                raise BadLine(f"{where}: the line has a NUL character, which no value can have: remove it")
            try:
                parts = shlex.split(line, comments=True)
            except ValueError as error:
                raise BadLine(f"{where}: {line}: {str(error).lower()}") from None
            options, rest = self.split(parts, where)
            if rest:
                het = rest[0] in ("hetjob", "packjob")
                what = "hpcdl has no heterogeneous jobs" if het else f"{rest[0]!r} is no option"
                raise BadLine(f"{where}: {what}")
            written += options
        asked = self.options_of((*written, *more))
        changed: list[IgnoredOption] = []
        if not text.startswith("#!") or SHELLS.intersection(map(os.path.basename, text[2:].split("\n", 1)[0].split())):
            text, changed = launches.with_own_gpus(text, name, self._gpus(asked, text))
        asked = self._with_launches(replace(asked, ignored=(*asked.ignored, *changed)), (*written, *more), text, name)
        ignored = list(asked.ignored)
        for other in commands():
            first = None if other is self else other.marks(text)
            if first is not None and self.marks(text) is not None:
                why = f"the script has {self.mark} lines, which are read"
                ignored.append(IgnoredOption(f"{name}:{first}", other.mark, why))
        ignored.sort(key=lambda each: int(each.where.rpartition(":")[2]) if each.where.startswith(f"{name}:") else 0)
        asked = replace(asked, ignored=tuple(ignored), name=asked.name or None)
        if changed:
            content = text.encode("utf-8", "surrogateescape")
        return BatchScript(self, asked, name, arguments, content)

    def _gpus(self, asked: BatchOptions, text: str) -> int | None:
        """On each node: what the job asks for, or its steps."""
        gpus, nodes = asked.gpus, asked.nodes or 1
        if gpus is None or launches.calls_jsrun(text):  # jsrun's systems give whole nodes, whatever is asked for
            of_steps = launches.gpus_on_each(text, nodes, asked.tasks or nodes * (asked.tasks_per_node or 1))
            gpus = max(gpus or 0, of_steps or 0) or None
        return gpus

    def _with_launches(
        self, asked: BatchOptions, written: Sequence[WrittenOption], text: str, name: str
    ) -> BatchOptions:
        """The options with what the script's own commands say, or cannot do inside a job."""
        nodes = asked.nodes or 1
        told = next((each for each in reversed(written) if each.name in self.node_options), None)
        said = f"{told.where}: {told.said}" if told is not None else f"{name}: {nodes} nodes"
        gpus = self._gpus(asked, text)
        stays = launches.stays(text)
        ignored = [
            replace(each, doubt=not stays, needs="") if each.needs == ONE_NODE else each for each in asked.ignored
        ]
        ignored += [*launches.doubts(text, name, nodes, gpus, said), *self._mpi_doubts(asked, text, name)]
        return replace(asked, gpus=gpus, ignored=tuple(ignored))

    def _mpi_doubts(self, asked: BatchOptions, text: str, name: str) -> Iterator[IgnoredOption]:
        """The steps of the script that need what only the batch system's launcher gives them."""
        try:
            folder = os.path.abspath(asked.cwd or "")
        except FileNotFoundError:  # where we are is gone
            folder = "/"
        one = (asked.nodes or 1) * (asked.tasks_per_node or 1) == 1 == (asked.tasks or 1)
        for each in mpi.doubts(text, name, folder, one):
            if each.needs != mpi.DEFAULT:
                yield each
            elif default := self.mpi_default():
                yield replace(each, why=f"the default here is --mpi={default}; {each.why}", needs="")

    def tasks_of(self, batch: BatchScript, nodes: int) -> BatchTasks | None:
        """How the script of a job on so many nodes is run; None: as any other command."""
        if not self.system.runs_scripts():
            return None
        asked, text = batch.asked, text_of(batch.content or " ".join(batch.arguments).encode(errors="surrogateescape"))
        return BatchTasks(
            self.system.name,
            tasks=asked.tasks,
            tasks_per_node=asked.tasks_per_node,
            first_only=nodes == 1 or launches.starts_tasks(text),
            launch_host=launches.calls_jsrun(text),
            variables=asked.set,
            output=asked.output or "",
            error=asked.error or "",
            append=bool(asked.append),
            scratch=self.scratch_variable if re.search(rf"\b{self.scratch_variable}\b", text) else "",
        )

    def written_in(self, text: str) -> list[WrittenOption]:
        """The options of a script's lines, as far as they can be read."""
        found: list[WrittenOption] = []
        for _, line in self.lines(text, everywhere=self.everywhere):
            try:
                parts = shlex.split(line, comments=True)
            except ValueError:
                parts = line.split()
            try:
                found += self.split(parts, "")[0]
            except BadLine:
                found += self._dependencies_in(parts)
        return found

    def written_on(self, words: Sequence[str]) -> list[WrittenOption]:
        """The options of a command line, as far as they can be read."""
        try:
            return self.split_line(words)[0]
        except BadLine:
            return list(self._dependencies_in(words))

    def _dependencies_in(self, words: Sequence[str]) -> Iterator[WrittenOption]:
        """The dependencies in words that make no command line otherwise."""
        for place, word in enumerate(words):
            if match := self.dependency_pattern.match(word):
                value = word[match.end() :] or next(iter(words[place + 1 :]), "")
                yield WrittenOption("", self.dependency_option, value, f"{match[0].rstrip('=')} {value}")

    def variables(self, cwd: str, array: IndexArray | None, *, every: bool = False) -> Mapping[str, str]:
        """The variables that the batch system would set for the script; `every`: also where only options make it an
        array.
        """
        found = {self.folder_variable: cwd}
        if array is not None:
            return found | {key: str(value) for key, value in self.array_variables(array).items()}
        return found | ({self.index_variable: INDEX} if every else {})


def commands() -> tuple[SubmitCommand, ...]:
    """All of them; where a script has lines of several, those of the first are read."""
    return tuple(system.submit_command() for system in systems())


def command_named(name: str) -> SubmitCommand:
    """The one that is called so."""
    return next(command for command in commands() if command.name == name)


def job_number(digits: str) -> int:
    """An id; a longer one than hpcdl gives is nobody's."""
    return int(digits.lstrip("0")[: _DIGITS + 1] or 0)


def find(word: str) -> tuple[SubmitCommand, bytes] | None:
    """The submit command whose lines a file carries, and its content; None where there is no such file, or no lines.

    Raises BadLine for one that is too large.
    """
    try:
        if not stat.S_ISREG(os.stat(word).st_mode):
            return None
        with open(word, "rb") as file:
            content = file.read(_PEEK)
            if b"\0" in content:
                return None  # a program
            content += file.read(LIMIT + 1 - len(content))
    except (OSError, ValueError):
        return None
    text = text_of(content)
    command = next((each for each in commands() if each.marks(text) is not None), None)
    if command is not None and len(content) > LIMIT:
        raise BadLine(f"{word}: a script has {LIMIT >> 20} MiB at most: let it call the rest")
    return None if command is None else (command, content)


def text_of(content: bytes) -> str:
    """The script as text; what is not UTF-8 stays what it is."""
    return content.decode("utf-8", "surrogateescape")


def keep(home: Path, content: bytes) -> Path:
    """A copy of the script in `home`, named after its content, that stays as it is now.

    Raises NotPrivate and OSError.
    """
    make_private_folder(home)
    folder = home / FOLDER
    make_private_folder(folder)
    path = folder / f"{hashlib.sha256(content).hexdigest()}.sh"
    if not (path.is_file() and not path.is_symlink() and path.read_bytes() == content):
        atomic_write(path, content)
    path.chmod(0o700)
    return path


def interpreter(batch: BatchScript) -> tuple[str, ...]:
    """The program of the script's first line and its one argument, as the kernel takes them; else /bin/sh.

    Raises BadLine.
    """
    first = text_of((batch.content or b"")[:_PEEK]).split("\n", 1)[0]
    if first.endswith("\r"):
        raise BadLine(f"{batch.file}:1: its lines end as in DOS: convert it with dos2unix")
    if not first.startswith("#!"):
        return ("/bin/sh",)
    words = tuple(first[2:].strip().split(None, 1))
    if not words or "=" in words[0]:
        raise BadLine(f"{batch.file}:1: {first!r} names no program")
    return words


def command_of(batch: BatchScript, home: Path, cwd: str, *, filled: bool) -> tuple[str, ...]:
    """The job's command, of an array with `{index}` where its jobs differ; the script is kept in `home`.

    `filled`: words of the script's arguments may name the values of a sweep; else they are taken as they are. What
    scripts use of their batch system's variables is set by env(1), for agents keep such variables from trainers.
    Raises BadLine, NotPrivate and OSError.
    """
    run = batch.arguments
    if batch.content is not None:
        program = interpreter(batch)
        run = (*program, str(keep(home, batch.content)), *batch.arguments)
    given = batch.command.variables(cwd, batch.asked.array, every=filled)
    if filled or batch.asked.array is not None:
        run = run if filled else tuple(map(literal, run))
        given = {key: value if value == INDEX else literal(value) for key, value in given.items()}
    return ("env", *(f"{key}={value}" for key, value in given.items()), *run)


def read_file(word: str) -> bytes:
    """A script. Raises NotForHpcdl."""
    try:
        with open(word, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotForHpcdl(f"{word} is no file")
            content = file.read(LIMIT + 1)
    except FileNotFoundError:
        raise NotForHpcdl(f"there is no script {word} here") from None
    except (OSError, ValueError) as error:
        raise NotForHpcdl(f"{word}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > LIMIT:
        raise NotForHpcdl(f"{word} is too large")
    return content


def read_stdin() -> bytes:
    """The script on standard input, which can be read again after this, by the batch system's command.

    Raises NotForHpcdl.
    """
    try:
        if os.isatty(0):
            raise NotForHpcdl("the script is typed in")
        if not stat.S_ISREG(os.fstat(0).st_mode):
            import tempfile

            kept = tempfile.TemporaryFile()  # noqa: SIM115  (stays open as descriptor 0)
            with os.fdopen(os.dup(0), "rb") as pipe:
                shutil.copyfileobj(pipe, kept)
            kept.flush()
            os.lseek(kept.fileno(), 0, os.SEEK_SET)
            os.dup2(kept.fileno(), 0)
        content = os.pread(0, LIMIT + 1, os.lseek(0, 0, os.SEEK_CUR))
    except OSError as error:
        raise NotForHpcdl(f"standard input: {error}") from None
    if len(content) > LIMIT:
        raise NotForHpcdl("the script is too large")
    return content
