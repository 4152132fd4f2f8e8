"""Trainers that arrive by a Poisson process, as in sections 5.2 and 5.3 of BFTrainer, and a trace that lasts for them.

The paper prints no rate. Its Tables 3 and 4 imply a queue that is hardly ever empty: the mean run times, times 1,000
trainers, over the maximum of parallel ones, make 225 h in Table 3 for 15 to 35 of them, as long as a run.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean

from hpcdl.sim.generators import chance
from hpcdl.sim.replay.case import ReplayCase, ScalingModel
from hpcdl.sim.replay.idle import IdleTrace

LOAD = 2.0
"""Trainers arrive so many times as quickly as the idle nodes, each for itself, could serve them: the queue fills."""

_SPARE = 2.0
"""A trace is repeated until it has so many times the node time of trainers that always hold the nodes where they are
slowest for each: what rescales, departures and nodes that nobody can use take besides."""


def arriving(idle: IdleTrace, case: ReplayCase, count: int, seed: int) -> ReplayCase:
    """The case with `count` trainers that arrive by a Poisson process. The same arguments, the same arrivals."""
    gap_s = mean_gap_s(idle, case.models, case.samples)
    draws = chance("bftrainer arrivals", seed)
    return replace(case, arrivals=tuple(accumulate(draws.expovariate(1 / gap_s) for _ in range(count))))


def mean_gap_s(idle: IdleTrace, models: Sequence[ScalingModel], samples: int) -> float:
    """Seconds between two arrivals: LOAD trainers in the time that the mean number of idle nodes needs for one."""
    return fmean(samples / per_node(model)[0] for model in models) / idle.mean / LOAD


def per_node(model: ScalingModel) -> tuple[float, float]:
    """Samples/s of a node where the model uses its nodes best, and where it does worst."""
    rates = [rate / nodes for nodes, rate in model.points]
    return max(rates), min(rates)


def lasting(idle: IdleTrace, case: ReplayCase) -> IdleTrace:
    """The trace, repeated as often as it takes until the trainers of the case, which arrive, are done."""
    assert case.arrivals is not None
    node_s = sum(case.samples / per_node(case.model_of(place))[1] for place in range(len(case.arrivals)))
    times = math.ceil((_SPARE * node_s / idle.mean + case.arrivals[-1]) / idle.end_s)
    return idle.repeated(times) if times > 1 else idle
