"""Time left until a job that holds GPUs is done: one estimate for every list, answer and page.

By the rate that the job shows, else by its profile. Jobs that wait are estimated by `adaptive/eta`, from `queue`.
"""

import math
from dataclasses import dataclass, replace

from hpcdl.core.controller.type_profiles import TypeProfiles
from hpcdl.core.fold.observations import end_s, measured, observations_of
from hpcdl.core.fold.trials import shows_clearly, shows_rate
from hpcdl.core.model.incarnation import Incarnation, IncarnationState
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import gpu_kind
from hpcdl.core.model.world import Job, World

MEASURED_AFTER_S = 30.0
"""Steps are reported every few seconds, so a rate that was measured for less than this may be far off, unless all
reports of it agree."""

REPORTED_S = 60.0
"""A step that is not reported within this time is late."""


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds until a job is done on what it holds. `measured`: by the rate that it shows, not by its profile.

    `low`, `high`: the band in which it is with 80 %, where the rate is from few steps, or from other jobs'.
    """

    seconds: float
    measured: bool
    low: float | None = None
    high: float | None = None

    def later(self, seconds: float) -> "TimeLeft":
        """The same with that much more to come."""
        low, high = (None if each is None else each + seconds for each in (self.low, self.high))
        return replace(self, seconds=self.seconds + seconds, low=low, high=high)


def remaining(world: World, job: Job, profiles: Profiles, now: float) -> TimeLeft | None:
    """By the rate that it shows, else by its profile, its start and its script's end included.

    None where that is not known, for a job that gives its GPUs back, and where nobody reports its steps.
    """
    running = job.running
    if job.finished or running is None or running.placement is None or job.spec.light_steps is not None:
        return None  # or a light run, which ends long before its last step
    if running.state is IncarnationState.SAVING or running.stop is not None:
        return None
    if not all(name in world.nodes and world.nodes[name].connected for name in running.placement.nodes):
        return None  # the last step that was reported is old
    ends_s = end_s(world, job)
    if running.end_at is not None:
        return None if ends_s is None else TimeLeft(max(0.0, ends_s - (now - running.end_at)), measured=True)
    trains = _trains(world, job, running, profiles, now)
    return None if trains is None else trains.later(ends_s or 0.0)


def _trains(world: World, job: Job, running: Incarnation, profiles: Profiles, now: float) -> TimeLeft | None:
    """Until its last step."""
    seen = world.observed.get(job.spec.learns_as)
    total, placement = profiles.total_of(job, seen), running.placement
    if not total or placement is None:
        return None
    left = total - (job.progress.step or 0)
    if left <= 0:
        return TimeLeft(0.0, measured=True)
    rate = measured_rate(job, now)
    progress = running.progress
    if rate is not None and progress is not None:
        # Where it is slower than it was, or not yet reported, one step is left.
        return TimeLeft(max(1.0 / rate, left / rate - (now - max(progress.at, now - REPORTED_S))), measured=True)
    profile = profiles.of(job, observations_of(world, job.spec.learns_as))
    profile = profile or TypeProfiles().profile(world, job.spec, profiles)
    if profile is None:
        return None
    if seen is not None and job.spec.burst and job.spec.profile is None:
        profile = measured(profile, seen)  # as the policy sees it: plans are promises
    kinds = {gpu.name for gpu in world.nodes[placement.nodes[0]].gpus}
    kind = gpu_kind(kinds.pop()) if len(kinds) == 1 else ""
    spot = (kind, len(placement.shares), placement.per_node)
    rate = profile.on(kind).rate(placement.per_node, len(placement.shares))
    trains_s = left / rate
    if progress is None:
        begun_at = running.placed_at or running.granted_at or running.requested_at or now
        start_s = profile.startup_s
        before = job.last.placement
        if before is not None and job.progress.saved_step is not None:
            start_s = profile.resume_for(len(before.gpus), len(placement.gpus), before.nodes != placement.nodes)
        return _doubted(profile, spot, left, trains_s, max(0.0, begun_at + start_s - now))
    return _doubted(profile, spot, left, max(1.0 / rate, trains_s - (now - progress.at)), 0.0)


def _doubted(profile: Profile, spot: tuple[str, int, int], left: int, trains_s: float, starts_s: float) -> TimeLeft:
    """`left`: steps."""
    found = TimeLeft(trains_s + starts_s, measured=False)
    if not profile.trials:
        return found
    from hpcdl.estimators.certainty import WholeTime, certainty  # what has learnt the profile has loaded it

    sure = certainty(profile, *spot, WholeTime(steps=left, seconds=found.seconds, rest_s=starts_s))
    return replace(found, low=found.seconds * math.exp(sure.low), high=found.seconds * math.exp(sure.high))


def measured_rate(job: Job, now: float) -> float | None:
    """Steps/s that a running job makes on what it holds after its warm-up, None where that is not known well.

    Of one that changes its nodes in place it is not: its steps were made on several.
    """
    running = job.running
    progress = None if running is None or running.formed else running.progress
    if progress is None:
        return None
    trained: float = progress.step - progress.ready_step
    elapsed = max(progress.at, now - REPORTED_S) - progress.ready_at
    clear = False
    if progress.rate is not None:
        if not shows_rate(progress.rate):
            return None
        clear = shows_clearly(progress.rate)
        trained, elapsed = trained - progress.rate.warm.steps, elapsed - progress.rate.warm.seconds
    return trained / elapsed if trained > 0 and (clear or elapsed >= MEASURED_AFTER_S) else None
