"""How much longer or shorter a job may take than its estimate: the posterior of a factor on its time.

Its length may be known from others only, and so may its rate: from few steps of jobs alike
(`core/fold/trials.py`), on other GPUs. Three things may be wrong with such a rate. Jobs and steps differ: Student's t.
All steps that were seen may be of the warm-up: the fewer they are, the likelier, and the more it may hide. And many a
script does not use further GPUs, so on a number of GPUs that nobody tried it may be as fast as on those.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hpcdl.core.model.profile import Profile, RateTrial
from hpcdl.estimators.posterior import ACROSS_STEP, EXPONENT, EXPONENT_OF_KIND, KIND, OWN, OWN_OF_KIND

QUADRATURE = ((-2.857, 0.011257), (-1.3556, 0.222076), (0.0, 0.533333), (1.3556, 0.222076), (2.857, 0.011257))
"""Gauss and Hermite's five points of a standard normal distribution, with their weights."""

PARTS = 16
"""Points of Student's t, all of the same weight."""

FASTEST = 5.84
"""Of 200 draws of Student's t one is below minus this: what is faster is taken to be impossible."""

FASTEST_NORMAL = 2.576
"""The same of a normal distribution."""

LONGEST_WARM_UP = 200.0
"""Steps for which a warm-up lasts at most; after n of them what follows is at most so many times as fast over n."""

WARMING = (2.0, 0.5)
"""n steps were all of a warm-up with the probability w / (w + n): w where none has ended, and where one has."""

UNUSED = 0.25
"""The share of jobs that are no faster on further GPUs."""

SHOWN = 0.05
"""Scale of the doubt in the rate that a job shows itself."""

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


def certainty(
    profile: Profile | None,
    kind: str,
    nodes: int,
    gpus: int,
    *,
    length: float = 0.0,
    whose: str = "",
    shown: bool = False,
) -> Certainty:
    """How sure the time of a job is on `gpus` GPUs of a kind on each of `nodes` nodes.

    `length`: sigma of the logarithm of its length, 0 where that is known, else `whose` jobs it is from, in words.
    `shown`: the job shows its rate there itself.
    """
    of, least = (whose,) if length else (), -math.inf if length else 0.0
    if profile is None:
        return _certainty(length, 0.0, 1.0, 1.0, -math.inf, of)
    if shown:
        return _certainty(length, SHOWN, 1.0, 1.0, least - FASTEST * SHOWN, of)
    trial = next((each for each in profile.trials if (each.kind, each.nodes, each.gpus) == (kind, nodes, gpus)), None)
    if trial is None and profile.trials:
        return _untried(profile, kind, nodes, gpus, length, of)
    if trial is not None:
        fastest = least - _fastest(trial)
        return _certainty(length, trial.scale, _hidden(trial), 1.0, fastest, (*of, trial.of), _warming(trial))
    given = math.log1p(profile.spread)
    return _certainty(math.hypot(length, given), 0.0, 1.0, 1.0, least - FASTEST_NORMAL * given, of)


def _untried(profile: Profile, kind: str, nodes: int, gpus: int, length: float, whose: tuple[str, ...]) -> Certainty:
    """On a number or kind of GPUs that nobody tried: at most as fast as the tried ones where they are more, and where
    they are fewer at most by as much faster as there are more GPUs."""
    rate = profile.on(kind).rate(gpus, nodes)
    nearest = min(profile.trials, key=lambda each: abs(math.log(each.nodes * each.gpus / (nodes * gpus))))
    seen = {each: profile.on(each.kind).rate(each.gpus, each.nodes) for each in profile.trials}
    doublings = math.log2(nodes * gpus / (nearest.nodes * nearest.gpus))
    exponent = math.hypot(EXPONENT, EXPONENT_OF_KIND) * doublings
    across = ACROSS_STEP if (nodes > 1) != (nearest.nodes > 1) else 0.0
    scale = math.hypot(nearest.scale, exponent, OWN, OWN_OF_KIND, across)
    if kind not in {each.kind for each in profile.trials}:
        least, scale = -math.inf, math.hypot(scale, KIND)
    elif length:
        least = -math.inf
    else:
        most = {each: seen[each] * max(1.0, nodes * gpus / (each.nodes * each.gpus)) for each in profile.trials}
        least = max(min(0.0, math.log(rate / most[each])) - _fastest(each) for each in profile.trials)
    single = len({each.nodes * each.gpus for each in profile.trials}) == 1
    alike = rate / seen[nearest] if single else 1.0
    return _certainty(length, scale, _hidden(nearest), alike, least, (*whose, nearest.of), _warming(nearest))


def _hidden(trial: RateTrial) -> float:
    """How many times as fast a job may be yet, if all that was seen is its warm-up."""
    return max(1.0, LONGEST_WARM_UP / trial.longest)


def _warming(trial: RateTrial) -> float:
    """The probability that all that was seen is its warm-up."""
    w = WARMING[trial.warmed_up]
    return w / (w + trial.longest)


def _fastest(trial: RateTrial) -> float:
    """Logarithm of how many times as fast it is at most."""
    return FASTEST * trial.scale + math.log(_hidden(trial))


@lru_cache(maxsize=4096)
def _certainty(
    length: float,
    scale: float,
    hidden: float,
    alike: float,
    least: float,
    whose: tuple[str, ...],
    warm: float = 0.0,
) -> Certainty:
    """`length`: sigma of a normal. `scale`: of Student's t. `hidden`: how many times as fast it may be yet, if all was
    its warm-up, with the probability `warm`. `alike`: what its time is multiplied by, if further GPUs are of no use.
    """
    points = [(0.0, 1.0)]
    if scale:
        points = [(scale * each, 1 / PARTS) for each in _student(PARTS)]
    if hidden > 1.0:
        faster = [(-math.log(hidden) * share, warm / 2) for share in (0.25, 0.75)]
        points = [(at + shift, weight * share) for at, weight in points for shift, share in (*faster, (0.0, 1 - warm))]
    if alike != 1.0:
        ways = ((0.0, 1 - UNUSED), (math.log(alike), UNUSED))
        points = [(at + shift, weight * share) for at, weight in points for shift, share in ways]
    if length:
        points = [(at + length * z, weight * share) for at, weight in points for z, share in QUADRATURE]
    return Certainty(tuple(sorted(points)), least, ", ".join(each for each in whose if each))


@lru_cache(maxsize=8)
def _student(parts: int) -> Sequence[float]:
    """The middles of so many parts, of the same weight each, of Student's t with three degrees of freedom."""
    return tuple(_student_quantile((part + 0.5) / parts) for part in range(parts))


def _student_quantile(share: float) -> float:
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        x = middle / math.sqrt(3)
        below = 0.5 + (x / (1 + x * x) + math.atan(x)) / math.pi
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2
