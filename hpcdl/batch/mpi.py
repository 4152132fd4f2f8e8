"""Which steps of a batch script are programs of MPI's, as far as their text and the files beside it show.

srun and jsrun give their tasks a PMI, by which ranks of MPI find each other; inside a job of hpcdl they do not, and
each task would be rank 0 of 1. So such a script is left to the batch system. What no text shows is seen when the step
runs (agent/steps/mpi.py). Files are read, within bounds, and nothing is run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcdl.batch.launches import TASKS, code_of, filled, step_options
from hpcdl.batch.options import IgnoredOption
from hpcdl.batch.python_imports import CHARACTERS, FILES, files_of, imports_of
from hpcdl.core.rules.launchers import MODULES, PROGRAMS, SHELLS

DEFAULT = "mpi-default"
"""What an IgnoredOption needs that does no harm where srun gives tasks no PMI by default."""

MPI_MODULES = frozenset({"mpi4py", "mpi4jax", "mpi4torch", "petsc4py", "horovod"})
"""Python modules whose ranks find each other by MPI. Horovod's do, too, where no horovodrun has started them."""
OFF = frozenset({"none", "off"})
"""Values of srun's --mpi and jsrun's --smpiargs for tasks that are no ranks of MPI's."""

_IMPORTS = re.compile(rf"^\s*(?:from|import)\s+({'|'.join(sorted(MPI_MODULES))})\b", re.MULTILINE)
_AT_ONCE = re.compile(r"^(?:from\s+mpi4py\s+import\s.*\bMPI\b|import\s+mpi4py\.MPI\b)", re.MULTILINE)
"""What calls MPI_Init wherever it is run at all."""
_BACKEND = re.compile(
    r"(?<![\w-])--(?:dist[-_]?)?backend[= ]mpi\b|init_process_group\(\s*(?:backend\s*=\s*)?[\"']mpi[\"']"
)
ELF = b"\x7fELF"
_LIBRARY = re.compile(rb"\blibmpi\w*\.so")
_SAID = re.compile(r"\s*(?:echo|printf)\b")
_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*])")
"""All that a function or a script was given."""
_CD = re.compile(r"(?:^|[;&|({]|\b(?:then|do)\s)[^\S\n]*(?:cd|pushd)\s+[\"']?([^\s;&|\"')}]+)", re.MULTILINE)
_BREAKS = re.compile(r"[;&|\n(){}`]|\$\(")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
_CODE = re.compile("-[a-zA-Z]*c")
_WRAPPED = 3
"""Shell scripts within each other that are looked into."""
_PROGRAM_BYTES = 8 << 20
"""Of a program: the names of its libraries stand near its beginning."""

_SAYS = {
    "srun": re.compile(r"(?<!\S)(--mpi)(?:=|\s+)[\"']?([\w/]+)"),
    "jsrun": re.compile(r"(?<!\S)(--smpiargs|-M)[= ]?\s*(\S+)"),
}
"""What asks each for ranks of MPI."""
_WHY = "tasks of hpcdl get no PMI, each would be rank 0 of 1"
_HOW = "starts no ranks of MPI inside a job"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a command shows. `mpi`: why it is a program of MPI's, "" where nothing says so; `seen`: it was read."""

    mpi: str = ""
    seen: bool = False


def doubts(text: str, file: str, folder: str, one_task: bool) -> Iterator[IgnoredOption]:
    """The steps of a script that need a PMI, or may; of several for one reason the first. `folder`: in which it runs.
    `one_task`: a step has one unless it says more."""
    code = filled(code_of(text), folder)
    known: set[tuple[str, str]] = set()
    for place, what, why, needs in _found(code, folder, one_task):
        if (what, why) not in known:
            known.add((what, why))
            where = f"{file}:{code.count(chr(10), 0, place) + 1}"
            yield IgnoredOption(where, what, why, doubt=True, how=_HOW, needs=needs)


def _found(code: str, folder: str, one_task: bool) -> Iterator[tuple[int, str, str, str]]:
    """Of each such step where it is, what it says, why that is in doubt, and what it needs."""
    if (match := re.search(r"(?<!\w)SLURM_MPI_TYPE=[\"']?(\w+)", code)) and match[1] not in OFF:
        yield match.start(), match[0], _WHY, ""
    own, moves = _IMPORTS.search(code), _moves(code, folder)
    for step in TASKS.finditer(code):
        before = code[code.rfind("\n", 0, step.start()) + 1 : step.start()]
        if _SAID.match(re.split("[;&|]", before)[-1]):
            continue
        line, quoted = _line_at(code, step.end())
        words = _split(line)
        options = " ".join(step_options(words))
        asked = _SAYS[step[1]].search(" ".join(step_options([word for word in words if not word.startswith("$")])))
        if _tasks(step[1], options, one_task) == 1 or (asked and asked[2] in {*OFF, "list"}):
            continue
        if asked:
            yield step.start(), f"{asked[1]}={asked[2]}", _WHY, ""
            continue
        moved = re.search(r"(?<!\S)(?:-D\s*|--chdir[= ])(\S+)", options) if step[1] == "srun" else None
        there = os.path.join(_folder_at(moves, step.start()), moved[1] if moved else "")
        shown = evidence(words, there)
        if any(_ARGUMENTS.match(word) for word in words) and not shown.mpi:
            shown = _of_shell(code, there, 0)
        if own and not shown.seen and not quoted:
            shown = Evidence(f'the script has "{own[0].strip()}"')
        if shown.mpi:
            yield step.start(), step[1], f"{shown.mpi}, and {_WHY}", ""
        elif step[1] == "srun" and words and not (shown.seen or quoted):
            yield (
                step.start(),
                step[1],
                f"{_WHY}, if what it runs is one of MPI's (srun --mpi=none: it is not)",
                DEFAULT,
            )


def evidence(words: Sequence[str], folder: str, depth: int = 0) -> Evidence:
    """What a command, perhaps with another one's words and options before it, shows; it runs in this folder."""
    if _BACKEND.search(" ".join(words)):
        return Evidence("its backend is mpi")
    seen = False
    for place, word in enumerate(words):
        name, after = os.path.basename(word), words[place + 1] if place + 1 < len(words) else ""
        if _launches(word, after):
            return Evidence(seen=True)
        if word == "-m" and _interpreter(words[:place]):
            return _of_module(after, folder)
        if _CODE.fullmatch(word) and (python := _interpreter(words[:place])) is not None:
            return _of_text(after, "the command") if python else _of_shell(after, folder, depth)
        if word.startswith("-") or "=" in word:
            continue
        path = os.path.join(folder, word) if "/" in word or os.path.isfile(os.path.join(folder, word)) else ""
        if name.endswith(".py"):
            return _of_script(path) if path else Evidence()
        if (head := _head(path or shutil.which(word) or "")).startswith(ELF):
            if _LIBRARY.search(head):
                return Evidence(f"{name} is linked with MPI")
            seen = seen or not (_PYTHON.fullmatch(name) or name in SHELLS)
        elif path and b"\0" not in head and depth < _WRAPPED and (head.startswith(b"#!") or name.endswith(".sh")):
            text = head.decode("utf-8", "replace")
            shown = _of_script(path) if "python" in text.split("\n", 1)[0] else _of_shell(text, folder, depth)
            if shown.mpi or not _ARGUMENTS.search(text):
                return shown
    return Evidence(seen=seen)


def _interpreter(words: Sequence[str]) -> bool | None:
    """Whether the last of these that no option is is Python; False: a shell, None: neither."""
    name = os.path.basename(next((each for each in reversed(words) if not each.startswith("-")), ""))
    return True if _PYTHON.fullmatch(name) else False if name in SHELLS else None


def _of_shell(text: str, folder: str, depth: int) -> Evidence:
    code = filled(code_of(text), folder)
    if own := _IMPORTS.search(code):
        return Evidence(f"it has {own[0].strip()}")
    seen = False
    place, moves = 0, _moves(code, folder)
    for piece in _BREAKS.split(code):
        place = code.index(piece, place) + len(piece)
        shown = evidence(_split(piece), _folder_at(moves, place), depth + 1)
        if shown.mpi:
            return shown
        seen = seen or shown.seen
    return Evidence(seen=seen)


def _of_module(module: str, folder: str) -> Evidence:
    if module.partition(".")[0] in MPI_MODULES:
        return Evidence(f"it runs {module}")
    main = os.path.join(folder, "__main__.py")
    files = [*files_of(0, module, main, main), *files_of(0, f"{module}.__main__", main, main)]
    shown = [_of_script(file, main) for file in dict.fromkeys(files)]
    return next((each for each in shown if each.mpi), Evidence(seen=bool(shown) and all(each.seen for each in shown)))


def _of_text(text: str, name: str) -> Evidence:
    if match := _IMPORTS.search(_statements(text)):
        return Evidence(f"{name} imports {match[1]}")
    return Evidence(f"the backend in {name} is mpi") if _BACKEND.search(text) else Evidence(seen=True)


def _of_script(script: str, started: str = "") -> Evidence:
    """Of a Python script and the modules beside it that it imports. `started`: what Python was started with, where that
    is another file."""
    waiting, known = [script], {script}
    while waiting:
        path = waiting.pop()
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(CHARACTERS)
        except (OSError, ValueError):
            return Evidence()
        if (shown := _of_text(text, os.path.basename(path))).mpi:
            return shown
        try:
            modules = imports_of(text)
        except (SyntaxError, ValueError, RecursionError):
            return Evidence()
        files = [each for level, module in modules for each in files_of(level, module, path, started or script)]
        waiting += [each for each in dict.fromkeys(files) if each not in known]
        known.update(files)
        if len(known) > FILES:
            return Evidence()
    return Evidence(seen=True)


def certain(words: Sequence[str], folder: str, path: str) -> str:
    """Why a command is surely a rank of MPI: how it is linked, or what it imports at once; "": nothing says so, or it
    is another launcher. `path`: the PATH by which it is found."""
    for place, word in enumerate(words):
        name, after = os.path.basename(word), words[place + 1] if place + 1 < len(words) else ""
        if _launches(word, after):
            return ""
        if _CODE.fullmatch(word) and _interpreter(words[:place]):
            return "the command imports mpi4py" if _AT_ONCE.search(_statements(after)) else ""
        head = _head(os.path.join(folder, word if "/" in word else shutil.which(word, path=path) or word))
        if head.startswith(ELF) and _LIBRARY.search(head):
            return f"{name} is linked with it"
        if name.endswith(".py"):
            return f"{name} imports mpi4py" if _AT_ONCE.search(head.decode("utf-8", "replace")) else ""
    return ""


def _launches(word: str, after: str) -> bool:
    """Whether this word of a command, and the one after it, start the ranks themselves."""
    return os.path.basename(word) in {*PROGRAMS, "accelerate"} or (word == "-m" and after in MODULES)


def _statements(code: str) -> str:
    """Python's statements, a line each."""
    return re.sub(r";\s*", "\n", code)


def _head(path: str) -> bytes:
    """The beginning of a plain file; b"" where there is none."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            head = file.read(CHARACTERS)
            return head + file.read(_PROGRAM_BYTES - len(head)) if head.startswith(ELF) else head
    except (OSError, ValueError):
        return b""


def _moves(code: str, folder: str) -> list[tuple[int, str]]:
    """Where the code goes on in which folder, the last first, as far as its cd commands are plain text."""
    found = [(0, folder)]
    for match in _CD.finditer(code):
        path = os.path.normpath(os.path.join(found[-1][1], os.path.expanduser(match[1])))
        if os.path.isdir(path):
            found.append((match.end(), path))
    return found[::-1]


def _folder_at(moves: list[tuple[int, str]], place: int) -> str:
    return next(path for begin, path in moves if begin <= place)


def _line_at(code: str, place: int) -> tuple[str, bool]:
    """What follows there up to the end of the command, which quotes may carry over lines; whether it is in quotes."""
    before = code[code.rfind("\n", 0, place) + 1 : place]
    around = next((mark for mark in "\"'" if before.count(mark) % 2), "")
    quote = ""
    for end in range(place, len(code)):
        letter = code[end]
        if quote:
            quote = "" if letter == quote else quote
        elif letter == around or letter in ";&|\n)`":
            return code[place:end], bool(around)
        elif letter in "\"'":
            quote = letter
    return code[place:], bool(around)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _tasks(name: str, options: str, one: bool) -> int:
    """How many tasks a step has, 2 where it has several or nobody knows."""
    if name == "jsrun":
        sets = re.search(r"(?<!\S)(?:-[np]\s*|--(?:nrs|np)[= ])(\S+)", options)
        each = re.search(r"(?<!\S)(?:-a\s*|--tasks_per_rs[= ])(\S+)", options)
        return 1 if sets and sets[1] == "1" and (each is None or each[1] == "1") else 2
    if said := re.search(r"(?<!\S)(?:-n\s*|--ntasks[= ])(\S+)", options):
        return 1 if said[1] == "1" else 2
    more = re.search(r"(?<!\S)(?:-N\s*|--nodes[= ]|--n?tasks-per-node[= ])(\S+)", options)
    return 1 if one and (more is None or more[1] == "1") and "--ntasks-per-gpu" not in options else 2
