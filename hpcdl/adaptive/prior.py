"""What is believed of a job of which nothing was seen yet, from the other jobs of the view.

A job without a profile, whose like has never trained, is taken to scale as most do, on every kind of GPU, and to be as
long as those of its model, script, framework or user were (`JobView.usual`), else as the others usually are: its steps
say nothing of that while nobody has seen how fast it does them. What starts and suspends take is what they took these.
All of it is replaced by what was learnt with the first report of progress.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.core.fold.trials import FEW
from hpcdl.core.model.plan import JobView, View
from hpcdl.core.model.profile import MAX_GPUS, Profile, UsualJob
from hpcdl.estimators.certainty import STARTS_DIFFER, Certainty, WholeTime, certainty
from hpcdl.estimators.scaling import assumed_profile

if TYPE_CHECKING:
    from hpcdl.adaptive.options import Option

LENGTH_S = 600.0
"""How long a job is taken to be on one GPU where none is known that would show it."""

UNKNOWN = 1.3
"""Sigma of the logarithm of such a length."""

SAME_STEPS = 0.5
"""The same, at most, where as many steps of its script took so long."""

COST_S = 30.0
"""And what starting it takes, and suspending it and starting it again."""

GRAIN = 1.25
"""What is usual is rounded to powers of it: what follows from it is to stay the same for a while."""

LOOK_S = 60.0
"""A job of which nothing was seen, and that has GPUs, is looked at again so soon."""

_TIMES = ("startup_s", "save_s", "resume_s", "gate_s", "resume_up_s", "move_save_s", "move_s")
_GPUS = (*range(1, 17), 32, 64, MAX_GPUS)


@dataclass(frozen=True, slots=True)
class PriorProfile:
    """The prior of jobs of which nothing was seen: what is usual among those of which more is known.

    `length_s`: of the whole job on one GPU of the best kind there is. `times`: those of a profile, by their names.
    """

    length_s: float = LENGTH_S
    times: tuple[tuple[str, float], ...] = (("startup_s", COST_S), ("resume_s", COST_S))


def usual(view: View) -> PriorProfile | None:
    """The prior from the jobs of a view; None where no job of it needs one."""
    if all(job.profile is not None for job in view.jobs):
        return None
    kinds = kinds_of(view)
    lengths, known = [], {}
    for job in view.jobs:
        profile = job.profile
        if profile is None:
            continue
        known[id(profile)] = profile
        if job.total is not None:
            lengths.append(job.total / max(profile.on(kind).rate(1) for kind in kinds))
    if not known:
        return PriorProfile()
    times = []
    for name in _TIMES:
        values = [value for profile in known.values() if (value := getattr(profile, name)) is not None]
        if 2 * len(values) > len(known):
            times.append((name, _rounded(median(values))))
    return PriorProfile(_rounded(median(lengths)) if lengths else LENGTH_S, tuple(times))


def believed(job: JobView, kinds: tuple[str, ...], found: PriorProfile | None) -> Profile:
    """The job's profile, or else what is usual. `kinds`: of the GPUs that there are. Raises nothing."""
    if job.profile is not None:
        return job.profile
    found = found or PriorProfile()
    times, length_s = dict(found.times), found.length_s
    if job.usual is not None:
        seen = {"startup_s": job.usual.start_s, "resume_s": job.usual.start_s, "save_s": job.usual.save_s}
        times |= {name: seconds for name, seconds in seen.items() if seconds is not None}
        length_s = _length_s(job) or length_s
    times["startup_s"] = max(times.get("startup_s", 0.0), times.get("gate_s", 0.0))
    return assumed_profile(job.total, job.nodes_max, _GPUS, kinds, length_s, tuple(times.items()))


def remaining(job: JobView, now: float, kind: str = "") -> float | None:
    """Steps that it still has to do at `now`, on GPUs of that kind: of those that it has in all, else of as many as
    jobs like it had; of a job without a profile that says none, seconds on one GPU. None where nothing is known.

    One that has come as far is taken to go on for a while: a quarter of what jobs like it took.
    """
    left, like = job.remaining(now, kind), job.usual
    if left is not None or like is None:
        return left
    if job.profile is None:
        whole, done = _length_s(job), job.attained_gpu_s(now)
    else:
        whole, done = like.steps, job.steps(now, kind)
    return None if whole is None else max(whole / 4, whole - done)


def _length_s(job: JobView) -> float | None:
    """Seconds on one GPU of a whole job, as jobs like it had; by their steps where it is of their script."""
    like = job.usual
    if like is None or like.length_s is None:
        return None
    return like.length_s * (_times_steps(job, like) if like.same else 1.0)


def _times_steps(job: JobView, like: UsualJob) -> float:
    """How many times as many steps it has as jobs like it; 1 where that is not known."""
    return job.total / like.steps if job.total and like.steps else 1.0


def doubt(job: JobView) -> float:
    """Sigma of a lognormal factor on what the job has left: 0 where its steps and its speed are known, UNKNOWN where
    nothing is.

    Of the length of jobs with other steps some does not grow with these.
    """
    if job.profile is None:
        like = job.usual
        if like is None or like.length_s is None:
            return UNKNOWN
        if not (job.total and like.steps and like.same):
            return min(UNKNOWN, like.length_spread)
        return min(UNKNOWN, math.hypot(min(SAME_STEPS, like.length_spread), math.log(_times_steps(job, like)) / 2))
    if job.total is not None:
        return 0.0
    return job.usual.steps_spread if job.usual is not None and job.usual.steps is not None else UNKNOWN


def certainty_of(job: JobView, option: "Option", needs_s: float, shown: bool = False) -> Certainty:
    """How sure it is that the job needs `needs_s` seconds on that option; `shown`: it shows its rate there itself."""
    like, start = job.usual, STARTS_DIFFER
    if job.profile is not None and not job.profile.trials:
        start = job.profile.times_spread
    elif like is not None and like.start_s is not None:
        start = like.start_spread
    return certainty(
        job.profile,
        option.kind,
        option.nodes,
        option.gpus,
        WholeTime(
            length=doubt(job),
            whose="" if like is None else like.of,
            steps=math.inf if job.total is None else float(f"{max(0, job.total - job.step):.1g}"),
            shown=shown,
            seconds=needs_s,
            rest_s=option.stall_s + job.end_s,
            start=start,
        ),
    )


def look_again_at(view: View) -> float | None:
    """When what a job shows on the GPUs that it holds may be known; None where there is no such job."""
    for job in view.jobs:
        held = job.placement
        if held is None or job.leaving:
            continue
        if job.profile is None:
            # One that has reported many steps, and still has no profile, is one that nobody learns from.
            untried = job.step < FEW
        else:
            measured, spot = job.profile.measured, (view.kind_of(held.nodes[0]), len(held.shares), held.per_node)
            untried = measured is not None and spot not in measured
        if untried:
            return view.now + LOOK_S
    return None


def kinds_of(view: View) -> tuple[str, ...]:
    """The kinds of GPU of the nodes, sorted; never empty."""
    return tuple(sorted({node.kind for node in view.nodes})) or ("",)


def _rounded(value: float) -> float:
    return 0.0 if value <= 0 else float(GRAIN ** round(math.log(value, GRAIN)))


@lru_cache(maxsize=4096)
def concave(gpus: tuple[int, ...], rates: tuple[float, ...]) -> tuple[float, ...]:
    """The concave curve through 0 that is nearest to the rates (steps/s, relative least squares), at those numbers.

    `gpus`: ascending. Every further GPU gains at most what the one before did, and may cost; what does not hold that is
    taken for an error. The best of noisy rates is as a rule one whose error is high: without this, whoever picks it is
    disappointed.
    """
    if len(gpus) < 3:
        return rates
    from scipy.optimize import nnls  # it takes long to load

    at, given = np.array(gpus, dtype=np.float64), np.array(rates)
    shapes = np.array([at] + [-np.maximum(0.0, at - knot) for knot in at[:-1]]).T
    weights, _ = nnls(shapes / given[:, None], np.ones(len(given)))
    curve = np.maximum(shapes @ weights, 0.01 * given)
    return tuple(float(rate) for rate in curve)
