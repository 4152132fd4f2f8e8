"""What emulated GPUs show of the job that holds them: a real one measures itself, these follow the job's processes.

Utilisation is the share of time in which the job trains, by the steps that it tells; of one that tells none, what its
processes use of a core for each of its GPUs. Memory is that of its processes, divided among its GPUs. What a trainer
said itself when it took the GPU (hpcdl/trainer/emulated.py) is what it uses while it trains.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpcdl.gpu import GpuSample

FIRST_S = 600.0
"""A first step may take so long."""
LEAST_S = 1.0
"""A step may be late by so much: progress is told now and then only."""
SPAN_S = 0.05
"""Two looks that are closer than this are one."""


@dataclass(frozen=True, slots=True)
class Load:
    """Shares from 0 to 1, None where it is not known. `trains`: of time, by its steps; `cores`: of a core for each GPU,
    of one that tells no steps."""

    trains: float | None = None
    cores: float | None = None
    memory_mib: int | None = None


IDLE = Load(0.0, 0.0, 0)


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


class Training:
    """In which share of the time between two looks a trainer trained, by the steps that it tells."""

    def __init__(self, now: float) -> None:
        self._looked = now
        self._step: int | None = None
        self._since: float | None = None  # when it was last seen to train, None while it does not
        self._usual_s: float | None = None  # between two steps that it tells
        self._trained_s = 0.0
        self._share: float | None = None

    def began(self, step: int, now: float) -> None:
        """Its training loop begins."""
        self._step, self._since = step, now

    def stepped(self, step: int | None, now: float) -> None:
        """It has told how many steps are done; only another number is one."""
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
        """The share since the last look; None while it has told no step."""
        span_s = now - self._looked
        if self._step is None:
            self._looked = now
            return None
        if span_s >= SPAN_S or self._share is None:
            self._count(now)
            self._share = min(1.0, self._trained_s / span_s) if span_s > 0 else 0.0
            self._looked, self._trained_s = now, 0.0
        return self._share
