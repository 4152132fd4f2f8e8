"""The state of a job, read off its incarnations, and what their ends are called. Which event leads from which state of
an incarnation to which is said beside its effect (`core/fold/effect.py`)."""

from hpcdl.core.model.events import IncarnationEnded
from hpcdl.core.model.incarnation import Cause, IncarnationState, Purpose
from hpcdl.core.model.world import Job, JobState


class IllegalEvent(ValueError):
    """The event cannot follow what happened before; the message says what the job is and did."""


def state_of(job: Job) -> JobState:
    """The state that a user sees."""
    if job.outcome is not None:
        return job.outcome
    running = job.running
    if running is not None:
        if running.state is IncarnationState.SAVING:
            return JobState.RESCALING if running.purpose is Purpose.RESCALE else JobState.SUSPENDING
        if job.spec.rescale != "restart" and running.progress is None:
            return JobState.STARTING
        if running.members:
            return JobState.RUNNING if running.rescale_at is None else JobState.RESCALING
        return JobState.RUNNING if all(part.started for part in running.parts) else JobState.STARTING
    began = job.suspended or (job.held and job.first_start_at is not None)
    return JobState.SUSPENDED if began else JobState.QUEUED


FAILURES = frozenset({Cause.USER_ERROR, Cause.OUT_OF_MEMORY, Cause.INFRASTRUCTURE, Cause.STALLED})
"""Causes that the poison guard counts. Neither a lost node nor a preemption is the job's doing."""

_INTERRUPTED = frozenset({Cause.PREEMPTED, Cause.WALLTIME, Cause.NODE_LOST, Cause.INFRASTRUCTURE, Cause.STALLED})

UNTRAINED = "it had not begun to train, so there was nothing to save"
"""What is said of an attempt that was suspended while it started."""


def is_interruption(ended: IncarnationEnded) -> bool:
    """Whether an attempt ended as nobody wanted, by no doing of its program."""
    return ended.cause in _INTERRUPTED and ended.detail != UNTRAINED
