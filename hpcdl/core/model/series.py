"""Series: numbers of a job over its steps or over time, in a bounded number of points that keep the shape of the curve.

Pure. Agents and the daemon add samples, `ledger/series.py` stores points, `report/series.py` and the CLI draw them. A
series never forgets its first or its last sample, nor how low and how high it went.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdl.core.model.frozen import changed

MOST = 256
"""Points of a series."""

MOST_NAMES = 16
"""Series of metrics that a job may have."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,62}", re.ASCII)
"""Of a metric."""

LARGEST = 1e300
"""Numbers beyond this count as not finite: sums of some would be."""


@dataclass(frozen=True, slots=True)
class Point:
    """One sample, or several in a row: `last` of them, and of the finite ones mean, lowest and highest.

    `at`: seconds since the epoch, `step`: steps done, both of the last sample; `step` None: of what has no steps.
    `last`: None where that was not finite (NaN or infinite); `mean`, `low` and `high`: None where no sample was finite.
    `not_finite`: how many of the `samples` were not.
    """

    at: float
    step: int | None
    last: float | None
    mean: float | None
    low: float | None
    high: float | None
    samples: int = 1
    not_finite: int = 0


def sample(at: float, step: int | None, value: float | None) -> Point:
    """One sample; None, NaN, infinite and enormous values are not finite."""
    if value is None or not -LARGEST < value < LARGEST:
        return Point(at, step, None, None, None, None, 1, 1)
    value = float(value)
    return Point(at, step, value, value, value, value)


def joined(one: Point, other: Point) -> Point:
    """Two points in a row as one; exact but for the shape between them."""
    samples, not_finite = one.samples + other.samples, one.not_finite + other.not_finite
    if one.mean is None or one.low is None or one.high is None:
        return Point(other.at, other.step, other.last, other.mean, other.low, other.high, samples, not_finite)
    if other.mean is None or other.low is None or other.high is None:
        return Point(other.at, other.step, other.last, one.mean, one.low, one.high, samples, not_finite)
    low, high = min(one.low, other.low), max(one.high, other.high)
    mean = one.mean + (other.mean - one.mean) * ((other.samples - other.not_finite) / (samples - not_finite))
    return Point(other.at, other.step, other.last, min(max(mean, low), high), low, high, samples, not_finite)


def mean_of(points: Iterable[Point]) -> float | None:
    """The mean of all finite samples of a series; None where there is none."""
    known = [(each.mean, each.samples - each.not_finite) for each in points if each.mean is not None]
    weight = sum(samples for _, samples in known)
    return sum(mean * samples for mean, samples in known) / weight if weight else None


class Series:
    """Points in order, `most` at most: when there are more, neighbours become one, and so will new samples.

    The first point is the first sample for good. Steps and times never go back: where a step does, since the job was
    started again from a checkpoint, the points beyond it are dropped, for that part is trained again.
    """

    def __init__(self, points: Iterable[Point] = (), most: int = MOST) -> None:
        self.points = list(points)
        self.changed = 0
        """The place of the first point that was changed since `changes` was called."""
        self._most = max(most, 4)
        self._width = max((each.samples for each in self.points[1:]), default=1)
        self.changed = len(self.points)
        self._thin()

    def add(self, point: Point) -> None:
        """Add what comes next."""
        points = self.points
        if point.step is not None:
            while points and points[-1].step is not None and points[-1].step > point.step:
                points.pop()
        if points and points[-1].at > point.at:  # a clock that was set back
            point = changed(point, at=points[-1].at)
        self.changed = min(self.changed, len(points))
        if len(points) > 1 and points[-1].samples + point.samples <= self._width:
            self.changed = min(self.changed, len(points) - 1)
            points[-1] = joined(points[-1], point)
            return
        points.append(point)
        self._thin()

    def _thin(self) -> None:
        while len(self.points) > self._most:
            rest = self.points[1:]
            pairs = [joined(*rest[place : place + 2]) for place in range(0, len(rest) - 1, 2)]
            self.points[1:] = [*pairs, *rest[2 * len(pairs) :]]
            self._width = max(2 * self._width, *(each.samples for each in pairs))
            self.changed = min(self.changed, 1)

    def changes(self) -> tuple[int, Sequence[Point]]:
        """From which place on the points are others than at the last call, and these points."""
        first, self.changed = self.changed, len(self.points)
        return first, self.points[first:]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points of the same curve."""
    return Series(points, most).points


Divergence = tuple[int, int]
"""Steps between which a curve stopped being finite: its last finite sample (-1: it has none), and the first that is
known not to be."""


def divergence(points: Sequence[Point]) -> Divergence | None:
    """Where a curve of steps diverged; None where its last sample is finite."""
    place = len(points)
    while place and points[place - 1].last is None:
        place -= 1
    if place == len(points) or (by := points[place].step) is None:
        return None
    return (points[place - 1].step or 0) if place else -1, by


def not_finite_since(divergences: Mapping[str, Divergence]) -> dict[str, int]:
    """Since about which step each curve of a job is not finite; those that may have diverged at once say the same."""
    return {name: min(by for _, by in divergences.values() if by > after) for name, (after, _) in divergences.items()}


def not_finite_text(since: Mapping[str, int]) -> str:
    """The same in words, once for those of one step; "" where all are finite."""
    names: dict[int, list[str]] = {}
    for name, step in since.items():
        names.setdefault(step, []).append(name)
    return "; ".join(
        f"{_listed(each)} {'is' if len(each) == 1 else 'are'} not finite since about step {step}"
        for step, each in names.items()
    )


def _listed(names: Sequence[str]) -> str:
    """`metric and loss`, `a, b and 5 more`."""
    last = names[-1] if len(names) <= 3 else f"{len(names) - 2} more"
    first = names[:-1] if len(names) <= 3 else names[:2]
    return f"{', '.join(first)} and {last}" if first else last


USE = {
    "gpu_util": ("%", "GPU utilisation"),
    "gpu_memory": ("MiB", "GPU memory"),
    "gpu_power": ("W", "GPU power"),
    "cpu": ("%", "CPU"),
    "memory": ("MiB", "memory"),
}
"""Series of what a job uses, their units, and what people call them: of each of its GPUs, and on each of its nodes;
100 % of CPU is one core. No metric has such a name."""

GPU_USE = ("gpu_util", "gpu_memory")
"""Series whose means over all jobs are asked for."""


def series_json(name: str, points: Sequence[Point]) -> dict[str, Any]:
    """A series as the API answers it: a list for each value of the points, and the whole in numbers."""
    whole = points[0]
    for point in points[1:]:
        whole = joined(whole, point)
    since = divergence(points)
    unit, label = USE.get(name, ("", name))
    columns: Mapping[str, list[Any]] = {
        key: [getattr(point, key) for point in points] for key in ("at", "step", "mean", "low", "high", "samples")
    }
    return {
        "name": name,
        "kind": "use" if name in USE else "metric",
        "unit": unit,
        "label": label,
        "samples": whole.samples,
        "not_finite": whole.not_finite,
        "not_finite_since": None if since is None else since[1],
        "first": points[0].last,
        "last": whole.last,
        "low": whole.low,
        "high": whole.high,
        "mean": whole.mean,
        "points": columns,
    }
