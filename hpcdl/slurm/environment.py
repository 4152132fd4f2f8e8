"""The allocation of this process, from the variables that Slurm sets in a batch job.

Pure. Half an allocation is refused: `adapter.py` asks squeue for the end where no variable has it.
"""

import re
from collections.abc import Mapping

from hpcdl.batch.adapter import Allocation
from hpcdl.batch.system import HalfAnAllocation
from hpcdl.slurm.text import expand, moment

_NEEDED = {
    "SLURM_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "SLURM_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
}


def allocation_of(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation; `until` and `started_at` only where these variables have them (from 23.02 on).

    None outside of any. Raises HalfAnAllocation where only some of its variables are here.
    """
    found = {name: _first(environ, names) for name, names in _NEEDED.items()}
    if not any(found.values()):
        return None
    missing = [name for name, value in found.items() if not value]
    nodes = expand(found["SLURM_JOB_NODELIST"])
    if missing or not nodes:
        here = [name for name, value in found.items() if value]
        lacks = ", ".join(missing) or "a list of nodes"
        raise HalfAnAllocation(
            f"this looks like a Slurm allocation ({', '.join(here)} is set) but {lacks} is missing: "
            "start hpcdl with the environment that Slurm gave the batch job, or unset SLURM_JOB_ID"
        )
    return Allocation(
        kind="slurm",
        id=found["SLURM_JOB_ID"],
        nodes=nodes,
        gpus=_gpus(environ),
        until=moment(environ.get("SLURM_JOB_END_TIME", "")),
        started_at=moment(environ.get("SLURM_JOB_START_TIME", "")),
        queue=environ.get("SLURM_JOB_PARTITION", ""),
        here=environ.get("SLURMD_NODENAME", ""),
    )


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")


def _gpus(environ: Mapping[str, str]) -> int | None:
    """GPUs on each node. On a node without any of the variables: none were granted; elsewhere nobody knows."""
    listed = environ.get("SLURM_JOB_GPUS", "").strip()
    if listed:
        return sum(_length(part) for part in listed.split(","))
    on_node = environ.get("SLURM_GPUS_ON_NODE", "").strip()
    if on_node.isdecimal() and len(on_node) < 10:
        return int(on_node)
    per_node = environ.get("SLURM_GPUS_PER_NODE", "").strip()
    if per_node:
        counts = [re.search(r"(?:^|:)(\d{1,9})$", part.strip()) for part in per_node.split(",")]
        return sum(int(match[1]) for match in counts if match)
    return 0 if environ.get("SLURMD_NODENAME") else None


def _length(part: str) -> int:
    """`0` is one GPU, `0-3` are four, and so is a MIG instance's name one."""
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", part.strip())
    return int(match[2]) - int(match[1]) + 1 if match else 1
