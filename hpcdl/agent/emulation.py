"""Emulated GPUs: how many a node has, and what they show of the job that holds them.

`emulated`: a number, or `auto`, as many as the batch system granted where there are none: its GPUs need device files,
which a cluster for tests can only fake. Where a GPU driver is loaded, `auto` never emulates any.

`shown`: a real GPU measures itself, an emulated one follows the processes of its job. Utilisation is the share of time
in which the job trains, by the steps that it reports; of a job that reports none, the share of a core that its
processes use for each of its GPUs. Memory is that of its processes, divided among its GPUs. What a trainer said when it
took the GPU (hpcdl/trainer/emulated.py) is what it uses while it trains. The GPUs themselves are in gpu/emulated.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.agent.gpu.device import GpuSample
from hpcdl.batch.system import systems

AUTO = "auto"

VARIABLE = "HPCDL_EMULATE_GPUS"

MOST = 1024

_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

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
    every = systems()
    for name in (*_MASKS, *(name for system in every for name in system.gpu_lists)):
        if name in environ:
            return _listed(environ[name])
    for name in (name for system in every for name in system.gpu_counts):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0


def _listed(text: str) -> int:
    """Of `0,1,3`, `0-3` or UUIDs: how many. NoDevFiles and -1 are what Slurm and CUDA say for none."""
    parts = [part.strip() for part in text.split(",") if part.strip() not in ("", "NoDevFiles", "-1", "N/A")]
    ranges = [_RANGE.fullmatch(part) for part in parts]
    return sum(1 if found is None else max(0, int(found[2]) - int(found[1]) + 1) for found in ranges)


FIRST_S = 600.0
"""A first step may take so long."""

LEAST_S = 1.0
"""A step may be late by so much: progress is reported now and then only."""

SPAN_S = 0.05
"""Two looks that are closer than this are one."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a job uses of its GPUs: shares from 0 to 1, None where it is not known. `trains`: of time, by its steps;
    `cores`: of a core for each GPU, of one that reports no steps."""

    trains: float | None = None
    cores: float | None = None
    memory_mib: int | None = None


IDLE = Load(0.0, 0.0, 0)


def together(loads: Sequence[Load | None]) -> Load | None:
    """The load of a GPU on which several jobs are; None where that of one is not known."""
    known = [load for load in loads if load is not None]
    if len(loads) == 1 or len(known) < len(loads):
        return known[0] if len(loads) == len(known) == 1 else None

    def added(values: list[float | None]) -> float | None:
        return None if any(value is None for value in values) else min(1.0, sum(value or 0.0 for value in values))

    memory = [load.memory_mib for load in known]
    sum_mib = None if any(each is None for each in memory) else sum(each or 0 for each in memory)
    return Load(added([load.trains for load in known]), added([load.cores for load in known]), sum_mib)


def shown(sample: GpuSample, load: Load | None) -> GpuSample:
    """The sample of an emulated GPU that a job holds, as that job uses it."""
    if load is None or sample.state != "ok":
        return sample
    said = sample.util if sample.pids != () else None
    memory = sample.memory_used_mib if sample.pids != () else None
    util: int | None
    if load.trains is not None:
        util = round(load.trains * (100 if said is None else said))
    elif said is not None:
        util = said
    else:
        util = None if load.cores is None else round(100 * min(1.0, load.cores))
    if memory is None and load.memory_mib is not None:
        memory = min(load.memory_mib, sample.memory_total_mib or load.memory_mib)
    return replace(sample, util=util, memory_used_mib=memory)


def resident_mib(pids: Iterable[int]) -> int:
    """Memory of these processes; what they share counts for each."""
    pages = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                pages += int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


class TrainingShare:
    """In which share of the time between two looks a trainer trained, by the steps that it reports."""

    def __init__(self, now: float) -> None:
        self._looked = now
        self._step: int | None = None
        self._since: float | None = None  # when it was last seen to train, None while it does not
        self._usual_s: float | None = None  # between two steps that it reports
        self._trained_s = 0.0
        self._share: float | None = None

    def began(self, step: int, now: float) -> None:
        """Its training loop begins."""
        self._step, self._since = step, now

    def stepped(self, step: int | None, now: float) -> None:
        """The trainer has reported how many steps are done; only another number is a step."""
        if step is None or step == self._step:
            return
        if self._since is not None:
            self._count(now)
            self._usual_s = now - self._since
        self._step, self._since = step, now

    def saved(self, seconds: float, final: bool, now: float) -> None:
        """A checkpoint is durable, which took so long; after a final one it trains no more."""
        if self._since is not None:
            self._count(now - seconds)
            self._since = now
        if final:
            self._since = None

    def paused(self) -> None:
        """Until it says that it trains again, it does not."""
        if self._step is not None:
            self._since = None

    def _count(self, until: float) -> None:
        """From when it was last seen to train, or looked at, up to then it trained, unless that took too long."""
        if self._since is not None and until - self._since <= self._limit_s:
            self._trained_s += max(0.0, until - max(self._since, self._looked))

    @property
    def _limit_s(self) -> float:
        return FIRST_S if self._usual_s is None else 2 * self._usual_s + LEAST_S

    def look(self, now: float) -> float | None:
        """The share since the last look; None while it has reported no step."""
        span_s = now - self._looked
        if self._step is None:
            self._looked = now
            return None
        if span_s >= SPAN_S or self._share is None:
            self._count(now)
            self._share = min(1.0, self._trained_s / span_s) if span_s > 0 else 0.0
            self._looked, self._trained_s = now, 0.0
        return self._share
