"""The scaling curve of a job that has no profile, learnt from the progress that it reports while it runs.

posterior.py has the model; here it becomes a `Profile`, which policies read: points at the numbers of GPUs that matter,
the times of starts and saves as they were seen, and the profile of a job of which nothing was seen.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from hpcdl.core.fold.observations import OF_A_START
from hpcdl.core.fold.trials import WARM_S
from hpcdl.core.model.profile import Observation, Observations, Point, Profile, Timing
from hpcdl.estimators.posterior import Array, Place, Posterior

STARTUP_S = 30.0
SAVE_S = 5.0

TIMED = (
    "startup_s", "save_s", "resume_s", "resume_up_s", "move_save_s", "move_s", "grow_s", "shrink_s", "join_s"
)  # fmt: skip
"""The times of a profile that starts, suspends and rescales show."""

MEASURED_S = 20.0
"""A rate counts as measured once it was seen for so many seconds."""

MANY = 16  # up to here every number of GPUs or nodes has a point in a profile; past it about every fifth


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """Steps/s by GPUs and nodes, and how sure that is; made by `fit_curve`.

    limit_gpus, limit_nodes: up to where `to_profile` has points; `rate` and `spread` answer for any number.
    """

    kind: str
    limit_gpus: int
    limit_nodes: int
    posterior: Posterior = field(repr=False)

    def __post_init__(self) -> None:
        if self.limit_gpus < 1 or self.limit_nodes < 1:
            raise ValueError(
                f"a curve's limits must be 1 or more, got {self.limit_gpus} GPUs, {self.limit_nodes} nodes"
            )
        object.__setattr__(self, "kind", self.kind.lower())

    @property
    def known(self) -> tuple[Observation, ...]:
        """What was seen, one observation for each kind, number of nodes and number of GPUs on each."""
        return self.posterior.known

    def rate(self, gpus: int, nodes: int = 1) -> float:
        """Steps/s expected on `gpus` GPUs on each of `nodes` nodes; 0 GPUs give 0.0."""
        if gpus == 0 and nodes >= 1:
            return 0.0
        return float(self.posterior.rates([(nodes, gpus)], self.kind)[0])

    def spread(self, gpus: int, nodes: int = 1) -> float:
        """Relative standard error of that rate. Above 1 nothing is known but the shape of the curve."""
        return float(self.posterior.spreads([(nodes, gpus)], self.kind)[0])

    def seen(self, gpus: int, nodes: int = 1) -> bool:
        """Whether this number of GPUs of this kind was observed."""
        return any((known.kind, known.nodes, known.gpus) == (self.kind, nodes, gpus) for known in self.known)

    def on(self, kind: str) -> "ScalingCurve":
        """What the same observations say of another kind of GPU."""
        return replace(self, kind=kind)

    def to_profile(self, name: str, base: Profile | None = None, kinds: Iterable[str] = ()) -> Profile:
        """A profile with a point for every number of GPUs and nodes up to the limits, and what was seen.

        Past 16 about every fifth number has a point. The costs of starting and suspending are those of `base`; `kinds`
        get curves of their own, as do all kinds that were seen. `spread` is the root mean square over the points.
        """
        places = self._places()
        spread = math.sqrt(float((self.posterior.spreads(places, self.kind) ** 2).mean()))
        others = sorted({kind.lower() for kind in kinds} | {seen.kind for seen in self.known} - {""})
        curves = tuple((kind, _points(places, self.posterior.rates(places, kind))) for kind in others)
        seconds = sum(seen.seconds for seen in self.known)
        sizes = ", ".join(f"{seen.nodes} x {seen.gpus} {seen.kind}".rstrip() for seen in self.known)
        source = (
            f"learnt while it ran: {seconds:.0f} s on {sizes}" if self.known else "assumed: nothing was seen of it yet"
        )
        points = _points(places, self.posterior.rates(places, self.kind))
        found = Profile(name, points) if base is None else replace(base, name=name, points=points)
        measured = tuple((seen.kind, seen.nodes, seen.gpus) for seen in self.known if seen.seconds >= MEASURED_S)
        return replace(found, source=source, kinds=curves, spread=spread, measured=measured)

    def _places(self) -> list[tuple[int, int]]:
        """(nodes, GPUs per node) of a profile's points."""
        here = [seen for seen in self.known if seen.gpus <= self.limit_gpus and seen.nodes <= self.limit_nodes]
        nodes = numbers_up_to(self.limit_nodes, {seen.nodes for seen in here})
        gpus = numbers_up_to(self.limit_gpus, {seen.gpus for seen in here})
        return [(n, g) for n in nodes for g in gpus]


def fit_curve(
    observations: Iterable[Observation], limit_gpus: int, limit_nodes: int = 1, kind: str = ""
) -> ScalingCurve:
    """The curve on GPUs of `kind` that the observations suggest; with none at all the field's, on 1 step/s.

    Observations of the same kind and number of GPUs are added up, so ten minutes at one number count for more than one
    minute at another. Those without a single step yet say nothing. Of a kind that was never seen, the rates are those
    of the kinds that were.
    """
    added: dict[tuple[str, int, int], tuple[float, float]] = {}
    for seen in observations:
        _check(seen)
        place = (seen.kind.lower(), seen.nodes, seen.gpus)
        steps, seconds = added.get(place, (0.0, 0.0))
        added[place] = (steps + seen.steps, seconds + seen.seconds)
    known = [Observation(*place, *amount) for place, amount in sorted(added.items()) if amount[0] > 0]
    return ScalingCurve(kind, limit_gpus, limit_nodes, Posterior(tuple(known)))


def learner(
    limit_gpus: int, limit_nodes: int = 1, kinds: Iterable[str] = (), base: Profile | None = None
) -> Callable[[str, Observations], Profile | None]:
    """A function that makes a profile of a name and of what was seen under it, as
    `hpcdl.core.model.plan.Profiles.learn` wants it.

    The limits and kinds are those of the cluster; `base` gives the costs of starting and suspending as far as they were
    not seen (None: `costs_of`). The profile's default curve is for kinds that it has none of. None where no step was
    seen yet. The same arguments give the same object again, which has remembered its rates.
    """
    wanted = tuple(kinds)

    @lru_cache(maxsize=4096)
    def curve(name: str, rates: tuple[Observation, ...]) -> Profile | None:
        found = fit_curve(rates, limit_gpus, limit_nodes)
        return found.to_profile(name, base, wanted) if found.known else None

    @lru_cache(maxsize=4096)
    def learn(name: str, seen: Observations) -> Profile | None:
        found = curve(name, seen.rates)
        return None if found is None else replace(with_times(found, costs_of(seen.times, base)), trials=seen.trials)

    return learn


def with_times(profile: Profile, times: Mapping[str, float]) -> Profile:
    """The profile with other times, by the names of its fields."""
    return replace(profile, **times)  # type: ignore[arg-type]  # seconds only


def costs_of(times: Sequence[Timing], base: Profile | None = None) -> dict[str, float]:
    """The times of a profile, by the names of its fields, as they were seen: means.

    Where they were not, those of `base`; without it a start takes STARTUP_S, a save SAVE_S, and a resume as long as a
    start, until the first of each was seen. A warm-up is a part of each start.
    """
    seen = {timing.what: timing.seconds / timing.times for timing in times if timing.what in TIMED and timing.times > 0}
    if base is None:
        seen.setdefault("startup_s", STARTUP_S)
        seen.setdefault("save_s", SAVE_S)
        again = [seen[what] for what in ("resume_s", "resume_up_s") if what in seen]
        seen.setdefault("resume_s", again[0] if again else seen["startup_s"])
    elif "startup_s" in seen:
        seen["startup_s"] = max(seen["startup_s"], base.gate_s)
    warm_s = sum(timing.seconds for timing in times if timing.what == WARM_S)
    return {what: seconds + warm_s if what in OF_A_START else seconds for what, seconds in seen.items()}


def _check(seen: Observation) -> None:
    if seen.nodes < 1 or seen.gpus < 1:
        raise ValueError(f"an observation needs nodes and gpus of 1 or more, got {seen.nodes} and {seen.gpus}")
    if not math.isfinite(seen.steps) or seen.steps < 0:
        raise ValueError(f"an observation's steps must be a finite number, 0 or more, got {seen.steps}")
    if not math.isfinite(seen.seconds) or seen.seconds <= 0:
        raise ValueError(f"an observation's seconds must be a finite number above 0, got {seen.seconds}")


def numbers_up_to(limit: int, seen: Collection[int] = ()) -> list[int]:
    """1 to the limit: every number up to 16, then steps of a fifth, the limit and those seen."""
    numbers = {*range(1, min(limit, MANY) + 1), *seen, limit}
    number = MANY
    while (number := math.ceil(number * 1.2)) < limit:
        numbers.add(number)
    return sorted(numbers)


def _points(places: Sequence[Place], rates: Array) -> tuple[Point, ...]:
    return tuple((nodes, gpus, float(rate)) for (nodes, gpus), rate in zip(places, rates, strict=True))


@lru_cache(maxsize=4096)
def assumed_profile(
    total: int | None,
    nodes: int,
    gpus: tuple[int, ...],
    kinds: tuple[str, ...],
    length_s: float,
    times: tuple[tuple[str, float], ...],
) -> Profile:
    """The profile of a job of which nothing was seen yet: it scales as most do, on every kind of GPU.

    total: its steps, which are taken to last length_s on one GPU of the best kind. nodes: the most that it takes; gpus:
    numbers of GPUs on each, ascending, at which the profile has points. times: seconds of a profile, by their names.
    """
    scale = (total or length_s) / length_s  # steps/s on one GPU of the best kind
    shapes = [(kind, _usual_shape(kind, nodes, gpus)) for kind in kinds]
    best = max(points[0][2] for _, points in shapes)
    curves = tuple((kind, tuple((n, g, rate * scale / best) for n, g, rate in points)) for kind, points in shapes)
    return Profile(
        "not seen yet",
        curves[0][1],
        source="assumed: nothing was seen of it yet",
        kinds=tuple(each for each in curves if each[0]),
        spread=1.0,
        measured=(),
        **dict(times),  # type: ignore[arg-type]  # seconds only
    )


@lru_cache(maxsize=64)
def _usual_shape(kind: str, nodes: int, gpus: tuple[int, ...]) -> tuple[Point, ...]:
    """Points of the curve that most jobs have, on GPUs of that kind."""
    curve = fit_curve((), gpus[-1], nodes, kind)
    return tuple((n, g, curve.rate(g, n)) for n in doublings(nodes) for g in gpus)


def doublings(most: int) -> tuple[int, ...]:
    """The powers of two up to `most`, and `most`."""
    return tuple(sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most}))
