"""How fast a job trains on how many GPUs, and what starting, suspending and resuming it costs.

The one truth about speed for policies, simulator and estimated times. Rates are steps/s, times are seconds, and a
number of GPUs is always per node; a placement on `nodes` nodes holds `nodes * gpus` GPUs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

Point: TypeAlias = tuple[int, int, float]
"""(nodes, GPUs per node, steps/s), as measured or assumed."""

MAX_NODES = 100_000
MAX_GPUS = 1_024
_TIE = 1e-9

_Curve: TypeAlias = tuple[tuple[int, float], ...]


class ProfileError(ValueError):
    """A profile's numbers or data make no sense; the message names the profile, the key and the value."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Throughput by GPUs and nodes, from points; and the times round a start and a suspend.

    Between two points the rate is interpolated linearly, and may fall where more GPUs are slower. Past the last point
    it is held flat, never extrapolated upwards; below the first one it is proportional to the number of GPUs. The same
    holds across numbers of nodes: a profile measured on one node says that a second node adds nothing. `covers` tells
    what is inside the points.

    startup_s: from the start of a new job's process to its first step.
    save_s: from the suspend signal until the GPUs are seen free.
    resume_s: from the start of the resumed process to its first new step, its start-up included.
    source: where the numbers come from, in words: measured on what, or assumed, or a fit.
    """

    name: str
    points: tuple[Point, ...]
    startup_s: float = 0.0
    save_s: float = 0.0
    resume_s: float = 0.0
    source: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or self.name != self.name.strip():
            raise ProfileError(f"a profile's name must be printable and not empty, got {self.name!r}")
        if not self.points:
            self._wrong("points", "at least one is needed")
        seen: dict[tuple[int, int], int] = {}
        for index, (nodes, gpus, rate) in enumerate(self.points):
            where = f"points[{index}]"
            if not 1 <= nodes <= MAX_NODES:
                self._wrong(where, f"nodes must be from 1 to {MAX_NODES}, got {nodes}")
            if not 1 <= gpus <= MAX_GPUS:
                self._wrong(where, f"gpus must be from 1 to {MAX_GPUS}, got {gpus}")
            if not math.isfinite(rate):
                self._wrong(where, f"rate must be a finite number, got {rate}")
            if rate <= 0:
                self._wrong(where, f"rate must be positive, got {rate:g}")
            if (nodes, gpus) in seen:
                self._wrong(where, f"nodes {nodes}, gpus {gpus} is already in points[{seen[nodes, gpus]}]")
            seen[nodes, gpus] = index
        for key in ("startup_s", "save_s", "resume_s"):
            seconds: float = getattr(self, key)
            if not math.isfinite(seconds) or seconds < 0:
                self._wrong(key, f"must be a finite number of seconds, 0 or more, got {seconds:g}")
        object.__setattr__(self, "points", tuple(sorted(self.points)))

    def _wrong(self, where: str, what: str) -> None:
        raise ProfileError(f"profile {self.name}: {where}: {what}")

    def rate(self, gpus: int, nodes: int = 1) -> float:
        """Steps/s on `gpus` GPUs on each of `nodes` nodes; 0 GPUs give 0.0."""
        if gpus < 0 or nodes < 1:
            raise ValueError(f"profile {self.name}: needs gpus >= 0 and nodes >= 1, got {gpus} and {nodes}")
        curves = _curves(self.points)
        if len(curves) == 1 and curves[0][0] <= nodes:
            return _along(curves[0][1], gpus)
        return _along(tuple((measured, _along(curve, gpus)) for measured, curve in curves), nodes)

    def covers(self, gpus: int, nodes: int = 1) -> bool:
        """Whether the rate there lies between points; False where it is held flat or scaled down."""
        curves = _curves(self.points)
        if not curves[0][0] <= nodes <= curves[-1][0]:
            return False
        below = [curve for measured, curve in curves if measured <= nodes][-1]
        above = next(curve for measured, curve in curves if measured >= nodes)
        return all(curve[0][0] <= gpus <= curve[-1][0] for curve in (below, above))

    def best_gpus(self, limit: int, minimum: int = 1, nodes: int = 1) -> int:
        """The number of GPUs per node from `minimum` to `limit` with the highest rate.

        The smallest one where several are equal (within a relative 1e-9).
        """
        if not 1 <= minimum <= limit:
            raise ValueError(f"profile {self.name}: needs 1 <= minimum <= limit, got {minimum} and {limit}")
        last = max(gpus for _, gpus, _ in self.points)
        counts = range(minimum, max(minimum, min(limit, last)) + 1)
        rates = [self.rate(gpus, nodes) for gpus in counts]
        enough = max(rates) * (1 - _TIE)
        return next(gpus for gpus, rate in zip(counts, rates, strict=True) if rate >= enough)

    def seconds_to_finish(self, step: int, total: int, gpus: int, nodes: int = 1, cold: bool = True) -> float:
        """Seconds from `step` to `total` at a constant number of GPUs; infinite on 0 GPUs.

        `cold` adds the start-up of a process that has yet to be started; a job that already trains has none. For a job
        that is suspended first, take `cold=False` and add `suspend_resume_s`, which holds its start-up.
        """
        if step < 0 or total < 0:
            raise ValueError(f"profile {self.name}: steps must not be negative, got {step} of {total}")
        if gpus == 0:
            return math.inf
        training = max(0, total - step) / self.rate(gpus, nodes)
        return training + self.startup_s if cold else training

    @property
    def suspend_resume_s(self) -> float:
        """Seconds without progress that one suspend and resume costs a job: save_s + resume_s."""
        return self.save_s + self.resume_s

    def speedup(self, gpus: int, nodes: int = 1) -> float:
        """Rate there over the rate on one GPU."""
        return self.rate(gpus, nodes) / self.rate(1)

    def efficiency(self, gpus: int, nodes: int = 1) -> float:
        """Speed-up per GPU: 1.0 is linear scaling. Needs at least one GPU."""
        if gpus < 1:
            raise ValueError(f"profile {self.name}: the efficiency of {gpus} GPUs is not defined")
        return self.speedup(gpus, nodes) / (gpus * nodes)

    @classmethod
    def from_mapping(cls, name: str, mapping: object) -> "Profile":
        """A profile from plain values, as YAML or JSON give them; unknown keys are ignored.

        `points` is a list of `{gpus, rate, nodes}` (nodes: 1 if left out); `startup_s`, `save_s`, `resume_s` (left out:
        0, 0 and startup_s), `source`, `aliases`. Raises ProfileError that names profile and key.
        """
        values = _mapping(name, "the profile", mapping)
        listed = values.get("points")
        if not isinstance(listed, list):
            raise ProfileError(f"profile {name}: points: expected a list of {{gpus, rate}}, got {listed!r}")
        points: list[Point] = []
        for index, entry in enumerate(listed):
            where = f"points[{index}]"
            point = _mapping(name, where, entry)
            missing = [key for key in ("gpus", "rate") if key not in point]
            if missing:
                raise ProfileError(f"profile {name}: {where}: {' and '.join(missing)} missing")
            nodes = _whole(name, f"{where}: nodes", point.get("nodes", 1))
            gpus = _whole(name, f"{where}: gpus", point["gpus"])
            points.append((nodes, gpus, _number(name, f"{where}: rate", point["rate"])))
        startup_s = _number(name, "startup_s", values.get("startup_s", 0))
        source = values.get("source", "")
        if not isinstance(source, str):
            raise ProfileError(f"profile {name}: source: expected text, got {source!r}")
        aliases = values.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) and alias for alias in aliases):
            raise ProfileError(f"profile {name}: aliases: expected a list of names, got {aliases!r}")
        return cls(
            name=name,
            points=tuple(points),
            startup_s=startup_s,
            save_s=_number(name, "save_s", values.get("save_s", 0)),
            resume_s=_number(name, "resume_s", values.get("resume_s", startup_s)),
            source=source.strip(),
            aliases=tuple(aliases),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Plain values that `from_mapping` reads back as an equal profile."""
        return {
            "aliases": list(self.aliases),
            "source": self.source,
            "startup_s": self.startup_s,
            "save_s": self.save_s,
            "resume_s": self.resume_s,
            "points": [{"nodes": nodes, "gpus": gpus, "rate": rate} for nodes, gpus, rate in self.points],
        }


def find_profile(profiles: Mapping[str, Profile], name: str) -> Profile | None:
    """The profile of that name, else the last one with that alias, else None; case does not matter.

    `profiles` are by casefolded name, a later one before an earlier one where both have the alias.
    """
    wanted = name.strip().casefold()
    if wanted in profiles:
        return profiles[wanted]
    for profile in reversed(list(profiles.values())):
        if wanted in (alias.casefold() for alias in profile.aliases):
            return profile
    return None


def _along(curve: _Curve, x: int) -> float:
    """The value at `x` of an ascending curve: proportional below it, linear inside, flat above."""
    first_x, first_y = curve[0]
    if x <= first_x:
        return first_y * x / first_x
    for (x0, y0), (x1, y1) in pairwise(curve):
        if x < x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        if x == x1:
            return y1
    return curve[-1][1]


@lru_cache(maxsize=1024)
def _curves(points: tuple[Point, ...]) -> tuple[tuple[int, _Curve], ...]:
    """The points (sorted) by number of nodes. Cached, because policies ask for the same few profiles all the time."""
    curves: dict[int, list[tuple[int, float]]] = {}
    for nodes, gpus, rate in points:
        curves.setdefault(nodes, []).append((gpus, rate))
    return tuple((nodes, tuple(curve)) for nodes, curve in curves.items())


def _mapping(name: str, where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ProfileError(f"profile {name}: {where}: expected keys and values, got {value!r}")
    return value


def _number(name: str, where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProfileError(f"profile {name}: {where}: expected a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ProfileError(f"profile {name}: {where}: the number is too large") from None


def _whole(name: str, where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProfileError(f"profile {name}: {where}: expected a whole number, got {value!r}")
    return value
