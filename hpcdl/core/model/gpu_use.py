"""How the GPUs are used now: told apart and counted once, for the page, its grid and `hpcdl top`.

Values only: who asks the daemon, and in which form it answers, is the callers' business.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU. `there`: its node is connected, and not about to go. `load`: percent, None where it is not told."""

    held: bool
    healthy: bool
    there: bool
    load: float | None

    @property
    def kind(self) -> str:
        """`held` by a job, `bad` (excluded or unhealthy), `free`, or `away`."""
        return "held" if self.held else "bad" if not self.healthy else "free" if self.there else "away"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Numbers of GPUs by kind; `told` of them tell their load. Loads are means in percent, None where none is told."""

    held: int
    free: int
    bad: int
    away: int
    told: int
    load: float | None
    load_held: float | None


def gpu_use(gpus: Iterable[GpuNow]) -> GpuUse:
    """What these GPUs come to."""
    listed = list(gpus)
    kinds = Counter(gpu.kind for gpu in listed)
    loads = [gpu.load for gpu in listed if gpu.load is not None]
    on_held = [gpu.load for gpu in listed if gpu.held and gpu.load is not None]
    means = (sum(each) / len(each) if each else None for each in (loads, on_held))
    return GpuUse(kinds["held"], kinds["free"], kinds["bad"], kinds["away"], len(loads), *means)
