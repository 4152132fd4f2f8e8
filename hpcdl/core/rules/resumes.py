"""Where an attempt goes on behind what was saved: its checkpoints are away, damaged or older ones, or its script
restores no step. Only what was durable counts, not how far an attempt had come.

`endings.py` holds a job that stopped at step 0 for it; the trainer stops there by itself (`Session.ready`).
"""

from hpcdl.core.model import events as ev
from hpcdl.core.model.world import Job, by_attempt


def resumed_behind(before: Job, ready: ev.TrainerReady) -> ev.ResumedBehind | None:
    """What follows from a training loop that begins; None where it goes on from what was saved. `before`: its job
    without the event."""
    running, saved = before.running, before.progress.saved_step
    if running is None or saved is None or ready.step >= saved or not _loads(before):
        return None
    saved_by = before.saved_by if running.checkpoint is None else running.number
    return ev.ResumedBehind(before.id, running.number, ready.step, saved, saved_by, running.damaged)


def _loads(job: Job) -> bool:
    """Whether a loop that begins has loaded a checkpoint, or none. Ranks that are rescaled in place form memberships
    with the state that they have; only the first of an attempt loads one, and is formed just before."""
    running = job.running
    if running is None or running.progress is None or job.spec.rescale != "in-process":
        return True
    first = bool(running.members) and running.last_rescale is None
    return first and running.progress.at == running.progress.ready_at


def required_step(job: Job) -> int | None:
    """The saved step without which an attempt is not to begin at step 0; None: nothing was saved, or its user has
    released the job since it was held for that."""
    released = job.checkpoint_missing and not job.held
    return None if released else job.progress.saved_step or None


def missing_text(detail: str, missing: int, saved_by: int) -> str:
    """After what a job is held that would have begun at step 0. `detail`: what was found instead."""
    return f"{detail}, and step {missing} was saved{by_attempt(saved_by)}"
