"""Which attempts are exempt from preemption: those that have not yet trained for three times what their start took.

One rule for all policies (Slurm calls such a time PreemptExemptTime). A view shows an exempt job as one that cannot be
suspended, so every policy plans round it and `check` refuses a plan that moves it. What users ask for, nodes that leave
and jobs of a higher priority do not come this way. It follows from recorded facts and the view's time alone.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpcdl.core.fold.observations import OF_A_START
from hpcdl.core.model.incarnation import IncarnationState
from hpcdl.core.model.plan import JobView, Plan, View
from hpcdl.core.model.profile import Observations, Profile, Timing, UsualJob
from hpcdl.core.model.world import Job, World

STARTS = 3.0
"""An attempt is exempt until it has trained so many times what its start took."""

PRIOR_S = 30.0
"""What a start is taken to take where none of any job was seen."""

ENDS_CUT = 3
"""After so many attempts in a row that were ended at its script's end, no priority takes the job's GPUs there."""

STARTING_S = 3600.0
"""A trainer that says when it is ready, and does not, is exempt for so long after its start."""

OF_A_RESCALE = ("grow_s", "shrink_s")
"""Kinds of times that a rescale in place shows."""


@dataclass(frozen=True, slots=True)
class Exemption:
    """Until when an attempt may not be preempted for the good of others. Times are the daemon's."""

    suspend_until: float  # not suspended until then
    rescale_until: float  # not rescaled in place until then
    begun: bool  # it trains
    guess: bool = False  # what its start takes is estimated from others, of whom more may be seen


def exemption(
    world: World, job: Job, profile: Profile | None, starts: float, group: UsualJob | None = None
) -> Exemption | None:
    """The exemption of a job's attempt, also where it is over; None where there is no attempt that could have one.

    `profile`: the one that the job names or that was learnt; `starts`: STARTS, or 0 for none; `group`: what is usual of
    jobs like it.
    """
    running = job.running
    if job.spec.light_steps is not None:
        return None  # a light run, which is in nobody's way
    if running is not None and running.end_at is not None and running.ending is None:
        return Exemption(math.inf, math.inf, True)  # it would start its script's end over
    if not starts or running is None or running.state is not IncarnationState.RUNNING or running.ending is not None:
        return None
    granted_at = running.holds_since
    start = running.training_start
    if start is None:
        if job.spec.signal == "hpcdl" or running.attached:
            return Exemption(granted_at + STARTING_S, granted_at + STARTING_S, False)
        until = granted_at + (1 + starts) * expected_start_s(world, job, profile, group)
        return Exemption(until, until, False, job.costs.start_s is None)
    until = start.at + starts * start.took_s
    if job.spec.rescale == "restart":
        rescale_until = until
    elif running.last_rescale is not None:
        rescale_until = running.last_rescale.at + starts * running.last_rescale.took_s
    else:
        rescale_until = start.at + starts * _rescale_s(world, job, start.took_s)
    return Exemption(until, rescale_until, True)


def lifts(job: Job) -> bool:
    """Whether a job of a higher priority may preempt the job's attempt although it is exempt."""
    return job.running is None or job.running.end_at is None or job.ends_cut < ENDS_CUT


def expected_start_s(world: World, job: Job, profile: Profile | None, group: UsualJob | None = None) -> float:
    """What a start of the job takes: its own last one, else those of its script and model, or what its profile says, or
    what is usual of its model, script, framework or user (`group`), or of all jobs."""
    if job.costs.start_s is not None:
        return job.costs.start_s
    seen = _slowest(world.observed.get(job.spec.learns_as, Observations()).times, OF_A_START)
    if seen is not None:
        return seen
    if profile is not None:
        return max(profile.startup_s, profile.resume_s)
    if group is not None and group.start_s is not None:
        return group.start_s
    usual = _slowest(world.usual_times, OF_A_START)
    return PRIOR_S if usual is None else usual


def _rescale_s(world: World, job: Job, start_s: float) -> float:
    """What a rescale in place costs that nobody has seen of this attempt: torchrun's ranks start anew."""
    seen = _slowest(world.observed.get(job.spec.learns_as, Observations()).times, OF_A_RESCALE)
    if seen is not None:
        return seen
    return start_s if job.spec.rescale == "torchrun" else 0.0


def _slowest(times: Iterable[Timing], kinds: tuple[str, ...]) -> float | None:
    return max((each.seconds / each.times for each in times if each.what in kinds), default=None)


def lifted(view: View) -> frozenset[int]:
    """The exempt jobs for which a job of a higher priority waits."""
    if not any(job.exempt for job in view.jobs):
        return frozenset()
    waits = max((job.priority for job in (*view.waiting, *view.between) if _wants(job)), default=-math.inf)
    return frozenset(job.id for job in view.jobs if job.exempt and job.priority < waits)


def _wants(job: JobView) -> bool:
    return job.placement is None and not job.blocked


def without(view: View, jobs: frozenset[int]) -> View:
    """The view in which these jobs are not exempt. Nothing that was worked out about them is carried over."""
    seen = tuple(replace(job, exempt=False, can_suspend=True) if job.id in jobs else job for job in view.jobs)
    return replace(view, jobs=seen)


def unjustified(view: View, plan: Plan, jobs: frozenset[int]) -> frozenset[int]:
    """Those of these jobs that the plan moves, or suspends, although none of their GPUs goes to a higher priority."""
    targets = plan.targets
    placements = {target.job: target.placement for target in targets}
    by_id = view.by_id
    found = set()
    for number in jobs:
        job, target = by_id[number], placements.get(number)
        if job.placement is None or (target is not None and target.same_gpus(job.placement)):
            continue
        lost = set(job.placement.gpus)
        if not any(
            placement is not None and by_id[other].priority > job.priority and not lost.isdisjoint(placement.gpus)
            for other, placement in placements.items()
            if other != number
        ):
            found.add(number)
    return frozenset(found)
