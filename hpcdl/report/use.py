"""What jobs used of the GPUs that they held, as their agents measured it: utilisation, and memory in use.

Means over the samples of each job, so that a job has one number for all its time. `account` adds them up over lines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl.core.model.units import GpuRef
from hpcdl.report.account_events import AccountEvents
from hpcdl.report.history import History


@dataclass(frozen=True, slots=True)
class JobUse:
    """Shares from 0 to 1 of the GPUs that a job held; None: not known."""

    util: float | None = None
    memory: float | None = None


NO_USE = JobUse()
"""Of what nobody measured."""


@dataclass(slots=True)
class UseSum:
    """The mean of a share over GPU-seconds, of those in which it is known."""

    used: float = 0.0
    seconds: float = 0.0

    def add(self, share: float | None, seconds: float) -> None:
        """Takes in GPU-seconds with that share; None: it is not known."""
        if share is not None:
            self.used, self.seconds = self.used + share * seconds, self.seconds + seconds

    @property
    def share(self) -> float | None:
        """None where it is known of no GPU-second."""
        return self.used / self.seconds if self.seconds > 0 else None


def use_of(rows: Iterable[Mapping[str, Any]], history: History, watch: AccountEvents) -> dict[int, JobUse]:
    """The use of each job. `rows`: as `GET /v1/use` answers them. Memory is known where that of each GPU is."""
    held: dict[int, dict[str, float]] = {}
    for span in history.spans:
        mine = held.setdefault(span.job, {"mib": 0.0, "seconds": 0.0, "unknown": 0.0})
        mib = watch.memory_mib.get(GpuRef(span.node, span.gpu), 0)
        mine["mib"] += mib * (span.end_at - span.start_at)
        mine["seconds" if mib else "unknown"] += span.end_at - span.start_at
    found = {}
    for row in rows:
        mine = held.get(row["job"], {})
        size_mib = mine["mib"] / mine["seconds"] if mine and mine["seconds"] > 0 and not mine["unknown"] else 0.0
        util, memory_mib = row["gpu_util"], row["gpu_memory"]
        found[row["job"]] = JobUse(
            None if util is None else util / 100, memory_mib / size_mib if memory_mib is not None and size_mib else None
        )
    return found
