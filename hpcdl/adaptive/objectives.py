"""Objectives that weigh rates: `jct`, `throughput` and `fair`.

Every option is worth the weight of its job times the speed that is left of it when what the change costs is spread over
the time for which it is likely to last. An exact choice over counts then maximises the sum.

The weight for `jct` has two parts. For jobs that are all there and speed up as n^p, mean completion time is least when
the job that is k-th in falling order of what it has left gets a share that rises with k (heSRPT: Berg, Vesilo and
Harchol-Balter, 2020); maximising a sum of weighted speeds gives those shares for weights of nearly k^p. That alone
leaves the longest jobs for the end, when they cannot use all GPUs: so a job also weighs more the nearer its own
shortest time comes to the time in which all GPUs together could finish everything that there is.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcdl.adaptive import priority
from hpcdl.adaptive.choice import Choice, pick
from hpcdl.adaptive.options import Candidate, Floats, OptionMenu
from hpcdl.core.model.plan import View
from hpcdl.core.model.units import seconds_text

RANK_POWER = 1 / 3
TAIL = 0.6
CHEAP_S = 10.0
"""How much the tail counts: TAIL where changes are dear. Where the least change costs well below CHEAP_S, less needs to
be done about the tail ahead of time."""

TAIL_POWER = 4
TAIL_TOP = 0.85
"""Of a job's shortest time, as the tail counts it: this much on its fastest option, the rest on one GPU."""

LEAST_HORIZON_S = 30.0
MOST_HORIZON_S = 900.0
"""An option is taken to last until the job's end, but not longer than until something else is likely to change."""

STAYS = 1.045
"""What a job has is worth this much more than the same anew: what follows is never quite what was predicted."""

GATED = 1e-6
"""Weight of a job that cannot use GPUs yet: it gets those that nobody else wants."""

UNKNOWN_S = 600.0
"""A job of unknown length is taken to go on for as long as it has, and for this long at least, on one GPU."""

PATIENCE_S = 4 * 3600.0
PATIENCE_RUNS = 4.0
"""A job is overdue PATIENCE_S and PATIENCE_RUNS times its own length on one GPU after its submission. From then on it
holds its GPUs, or is the next to get some, before every job that is overdue later: no job starves."""


def choose(view: View, found: OptionMenu) -> Choice:
    """Small mean completion time: short jobs weigh more, but so do those that decide the makespan, and old ones."""
    return _weighed(view, found, _completion)


def choose_throughput(view: View, found: OptionMenu) -> Choice:
    """As much progress a second as possible, each job's in units of its speed on one GPU."""
    return _weighed(view, found, lambda view, found, left_s: np.ones(len(left_s)))


def choose_fair(view: View, found: OptionMenu) -> Choice:
    """Even slow-downs: a job weighs more the later it will be against a share of its own (finish-time fairness)."""
    return _weighed(view, found, _fairness)


def _completion(view: View, found: OptionMenu, left_s: Floats) -> Floats:
    order = np.sort(left_s)
    shorter = np.searchsorted(order, left_s * (1 - 1e-9), "left")
    rank = 1.0 - shorter / len(left_s)
    apiece = np.array([candidate.menu.apiece for candidate in found.candidates])
    drain_s = left_s.sum() / max(float(apiece.mean(axis=0) @ np.array(found.capacity)), 1e-9)
    top = np.array([candidate.menu.top for candidate in found.candidates])
    own_s = left_s * (TAIL_TOP / top + 1.0 - TAIL_TOP)
    tail = np.minimum(1.0, own_s / drain_s) ** TAIL_POWER
    change_s = float(np.mean([candidate.menu.least_s for candidate in found.candidates]))
    return np.asarray(rank**RANK_POWER + TAIL * change_s / (change_s + CHEAP_S) * tail)


def _fairness(view: View, found: OptionMenu, left_s: Floats) -> Floats:
    share = max(1.0, sum(found.capacity) / max(1, len(found.candidates)))
    done_s = np.array([candidate.job.attained_gpu_s(view.now) for candidate in found.candidates])
    alone_s = (done_s + left_s) / share
    late = (np.maximum(0.0, view.now - submits(found)) + left_s / share) / np.maximum(alone_s, 1e-9)
    return np.asarray(late**2)


def _weighed(view: View, found: OptionMenu, weigh: Callable[[View, OptionMenu, Floats], Floats]) -> Choice:
    if not found.candidates:
        return Choice({}, True)
    left_s = left_of(view, found)
    overdue = submits(found) + PATIENCE_S + PATIENCE_RUNS * left_s
    due = [found.candidates[at] for at in np.flatnonzero(overdue <= view.now)]
    due.sort(key=lambda candidate: (candidate.job.submitted_at, candidate.job.id))
    if found.first:
        risky = [each for each in found.candidates if each.job.id in found.first]
        due = risky + [each for each in due if each.job.id not in found.first]
    ready = np.array([candidate.ready_at for candidate in found.candidates])
    gated = (ready > view.now) & np.array([candidate.kept is None for candidate in found.candidates])
    weights = np.where(gated, GATED, 1.0) * weigh(view, found, left_s) * priority.weights(found)
    choice = pick(found, worth(view, found, left_s, weights), priority.required(found, due))
    waits = np.array([choice.options[candidate.job.id] is None for candidate in found.candidates])
    wakes = np.concatenate([overdue[waits & (overdue > view.now)], ready[waits & gated]])
    why = {
        each.job.id: _why(each, left, bool(initialised))
        for each, left, alone, initialised in zip(
            found.candidates, left_s.tolist(), waits.tolist(), gated.tolist(), strict=True
        )
        if alone and each.options
    }
    return replace(choice, why=why, wake_at=float(wakes.min()) if len(wakes) else None)


def _why(candidate: Candidate, left_s: float, gated: bool) -> str:
    """What is to be said of a job that waits."""
    memo = candidate.job.memo
    known = memo.get("overdue")
    if known is None or known[0] != (left_s, gated):
        text = f"it goes first once it has waited {seconds_text(PATIENCE_S + PATIENCE_RUNS * left_s)}"
        if gated:
            text = "it is still initialising, which needs no GPU"
        known = memo["overdue"] = ((left_s, gated), text)
    found: str = known[1]
    return found


def values(view: View, found: OptionMenu) -> list[list[float]]:
    """For each candidate what each of its options is worth to the objective `jct`."""
    if not found.candidates:
        return []
    left_s = left_of(view, found)
    return worth(view, found, left_s, _completion(view, found, left_s))


def left_of(view: View, found: OptionMenu) -> Floats:
    """What each job still has to do, in seconds on one GPU of the best kind, as far as is known; more than 0."""
    return np.array(
        [
            max(1e-3, left)
            if (left := candidate.left_s) is not None
            else max(UNKNOWN_S, candidate.job.attained_gpu_s(view.now))
            for candidate in found.candidates
        ]
    )


def submits(found: OptionMenu) -> Floats:
    """When the candidates were submitted."""
    return np.array([candidate.job.submitted_at for candidate in found.candidates])


def worth(view: View, found: OptionMenu, left_s: Floats, weights: Floats) -> list[list[float]]:
    """For each candidate what each of its options is worth."""
    menus = [candidate.menu for candidate in found.candidates]
    lengths = np.array([len(menu.options) for menu in menus])
    speed = np.concatenate([menu.speed for menu in menus])
    stall_s = np.concatenate([menu.stall_s for menu in menus])
    left, weight = np.repeat(left_s, lengths), np.repeat(weights, lengths)
    horizon_s = np.clip(left / speed, LEAST_HORIZON_S, MOST_HORIZON_S)
    starts = np.cumsum(lengths) - lengths
    kept = [
        (start + each.place, each.starts_at)
        for start, each in zip(starts.tolist(), found.candidates, strict=True)
        if each.place >= 0
    ]
    stays = np.ones(len(speed))
    if kept:
        at, starts_at = np.array([at for at, _ in kept]), np.array([when for _, when in kept])
        stays[at] = STAYS
        starting = starts_at > view.now
        stall_s[at[starting]] = starts_at[starting] - view.now  # what is lost already is no reason to stay
    values = (weight * speed * stays * horizon_s / (horizon_s + stall_s)).tolist()
    return [values[start : start + many] for start, many in zip(starts.tolist(), lengths.tolist(), strict=True)]
