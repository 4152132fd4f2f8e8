"""Objectives that weigh rates: `jct`, `throughput` and `fair`.

Every option is worth its speed times the weight of the job, less what a stall costs over the time for which the option
is likely to last. An exact choice over counts then maximises the sum. For one class of concave speed-ups s(n) = n^p and
jobs that are all there, the order that minimises the mean completion time gives a job a share that grows with the
number of jobs at least as long (heSRPT, Berg et al.), which is what weights of about rank^p do here.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcdl.adaptive.choice import Choice, pick
from hpcdl.adaptive.options import Floats, Found
from hpcdl.core.plan import View

RANK_POWER = 0.4
LONG_SHARE = 0.5
LONG_POWER = 4
PER_HOUR = 0.3
LEAST_HORIZON_S = 300.0
MOST_HORIZON_S = 900.0

UNKNOWN_S = 600.0
"""A job of unknown length is taken to go on for as long as it has, and for this long at least, on one GPU."""

PATIENCE_S = 4 * 3600.0
PATIENCE_RUNS = 4.0
"""A job is overdue PATIENCE_S and PATIENCE_RUNS times its own length on one GPU after its submit. From then on it holds
its GPUs, or is the next to get some, before every job that is overdue later: no job starves."""


def choose(view: View, found: Found) -> Choice:
    """Small mean completion time: short jobs weigh more, but so do those that decide the makespan, and old ones."""
    return _weighed(view, found, _completion)


def choose_throughput(view: View, found: Found) -> Choice:
    """As much progress a second as possible, each job's in units of its speed on one GPU."""
    return _weighed(view, found, lambda view, found, left_s: np.ones(len(left_s)))


def choose_fair(view: View, found: Found) -> Choice:
    """Even slow-downs: a job weighs more the later it will be against a share of its own (finish-time fairness)."""
    return _weighed(view, found, _fairness)


def _completion(view: View, found: Found, left_s: Floats) -> Floats:
    order = np.sort(left_s)
    rank = 1.0 - np.searchsorted(order, left_s * (1 - 1e-9), "left") / len(left_s)
    longest = max(float(order[-1]), 1e-9)
    hours = np.maximum(0.0, view.now - submits(found)) / 3600.0
    return np.asarray(rank**RANK_POWER + LONG_SHARE * (left_s / longest) ** LONG_POWER + PER_HOUR * hours)


def _fairness(view: View, found: Found, left_s: Floats) -> Floats:
    share = max(1.0, sum(found.capacity) / max(1, len(found.candidates)))
    done_s = np.array([candidate.job.attained_gpu_s(view.now) for candidate in found.candidates])
    alone_s = (done_s + left_s) / share
    late = (np.maximum(0.0, view.now - submits(found)) + left_s / share) / np.maximum(alone_s, 1e-9)
    return np.asarray(late**2)


def _weighed(view: View, found: Found, weigh: Callable[[View, Found, Floats], Floats]) -> Choice:
    if not found.candidates:
        return Choice({}, True)
    left_s = left_of(view, found)
    overdue = submits(found) + PATIENCE_S + PATIENCE_RUNS * left_s
    due = [found.candidates[at] for at in np.flatnonzero(overdue <= view.now)]
    due.sort(key=lambda candidate: (candidate.job.submitted_at, candidate.job.id))
    choice = pick(
        found, worth(found, left_s, weigh(view, found, left_s)), [each.job.id for each in due if each.options]
    )
    waits = np.array([choice.options[candidate.job.id] is None for candidate in found.candidates])
    wakes = overdue[waits & (overdue > view.now)]
    return replace(choice, wake_at=float(wakes.min()) if len(wakes) else None)


def values(view: View, found: Found) -> list[list[float]]:
    """For each candidate what each of its options is worth to the objective `jct`."""
    if not found.candidates:
        return []
    left_s = left_of(view, found)
    return worth(found, left_s, _completion(view, found, left_s))


def left_of(view: View, found: Found) -> Floats:
    """What each job still has to do, in seconds on one GPU of the best kind, as far as is known; more than 0."""
    return np.array(
        [
            max(1e-3, left)
            if (left := candidate.left_s) is not None
            else max(UNKNOWN_S, candidate.job.attained_gpu_s(view.now))
            for candidate in found.candidates
        ]
    )


def submits(found: Found) -> Floats:
    """When the candidates were submitted."""
    return np.array([candidate.job.submitted_at for candidate in found.candidates])


def worth(found: Found, left_s: Floats, weights: Floats) -> list[list[float]]:
    """For each candidate what each of its options is worth."""
    menus = [candidate.menu for candidate in found.candidates]
    lengths = np.array([len(menu.options) for menu in menus])
    speed = np.concatenate([menu.speed for menu in menus])
    stall_s = np.concatenate([menu.stall_s for menu in menus])
    left, weight = np.repeat(left_s, lengths), np.repeat(weights, lengths)
    horizon_s = np.clip(left / speed, LEAST_HORIZON_S, MOST_HORIZON_S)
    values = (weight * speed * np.maximum(0.0, 1.0 - stall_s / horizon_s)).tolist()
    ends = np.cumsum(lengths).tolist()
    return [values[end - many : end] for end, many in zip(ends, lengths.tolist(), strict=True)]
