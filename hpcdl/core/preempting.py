"""When a job may be preempted on purpose: suspended by the handshake, and placed again at once."""

from hpcdl.core.commands import Refused
from hpcdl.core.model import Incarnation, IncarnationState, Job, World
from hpcdl.core.transitions import state_of
from hpcdl.core.views import can_suspend


def preemptible(world: World, job: Job) -> Incarnation:
    """The incarnation that may be preempted now. Raises Refused, with the next step."""
    running = job.running
    if world.stopping:
        raise Refused("the daemon is stopping: hpcdl daemon start, then again", "stopping")
    if running is None or running.state is not IncarnationState.RUNNING or running.ending is not None or job.cancelling:
        raise Refused(
            f"job {job.id} is {state_of(job)}, not training: again once it runs (hpcdl why {job.id})", "not-running"
        )
    if job.held:
        raise Refused(f"job {job.id} is held: hpcdl resume {job.id} first", "not-running")
    if job.spec.signal == "none":
        raise Refused(
            f"job {job.id} was submitted with --signal none, so nobody can ask it to checkpoint: "
            "submit it with a signal that it answers",
            "no-checkpoint",
        )
    if not can_suspend(job):
        raise Refused(
            f"job {job.id} has shown no way to checkpoint: call hpcdl.attach() in its script, "
            "or submit it with --signal",
            "no-checkpoint",
        )
    return running
