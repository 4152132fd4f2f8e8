"""How often a job's attempts end: what a trainer that saves at intervals of its own choice is told at its start.

Only an estimate for `every="auto"` (hpcdl/trainer/interval.py); nothing is decided by it.
"""

from hpcdl.core.model.world import Job, World

PRIOR_S = 6 * 3600.0
"""Seconds between interruptions where nothing was observed; counts as one observation."""


def mean_time_between_s(world: World, job: Job, now: float) -> float:
    """Seconds that an attempt of the job runs until it ends, whatever ends it, on average.

    The mean of the jobs that have attempts now, with the prior as one more; of this job's own, with that mean as one
    more. A suspend counts too: where it saves, nothing is lost by that, but it may come too late for that.
    """
    running = [world.jobs[number] for number in world.live]
    usual_s = (PRIOR_S + sum(_held_s(each, now) for each in running)) / (1 + sum(map(_ended, running)))
    return (usual_s + _held_s(job, now)) / (1 + _ended(job))


def _held_s(job: Job, now: float) -> float:
    """Seconds for which it has held GPUs; on more GPUs than its least, more."""
    running = job.running
    return job.held_gpu_s / job.spec.gpus_min + (0.0 if running is None else max(0.0, now - running.holds_since))


def _ended(job: Job) -> int:
    """Its attempts that are over."""
    return max(0, job.last_incarnation - len(job.live))
