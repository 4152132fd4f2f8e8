"""How many GPUs are held, free, bad and away now: counted in one way for the page, its grid and `hpcdl top`.

Values only: who asks the daemon, and in which form it answers, is the callers' business.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU."""

    held: bool  # by a job
    healthy: bool
    there: bool  # its node is connected, and not about to go
    load: float | None  # percent; None: not known

    @property
    def kind(self) -> str:
        """`held` by a job, `bad` (excluded or unhealthy), `free`, or `away`."""
        return "held" if self.held else "bad" if not self.healthy else "free" if self.there else "away"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Numbers of GPUs by kind, and their mean loads in percent."""

    held: int
    free: int
    bad: int
    away: int
    told: int  # GPUs whose load is known
    load: float | None  # None: that of none is known
    load_held: float | None  # of held GPUs; None: that of none is known


def gpu_use(gpus: Iterable[GpuNow]) -> GpuUse:
    """The numbers of these GPUs."""
    listed = list(gpus)
    kinds = Counter(gpu.kind for gpu in listed)
    loads = [gpu.load for gpu in listed if gpu.load is not None]
    on_held = [gpu.load for gpu in listed if gpu.held and gpu.load is not None]
    means = (sum(each) / len(each) if each else None for each in (loads, on_held))
    return GpuUse(kinds["held"], kinds["free"], kinds["bad"], kinds["away"], len(loads), *means)
