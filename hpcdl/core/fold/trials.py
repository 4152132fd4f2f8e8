"""Rates from few steps: which of an attempt's steps are its warm-up, and how far off the next job's rate may be.

The first steps of an attempt compile, fill caches and load libraries, so they say nothing of the rest. What counts of
an attempt are two halves; as soon as the second one is clearly faster, the first one was the warm-up.

What is then said of the next job's rate is a posterior: Student's t on its logarithm, from how much steps differ within
an attempt and attempts among each other. Pure functions of sums; `observations.py` keeps these.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from hpcdl.core.model.profile import AttemptRate, RateTrial, StepSums, Timing
from hpcdl.core.model.units import count

KEPT_RUNS = 16
"""Attempts of jobs alike that are kept, the newest ones."""

FASTER = 1.25
"""The second half must be so many times as fast for the first one to be a warm-up, ..."""

CLEARLY = 3.0
"""... and by so many standard errors of the two."""

MOST_WARM_S = 600.0
"""A warm-up is not taken to cost each start more: something else has made the steps faster, then."""

STEPS_DIFFER = (0.3, 2.0)
"""Coefficient of variation of the seconds of a step, and for how many reports this belief counts."""

JOBS_DIFFER = (0.05, 3.0)
"""The same of the rates of attempts: a trainer is so much faster or slower from one hour to the next."""

REPORT_S = 0.2
"""Standard error of when a step was done: reports wait for the next one that is due."""

FEW = 20
"""A first report of fewer steps may be of a warm-up alone."""

WARM_S = "warm_s"
"""The kind of time that a warm-up takes, more than its steps take later."""


def with_report(run: AttemptRate, steps: float, seconds: float) -> AttemptRate:
    """The attempt after another report: of `steps` steps that took `seconds`, both above 0."""
    new = StepSums(steps, seconds, seconds**2 / steps, 1)
    if not run.early.reports:
        return replace(run, early=new)
    late = run.late + new
    if _is_warm_up(run.early, late):
        return replace(run, early=late, late=StepSums(), warm=run.warm + run.early)
    if late.steps >= run.early.steps:
        return replace(run, early=run.early + late, late=StepSums())
    return replace(run, late=late)


def _is_warm_up(early: StepSums, late: StepSums) -> bool:
    faster = math.log(early.seconds / early.steps * late.steps / late.seconds)
    error = math.sqrt(_variation((late,)) * (1 / early.steps + 1 / late.steps) + _late(early) + _late(late))
    return faster > max(math.log(FASTER), CLEARLY * error)


def _late(sums: StepSums) -> float:
    """Variance of the logarithm of the seconds, as reports are late."""
    return math.log1p(REPORT_S / sums.seconds) ** 2


def _variation(stretches: Sequence[StepSums]) -> float:
    """Square of the coefficient of variation of the seconds of a step."""
    belief, reports = STEPS_DIFFER
    squares = reports * belief**2
    for each in stretches:
        step_s = each.seconds / each.steps
        squares += max(0.0, each.squares - each.seconds * step_s) / step_s**2
        reports += each.reports - 1
    return squares / reports


def shows_rate(run: AttemptRate) -> bool:
    """Whether the attempt shows a rate at all: its first report may be of a warm-up alone, a later one too short."""
    counted = run.counted
    few = run.warm.reports + counted.reports < 2 and counted.steps < FEW
    return counted.seconds >= REPORT_S and not few


def trial_of(runs: Sequence[AttemptRate], rate: float) -> RateTrial:
    """What a rate rests on. `runs`: of jobs alike on one number of GPUs, one at least; `rate`: as taken, steps/s."""
    counted = [run.counted for run in runs]
    variation = _variation(counted)
    logs = [math.log(each.steps / each.seconds) for each in counted]
    errors = [variation / each.steps + _late(each) for each in counted]
    belief, times = JOBS_DIFFER
    weights = [1 / (belief**2 + error) for error in errors]
    middle = sum(weight * each for weight, each in zip(weights, logs, strict=True)) / sum(weights)
    beyond = sum(max(0.0, (each - middle) ** 2 - error) for each, error in zip(logs, errors, strict=True))
    between = (times * belief**2 + beyond) / (times + len(runs) - 1)
    known = 1 / sum(1 / (between + error) for error in errors)
    scale = math.sqrt(between + known + (math.log(rate) - middle) ** 2)
    kind, nodes, gpus = runs[0].kind, runs[0].nodes, runs[0].gpus
    warmed_up = any(run.warm.reports for run in runs)
    longest = max(each.steps for each in counted)
    return RateTrial(kind, nodes, gpus, float(f"{scale:.1g}"), float(f"{longest:.1g}"), warmed_up, _whose(runs))


def _whose(runs: Sequence[AttemptRate]) -> str:
    steps = sum(run.counted.steps + run.warm.steps for run in runs)
    jobs = sorted({run.job for run in runs})
    whose = f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"
    return f"{count(round(float(f'{steps:.2g}')), 'step')} of {whose}"


def warm_up(runs: Sequence[AttemptRate]) -> Timing | None:
    """What warm-ups took, more than their steps take later, in the mean; None where no attempt shows it."""
    took = [
        min(MOST_WARM_S, max(0.0, run.warm.seconds - run.warm.steps * run.counted.seconds / run.counted.steps))
        for run in runs
        if shows_rate(run)
    ]
    return Timing(WARM_S, 1.0, float(f"{sum(took) / len(took):.2g}")) if took and any(took) else None
