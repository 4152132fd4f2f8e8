"""Numbers over time as step functions, from a history: waiting jobs, GPUs held, GPUs training; and distributions.

`charts` draws them.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcdl.report.history import History, Phase

BINS = 150
"""Curves with more steps are drawn as means over so many equal times: more cannot be distinguished."""
COARSE = 80
"""The same where curves go up and down all the time and would hide each other."""
QUANTILES = 300
"""Of distributions of more numbers."""

Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class StepFunction:
    """`values[i]` holds from `times[i]` until the next time, the last one until `end`. Times ascend."""

    times: tuple[float, ...]
    values: tuple[float, ...]
    end: float

    def __post_init__(self) -> None:
        if len(self.times) != len(self.values):
            raise ValueError(f"{len(self.times)} times for {len(self.values)} values")
        if any(after <= before for before, after in pairwise(self.times)):
            raise ValueError("the times of a step curve must ascend")

    def at(self, when: float) -> float:
        """The value at that time; 0 before the first one."""
        place = bisect_right(self.times, when) - 1
        return self.values[place] if place >= 0 else 0.0

    @property
    def most(self) -> float:
        """The largest value; 0 of none."""
        return max(self.values, default=0.0)

    @property
    def mean(self) -> float | None:
        """Over the time from the first step to the end; None where that is no time."""
        if not self.times or self.end <= self.times[0]:
            return None
        return self._area() / (self.end - self.times[0])

    def _area(self) -> float:
        ends = (*self.times[1:], self.end)
        return math.fsum(
            value * max(0.0, min(end, self.end) - at)
            for at, end, value in zip(self.times, ends, self.values, strict=True)
        )

    def thinned(self, bins: int = BINS, length: float | None = None) -> "StepFunction":
        """Itself, or with more than `bins` steps, means over equal times, `bins` of them in `length` seconds from 0 on.

        The area stays the same. `length` is that of the drawing, so that all of its curves have the same bins; None: as
        long as this one.
        """
        length = self.end if length is None else length
        if len(self.times) <= bins or not 0 < self.end <= length:
            return self
        width = length / bins
        areas = [0.0] * math.ceil(self.end / width - 1e-9)
        for at, end, value in zip(self.times, (*self.times[1:], self.end), self.values, strict=True):
            spread(at / width, end / width, value, areas)
        areas[-1] /= self.end / width - (len(areas) - 1)  # it may end within its last bin
        times = [width * place for place in range(len(areas))]
        if self.times[-1] == self.end > times[-1]:  # to where it ends: mostly to 0
            times.append(self.end)
            areas.append(self.values[-1])
        return StepFunction(tuple(times), tuple(areas), self.end)


def spread(begin: float, end: float, value: float, bins: list[float]) -> None:
    """Add `value` times the part of each bin that lies from `begin` to `end`, both counted in bins."""
    begin, end = max(0.0, begin), min(float(len(bins)), end)
    for place in range(int(begin), math.ceil(end)):
        bins[place] += value * max(0.0, min(end, place + 1) - max(begin, place))


def queue_length(history: History) -> StepFunction:
    """Jobs that are submitted, not finished, and hold no GPU."""
    changes: list[tuple[float, int]] = []
    for job in history.jobs:
        end = history.end if job.finished_at is None else job.finished_at
        changes += [(job.submitted_at, 1), (end, -1)]
        held = [
            (
                max(attempt.start_at, job.submitted_at),
                min(end, history.end if attempt.end_at is None else attempt.end_at),
            )
            for attempt in job.attempts
        ]
        for begin, stop in merged(held):
            changes += [(begin, -1), (stop, 1)]
    return _sums(changes, history)


def gpus_held(history: History) -> StepFunction:
    """GPUs that some job holds. One that a background job shares counts once."""
    return _gpus(history, ((span.node, span.gpu, (span.start_at, span.end_at)) for span in history.spans))


def gpus_training(history: History) -> StepFunction:
    """GPUs on which some job trains: neither starting nor saving nor ending."""
    return _gpus(
        history,
        (
            (span.node, span.gpu, (piece.begin, piece.end))
            for span in history.spans
            for piece in span.pieces
            if piece.phase is Phase.TRAINING
        ),
    )


def gpus_there(windows: Iterable[tuple[Window, int]], history: History) -> StepFunction:
    """GPUs that are there, from (begin, end) and number of GPUs each; times as those of the history."""
    changes: list[tuple[float, int]] = []
    for (begin, end), gpus in windows:
        changes += [(begin, gpus), (min(end, history.end), -gpus)]
    return _sums([change for change in changes if change[0] < history.end], history)


def _gpus(history: History, used: Iterable[tuple[str, int, Window]]) -> StepFunction:
    windows: dict[tuple[str, int], list[Window]] = {}
    for node, gpu, window in used:
        windows.setdefault((node, gpu), []).append(window)
    changes = [change for each in windows.values() for begin, end in merged(each) for change in ((begin, 1), (end, -1))]
    return _sums(changes, history)


def merged(windows: Iterable[Window]) -> list[Window]:
    """The union of time windows: in order, without overlaps and without empty ones."""
    found: list[Window] = []
    for begin, end in sorted(windows):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > begin:
            found.append((begin, end))
    return found


def _sums(changes: Iterable[tuple[float, int]], history: History) -> StepFunction:
    """The running sum from the history's begin on, in seconds since then."""
    net: dict[float, int] = {0.0: 0}
    for at, change in changes:
        since = max(0.0, at - history.begin)
        net[since] = net.get(since, 0) + change
    total = 0
    times: list[float] = []
    values: list[float] = []
    for at in sorted(net):
        total += net[at]
        if not values or total != values[-1]:
            times.append(at)
            values.append(total)
    return StepFunction(tuple(times), tuple(values), history.end - history.begin)


def distribution(numbers: Sequence[float]) -> StepFunction:
    """The share of the numbers that are not above a number; of many, at most QUANTILES of them."""
    ordered = sorted(numbers)
    if not ordered:
        return StepFunction((), (), 0.0)
    count = len(ordered)
    kept = min(count, QUANTILES)
    shares: dict[float, float] = {}
    for rank in (math.ceil(count * place / kept) for place in range(1, kept + 1)):
        shares[ordered[rank - 1]] = rank / count
    return StepFunction(tuple(shares), tuple(shares.values()), ordered[-1])
