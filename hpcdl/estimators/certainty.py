"""How much longer or shorter a job may take than its estimate: the posterior of a factor on its time.

Its length may be known from others only, and so may its rate: from few steps of jobs alike
(`core/fold/trials.py`), on other GPUs. Three things may be wrong with such a rate. Jobs and steps differ: Student's t.
Steps that were seen may be of the warm-up, all or some: the fewer they are, the likelier. And many a script does not
use further GPUs, so on a number of GPUs that nobody tried it may be as fast as on those. Starts differ, too.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

from hpcdl.core.model.profile import Profile, RateTrial
from hpcdl.estimators.posterior import ACROSS_STEP, EXPONENT, EXPONENT_OF_KIND, KIND, OWN, OWN_OF_KIND

QUADRATURE = ((-2.857, 0.011257), (-1.3556, 0.222076), (0.0, 0.533333), (1.3556, 0.222076), (2.857, 0.011257))
"""Gauss and Hermite's five points of a standard normal distribution, with their weights."""

STARTS = ((-1.7320508, 1 / 6), (0.0, 2 / 3), (1.7320508, 1 / 6))
"""The same with three points."""

LITTLE = 1e-9

ANGLES = 4000
"""Parts of the half circle over which Student's t is integrated."""

PARTS = 16
"""Points of Student's t, all of the same weight."""

POSSIBLE = 1 / 1000
"""What is less likely than this is taken to be impossible."""

NORMAL = 30
"""Degrees of freedom with which Student's t is taken for a normal distribution."""

GAINS = (0.18, 0.69, 1.79)
"""If all that was seen is the warm-up, what follows is faster by factors whose logarithms are exponential, with the
mean 1: the middles of its thirds. So one in h of them is more than h times as fast."""

STARTS_DIFFER, WARM_UPS_DIFFER = 0.25, 0.5
"""Sigma of the logarithm of what a start takes, where none was seen, and of what a warm-up takes."""

SUPERLINEAR = 1.3
"""n times the GPUs are at most n to this power times as fast: what each holds may fit into faster memory."""

LATER = 3.0
"""Steps beyond those that were seen are at most so many times as fast, where it is next to certain that these were no
warm-up."""

WIDEST = 3.0
"""The most that a scale is: where rates differ by factors of e^3, nothing more is known than that."""

UNUSED = 0.25
"""The share of jobs that are no faster on further GPUs."""

SHOWN = (0.05, 3)
"""Scale and degrees of freedom of the doubt that is left in the rate that a job shows itself."""

MIDDLE = 0.8
"""The share of the band from `low` to `high`."""


@dataclass(frozen=True, slots=True)
class Certainty:
    """Logarithms of the factor by which the job may take longer than its estimate (below 0: less), with their weights.

    `least`: of the fastest that is possible, -inf where nothing bounds it. `of`: what it rests on, in words; "" where
    nothing is in doubt.
    """

    points: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    least: float = 0.0
    of: str = ""

    def quantile(self, share: float) -> float:
        """The logarithm below which this share of the weight is."""
        total = 0.0
        for at, weight in self.points:  # they are sorted
            total += weight
            if total >= share - 1e-9:
                return at
        return self.points[-1][0]

    @property
    def low(self) -> float:
        """The lower end of the band that holds MIDDLE."""
        return min(0.0, self.quantile((1 - MIDDLE) / 2))

    @property
    def high(self) -> float:
        """Its upper end."""
        return max(0.0, self.quantile((1 + MIDDLE) / 2))


CERTAIN = Certainty()


@dataclass(frozen=True, slots=True)
class WholeTime:
    """What of a job's time is sure, and what is not.

    `length`: sigma of the logarithm of its length, 0 where that is known, else `whose` jobs it is from, in words.
    `steps`: that it has left; inf where that is not known. `error`: standard error of the logarithm of the rate that it
    shows itself, None where it shows none. `trains`: the share of its time for which it trains; `start`: sigma of the
    logarithm of the rest.
    """

    length: float = 0.0
    whose: str = ""
    steps: float = math.inf
    shown: bool = False
    seconds: float = 0.0
    rest_s: float = 0.0
    start: float = STARTS_DIFFER

    def share(self, seconds: float) -> float:
        """Of its time, that it spends on `seconds` of the rest."""
        return 0.0 if self.seconds <= 0.0 else round(min(1.0, min(seconds, self.rest_s) / self.seconds), 2)


def certainty(profile: Profile | None, kind: str, nodes: int, gpus: int, whole: WholeTime) -> Certainty:
    """How sure the time of a job is on `gpus` GPUs of a kind on each of `nodes` nodes."""
    length, bounded = whole.length, not whole.length
    of = (whole.whose,) if length else ()
    rest = _Rest(whole.share(whole.rest_s), 0.0, float(f"{whole.start:.1g}"))
    if profile is None:
        return _certainty(_Rate(bounded=False), length, rest, of)
    if whole.shown:
        return _certainty(_Rate(*SHOWN, bounded=bounded), length, rest, of)
    rate, seen = _rate_on(profile, kind, nodes, gpus, whole.steps)
    if seen is not None:
        rest, of = replace(rest, warm=whole.share(seen.warm_s)), (*of, seen.of)
    return _certainty(replace(rate, bounded=rate.bounded and bounded), length, rest, of)


def standard_error(profile: Profile, kind: str, nodes: int, gpus: int) -> float:
    """Of the logarithm of the rate there."""
    return _rate_on(profile, kind, nodes, gpus)[0].scale


def _rate_on(
    profile: Profile, kind: str, nodes: int, gpus: int, steps: float = math.inf
) -> tuple["_Rate", RateTrial | None]:
    """What is not known of the rate of so many steps there, and the trial that it is from; None where it was given."""
    if not profile.trials:
        return _Rate(math.log1p(profile.spread), NORMAL), None
    trial = next((each for each in profile.trials if (each.kind, each.nodes, each.gpus) == (kind, nodes, gpus)), None)
    return _untried(profile, kind, nodes, gpus, steps) if trial is None else (_tried(trial, steps), trial)


@dataclass(frozen=True, slots=True)
class _Rest:
    """`share`: of a job's time, for which it does not train; `warm`: for which it warms up. `start`: sigma of the
    logarithm of the former without the latter."""

    share: float
    warm: float
    start: float

    @property
    def scale(self) -> float:
        """Sigma of the logarithm of all of it."""
        return math.hypot(self.start * (self.share - self.warm), WARM_UPS_DIFFER * self.warm) / self.share

    @property
    def least(self) -> float:
        """The least that is possible: without a warm-up, for what it compiles may be kept."""
        return (self.share - self.warm) * math.exp(self.start * _student_quantile(POSSIBLE, NORMAL))


@dataclass(frozen=True, slots=True)
class _Rate:
    """What is not known of a rate.

    `scale`, `freedom`: of Student's t. `hidden`, `else_faster`: as `RateTrial` has them. `alike`: what its time is
    multiplied by if further GPUs are of no use. `beyond`: the share of its steps that are more than any attempt had.
    `most`: logarithm of how many times as fast it is at most for other reasons; None: for its scale. `bounded`: whether
    there is a fastest one at all.
    """

    scale: float = 0.0
    freedom: int = NORMAL
    hidden: float = 0.0
    else_faster: tuple[tuple[float, float], ...] = ()
    alike: float = 1.0
    beyond: float = 0.0
    most: float | None = None
    bounded: bool = True

    @property
    def least(self) -> float:
        """Logarithm of the factor on the time of the fastest that is possible."""
        if not self.bounded:
            return -math.inf
        most = -self.scale * _student_quantile(POSSIBLE, self.freedom) if self.most is None else self.most
        warm = math.log(self.hidden / POSSIBLE) if self.hidden else 0.0
        later = -math.log(1 - self.beyond + self.beyond / LATER)
        return -most - max(later, warm, *(by for much, by in self.else_faster if much > POSSIBLE))


def _tried(trial: RateTrial, steps: float) -> _Rate:
    """`steps`: that are to be done; few take longer or shorter than they usually do."""
    own = float(f"{math.sqrt(trial.variation / max(1.0, steps)):.1g}")
    beyond = round(1 - min(1.0, trial.longest / max(1.0, steps)), 2)
    return _Rate(
        min(WIDEST, math.hypot(trial.scale, own)), trial.freedom, trial.hidden, trial.else_faster, beyond=beyond
    )


def _untried(profile: Profile, kind: str, nodes: int, gpus: int, steps: float) -> tuple[_Rate, RateTrial]:
    """On a number or kind of GPUs that nobody tried; with the trial that is nearest. Fewer GPUs are at most as fast as
    those that were tried, more of them at most as SUPERLINEAR says."""
    rate = profile.on(kind).rate(gpus, nodes)
    nearest = min(profile.trials, key=lambda each: abs(math.log(each.nodes * each.gpus / (nodes * gpus))))
    seen = {each: profile.on(each.kind).rate(each.gpus, each.nodes) for each in profile.trials}
    doublings = math.log2(nodes * gpus / (nearest.nodes * nearest.gpus))
    exponent = math.hypot(EXPONENT, EXPONENT_OF_KIND) * doublings
    across = ACROSS_STEP if (nodes > 1) != (nearest.nodes > 1) else 0.0
    there = _tried(nearest, steps)
    scale = math.hypot(there.scale, exponent, OWN, OWN_OF_KIND, across)
    single = len({each.nodes * each.gpus for each in profile.trials}) == 1
    found = replace(there, scale=scale, alike=rate / seen[nearest] if single else 1.0)
    if kind not in {each.kind for each in profile.trials}:
        return replace(found, scale=math.hypot(scale, KIND), bounded=False), nearest
    fastest = [
        max(
            0.0, math.log(seen[each] / rate) + SUPERLINEAR * max(0.0, math.log(nodes * gpus / (each.nodes * each.gpus)))
        )
        - each.scale * _student_quantile(POSSIBLE, each.freedom)
        for each in profile.trials
    ]
    return replace(found, most=min(fastest)), nearest


@lru_cache(maxsize=4096)
def _certainty(rate: _Rate, length: float, rest: _Rest, whose: tuple[str, ...]) -> Certainty:
    points = [(0.0, 1.0)]
    if rate.scale:
        points = [(rate.scale * each, 1 / PARTS) for each in _student(PARTS, rate.freedom)]
    ways = [(by, rate.hidden / len(GAINS)) for by in GAINS if rate.hidden] + [
        (by, much) for much, by in rate.else_faster
    ]
    if ways:
        ways.append((0.0, 1 - sum(much for _, much in ways)))
        points = [(at - by, weight * much) for at, weight in points for by, much in ways]
    if rate.alike != 1.0:
        use = ((0.0, 1 - UNUSED), (math.log(rate.alike), UNUSED))
        points = [(at + shift, weight * share) for at, weight in points for shift, share in use]
    if length:
        points = [(at + length * z, weight * share) for at, weight in points for z, share in QUADRATURE]
    least = rate.least
    if rest.share:
        trains, starts = 1 - rest.share, [(rest.share * math.exp(rest.scale * z), much) for z, much in STARTS]
        points = [
            (math.log(trains * math.exp(at) + rest_s), weight * much)
            for at, weight in points
            for rest_s, much in starts
        ]
        least = math.log(max(LITTLE, trains * math.exp(least) + rest.least))
    return Certainty(tuple(sorted(points)), least, ", ".join(each for each in whose if each))


@lru_cache(maxsize=256)
def _student(parts: int, freedom: int) -> Sequence[float]:
    """The middles of so many parts, of the same weight each, of Student's t."""
    return tuple(_student_quantile((part + 0.5) / parts, freedom) for part in range(parts))


@lru_cache(maxsize=512)
def _student_quantile(share: float, freedom: int) -> float:
    if freedom >= NORMAL:
        return NormalDist().inv_cdf(share)
    # With x = sqrt(freedom) tan(angle) the density is the cosine of the angle to the power of freedom - 1.
    angles = [math.pi * ((part + 0.5) / ANGLES - 0.5) for part in range(ANGLES)]
    below = list(accumulate(math.cos(angle) ** (freedom - 1) for angle in angles))
    place = bisect_left(below, share * below[-1])
    return math.sqrt(freedom) * math.tan(angles[place])
