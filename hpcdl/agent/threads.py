"""OMP_NUM_THREADS for a trainer: the node's processors by its share of the node's GPUs. Jobs that share a node would
otherwise take all of its processors each."""

import os
import re
from collections.abc import Mapping, Sequence

NAME = "OMP_NUM_THREADS"
OURS = "HPCDL_OMP_NUM_THREADS"
"""The same number, by which a submit from within a job knows that nobody chose it (hpcdl/cli/jobparts.py)."""
LIMIT = 1 << 16  # bytes of a script

_LAUNCHERS = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|deepspeed|horovodrun|mpirun|mpiexec)\b"
)
"""What starts a process for each GPU: those share the number, and each takes it for its own."""


def threads(command: Sequence[str], cwd: str, *, gpus: int, of: int, ranks: int) -> Mapping[str, str]:
    """The variables. `gpus` of the node's `of` are the job's; `ranks`: processes that hpcdl starts for it there."""
    if ranks == 1 and _launches(command, cwd):
        ranks = gpus
    share = len(os.sched_getaffinity(0)) * min(gpus, of) // max(of, 1)
    number = str(max(1, share // max(ranks, 1)))
    return {NAME: number, OURS: number}


def _launches(command: Sequence[str], cwd: str) -> bool:
    """Whether the command, or the shell script that it runs, starts a process for each GPU."""
    if _LAUNCHERS.search(" ".join(command)):
        return True
    script = next((word for word in command if word.endswith((".sh", ".slurm", ".lsf", ".bash"))), None)
    if script is None:
        return False
    path = os.path.join(cwd, script)
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return _LAUNCHERS.search(file.read(LIMIT).decode("utf-8", "replace")) is not None
    except (OSError, ValueError):
        return False
