"""An idle trace as a replay takes it: cut to its hours, with the number of idle nodes at every moment.

`hpcdl/sim/readers/idle.py` reads the file, or the folder of a record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcdl.sim.readers.idle import read_idle_record, read_idle_trace, spells_of
from hpcdl.sim.workload import NodeSpell, WorkloadError

HOUR_S = 3600.0
MOST_HOURS = 10 * 366 * 24.0


@dataclass(frozen=True, slots=True)
class IdleTrace:
    """Which nodes are idle from 0 to `end_s`: `spells` by their begin, none beyond the end.

    `times` rise from 0 on, and `counts[i]` nodes are idle from `times[i]` until the next time, or the end.
    `changes`: the times above 0 and below the end at which some node joins or leaves.
    """

    spells: tuple[NodeSpell, ...]
    end_s: float
    times: NDArray[np.float64]
    counts: NDArray[np.int64]
    changes: tuple[float, ...]

    @property
    def lengths(self) -> NDArray[np.float64]:
        """Seconds from each time to the next one, or the end."""
        return np.diff(self.times, append=self.end_s)

    @property
    def mean(self) -> float:
        """N_eq of eq. 18: the number of idle nodes on average."""
        return float(self.counts @ self.lengths) / self.end_s

    @property
    def most(self) -> int:
        """The most nodes that are idle at once."""
        return int(self.counts.max(initial=0))

    @property
    def node_hours(self) -> float:
        """The resource integral of eq. 17."""
        return self.mean * self.end_s / HOUR_S

    def until(self, end_s: float) -> "IdleTrace":
        """The same, to an earlier end in seconds. WorkloadError where no node is idle before it."""
        return self if end_s >= self.end_s else _until(self.spells, end_s)

    def repeated(self, times: int) -> "IdleTrace":
        """The same so many times, one after the other. A node that is idle at both sides of a seam idles through it."""
        found: list[NodeSpell] = []
        through: dict[str, int] = {}  # places in `found` of the spells that last until the seam
        for number in range(times):
            shift, lasting = number * self.end_s, dict[str, int]()
            for spell in self.spells:
                until_s = min(spell.until_s, self.end_s) + shift
                place = through.get(spell.name) if spell.from_s == 0 else None
                if place is None:
                    place = len(found)
                    found.append(replace(spell, from_s=spell.from_s + shift, until_s=until_s))
                else:
                    found[place] = replace(found[place], until_s=until_s)
                if spell.until_s == math.inf:
                    lasting[spell.name] = place
            through = lasting
        return _until(found, times * self.end_s)


def read_idle(path: Path, hours: float | None, skip_single: bool = False) -> IdleTrace:
    """The first `hours` of a trace, None: all of it; of a folder the observed time of its record.

    `skip_single`: see `IdleRecord.without_single`. WorkloadError with file and line for what makes no sense,
    RecordError.
    """
    if not Path(path).is_dir():
        return idle_of(read_idle_trace(path, 1, skip_single=skip_single), hours)
    record = read_idle_record(path, skip_single)
    return idle_of(spells_of(record, 1), hours, round(record.seconds, 3))


def idle_of(spells: Sequence[NodeSpell], hours: float | None = None, last_s: float = 0.0) -> IdleTrace:
    """The first `hours` of these spells of nodes, None: until the last one ends, but not before `last_s` seconds."""
    if hours is not None and not (math.isfinite(hours) and 0 < hours <= MOST_HOURS):
        raise WorkloadError(f"hours must be above 0 and up to {MOST_HOURS:g}, got {hours:g}")
    last_s = max([last_s, *(spell.until_s for spell in spells)])
    end_s = min(last_s, math.inf if hours is None else hours * HOUR_S)
    if not math.isfinite(end_s):
        raise WorkloadError("some node is idle for ever: say for how many hours")
    return _until(spells, end_s)


def _until(spells: Sequence[NodeSpell], end_s: float) -> IdleTrace:
    kept = [spell for spell in spells if spell.from_s < end_s]
    kept = [spell if spell.until_s < end_s else replace(spell, until_s=math.inf) for spell in kept]
    kept.sort(key=lambda spell: spell.from_s)
    if not kept:
        raise WorkloadError(f"no node is idle in the first {end_s / HOUR_S:g} hours")
    net: dict[float, int] = {0.0: 0}
    for spell in kept:
        net[spell.from_s] = net.get(spell.from_s, 0) + 1
        if math.isfinite(spell.until_s):
            net[spell.until_s] = net.get(spell.until_s, 0) - 1
    times = np.array(sorted(net))
    counts = np.cumsum([net[at] for at in sorted(net)])
    return IdleTrace(tuple(kept), end_s, times, counts, tuple(float(at) for at in times if at > 0))
