"""Rates from few steps: which of an attempt's steps are its warm-up, and how far off the next job's rate may be.

The first steps of an attempt compile, fill caches and load libraries, so they say nothing of the rest. For how long,
nobody says; so each stretch of what was reported may be where the warm-up ended. What is likely follows from Bayes'
rule: the steps after it all take about as long, those before it longer, and few warm-ups are long.

What is then said of the next job's rate is a posterior: Student's t on its logarithm, from how much steps differ within
an attempt and attempts among each other; of the latter, all jobs of the instance say something. Pure functions of sums;
`observations.py` keeps these.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from hpcdl.core.model.profile import AttemptRate, RateTrial, StepSums, Timing
from hpcdl.core.model.units import count

KEPT_RUNS = 16
"""Attempts of jobs alike that are kept, the newest ones."""

STRETCHES = 12
"""Stretches of an attempt that are kept apart."""

NO_WARM_UP = 0.3
"""The share of trainers whose first step is no slower than the others; ..."""

WARM_STEPS = 2.0
"""... of the rest, one in 1 + n / this many warms up for longer than n steps."""

STEADY, GAIN = 0.5, 1.0
"""Means, in logarithms, of how much two stretches of a warm-up differ, and of how much faster what follows is."""

POLLUTED = (0.1, 0.3, 0.6)
"""Shares of a stretch that the end of the warm-up may be."""

FAR, UNLIKELY = 2.0, 0.01
"""So many standard errors off, and so likely at least, another end of the warm-up is a possibility of its own."""

MOST_WARM_S = 600.0
"""A warm-up is not taken to cost each start more: something else has made the steps faster, then."""

STEPS_DIFFER = (0.15, 2.0)
"""Coefficient of variation of the seconds of a step, and for how many reports this belief counts."""

JOBS_DIFFER = (0.05, 3.0)
"""The same of the rates of attempts: a trainer is so much faster or slower from one hour to the next."""

LIKE = 32
"""Kinds of jobs, the last ones, that show how much jobs of a kind differ."""

GRAIN = 1.25
"""What is said of a rate is rounded to powers of it, so that it stays the same while what is reported is no news."""

MOST_FREEDOM = 30
"""Degrees of freedom; with more, Student's t is a normal distribution."""

REPORT_S = 0.12
"""Standard error of when a step was done: reports wait for the next one that is due."""

SHORTEST_S = 2 * REPORT_S
"""What took less is no stretch of its own, but the end of the one before."""

FEW = 20
"""A first report of fewer steps may be of a warm-up alone."""

WARM_S = "warm_s"
"""The kind of time that a warm-up takes, more than its steps take later."""


def with_report(run: AttemptRate, steps: float, seconds: float) -> AttemptRate:
    """The attempt after another report: of `steps` steps, above 0, that took `seconds`; 0 where the last report came
    when these were done already."""
    stretches = run.stretches
    if stretches and seconds < SHORTEST_S:
        last = stretches[-1]
        more, took = last.steps + steps, last.seconds + seconds
        squares = last.squares * (took / last.seconds) ** 2 * last.steps / more
        stretches = (*stretches[:-1], StepSums(more, took, squares, last.reports))
    elif seconds > 0.0:
        stretches = _shorter((*stretches, StepSums(steps, seconds, seconds**2 / steps, 1)))
    return replace(run, stretches=stretches, **_fitted(stretches)) if stretches else run


def _shorter(stretches: tuple[StepSums, ...]) -> tuple[StepSums, ...]:
    """The stretches, two of them as one where there are too many: those that are shortest against all up to them."""
    if len(stretches) <= STRETCHES:
        return stretches
    steps = [each.steps for each in stretches]
    until = list(accumulate(steps))
    place = min(range(1, len(steps)), key=lambda at: (steps[at - 1] + steps[at]) / until[at])
    return (*stretches[: place - 1], stretches[place - 1] + stretches[place], *stretches[place + 1 :])


class _Together:
    """Stretches whose steps all take about as long: Student's t on how much they differ, by what is believed of it."""

    def __init__(self, squares: float, freedom: float) -> None:
        """`squares`, `freedom`: what is known of how much steps differ otherwise."""
        self.squares, self.freedom = squares, freedom
        self.weight = self._total = self._logs = self._squares = self._sizes = 0.0
        self._degrees = -1.0

    def add(self, step_s: float, weight: float) -> None:
        """One more stretch; `weight`: as many steps as it shows."""
        log = math.log(step_s)
        self.weight, self._total = self.weight + weight, self._total + weight * step_s
        self._logs, self._squares = self._logs + weight * log, self._squares + weight * log**2
        self._sizes, self._degrees = self._sizes + math.log(weight), self._degrees + 1.0

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self._total / self.weight

    @property
    def variation(self) -> float:
        """Square of the coefficient of variation of the seconds of a step."""
        return self._beyond / (self.freedom + self._degrees)

    @property
    def density(self) -> float:
        """Logarithm of how likely they are so much alike."""
        both = self.freedom + self._degrees
        return (
            math.lgamma(both / 2)
            - math.lgamma(self.freedom / 2)
            + self.freedom / 2 * math.log(self.squares)
            - both / 2 * math.log(self._beyond)
            - self._degrees / 2 * math.log(math.pi)
            + (self._sizes - math.log(self.weight)) / 2
        )

    @property
    def _beyond(self) -> float:
        return self.squares + max(0.0, self._squares - self._logs**2 / self.weight)


def _fitted(stretches: Sequence[StepSums]) -> dict[str, Any]:
    """What they show: the fields of an `AttemptRate` that follow from them."""
    belief, times = STEPS_DIFFER
    step_s = [each.seconds / each.steps for each in stretches]
    logs, last = [math.log(each) for each in step_s], len(stretches) - 1
    # As many steps as each shows: its reports are late, and a trainer is at times faster or slower.
    errors = [(REPORT_S / each.seconds) ** 2 + JOBS_DIFFER[0] ** 2 for each in stretches]
    worth = [each.steps / (1 + each.steps * error / belief**2) for each, error in zip(stretches, errors, strict=True)]
    until = [0.0, *accumulate(each.steps for each in stretches)]
    # How likely a warm-up is longer than all before each, and how likely it ends within each.
    longer = [(1 - NO_WARM_UP) * WARM_STEPS / (WARM_STEPS + steps) for steps in until]
    ends = [
        much * each.steps / (WARM_STEPS + steps)
        for much, each, steps in zip(longer, stretches, until[1:], strict=False)
    ]
    within = sum(max(0.0, each.squares / one**2 - each.steps) for each, one in zip(stretches, step_s, strict=True))
    known = times * belief**2 + within, times + sum(each.reports - 1 for each in stretches)
    slow = _warm_densities(logs, step_s, worth, known)
    after = _Together(*known)
    found: list[tuple[float, float, float, float]] = []  # logarithms of weight and of a step's seconds; variances
    for first in range(last, -1, -1):  # of those after the warm-up
        after.add(step_s[first], worth[first])
        likely, log_s, variation = after.density, math.log(after.step_s), after.variation
        if first:
            gain, error = logs[first - 1] - log_s, variation / worth[first - 1]
            mean = math.hypot(GAIN, math.sqrt(error))
            likely += slow[first] - math.log(mean) - (gain / mean if gain > 0 else gain**2 / (2 * error))
        likely += math.log(NO_WARM_UP if first == 0 else ends[first - 1])
        found.append((likely, log_s, variation / after.weight, variation))
    most, middle, sure, variation = max(found)
    best = next(place for place, each in enumerate(found) if each[0] == most)
    ways = [(math.exp(likely - most), variance, middle - at) for likely, at, variance, _ in found]
    if last:
        # The warm-up ended within the last stretch: what of it was slow took about as long as the one before.
        ended = ends[last] * math.exp(slow[last] + _link(logs, worth, last) - most) / len(POLLUTED)
        times_slow = max(1.0, step_s[-2] / step_s[-1])
        for share in POLLUTED:
            if share * times_slow < 1.0:
                faster = math.log((1 - share) / (1 - share * times_slow))
                ways.append((ended, found[0][2], middle - logs[-1] + faster))
    # Of a single report nobody can say whether it is of a warm-up and little else.
    lasts = longer[last + 1] if last else (1 - NO_WARM_UP) * min(1.0, FEW / until[1])
    hidden = lasts * math.exp(slow[last + 1] - most)
    whole = hidden + sum(much for much, _, _ in ways)
    further = FAR * math.sqrt(sure + JOBS_DIFFER[0] ** 2)
    far = [way for way in ways if abs(way[2]) > further and way[0] > UNLIKELY * whole]
    near = [way for way in ways if way not in far]
    return {
        "warm_stretches": last - best,
        "error": sum(much * (variance + by**2) for much, variance, by in near) / sum(much for much, _, _ in near),
        "variation": variation,
        "hidden": hidden / whole,
        "else_faster": tuple((much / whole, by) for much, _, by in far),
    }


def _warm_densities(
    logs: Sequence[float], step_s: Sequence[float], worth: Sequence[float], known: tuple[float, float]
) -> list[float]:
    """By number of first stretches, the logarithm of how likely these are if all are of the warm-up.

    It may get faster from each to the next, or be as slow throughout, or be so after its first one.
    """
    found, chain, whole, rest = [0.0], 0.0, _Together(*known), _Together(*known)
    for place, (one, size) in enumerate(zip(step_s, worth, strict=True)):
        whole.add(one, size)
        if place == 0:
            found.append(0.0)
            continue
        chain += _link(logs, worth, place)
        rest.add(one, size)
        ways = (chain, whole.density, _link(logs, worth, 1) + rest.density)
        most = max(ways)
        found.append(most + math.log(sum(math.exp(each - most) for each in ways) / len(ways)))
    return found


def _link(logs: Sequence[float], worth: Sequence[float], place: int) -> float:
    """The logarithm of how likely a stretch of a warm-up is after the one before."""
    belief, _ = STEPS_DIFFER
    mean = math.sqrt(STEADY**2 + belief**2 * (1 / worth[place - 1] + 1 / worth[place]))
    return -abs(logs[place] - logs[place - 1]) / mean - math.log(2 * mean)


def shows_rate(run: AttemptRate) -> bool:
    """Whether the attempt shows a rate at all: its first report may be of a warm-up alone, a later one too short."""
    few = sum(each.reports for each in run.stretches) < 2 and run.counted.steps < FEW
    return run.counted.seconds >= REPORT_S and not few


def shows_clearly(run: AttemptRate) -> bool:
    """Whether its rate is known so well that what others of its kind do says no more of it."""
    belief, _ = JOBS_DIFFER
    elsewhere = run.hidden + sum(much for much, _ in run.else_faster)
    return shows_rate(run) and run.error <= belief**2 and elsewhere <= belief


def differences(runs: Sequence[AttemptRate]) -> tuple[float, float]:
    """How much the rates of jobs of one kind differ: a sum of squares of logarithms, and of how many jobs it is."""
    belief, _ = JOBS_DIFFER
    spots: dict[tuple[str, int, int], dict[int, AttemptRate]] = {}
    for run in runs:
        if shows_rate(run):
            spots.setdefault((run.kind, run.nodes, run.gpus), {})[run.job] = run
    squares = times = 0.0
    for jobs in spots.values():
        if len(jobs) < 2:
            continue
        logs = [_log_rate(run) for run in jobs.values()]
        # Two that are known badly say little of how much they differ.
        sure = [belief**2 / (belief**2 + run.error) for run in jobs.values()]
        middle = sum(weight * each for weight, each in zip(sure, logs, strict=True)) / sum(sure)
        for each, weight, run in zip(logs, sure, jobs.values(), strict=True):
            share = (1 - 1 / len(jobs)) * weight**2
            times += share
            squares += weight**2 * (each - middle) ** 2 - share * run.error
    return squares, times


def _log_rate(run: AttemptRate) -> float:
    counted = run.counted
    return math.log(counted.steps / counted.seconds)


def trial_of(
    runs: Sequence[AttemptRate],
    rate: float,
    warm_s: float,
    own: tuple[float, float],
    others: Iterable[tuple[float, float]] = (),
) -> RateTrial:
    """What a rate rests on. `runs`: of jobs alike on one number of GPUs, one at least; `rate`: as taken, steps/s;
    `warm_s`: what a warm-up is taken to take.

    `own`: the `differences` of these jobs on any number of GPUs; `others`: those of other kinds of jobs.
    """
    belief, times = JOBS_DIFFER
    # What is usual on this instance replaces the belief, and what these jobs show replaces both.
    squares, freedom = times * belief**2, times
    for more, jobs in others:
        squares, freedom = squares + more, freedom + jobs
    usual = max(squares / freedom, (belief / 10) ** 2)
    freedom = min(freedom, 2 * times)
    between = max((freedom * usual + own[0]) / (freedom + own[1]), (belief / 10) ** 2)
    freedom += own[1]
    weights = [1 / (between + run.error) for run in runs]
    logs = [_log_rate(run) for run in runs]
    middle = sum(weight * each for weight, each in zip(weights, logs, strict=True)) / sum(weights)
    share = 1 / len(runs)
    apart = between * (1 + share)
    seen = max(0.0, 1 / sum(weights) - between * share) + (math.log(rate) - middle) ** 2
    reports = STEPS_DIFFER[1] + sum(each.reports for run in runs for each in run.stretches) - len(runs)
    freedom = (apart + seen) ** 2 / (apart**2 / freedom + seen**2 / reports)
    kind, nodes, gpus = runs[0].kind, runs[0].nodes, runs[0].gpus
    variation = sum(run.variation for run in runs) * share
    surest = min(runs, key=lambda run: run.hidden + sum(much for much, _ in run.else_faster))
    return RateTrial(
        kind,
        nodes,
        gpus,
        _rounded(math.sqrt(apart + seen)),
        min(MOST_FREEDOM, max(1, round(_rounded(freedom)))),
        _rounded(variation),
        round(surest.hidden, 3),
        tuple((round(much, 2), round(by, 1)) for much, by in surest.else_faster),
        _rounded(max(run.counted.steps for run in runs)),
        warm_s,
        _whose(runs),
    )


def _rounded(value: float) -> float:
    return float(f"{GRAIN ** round(math.log(value, GRAIN)):.2g}")


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
