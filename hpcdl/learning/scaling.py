"""The scaling curve of a job that has no profile, learnt from the progress that it reports while it runs.

The model is a Gaussian one of the logarithm of the rate, so that rates stay positive and errors are relative. With
x = log2(nodes x GPUs per node):

    ln rate = level + prior curve + e1 x + w(x) + own + (across nodes) + (the same once more for each kind of GPU)

- level: steps/s on one GPU. Next to nothing is assumed of it; one observation settles it.
- prior curve: the median of the field. Doubling one GPU gains 80 %, and every further doubling less.
- e1: how this job's exponent of scaling differs from the field's. w: how the exponent wanders from one doubling to the
  next; a random walk, so w is a cubic spline between what was seen, and past it the exponent goes on as it was.
- own: what one number of GPUs has to itself (an odd divisor of the batch, a pair of GPUs that share a link).

All are normal, so the fit is one linear system of as many rows as numbers of GPUs were seen, with weights from the
seconds that each was seen for. A curve that falls is learnt as soon as a lower rate is seen.

The prior's numbers are rounded from the curves of some forty jobs on K80, P100 and V100. What they give is measured by
tests and by `python benchmarks/learning.py`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcdl.core.profile import Observation, Point, Profile

_Array: TypeAlias = NDArray[np.float64]

FIRST_EXPONENT = 0.85  # of the prior curve at one GPU: d log rate / d log GPUs
DOUBLINGS = 5.0  # over which that exponent falls to 1/e of it
ACROSS = (0.10, 0.03)  # what leaving one node costs the logarithm of the rate, and what each doubling of nodes does

LEVEL = 10.0  # standard deviations, all of the logarithm of the rate
EXPONENT = 0.09  # of e1, shared by all kinds of GPU ...
EXPONENT_OF_KIND = 0.13  # ... and of one kind: slower GPUs scale better, by how much is not known beforehand
WALK = 0.09  # of the exponent, per doubling
WALK_OF_KIND = 0.11
OWN = 0.04
OWN_OF_KIND = 0.05
KIND = 0.7  # how much faster one kind of GPU is than another: a factor of two is ordinary
ACROSS_STEP = 0.2
ACROSS_SLOPE = 0.1

JITTER = 0.02  # relative error of a rate that was seen for a minute
HALF_STEP = 0.5  # a window of progress begins and ends within a step

MANY = 16  # up to here every number of GPUs or nodes has a point in a profile; past it about every fifth


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps/s by GPUs and nodes, and how sure that is; made by `fit_curve`.

    known: what was seen, one observation for each kind, number of nodes and number of GPUs per node.
    limit_gpus, limit_nodes: up to where `to_profile` has points; `rate` and `spread` answer for any number.
    """

    kind: str
    limit_gpus: int
    limit_nodes: int
    known: tuple[Observation, ...]
    _sites: _Array = field(init=False, repr=False, compare=False)
    _weights: _Array = field(init=False, repr=False, compare=False)
    _inverse: _Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.limit_gpus < 1 or self.limit_nodes < 1:
            raise ValueError(
                f"a curve's limits must be 1 or more, got {self.limit_gpus} GPUs, {self.limit_nodes} nodes"
            )
        object.__setattr__(self, "kind", self.kind.lower())
        sites = _sites([(seen.nodes, seen.gpus) for seen in self.known])
        kinds = np.array([seen.kind for seen in self.known], dtype=object)
        noise = np.array([_noise(seen) for seen in self.known], dtype=np.float64)
        covariance = _covariance(sites[:, None], sites[None], kinds[:, None] == kinds[None, :])
        inverse = np.linalg.inv(covariance + noise * np.eye(len(noise)))
        rates = np.array([math.log(seen.steps / seen.seconds) for seen in self.known], dtype=np.float64)
        object.__setattr__(self, "_sites", sites)
        object.__setattr__(self, "_inverse", inverse)
        object.__setattr__(self, "_weights", inverse @ (rates - _prior(sites)))

    def rate(self, gpus: int, nodes: int = 1) -> float:
        """Steps/s expected on `gpus` GPUs on each of `nodes` nodes; 0 GPUs give 0.0."""
        if gpus == 0 and nodes >= 1:
            return 0.0
        return float(self._rates([(nodes, gpus)])[0])

    def spread(self, gpus: int, nodes: int = 1) -> float:
        """Relative standard error of that rate. Above 1 nothing is known but the shape of the curve."""
        return float(self._spreads([(nodes, gpus)])[0])

    def seen(self, gpus: int, nodes: int = 1) -> bool:
        """Whether this number of GPUs of this kind was observed."""
        return any((known.kind, known.nodes, known.gpus) == (self.kind, nodes, gpus) for known in self.known)

    def on(self, kind: str) -> "Curve":
        """What the same observations say of another kind of GPU."""
        return replace(self, kind=kind)

    def to_profile(self, name: str, base: Profile | None = None, kinds: Iterable[str] = ()) -> Profile:
        """A profile with a point for every number of GPUs and nodes up to the limits, and what was seen.

        Past 16 about every fifth number has a point. The costs of starting and suspending are those of `base`; `kinds`
        get curves of their own, as do all kinds that were seen. `spread` is the root mean square over the points.
        """
        places = self._places()
        spread = float(np.sqrt(np.mean(self._spreads(places) ** 2)))
        others = sorted({kind.lower() for kind in kinds} | {seen.kind for seen in self.known} - {""})
        curves = tuple((kind, _points(places, self.on(kind)._rates(places))) for kind in others)
        seconds = sum(seen.seconds for seen in self.known)
        sizes = ", ".join(f"{seen.nodes} x {seen.gpus} {seen.kind}".rstrip() for seen in self.known)
        source = (
            f"learnt while it ran: {seconds:.0f} s on {sizes}" if self.known else "assumed: nothing was seen of it yet"
        )
        points = _points(places, self._rates(places))
        found = Profile(name, points) if base is None else replace(base, name=name, points=points)
        return replace(found, source=source, kinds=curves, spread=spread)

    def _places(self) -> list[tuple[int, int]]:
        """(nodes, GPUs per node) of a profile's points."""
        here = [seen for seen in self.known if seen.gpus <= self.limit_gpus and seen.nodes <= self.limit_nodes]
        nodes = _numbers(self.limit_nodes, {seen.nodes for seen in here})
        gpus = _numbers(self.limit_gpus, {seen.gpus for seen in here})
        return [(n, g) for n in nodes for g in gpus]

    def _towards(self, places: Sequence[tuple[int, int]]) -> tuple[_Array, _Array]:
        """The places of this kind, and their covariance with what is known."""
        for nodes, gpus in places:
            if nodes < 1 or gpus < 1:
                raise ValueError(f"a curve needs gpus and nodes of 1 or more, got {gpus} and {nodes}")
        wanted = _sites(places)
        mine = np.array([seen.kind == self.kind for seen in self.known], dtype=np.bool_)
        return wanted, _covariance(wanted[:, None], self._sites[None], mine[None])

    def _rates(self, places: Sequence[tuple[int, int]]) -> _Array:
        wanted, covariance = self._towards(places)
        rates: _Array = np.exp(_prior(wanted) + covariance @ self._weights)
        return rates

    def _spreads(self, places: Sequence[tuple[int, int]]) -> _Array:
        wanted, covariance = self._towards(places)
        alone = _covariance(wanted, wanted, np.ones(len(wanted), dtype=np.bool_))
        explained = np.einsum("ij,jk,ik->i", covariance, self._inverse, covariance)
        spreads: _Array = np.sqrt(np.maximum(alone - explained, 0.0))
        return spreads


def fit_curve(observations: Iterable[Observation], limit_gpus: int, limit_nodes: int = 1, kind: str = "") -> Curve:
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
    return Curve(kind, limit_gpus, limit_nodes, tuple(known))


def learner(
    limit_gpus: int, limit_nodes: int = 1, kinds: Iterable[str] = (), base: Profile | None = None
) -> Callable[[str, Sequence[Observation]], Profile | None]:
    """What makes a profile of a name and of what was observed under it, as `hpcdl.core.plan.Profiles.learn` wants it.

    The limits and kinds are those of the cluster; `base` gives the costs of starting and suspending. The profile's
    default curve is for kinds that it has none of. None where no step was seen yet.
    """
    wanted = tuple(kinds)

    def learn(name: str, observed: Sequence[Observation]) -> Profile | None:
        curve = fit_curve(observed, limit_gpus, limit_nodes)
        return curve.to_profile(name, base, wanted) if curve.known else None

    return learn


def _check(seen: Observation) -> None:
    if seen.nodes < 1 or seen.gpus < 1:
        raise ValueError(f"an observation needs nodes and gpus of 1 or more, got {seen.nodes} and {seen.gpus}")
    if not math.isfinite(seen.steps) or seen.steps < 0:
        raise ValueError(f"an observation's steps must be a finite number, 0 or more, got {seen.steps}")
    if not math.isfinite(seen.seconds) or seen.seconds <= 0:
        raise ValueError(f"an observation's seconds must be a finite number above 0, got {seen.seconds}")


def _noise(seen: Observation) -> float:
    """Variance of the logarithm of an observed rate."""
    return JITTER**2 * 60.0 / seen.seconds + (HALF_STEP / seen.steps) ** 2


def _sites(places: Sequence[tuple[int, int]]) -> _Array:
    """Rows of: log2 of all GPUs, log2 of the nodes, 1 where there are several nodes else 0, GPUs per node."""
    rows = [(math.log2(nodes * gpus), math.log2(nodes), float(nodes > 1), float(gpus)) for nodes, gpus in places]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 4)


def _prior(sites: _Array) -> _Array:
    """Logarithm of the field's median curve over its rate on one GPU: the exponent decays with every doubling."""
    gained = math.log(2) * FIRST_EXPONENT * DOUBLINGS * (1 - np.exp(-sites[:, 0] / DOUBLINGS))
    prior: _Array = gained - ACROSS[0] * sites[:, 2] - ACROSS[1] * sites[:, 1]
    return prior


def _covariance(left: _Array, right: _Array, alike: NDArray[np.bool_]) -> _Array:
    """Covariances of the logarithms of the rates at sites that broadcast against each other.

    alike: where both are on the same kind of GPU.
    """
    x, z = left[..., 0], right[..., 0]
    low, high = np.minimum(x, z), np.maximum(x, z)
    straight = x * z
    spline = low * low * (3 * high - low) / 6
    itself = (left[..., 3] == right[..., 3]) & (left[..., 1] == right[..., 1])
    shared = LEVEL**2 + EXPONENT**2 * straight + WALK**2 * spline + OWN**2 * itself
    of_kind = KIND**2 + EXPONENT_OF_KIND**2 * straight + WALK_OF_KIND**2 * spline + OWN_OF_KIND**2 * itself
    across = ACROSS_STEP**2 * left[..., 2] * right[..., 2] + ACROSS_SLOPE**2 * left[..., 1] * right[..., 1]
    covariance: _Array = shared + across + of_kind * alike
    return covariance


def _numbers(limit: int, seen: set[int]) -> list[int]:
    """1 to the limit: every number up to 16, then steps of a fifth, the limit and those seen."""
    numbers = set(range(1, min(limit, MANY) + 1)) | seen | {limit}
    number = MANY
    while (number := math.ceil(number * 1.2)) < limit:
        numbers.add(number)
    return sorted(numbers)


def _points(places: Sequence[tuple[int, int]], rates: _Array) -> tuple[Point, ...]:
    return tuple((nodes, gpus, float(rate)) for (nodes, gpus), rate in zip(places, rates, strict=True))
