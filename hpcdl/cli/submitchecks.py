"""What can be seen at a submit, on this machine, of what will go wrong with the job where it runs."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcdl.core.arrays import Array, folders_of, named
from hpcdl.core.jobspec import JobSpec
from hpcdl.core.launchers import SHELLS, shell_script

SCRIPT_CHARACTERS = 1 << 18

MEMBERS_LOOKED_AT = 200
"""Of an array whose members have a checkpoint folder each; what the others have is seen when they start."""


def unwritable(folder: str) -> str:
    """Why checkpoints cannot be written into a folder, with the next step; "" where they can, or nobody knows here."""
    path = Path(folder)
    if named((folder,)):
        parts = path.parts
        path = Path(*parts[: next(place for place, part in enumerate(parts) if named((part,)))])
    while not os.path.lexists(path):
        path = path.parent
    if path == Path("/"):
        return ""  # nothing of it is on this machine
    if not path.is_dir():
        return f"the checkpoint folder {folder} cannot be made: {path} is no folder: choose another --checkpoint-dir"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"the checkpoint folder {folder} cannot be written: {path} is not yours: choose another --checkpoint-dir"
    return ""


def script_text(command: Sequence[str], cwd: str) -> str:
    """What is in the shell script that a command runs, by a shell or by its #! line; "" where nobody can tell here."""
    words = command[1:] if command[0].rpartition("/")[2] == "env" else command
    program = next((word for word in words if "=" not in word), "")
    file = shell_script(command)
    try:
        with open(os.path.join(cwd, file or program), encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.read(SCRIPT_CHARACTERS)
    except (OSError, ValueError):
        return ""
    first = text.split("\n", 1)[0]
    is_shell = first.startswith("#!") and any(word.rpartition("/")[2] in SHELLS for word in first[2:].split())
    return text if (file or is_shell) and "\0" not in text else ""


def others_folder(spec: JobSpec, array: Array | None, instance: str) -> str:
    """Why its checkpoint folder, or one of an array's first members, may not be taken: it is another job's; else ""."""
    if spec.checkpoint_dir is None:
        return ""
    from hpcdl.agent.claim import another_jobs

    folders = [spec.checkpoint_dir]
    if array is not None and named(folders):
        folders = list(folders_of(spec.checkpoint_dir, array, MEMBERS_LOOKED_AT))
    return next((why for each in folders if (why := another_jobs(each, instance, spec.continue_from))), "")


def doubts(spec: JobSpec, *, array: bool) -> Iterator[str]:
    """What may go wrong: the folder or the command is not here. `array`: the command may hold placeholders."""
    folder = Path(spec.cwd)
    here = folder.is_dir()
    if not here:
        yield f"{folder} is not a folder on this machine; the job needs it where it runs"
    program = spec.command[0]
    if array and named((program,)):
        return
    env = dict(spec.env)
    if program == "env":
        program = next((word for word in spec.command[1:] if "=" not in word), program)
    shown = program if len(program) <= 100 else f"{program[:100]}…"
    if "/" in program:
        if here and not os.path.exists(folder / program):
            yield f"{shown} is not there: the job fails where it is not there either"
        elif here and os.path.isdir(folder / program):
            yield f"{shown} is a folder: give the program in it"
        elif here and not os.access(folder / program, os.X_OK):
            yield f"{shown} may not be run: chmod +x, or name its interpreter: python {shown}"
    elif not _on_path(program, env.get("PATH") or os.defpath):
        hint = f": ./{shown}, or python {shown}?" if here and _exists(folder / program) else ""
        yield f"{shown} is not a program on PATH here; the job fails where it is none either{hint}"


def _on_path(program: str, path: str) -> bool:
    """As shutil.which, whose module takes longer to import than all that is done here."""
    places = (os.path.join(folder, program) for folder in path.split(os.pathsep))
    return any(os.access(place, os.X_OK) and not os.path.isdir(place) for place in places)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long a name
        return False
