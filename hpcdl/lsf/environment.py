"""The allocation of this process, from the variables that LSF sets in a job; and how agents are started on its hosts.

Half an allocation is refused. What bsub needs of this environment, or must not have of it, is here as well.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdl.batch.adapter import PilotScript
from hpcdl.batch.system import BatchError, HalfAnAllocation
from hpcdl.lsf.system import SYSTEM
from hpcdl.lsf.text import compute_hosts, short

HOST_VARIABLES = ("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS")
"""In this order: the last one is dropped by LSF where it would be longer than 4096 bytes."""


@dataclass(frozen=True, slots=True)
class LsfAllocation:
    """What the environment says. `hosts`: those that compute, as LSF calls them; `launch`: it also listed another."""

    id: str
    hosts: tuple[str, ...]
    launch: bool
    queue: str


def lsf_allocation(environ: Mapping[str, str], read: Callable[[str], str]) -> LsfAllocation | None:
    """The job that this environment is of, None outside of any. Raises HalfAnAllocation, with what is missing."""
    job = environ.get("LSB_JOBID", "")
    told = [name for name in HOST_VARIABLES if environ.get(name, "").strip()]
    if not job:
        if told:
            raise HalfAnAllocation(f"{told[0]} is set, but LSB_JOBID is missing: start hpcdl from the LSF job itself")
        return None
    for name in told:
        if hosts := _hosts(name, environ[name], read):
            kept = compute_hosts(hosts)
            index = environ.get("LSB_JOBINDEX", "0")
            whole = job if index in ("", "0") else f"{job}[{index}]"
            return LsfAllocation(whole, kept, len(kept) < len(hosts), environ.get("LSB_QUEUE", ""))
    what = f"{', '.join(told)} cannot be read" if told else f"{', '.join(HOST_VARIABLES)} are missing"
    raise HalfAnAllocation(
        f"LSB_JOBID is {job}, but {what}: the hosts of this LSF job are not known: "
        "start hpcdl with the environment that LSF gave the batch job, or unset LSB_JOBID"
    )


def _hosts(name: str, value: str, read: Callable[[str], str]) -> tuple[tuple[str, int], ...]:
    """Hosts with their slots, () where the variable cannot be used."""
    slots: dict[str, int] = {}
    if name == "LSB_MCPU_HOSTS":
        parts = value.split()
        if len(parts) % 2 or not all(many.isdecimal() for many in parts[1::2]):
            return ()
        for host, many in zip(parts[::2], parts[1::2], strict=True):
            slots[host] = slots.get(host, 0) + int(many)
    else:
        if name == "LSB_DJOB_HOSTFILE":
            try:
                value = read(value)
            except OSError:
                return ()
        for host in value.split():
            slots[host] = slots.get(host, 0) + 1
    return tuple(slots.items())


def here(hosts: Sequence[str], names: Sequence[str]) -> str:
    """Which of the hosts, by short name, this machine is, going by the names it may have; "" for none of them."""
    known = {short(host) for host in hosts}
    return next((short(name) for name in names if name and short(name) in known), "")


def outside(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command without what this environment has of the LSF job that it is in.

    bsub gives its environment to the job, where a relative of LSF lets it hide the job's own hosts, and where nobody
    grants GPUs one by one their mask would stay that of our nodes.
    """
    if not SYSTEM.inside(environ):
        return list(argv)
    return ["env", *(word for name in SYSTEM.inherited(environ) for word in ("-u", name)), *argv]


def blaunch_argv(host: str, argv: Sequence[str]) -> list[str]:
    """One command on one host. With -z, for without it a relative of LSF takes the hosts of its environment."""
    return ["blaunch", "-z", host, *argv]


def ssh_argv(host: str, argv: Sequence[str]) -> list[str]:
    """One command on one host, by a terminal of its own: where ssh ends, it gets SIGHUP."""
    return ["ssh", "-tt", "-x", "-o", "BatchMode=yes", "--", host, f"exec {shlex.join(argv)}"]


def jsrun_argv(argv: Sequence[str], gpus: int | None) -> list[str]:
    """One command in one resource set that is a whole host.

    jsrun names no host (its ERF files are broken on the systems that have it): each such step takes one that is free.
    With a step for each host all have one, and the step that follows a lost one lands where that was.
    """
    cards = "ALL_GPUS" if gpus is None else str(gpus)
    return ["jsrun", "-n", "1", "-r", "1", "-a", "1", "-c", "ALL_CPUS", "-g", cards, "-b", "none", *argv]


def write_script(script: PilotScript, body: str) -> Path:
    """Writes the batch script, where bsub wants a file, beside the pilot's output, for its owner only and executable:
    LSF reads it, or runs it by its path.

    Raises BatchError.
    """
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in script.name)
    path = Path(script.output).absolute().parent / f"{name}.bsub"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o700)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(body)
    except OSError as error:
        raise BatchError(f"cannot write the batch script {path}: {error.strerror}") from None
    return path
