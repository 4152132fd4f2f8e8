"""The rate of a type of job at a batch size that nobody tried, by GENIE's latency model of those that were.

What jobs showed while they trained, kept by (type, batch size), serves as the runs of a light profiling: three batch
sizes on one GPU say eq. 7, any on several GPUs eq. 8 (`latency.py`). One model for each type of GPU.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from statistics import fmean

from hpcdl.core.model.latency import LatencyModel, Setting
from hpcdl.core.model.profile import Observation, Observations, Point, Profile, RateTrial, Timing
from hpcdl.core.model.units import ranges
from hpcdl.estimators.certainty import NORMAL
from hpcdl.estimators.latency import LightRun, fit
from hpcdl.estimators.scaling import costs_of, fit_curve, numbers_up_to, with_times

ERROR = 0.05
"""The least that a rate may be off at a batch size that was not run: as GENIE has it on average (section 5.1.5)."""

SEEN_S = 3600.0  # for so long the rate on one GPU is taken to have been seen

BatchesSeen = tuple[tuple[int, Observations], ...]
"""What was seen of jobs of one type, by batch size, ascending."""


def predictor(limit_gpus: int, limit_nodes: int = 1) -> Callable[[str, int, BatchesSeen, bool], Profile | None]:
    """A function as `Profiles.predict` wants it: (name, batch size, what was seen of the type, whether its GPUs
    synchronise) to the profile there, with the model in it; None where no model can be fitted.

    The limits are those of the cluster: the profile has points up to them, for each kind of GPU that has a model of its
    own; for others those of the kind that was seen for longest. Where none was seen on several GPUs, it scales as most
    jobs do. The same arguments give the same object.
    """

    @lru_cache(maxsize=1024)
    def fitted(seen: BatchesSeen, synchronises: bool) -> tuple[tuple[str, LatencyModel], ...]:
        return fit_kinds(seen, synchronises)

    @lru_cache(maxsize=4096)
    def predict(name: str, batch: int, seen: BatchesSeen, synchronises: bool) -> Profile | None:
        models = fitted(seen, synchronises)
        if not models:
            return None
        sizes = [size for size, _ in seen]
        outside = max(0.0, math.log(sizes[0] / batch), math.log(batch / sizes[-1]))
        source = f"predicted by GENIE's model from batch sizes {ranges(sizes)}"
        placements = {(rate.kind, rate.nodes, rate.gpus) for _, each in seen for rate in each.rates}
        curves, trials, spread = [], [], 0.0
        for kind, model in models:
            error = math.hypot(math.log1p(max(ERROR, model.error)), outside, _bulge(model, batch, seen, kind))
            there = sorted(place for place in placements if place[0] == kind)
            several = not synchronises or any(nodes * gpus > 1 for _, nodes, gpus in there)
            curve = _usual_curve(model.rate(batch, 1, 1) / batch, kind, limit_gpus, limit_nodes)
            points = _points(model, batch, limit_gpus, limit_nodes) if several else curve.points
            curves.append((kind, points))
            spread = max(spread, math.expm1(math.hypot(error, 0.0 if several else math.log1p(curve.spread))))
            trials += [RateTrial(*place, error, NORMAL, 0.0, 0.0, (), math.inf, 0.0, source) for place in there]
        found = Profile(
            name,
            curves[0][1],
            source=source,
            kinds=tuple((kind, points) for kind, points in curves if kind),
            spread=spread,
            measured=(),
            trials=tuple(trials),
            batch=batch,
            latency=models[0][1],
        )
        return with_times(found, costs_of(_merged(chain.from_iterable(each.times for _, each in seen))))

    return predict


def _bulge(model: LatencyModel, batch: int, seen: BatchesSeen, kind: str) -> float:
    """How far, as a logarithm, the model is from the straight line between the rates of the batch sizes on both sides:
    the wider the gap between those, the less they say of what is in it."""
    known = [(size, size * rate.steps / rate.seconds) for size, each in seen for rate in each.rates
             if (rate.kind, rate.nodes, rate.gpus) == (kind, 1, 1)]  # fmt: skip
    for (low, at_low), (high, at_high) in pairwise(known):
        if low <= batch <= high:
            share = math.log(batch / low) / math.log(high / low)
            line = (1 - share) * math.log(at_low) + share * math.log(at_high)
            return abs(math.log(model.single(batch)) - line)
    return 0.0


def _points(model: LatencyModel, batch: int, limit_gpus: int, limit_nodes: int) -> tuple[Point, ...]:
    places = [(n, g) for n in numbers_up_to(limit_nodes) for g in numbers_up_to(limit_gpus)]
    return tuple((nodes, gpus, model.rate(batch, nodes, gpus) / batch) for nodes, gpus in places)


@lru_cache(maxsize=1024)
def _usual_curve(rate: float, kind: str, limit_gpus: int, limit_nodes: int) -> Profile:
    """How most jobs scale that make `rate` steps/s on one GPU: eq. 8 cannot be fitted where no run had several."""
    return fit_curve([Observation(kind, 1, 1, rate * SEEN_S, SEEN_S)], limit_gpus, limit_nodes, kind).to_profile(
        "usual"
    )


def fit_kinds(seen: BatchesSeen, synchronises: bool) -> tuple[tuple[str, LatencyModel], ...]:
    """The models by kind of GPU, of the kind that was seen for longest first; those that can be fitted."""
    runs: dict[str, list[tuple[float, LightRun]]] = {}
    for batch, each in seen:
        for rate in each.rates:
            runs.setdefault(rate.kind, []).append((rate.seconds, _run(batch, rate)))
    found = []
    for kind in sorted(runs, key=lambda kind: (-sum(seconds for seconds, _ in runs[kind]), kind)):
        try:
            found.append((kind, fit([run for _, run in runs[kind]], synchronises)))
        except ValueError:
            continue  # too few batch sizes, or they contradict the model
    return tuple(found)


def _run(batch: int, seen: Observation) -> LightRun:
    return LightRun(Setting(batch, seen.nodes, seen.gpus), batch * seen.steps / seen.seconds)


def _merged(times: Iterable[Timing]) -> Sequence[Timing]:
    """One for each kind of time, the mean of all batch sizes."""
    took: dict[str, list[float]] = {}
    for each in times:
        took.setdefault(each.what, []).append(each.seconds / each.times)
    return tuple(Timing(what, 1.0, fmean(seconds)) for what, seconds in took.items())
