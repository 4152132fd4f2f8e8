"""A batch script as jobs of hpcdl: known by its #SBATCH or #BSUB lines, copied at its submit, run by its first line."""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.cli import lsflines, slurmlines
from hpcdl.cli.batchlines import Asked, BadLine, Given, Ignored, head_lines, starters
from hpcdl.core.arrays import literal
from hpcdl.wire.private import atomic_write, make_private_folder

LIMIT = 4 << 20
"""Bytes of a script."""

FOLDER = "scripts"
_PEEK = 4096


@dataclass(frozen=True, slots=True)
class Batch:
    """What sbatch or bsub would be given: a script, or a command where `content` is None; and what it asks for."""

    system: str  # "slurm" or "lsf"
    asked: Asked
    file: str  # for messages
    arguments: tuple[str, ...] = ()
    content: bytes | None = None

    def doubt(self) -> bool:
        """Whether hpcdl leaves something out without which the job may not be what its user meant."""
        return any(each.doubt for each in self.asked.ignored)


def find(word: str) -> tuple[str, bytes] | None:
    """The batch system whose lines a file carries, and its content; None where there is no such file, or no lines.

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
    system = system_of(text_of(content))
    if system is not None and len(content) > LIMIT:
        raise BadLine(f"{word}: a script has {LIMIT >> 20} MiB at most: let it call the rest")
    return None if system is None else (system, content)


def text_of(content: bytes) -> str:
    """The script as text; what is not UTF-8 stays what it is."""
    return content.decode("utf-8", "surrogateescape")


def system_of(text: str) -> str | None:
    """Which batch system's lines are in the script: `slurm`, `lsf`, or None; where both are, Slurm's are read."""
    if next(head_lines(text, slurmlines.MARK, everywhere=False), None) is not None:
        return "slurm"
    return "lsf" if next(head_lines(text, lsflines.MARK, everywhere=False), None) is not None else None


def read(system: str, file: str, content: bytes, arguments: tuple[str, ...], more: tuple[Given, ...] = ()) -> Batch:
    """The script with what its lines ask for, and `more`, which wins. Raises BadLine."""
    text = text_of(content)
    lines = slurmlines if system == "slurm" else lsflines
    name = os.path.basename(file)
    asked = lines.asked_of((*lines.given_in(text, name), *more))
    ignored = [*asked.ignored, *starters(text, name)]
    if system == "slurm" and (other := next(head_lines(text, lsflines.MARK, everywhere=False), None)):
        ignored.append(Ignored(f"{name}:{other[0]}", lsflines.MARK, "the script has #SBATCH lines, which are read"))
    ignored.sort(key=lambda each: int(each.where.rpartition(":")[2]) if each.where.startswith(f"{name}:") else 0)
    asked = replace(asked, ignored=tuple(ignored), name=asked.name or None)
    return Batch(system, asked, name, arguments, content)


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


def interpreter(batch: Batch) -> tuple[str, ...]:
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


def command_of(batch: Batch, home: Path, cwd: str, *, filled: bool) -> tuple[str, ...]:
    """The job's command, of an array with `{index}` where its jobs differ; the script is kept in `home`.

    `filled`: words of the script's arguments may name the values of a sweep; else they are taken as they are. What
    scripts use of their batch system's variables is set by env(1), for agents keep such variables from trainers.
    Raises BadLine, NotPrivate and OSError.
    """
    run = batch.arguments
    if batch.content is not None:
        program = interpreter(batch)
        run = (*program, str(keep(home, batch.content)), *batch.arguments)
    given = variables(batch, cwd, every=filled)
    if filled or batch.asked.array is not None:
        run = run if filled else tuple(map(literal, run))
        given = {key: value if value == INDEX else literal(value) for key, value in given.items()}
    return ("env", *(f"{key}={value}" for key, value in given.items()), *run)


INDEX = "{index}"


def variables(batch: Batch, cwd: str, *, every: bool = False) -> Mapping[str, str]:
    """What the batch system would tell the script; `every`: also where only options make it an array."""
    slurm = batch.system == "slurm"
    found = {"SLURM_SUBMIT_DIR" if slurm else "LS_SUBCWD": cwd}
    array = batch.asked.array
    if array is None:
        return found | ({"SLURM_ARRAY_TASK_ID" if slurm else "LSB_JOBINDEX": INDEX} if every else {})
    if slurm:
        told: dict[str, object] = {
            "SLURM_ARRAY_TASK_ID": INDEX,
            "SLURM_ARRAY_TASK_COUNT": len(array.indices),
            "SLURM_ARRAY_TASK_MIN": min(array.indices),
            "SLURM_ARRAY_TASK_MAX": max(array.indices),
            "SLURM_ARRAY_TASK_STEP": array.step,
        }
    else:
        told = {"LSB_JOBINDEX": INDEX, "LSB_JOBINDEX_STEP": array.step}
    return found | {key: str(value) for key, value in told.items()}
