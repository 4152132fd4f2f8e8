"""The rate of a type of job at a batch size that nobody tried, by GENIE's latency model of those that were.

What jobs showed while they trained, kept by (type, batch size), serves as the runs of a light profiling: three batch
sizes on one GPU say eq. 7, any on several GPUs eq. 8 (`latency.py`). One model for each type of GPU.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from statistics import fmean

from hpcdl.core.model.latency import LatencyModel, Setting
from hpcdl.core.model.profile import Observation, Observations, Point, Profile, Timing
from hpcdl.core.model.units import ranges
from hpcdl.estimators.latency import LightRun, fit
from hpcdl.estimators.scaling import costs_of, numbers_up_to, with_times

ERROR = 0.05
"""The least that a rate may be off at a batch size that was not run: as GENIE has it on average (section 5.1.5)."""

BatchesSeen = tuple[tuple[int, Observations], ...]
"""What was seen of jobs of one type, by batch size, ascending."""


def predictor(limit_gpus: int, limit_nodes: int = 1) -> Callable[[str, int, BatchesSeen, bool], Profile | None]:
    """A function as `Profiles.predict` wants it: (name, batch size, what was seen of the type, whether its GPUs
    synchronise) to the profile there, with the model in it; None where no model can be fitted.

    The limits are those of the cluster: the profile has points up to them, for each kind of GPU that has a model of its
    own; for others those of the kind that was seen for longest. The same arguments give the same object.
    """

    @lru_cache(maxsize=1024)
    def models(seen: BatchesSeen, synchronises: bool) -> tuple[tuple[str, LatencyModel], ...]:
        return fit_kinds(seen, synchronises)

    @lru_cache(maxsize=4096)
    def predict(name: str, batch: int, seen: BatchesSeen, synchronises: bool) -> Profile | None:
        known = models(seen, synchronises)
        if not known:
            return None
        (_, usual), *_ = known
        places = [(n, g) for n in numbers_up_to(limit_nodes) for g in numbers_up_to(limit_gpus)]

        def points(model: LatencyModel) -> tuple[Point, ...]:
            return tuple((nodes, gpus, model.rate(batch, nodes, gpus) / batch) for nodes, gpus in places)

        sizes = [size for size, _ in seen]
        outside = max(0.0, math.log(sizes[0] / batch), math.log(batch / sizes[-1]))
        error = max(ERROR, *(model.error for _, model in known))
        times = costs_of(_merged(chain.from_iterable(each.times for _, each in seen)))
        found = Profile(
            name,
            points(usual),
            source=f"predicted by GENIE's model from batch sizes {ranges(sizes)}",
            kinds=tuple((kind, points(model)) for kind, model in known if kind),
            spread=math.expm1(math.hypot(math.log1p(error), outside)),
            measured=(),
            batch=batch,
            latency=usual,
        )
        return with_times(found, times)

    return predict


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
