"""What is known of a job's rates on every number and kind of GPU, given where it was seen: a Gaussian posterior.

The model is one of the logarithm of the rate, so that rates stay positive and errors are relative. With
x = log2(nodes x GPUs per node):

    ln rate = level + expected curve + e1 x + w(x) + own + (across nodes) + (the same once more for each kind of GPU)

- level: steps/s on one GPU. Next to nothing is assumed of it; one observation settles it.
- expected curve: the median of the field, on the kind of GPU of which most was seen (the reference). Doubling one GPU
  gains 80 %, and every further doubling less. On another kind, what the reference leads to, see `_carried`.
- e1: how this job's exponent of scaling differs from that. w: how the exponent wanders from one doubling to the next; a
  random walk, so w is a cubic spline between what was seen, and past it the exponent goes on as it was.
- own: what one number of GPUs has to itself (an odd divisor of the batch, a pair of GPUs that share a link).

All are normal, so the fit is one linear system of as many rows as numbers of GPUs were seen, with weights from the
seconds that each was seen for. A curve that falls is learnt as soon as a lower rate is seen.

The prior's numbers are rounded from the curves of some forty jobs on K80, P100 and V100. What they give is measured by
tests and by `python benchmarks/learning.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcdl.core.model.profile import Observation

Array: TypeAlias = NDArray[np.float64]
Place: TypeAlias = tuple[int, int]
"""(nodes, GPUs on each)."""

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

SPEEDS = {"k80": 0.25, "p100": 0.8, "v100": 1.0, "a100": 2.0, "h100": 4.0}
"""How many times as fast as a V100 a kind is, as far as is known beforehand: medians of 26 jobs on K80, P100 and V100
(Gavel), rounded; what vendors' own figures say of the others. A kind that is not there is taken for a V100."""

LOUDEST = 6.0  # logarithm of how much faster a kind may be than the reference
TRUST = 0.05  # relative error with which the reference's curve is carried over


@dataclass(frozen=True, slots=True)
class Posterior:
    """The rates that observations lead to; `known` has one for each kind, number of nodes and of GPUs on each."""

    known: tuple[Observation, ...]
    _reference: str = field(init=False, repr=False, compare=False)
    _anchor: "_Anchor | None" = field(init=False, repr=False, compare=False)
    _speeds: Mapping[str, float] = field(init=False, repr=False, compare=False)
    _sites: Array = field(init=False, repr=False, compare=False)
    _weights: Array = field(init=False, repr=False, compare=False)
    _inverse: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = sorted({seen.kind for seen in self.known})
        by_kind = {kind: [seen for seen in self.known if seen.kind == kind] for kind in kinds}
        reference = max(
            kinds, key=lambda kind: (len(by_kind[kind]), sum(seen.seconds for seen in by_kind[kind])), default=""
        )
        put = object.__setattr__
        put(self, "_reference", reference)
        put(self, "_anchor", _Anchor(by_kind[reference]) if kinds else None)
        put(self, "_speeds", {kind: self._speed(by_kind[kind]) for kind in kinds if kind != reference})
        sites, rates, noise = _rows(self.known)
        alike = np.array([[a.kind == b.kind for b in self.known] for a in self.known], dtype=np.bool_)
        covariance = _covariance(sites[:, None], sites[None], alike.reshape(len(sites), len(sites)))
        inverse = np.linalg.inv(covariance + np.diag(noise))
        expected = np.array([self._expected(_sites([(seen.nodes, seen.gpus)]), seen.kind)[0] for seen in self.known])
        put(self, "_sites", sites)
        put(self, "_inverse", inverse)
        put(self, "_weights", inverse @ (rates - expected.reshape(len(sites))))

    def rates(self, places: Sequence[Place], kind: str) -> Array:
        """The expected rate at each place, steps/s."""
        wanted = _sites(places)
        rates: Array = np.exp(self._expected(wanted, kind) + self._towards(wanted, kind) @ self._weights)
        return rates

    def spreads(self, places: Sequence[Place], kind: str) -> Array:
        """Relative standard errors of the rates."""
        wanted = _sites(places)
        towards = self._towards(wanted, kind)
        alone = _covariance(wanted, wanted, np.ones(len(wanted), dtype=np.bool_))
        explained = np.einsum("ij,jk,ik->i", towards, self._inverse, towards)
        spreads: Array = np.sqrt(np.maximum(alone - explained, 0.0))
        return spreads

    def _towards(self, wanted: Array, kind: str) -> Array:
        mine = np.array([seen.kind == kind for seen in self.known], dtype=np.bool_)
        return _covariance(wanted[:, None], self._sites[None], mine[None])

    def _expected(self, sites: Array, kind: str) -> Array:
        """The expected curve: the logarithm of the rate before this kind's own observations correct it."""
        if self._anchor is None:
            nothing: Array = _prior(sites) + math.log(usual_speed(kind))
            return nothing
        if kind == self._reference:
            return self._anchor.at(sites)
        known = self._speeds.get(kind)
        speed = usual_speed(kind) / usual_speed(self._reference) if known is None else known
        return _carried(self._anchor, sites, speed)

    def _speed(self, known: Sequence[Observation]) -> float:
        """How many times as fast as the reference a kind of GPU computes, from where both were or can be compared."""
        assert self._anchor is not None
        sites, rates, noise = _rows(known)
        tried = np.linspace(-LOUDEST, LOUDEST, 241)
        carried = _carried(self._anchor, sites, np.exp(tried)[:, None])
        errors = ((carried - rates) ** 2 / (noise + TRUST**2)).sum(axis=1)
        return math.exp(float(tried[int(np.argmin(errors))]))


class _Anchor:
    """The curve of the reference kind, from its own observations alone."""

    def __init__(self, known: Sequence[Observation]) -> None:
        self._sites, rates, noise = _rows(known)
        alike = np.ones((len(known), len(known)), dtype=np.bool_)
        covariance = _covariance(self._sites[:, None], self._sites[None], alike) + np.diag(noise)
        self._weights = np.linalg.solve(covariance, rates - _prior(self._sites))

    def at(self, sites: Array) -> Array:
        """Logarithm of the rate."""
        alike = np.ones((1, 1), dtype=np.bool_)
        rates: Array = _prior(sites) + _covariance(sites[:, None], self._sites[None], alike) @ self._weights
        return rates


def usual_speed(kind: str) -> float:
    """How many times as fast as a V100 GPUs of that kind usually are."""
    return SPEEDS.get(kind, 1.0)


def _carried(anchor: _Anchor, sites: Array, speed: float | Array) -> Array:
    """Logarithm of the rate on GPUs that compute `speed` times as fast as those of the reference.

    Of a step on n GPUs, an n-th of what it takes on one GPU is computing, which changes with the GPU; the rest, taken
    to be communication and what cannot be divided, stays. So slower GPUs scale better.
    """
    alone = float(np.exp(-anchor.at(_sites([(1, 1)]))[0]))
    computing = alone / 2 ** sites[:, 0]
    rest = np.maximum(np.exp(-anchor.at(sites)) - computing, 0.0)
    rates: Array = -np.log(computing / speed + rest)
    return rates


def _rows(known: Sequence[Observation]) -> tuple[Array, Array, Array]:
    """Sites, logarithms of the rates, and the variances of these."""
    rates = np.array([math.log(seen.steps / seen.seconds) for seen in known], dtype=np.float64)
    noise = np.array([_noise(seen) for seen in known], dtype=np.float64)
    return _sites([(seen.nodes, seen.gpus) for seen in known]), rates, noise


def _noise(seen: Observation) -> float:
    """Variance of the logarithm of an observed rate."""
    return JITTER**2 * 60.0 / seen.seconds + (HALF_STEP / seen.steps) ** 2


def _sites(places: Sequence[Place]) -> Array:
    """Rows of: log2 of all GPUs, log2 of the nodes, 1 where there are several nodes else 0, GPUs per node."""
    for nodes, gpus in places:
        if nodes < 1 or gpus < 1:
            raise ValueError(f"a curve needs gpus and nodes of 1 or more, got {gpus} and {nodes}")
    rows = [(math.log2(nodes * gpus), math.log2(nodes), float(nodes > 1), float(gpus)) for nodes, gpus in places]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 4)


def _prior(sites: Array) -> Array:
    """Logarithm of the field's median curve over its rate on one GPU: the exponent decays with every doubling."""
    gained = math.log(2) * FIRST_EXPONENT * DOUBLINGS * (1 - np.exp(-sites[:, 0] / DOUBLINGS))
    prior: Array = gained - ACROSS[0] * sites[:, 2] - ACROSS[1] * sites[:, 1]
    return prior


def _covariance(left: Array, right: Array, alike: NDArray[np.bool_]) -> Array:
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
    covariance: Array = shared + across + of_kind * alike
    return covariance
