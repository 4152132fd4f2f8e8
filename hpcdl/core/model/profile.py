"""How fast a job trains on how many GPUs, and what starting, suspending and resuming it costs.

The one truth about speed for policies, simulator and estimated times. Rates are steps/s, times are seconds, and a
number of GPUs is always per node; a placement on `nodes` nodes holds `nodes * gpus` GPUs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

from hpcdl.core.model.latency import LatencyModel
from hpcdl.core.model.structure import ModelStructure

Point: TypeAlias = tuple[int, int, float]
"""(nodes, GPUs per node, steps/s), as measured or assumed."""

MetricPoints: TypeAlias = tuple[tuple[int, float], ...]
"""(step, accuracy or the like after it) of a job, by step ascending: table V of the SideCar paper."""

MAX_NODES = 100_000
MAX_GPUS = 1_024
_TIE = 1e-9
_NONE = ("resume_up_s", "move_save_s", "move_s", "grow_s", "shrink_s", "join_s")
_TIMES = ("startup_s", "save_s", "resume_s", "gate_s", *_NONE)
_OPTIONAL = ("gate_s", *_NONE, "power_w", "spread", "times_spread")
MOST_TIMES_SPREAD = 5.0

_Curve: TypeAlias = tuple[tuple[int, float], ...]


class ProfileError(ValueError):
    """A profile's numbers or data make no sense; the message names the profile, the key and the value."""


@dataclass(frozen=True, slots=True)
class Observation:
    """How far jobs came in their training on a number of GPUs."""

    kind: str  # the type of GPU, as `NodeView.kind` has it
    nodes: int
    gpus: int  # on each node
    steps: float
    seconds: float  # of training that these steps took


@dataclass(frozen=True, slots=True)
class StepSums:
    """Some of the training of one attempt, in sums over its reports."""

    steps: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0  # of each report seconds^2 / steps: shows how much single steps differ
    reports: int = 0

    def __add__(self, other: "StepSums") -> "StepSums":
        return StepSums(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.squares + other.squares,
            self.reports + other.reports,
        )


@dataclass(frozen=True, slots=True)
class AttemptRate:
    """How fast one attempt trained on one number of GPUs, its warm-up apart (`fold/trials.py`)."""

    job: int
    attempt: int
    kind: str  # the type of GPU
    nodes: int
    gpus: int  # on each node
    stretches: tuple[StepSums, ...] = ()  # one after the other; the later, the longer
    warm_stretches: int = 0  # so many of the first ones are most likely its warm-up
    error: float = 0.0  # variance of the logarithm of the rate that the others show
    variation: float = 0.0  # square of the coefficient of variation of the seconds of a step
    hidden: float = 1.0  # the probability that all of it is its warm-up
    # That the warm-up ended elsewhere: how likely, and the logarithm of how many times as fast it is then.
    else_faster: tuple[tuple[float, float], ...] = ()

    @property
    def warm(self) -> StepSums:
        """Its warm-up: slower steps, which do not count."""
        return _together(self.stretches[: self.warm_stretches])

    @property
    def counted(self) -> StepSums:
        """All of it but the warm-up."""
        return _together(self.stretches[self.warm_stretches :])


def _together(parts: tuple[StepSums, ...]) -> StepSums:
    steps = seconds = squares = 0.0
    reports = 0
    for part in parts:
        steps, seconds, squares = steps + part.steps, seconds + part.seconds, squares + part.squares
        reports += part.reports
    return StepSums(steps, seconds, squares, reports)


@dataclass(frozen=True, slots=True)
class RateTrial:
    """What the rate of jobs alike rests on, on one number of GPUs. Rounded."""

    kind: str  # the type of GPU
    nodes: int
    gpus: int  # on each node
    scale: float  # of Student's t on the logarithm of the next job's rate ...
    freedom: int  # ... with so many degrees of freedom
    variation: float  # square of the coefficient of variation of the seconds of a step
    hidden: float  # the probability that all that was seen is the warm-up
    else_faster: tuple[tuple[float, float], ...]  # as `AttemptRate` has it
    longest: float  # steps of the longest attempt
    warm_s: float  # of what starts take, what the warm-up takes
    of: str  # whose steps, in words: `20 steps of job 3`


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something round a start or a suspend took."""

    what: str  # the field of `Profile` that it shows: startup_s, save_s, resume_s, move_s, grow_s, join_s, ...
    times: float  # how often it was measured; older ones count less
    seconds: float  # in all of these times together


@dataclass(frozen=True, slots=True)
class UsualJob:
    """What starts, saves and whole jobs took of jobs like one, as far as it showed nothing of that itself. Rounded."""

    start_s: float | None = None  # from the grant of GPUs until it trains; None: not known
    save_s: float | None = None  # of a checkpoint; None: not known
    length_s: float | None = None  # training of a whole job on one GPU; None: none ended yet
    length_spread: float = 0.0  # sigma of a lognormal factor on that
    steps: float | None = None  # of a whole job; None: none ended that reported some
    steps_spread: float = 0.0  # sigma of a lognormal factor on those
    of: str = ""  # of whose jobs length and steps are, in words
    start_spread: float = 0.0  # sigma of a lognormal factor on `start_s`
    same: bool = False  # whether these have its script, so that their length goes by their steps


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """How the metric of one job went, as its trainers reported it, thinned out."""

    job: int
    points: MetricPoints


@dataclass(frozen=True, slots=True)
class Observations:
    """What was seen of jobs that scale alike: how fast they trained, and how long starts and suspends took."""

    rates: tuple[Observation, ...] = ()  # without warm-ups
    times: tuple[Timing, ...] = ()
    # Of the last attempts, the newest at the end; () in what a profile is made of. Earlier snapshots lack it.
    runs: tuple[AttemptRate, ...] = field(default=(), compare=False)
    trials: tuple[RateTrial, ...] = ()  # what the rates rest on; only in what a profile is made of
    # How much jobs differ in their rates: the sum of squares of logarithms, and for how many jobs it counts.
    differ: tuple[float, float] = field(default=(0.0, 0.0), compare=False)
    # Of the last job that went far enough, None where none reported a metric. Earlier snapshots lack it.
    metric: MetricCurve | None = None
    # Of a type (`JobSpec.type_name`): the batch sizes with observations of their own, the one seen last at the end.
    batches: tuple[int, ...] = ()
    infers: bool = False  # of a type: its jobs are inferences (`JobSpec.kind`)
    structure: ModelStructure | None = None  # of a type, too: what its model is made of, as a trainer reported it last


@dataclass(frozen=True, slots=True)
class Profile:
    """Throughput by GPUs and nodes, from points; and the times round a start and a suspend.

    Between two points the rate is interpolated linearly, and may fall where more GPUs are slower. Past the last point
    it is held flat, never extrapolated upwards; below the first one it is proportional to the number of GPUs. The same
    holds across numbers of nodes: a profile measured on one node says that a second node adds nothing. `covers` tells
    what is inside the points.

    kinds: other points for GPUs of certain types, by their lower-case name; `on` gives the profile there.
    startup_s: from the start of a new job's process to its first step; of it, `gate_s` needs no GPU and may be spent
    ahead, at the gate.
    save_s: from the suspend signal until the GPUs are seen free; `move_save_s` where it is to go to other nodes.
    resume_s: from the start of the resumed process to its first new step, its start-up included; `resume_up_s` on more
    GPUs than before, `move_s` on other nodes. The last three are as their plain namesakes where None.
    grow_s, shrink_s: without progress while it takes nodes in or gives some back in place, by the job's own means; as a
    suspend and resume where both are None. join_s: from the start of the processes on a node that is to be taken in
    until they can be, while the others train on; as startup_s where None.
    power_w: what a GPU takes while it trains, 0 where it is not known.
    spread: relative standard error of the rates; 0 where they are taken as true.
    times_spread: how far starts, saves and resumes differ from one to the next: sigma of a lognormal factor on each.
    measured: (kind, nodes, GPUs on each) at which the rates were measured while it ran; None: all are taken as true.
    trials: what learnt rates rest on, by number of GPUs; () of a profile that was given.
    accuracy: how the metric of such a job goes, the first points of the fit of what is left to do for `--accuracy`.
    source: where the numbers come from, in words: measured on what, or assumed, or a fit.
    latency: GENIE's model, which says the rates for every batch size: `at_batch`. None: the points are for all.
    batch: the global batch size that the points are of; None: it is not said.
    """

    name: str
    points: tuple[Point, ...]
    startup_s: float = 0.0
    save_s: float = 0.0
    resume_s: float = 0.0
    source: str = ""
    aliases: tuple[str, ...] = ()
    kinds: tuple[tuple[str, tuple[Point, ...]], ...] = ()
    gate_s: float = 0.0
    resume_up_s: float | None = None
    move_save_s: float | None = None
    move_s: float | None = None
    grow_s: float | None = None
    shrink_s: float | None = None
    join_s: float | None = None
    power_w: float = 0.0
    spread: float = 0.0
    times_spread: float = 0.0
    measured: tuple[tuple[str, int, int], ...] | None = None
    trials: tuple[RateTrial, ...] = ()
    accuracy: MetricPoints = ()
    latency: LatencyModel | None = None
    batch: int | None = None
    _rates: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _best: dict[tuple[int, int, int], int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _on: dict[str, "Profile"] = field(default_factory=dict, init=False, repr=False, compare=False)
    _at_batch: dict[int, "Profile"] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or self.name != self.name.strip():
            raise ProfileError(f"a profile's name must be printable and not empty, got {self.name!r}")
        object.__setattr__(self, "points", self._sorted("points", self.points))
        kinds: list[tuple[str, tuple[Point, ...]]] = []
        for kind, points in self.kinds:
            if not kind or kind != kind.strip().lower():
                self._wrong("kinds", f"a type of GPU is named in lower case, got {kind!r:.200}")
            if kind in (name for name, _ in kinds):
                self._wrong("kinds", f"{kind} is there twice")
            kinds.append((kind, self._sorted(f"kinds: {kind}", points)))
        object.__setattr__(self, "kinds", tuple(sorted(kinds)))
        for key in (*_TIMES, "power_w", "spread", "times_spread"):
            seconds: float | None = getattr(self, key)
            if seconds is not None and (not math.isfinite(seconds) or seconds < 0):
                unit = "number of seconds" if key in _TIMES else "number"
                self._wrong(key, f"must be a finite {unit}, 0 or more, got {seconds:g}")
        if self.times_spread > MOST_TIMES_SPREAD:
            self._wrong("times_spread", f"must be {MOST_TIMES_SPREAD:g} or less, got {self.times_spread:g}")
        for index, (step, metric) in enumerate(self.accuracy):
            if step < 0 or not math.isfinite(metric):
                self._wrong(f"accuracy[{index}]", f"needs step >= 0 and a finite metric, got {step} and {metric:g}")
            if index and step <= self.accuracy[index - 1][0]:
                self._wrong(f"accuracy[{index}]", f"steps must ascend, got {step} after {self.accuracy[index - 1][0]}")
        if self.gate_s > self.startup_s:
            self._wrong("gate_s", f"is a part of startup_s ({self.startup_s:g} s), got {self.gate_s:g}")
        if self.batch is not None and self.batch < 1:
            self._wrong("batch", f"must be 1 or more, got {self.batch}")
        if self.latency is not None and self.batch is None:
            self._wrong("batch", "of the points is needed beside a latency model")

    def _sorted(self, where: str, points: tuple[Point, ...]) -> tuple[Point, ...]:
        if not points:
            self._wrong(where, "at least one is needed")
        seen: dict[tuple[int, int], int] = {}
        for index, (nodes, gpus, rate) in enumerate(points):
            place = f"{where}[{index}]"
            if not 1 <= nodes <= MAX_NODES:
                self._wrong(place, f"nodes must be from 1 to {MAX_NODES}, got {nodes}")
            if not 1 <= gpus <= MAX_GPUS:
                self._wrong(place, f"gpus must be from 1 to {MAX_GPUS}, got {gpus}")
            if not math.isfinite(rate):
                self._wrong(place, f"rate must be a finite number, got {rate}")
            if rate <= 0:
                self._wrong(place, f"rate must be positive, got {rate:g}")
            if (nodes, gpus) in seen:
                self._wrong(place, f"nodes {nodes}, gpus {gpus} is already in {where}[{seen[nodes, gpus]}]")
            seen[nodes, gpus] = index
        return tuple(sorted(points))

    def _wrong(self, where: str, what: str) -> None:
        raise ProfileError(f"profile {self.name}: {where}: {what}")

    def rate(self, gpus: int, nodes: int = 1) -> float:
        """Steps/s on `gpus` GPUs on each of `nodes` nodes; 0 GPUs give 0.0."""
        found = self._rates.get((gpus, nodes))
        if found is None:
            if gpus < 0 or nodes < 1:
                raise ValueError(f"profile {self.name}: needs gpus >= 0 and nodes >= 1, got {gpus} and {nodes}")
            curves = _curves(self.points)
            found = _along(tuple((measured, _along(curve, gpus)) for measured, curve in curves), nodes)
            self._rates[gpus, nodes] = found  # policies ask for the same few all the time
        return found

    def on(self, kind: str) -> "Profile":
        """The profile on GPUs of that type (lower case); itself where that type has no points of its own."""
        if not self.kinds:
            return self
        found = self._on.get(kind)
        if found is None:
            points = dict(self.kinds).get(kind)
            found = self._on[kind] = self if points is None else replace(self, points=points, kinds=())
        return found

    def at_batch(self, batch: int) -> "Profile":
        """The profile of jobs of this global batch size; itself where no latency model says how they differ.

        GPUs of types with points of their own keep their speed in comparison with the others.
        """
        if self.latency is None or batch == self.batch:
            return self
        found = self._at_batch.get(batch)
        if found is None:
            model, own = self.latency, self.batch
            assert own is not None

            def at(points: tuple[Point, ...]) -> tuple[Point, ...]:
                """A step is another number of samples, and GPUs are used better or worse."""
                change = {(n, g): model.rate(batch, n, g) / model.rate(own, n, g) * own / batch for n, g, _ in points}
                return tuple((nodes, gpus, rate * change[nodes, gpus]) for nodes, gpus, rate in points)

            kinds = tuple((kind, at(points)) for kind, points in self.kinds)
            found = self._at_batch[batch] = replace(self, points=at(self.points), kinds=kinds, batch=batch)
        return found

    def save_for(self, moved: bool) -> float:
        """Seconds of the save; `moved`: it is to go to other nodes."""
        return self.move_save_s if moved and self.move_save_s is not None else self.save_s

    def resume_for(self, before: int, after: int, moved: bool) -> float:
        """Seconds of a resume on `after` GPUs in all, `before` of which it had; `moved`: on other nodes."""
        if moved and self.move_s is not None:
            return self.move_s
        return self.resume_up_s if after > before and self.resume_up_s is not None else self.resume_s

    def restart_s(self, before: int, after: int, moved: bool, running: bool) -> float:
        """Seconds without progress of a change from `before` GPUs in all to `after`.

        `running`: it trains and must be suspended first; else it is suspended already. `moved`: to other nodes.
        """
        resume_s = self.resume_for(before, after, moved)
        return self.save_for(moved) + resume_s if running else resume_s

    def rescale_for(self, before: int, after: int) -> float:
        """Seconds without progress of going from `before` nodes to `after` in place.

        Of a direction that is not known the other one says more than a suspend and resume would.
        """
        known = (self.grow_s, self.shrink_s) if after > before else (self.shrink_s, self.grow_s)
        return next((seconds for seconds in known if seconds is not None), self.suspend_resume_s)

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
        found = self._best.get((limit, minimum, nodes))
        if found is None:
            found = self._best[limit, minimum, nodes] = self._best_gpus(limit, minimum, nodes)
        return found

    def _best_gpus(self, limit: int, minimum: int, nodes: int) -> int:
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
        0, 0 and startup_s), `source`, `aliases`, `accuracy` (a list of `{step, metric}`); `latency` as
        `LatencyModel.from_mapping` has it, and then `batch`. Raises ProfileError that names profile and key.
        """
        values = _mapping(name, "the profile", mapping)
        kinds = _mapping(name, "kinds", values.get("kinds", {}))
        points = _points(name, "points", values.get("points"))
        startup_s = _number(name, "startup_s", values.get("startup_s", 0))
        optional = {key: _number(name, key, values[key]) for key in _OPTIONAL if values.get(key) is not None}
        source = values.get("source", "")
        if not isinstance(source, str):
            raise ProfileError(f"profile {name}: source: expected text, got {source!r:.200}")
        aliases = values.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) and alias for alias in aliases):
            raise ProfileError(f"profile {name}: aliases: expected a list of names, got {aliases!r:.200}")
        batch, latency = values.get("batch"), None
        if (mapping := values.get("latency")) is not None:
            try:
                latency = replace(LatencyModel.from_mapping(mapping), startup_s=startup_s)
            except ValueError as error:
                raise ProfileError(f"profile {name}: latency: {error}") from None
        return cls(
            name=name,
            points=points,
            kinds=tuple((kind, _points(name, f"kinds: {kind}", listed)) for kind, listed in kinds.items()),
            startup_s=startup_s,
            save_s=_number(name, "save_s", values.get("save_s", 0)),
            resume_s=_number(name, "resume_s", values.get("resume_s", startup_s)),
            source=source.strip(),
            aliases=tuple(aliases),
            accuracy=_accuracy(name, values.get("accuracy", [])),
            latency=latency,
            batch=None if batch is None else _whole(name, "batch", batch),
            **optional,  # type: ignore[arg-type]  # numbers only
        )

    def to_mapping(self) -> dict[str, Any]:
        """Plain values that `from_mapping` reads back as an equal profile."""
        values: dict[str, Any] = {
            "aliases": list(self.aliases),
            "source": self.source,
            "startup_s": self.startup_s,
            "save_s": self.save_s,
            "resume_s": self.resume_s,
            "points": _listed(self.points),
        }
        if self.kinds:
            values["kinds"] = {kind: _listed(points) for kind, points in self.kinds}
        if self.accuracy:
            values["accuracy"] = [{"step": step, "metric": metric} for step, metric in self.accuracy]
        if self.batch is not None:
            values["batch"] = self.batch
        if self.latency is not None:
            values["latency"] = self.latency.to_mapping()
        plain = {key: getattr(self, key) for key in _OPTIONAL}
        return values | {key: value for key, value in plain.items() if value is not None and (value or key in _NONE)}


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


def _points(name: str, where: str, listed: object) -> tuple[Point, ...]:
    if not isinstance(listed, list):
        raise ProfileError(f"profile {name}: {where}: expected a list of {{gpus, rate}}, got {listed!r:.200}")
    points: list[Point] = []
    for index, entry in enumerate(listed):
        place = f"{where}[{index}]"
        point = _mapping(name, place, entry)
        missing = [key for key in ("gpus", "rate") if key not in point]
        if missing:
            raise ProfileError(f"profile {name}: {place}: {' and '.join(missing)} missing")
        nodes = _whole(name, f"{place}: nodes", point.get("nodes", 1))
        gpus = _whole(name, f"{place}: gpus", point["gpus"])
        points.append((nodes, gpus, _number(name, f"{place}: rate", point["rate"])))
    return tuple(points)


def _accuracy(name: str, listed: object) -> MetricPoints:
    if not isinstance(listed, list):
        raise ProfileError(f"profile {name}: accuracy: expected a list of {{step, metric}}, got {listed!r:.200}")
    found = []
    for index, entry in enumerate(listed):
        place = f"accuracy[{index}]"
        point = _mapping(name, place, entry)
        if missing := [key for key in ("step", "metric") if key not in point]:
            raise ProfileError(f"profile {name}: {place}: {' and '.join(missing)} missing")
        step = _whole(name, f"{place}: step", point["step"])
        found.append((step, _number(name, f"{place}: metric", point["metric"])))
    return tuple(found)


def _listed(points: tuple[Point, ...]) -> list[dict[str, Any]]:
    return [{"nodes": nodes, "gpus": gpus, "rate": rate} for nodes, gpus, rate in points]


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
        raise ProfileError(f"profile {name}: {where}: expected keys and values, got {value!r:.200}")
    return value


def _number(name: str, where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProfileError(f"profile {name}: {where}: expected a number, got {value!r:.200}")
    try:
        return float(value)
    except OverflowError:
        raise ProfileError(f"profile {name}: {where}: the number is too large") from None


def _whole(name: str, where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProfileError(f"profile {name}: {where}: expected a whole number, got {value!r:.200}")
    return value
