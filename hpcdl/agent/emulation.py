"""How many GPUs a node is to emulate: a number, or `auto`: as many as the batch system granted, where there are none.

A batch system's GPUs need device files, which a cluster for tests can only fake. Whoever runs on such a node wants
emulated ones; whoever runs where a GPU driver is loaded never does.
"""

import re
from collections.abc import Mapping
from pathlib import Path

AUTO = "auto"
VARIABLE = "HPCDL_EMULATE_GPUS"
MOST = 1024

_LISTS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_NUMBERS = ("SLURM_GPUS_ON_NODE",)
_DRIVERS = ("dev/nvidia[0-9]*", "dev/nvidiactl", "proc/driver/nvidia", "dev/kfd")
_RANGE = re.compile(r"(\d+)-(\d+)")


def emulated(choice: str | None, environ: Mapping[str, str], root: Path = Path("/")) -> tuple[int | None, bool]:
    """The number to emulate, None for real GPUs; and whether that was said at all. Raises ValueError.

    `choice`: what the command line says, None where it says nothing; then the environment's HPCDL_EMULATE_GPUS counts.
    """
    text = choice if choice is not None else environ.get(VARIABLE, "")
    if not text:
        return None, False
    if text != AUTO:
        if not text.isascii() or not text.isdecimal() or int(text) > MOST:
            raise ValueError(f"--emulate-gpus (or {VARIABLE}) is {AUTO} or a number up to {MOST}, not {text[:40]!r}")
        return int(text), True
    if has_driver(root):
        return None, True
    number = granted(environ)
    return number or None, True


def has_driver(root: Path = Path("/")) -> bool:
    """Whether this machine has the driver of a GPU, of NVIDIA's or AMD's."""
    return any(next(root.glob(pattern), None) is not None for pattern in _DRIVERS)


def granted(environ: Mapping[str, str]) -> int:
    """How many GPUs the batch system granted this process on this node, by its variables; 0 where they name none."""
    for name in _LISTS:
        if name in environ:
            return _listed(environ[name])
    for name in _NUMBERS:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0


def _listed(text: str) -> int:
    """Of `0,1,3`, `0-3` or UUIDs: how many. NoDevFiles and -1 are what Slurm and CUDA say for none."""
    parts = [part.strip() for part in text.split(",") if part.strip() not in ("", "NoDevFiles", "-1", "N/A")]
    ranges = [_RANGE.fullmatch(part) for part in parts]
    return sum(1 if found is None else max(0, int(found[2]) - int(found[1]) + 1) for found in ranges)
