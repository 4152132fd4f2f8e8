"""Runs a job's command in a container image, by apptainer or singularity: what `hpcdl submit --container IMAGE` makes.

    python -m hpcdl.trainer.container IMAGE -- COMMAND ...

Binds what the job needs of its node: its folder, the side channel's socket, the checkpoint folders, the folders of
PYTHONPATH with the trainer library, and the GPUs. The program becomes the runtime, so signals and the exit code are
the command's. More folders: APPTAINER_BIND, which the runtime itself reads.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

RUNTIMES = ("apptainer", "singularity")
USAGE = "usage: python -m hpcdl.trainer.container IMAGE -- COMMAND ..."
NOT_FOUND = 127  # as shells count
CALL = "hpcdl.trainer.call"
"""The runner of functions: the word after it is the folder of its call."""


def main(argv: Sequence[str]) -> NoReturn:
    """Become the runtime. Raises SystemExit where that cannot be."""
    if len(argv) < 3 or argv[1] != "--":
        raise SystemExit(USAGE)
    image, command = argv[0], list(argv[2:])
    runtime = next((path for name in RUNTIMES if (path := shutil.which(name))), None)
    if runtime is None:
        names = " or ".join(RUNTIMES)
        sys.stderr.write(f"hpcdl: there is no {names} on PATH of this node: module load one before you submit\n")
        raise SystemExit(NOT_FOUND)
    folders = bound(os.environ, os.getcwd(), command)
    for folder in folders:
        if ":" in folder or "," in folder:
            raise SystemExit(f"hpcdl: {folder} cannot be bound into a container: its name has a colon or a comma")
    words = [runtime, "exec", *devices(), "--pwd", os.getcwd()]
    for folder in folders:
        words += ["--bind", folder]
    os.execv(runtime, [*words, image, *command])


def bound(environ: Mapping[str, str], cwd: str, command: Sequence[str]) -> list[str]:
    """The folders that the job needs; those of its checkpoints are made, for only what is there can be bound."""
    found = [cwd]
    if environ.get("HPCDL_SOCKET"):
        found.append(os.path.dirname(environ["HPCDL_SOCKET"]))
    for name in ("HPCDL_CHECKPOINT_DIR", "HPCDL_LOCAL_CHECKPOINT_DIR"):
        if environ.get(name):
            os.makedirs(environ[name], mode=0o700, exist_ok=True)
            found.append(environ[name])
    found += [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isdir(each)]
    if CALL in command[:-1]:
        found.append(command[list(command).index(CALL) + 1])
    return list(dict.fromkeys(os.path.abspath(each) for each in found))


def devices() -> list[str]:
    """The runtime's option for this node's GPUs; which of them are the job's, CUDA_VISIBLE_DEVICES says inside, too."""
    if os.path.exists("/dev/nvidiactl"):
        return ["--nv"]
    return ["--rocm"] if os.path.exists("/dev/kfd") else []


if __name__ == "__main__":
    main(sys.argv[1:])
