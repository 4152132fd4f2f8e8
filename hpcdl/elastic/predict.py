"""When a job will end: the cost terms of section III-C of the paper. Times are seconds from now.

The paper adds up the job's initialisation, the start of its training process, training, checkpoint, and the end of
process and job. `Profile.startup_s` holds the first two, of which `gate_s` (the early initialisation) may be over
before there are GPUs; `Profile.restart_s` holds checkpoint, stop and start of the training process for a reshape. What
comes after the last step is the same on any number of GPUs and has no figure in a profile: it is left out.
"""

from hpcdl.core.model import JobState
from hpcdl.core.plan import JobView
from hpcdl.core.profile import Profile

UNKNOWN_S = 600.0
"""A job of unknown length is taken to go on for as long as it has, and for this many seconds at least."""

_NO_COSTS = Profile("unknown", ((1, 1, 1.0),))


def rate(job: JobView, kind: str, gpus: int) -> float:
    """Steps/s on `gpus` GPUs of that kind on each of its nodes. A job without a profile is taken to scale linearly."""
    if job.profile is None:
        return float(gpus * job.nodes)
    return job.profile.on(kind).rate(gpus, job.nodes)


def steps_left(job: JobView, now: float, kind: str, held: int) -> float:
    """Steps still to do; `kind` and `held`: the GPUs per node that it holds, 0 without any.

    Where no number of steps was given, what Optimus's fit to the reported accuracies says; else as many again as it
    has done.
    """
    known = job.remaining(now, kind)
    if known is not None:
        return known
    done = job.steps(now, kind)
    if job.accuracy_target is not None and job.accuracy:
        from hpcdl.learning.convergence import predict_steps  # SciPy takes long to load, and few jobs need it

        predicted = predict_steps(job.accuracy, job.accuracy_target)
        if predicted is not None:
            return max(0.0, predicted - done)
    return max(done, UNKNOWN_S * rate(job, kind, max(held, job.gpus_min)))


def initialisation_left_s(job: JobView, now: float) -> float:
    """Seconds of early initialisation that a job which has never been started still has before it."""
    if job.profile is None or job.at_gate or job.state is not JobState.QUEUED or job.started_at is not None:
        return 0.0
    # One that is never started ahead by us fetches what it needs from its submit on, or has nothing to fetch.
    since = job.ahead_since if job.gate else job.submitted_at
    return job.profile.gate_s if since is None else max(0.0, job.profile.gate_s - max(0.0, now - since))


def start_s(job: JobView, now: float, nodes: tuple[str, ...], gpus: int) -> float:
    """Seconds until a job that holds nothing trains on `gpus` GPUs in all that are free on these nodes."""
    profile = job.profile or _NO_COSTS
    if job.last is not None:
        return profile.restart_s(len(job.last.gpus), gpus, moved=job.last.nodes != nodes, running=False)
    return profile.startup_s - profile.gate_s + initialisation_left_s(job, now)


def stalled_s(job: JobView, now: float) -> float:
    """Seconds until a job that holds GPUs trains on them; 0 while it does."""
    if job.step_at is not None or job.placement is None or job.profile is None:
        return 0.0
    since = now if job.held_since is None else job.held_since
    gpus = len(job.placement.gpus)
    if job.last is not None:
        moved = job.last.nodes != job.placement.nodes
        whole = job.profile.resume_for(len(job.last.gpus), gpus, moved)
    else:
        ahead = min(job.profile.gate_s, max(0.0, since - job.submitted_at))
        whole = job.profile.startup_s - ahead
    return max(0.0, whole - max(0.0, now - since))


def reshape_s(job: JobView, before: int, after: int, moved: bool) -> float:
    """Seconds without progress of a running job that goes from `before` GPUs in all to `after`."""
    return (job.profile or _NO_COSTS).restart_s(before, after, moved=moved, running=True)
