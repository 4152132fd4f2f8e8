"""The yardsticks of a replay: A_s of eq. 18 and the upper bound, for the trainers that are active at each moment.

While no trainer is active both stand still: what is idle then could not have been used.

`outcome` divides by them; `check` uses the same ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hpcdl.sim.replay.case import ReplayCase, ScalingModel
from hpcdl.sim.replay.idle import IdleTrace
from hpcdl.sim.replay.run import BestThroughput, ReplayRun
from hpcdl.sim.workload import WorkloadError

Mix = tuple[ScalingModel, ...]


@dataclass(frozen=True, slots=True)
class ReplayBound:
    """By what a replay is measured. `mixes`: from when on which trainers are active; their F is `best.of(mix)`.

    static: A_s, the integral of F(N_eq) over the time: what the same trainers do on N_eq nodes that never change.
    free: the integral of F(N(t)): what they do at most on the nodes that there are, if rescaling costs nothing.
    """

    idle: IdleTrace
    best: BestThroughput
    mixes: tuple[tuple[float, Mix], ...]
    static: float = field(init=False)
    free: float = field(init=False)

    def __post_init__(self) -> None:
        _, static = self.of(0.0, self.idle.end_s)
        if not static > 0:
            raise WorkloadError("the trace has too few idle nodes to measure by: no trainer could run on their mean")
        object.__setattr__(self, "static", static)
        object.__setattr__(self, "free", self._free())

    def of(self, begin: float, end: float) -> tuple[float, float]:
        """The mean number of idle nodes from `begin` to `end`, and A_s of that time."""
        idle = self.idle
        times = np.clip(np.append(idle.times, idle.end_s), begin, end)
        nodes = float(idle.counts @ np.diff(times)) / (end - begin)
        static = 0.0
        for mix, since, until in self._spans():
            seconds = min(end, until) - max(begin, since)
            if seconds > 0:
                static += self.best.at(mix, nodes) * seconds
        return nodes, static

    def _spans(self) -> list[tuple[Mix, float, float]]:
        ends = [*(at for at, _ in self.mixes[1:]), self.idle.end_s]
        return [(mix, at, end) for (at, mix), end in zip(self.mixes, ends, strict=True)]

    def _free(self) -> float:
        idle = self.idle
        edges = np.append(idle.times, idle.end_s)
        total = 0.0
        for mix, since, until in self._spans():
            first = int(np.searchsorted(edges, since, side="right")) - 1
            last = int(np.searchsorted(edges, until, side="left"))
            seconds = np.diff(np.clip(edges[first : last + 1], since, until))
            total += float(self.best.of(mix)[idle.counts[first:last]] @ seconds)
        return total


def yardstick_of(idle: IdleTrace, case: ReplayCase, ran: ReplayRun) -> ReplayBound:
    """For the trainers that were active at each moment of a run."""
    ends = {number: ended for number, (_, ended) in ran.timeline.ends.items()}
    best = BestThroughput(idle.most, case.fewest, case.most)
    return ReplayBound(idle, best, mixes(ran.models, ran.admitted, ends))


def mixes(
    models: Mapping[int, ScalingModel], admitted: Mapping[int, float], ends: Mapping[int, float]
) -> tuple[tuple[float, Mix], ...]:
    """Which trainers are active from when on, from 0 s: from when each is admitted until it ends.

    All by number. `models`: may have some that were never admitted; `ends`: of those that ended.
    """
    begins: dict[float, list[int]] = {}
    for number, at in admitted.items():
        begins.setdefault(at, []).append(number)
    active: list[int] = []
    found: list[tuple[float, Mix]] = [(0.0, ())]
    for at in sorted({*begins, *ends.values()}):
        active = [number for number in (*active, *begins.get(at, ())) if ends.get(number, math.inf) > at]
        mix = tuple(models[number] for number in active)
        if at == 0.0:
            found = [(at, mix)]
        elif mix != found[-1][1]:
            found.append((at, mix))
    return tuple(found)
