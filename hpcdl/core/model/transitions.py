"""The one table of transitions of an incarnation, and what is read off it."""

from hpcdl.core.model import events as ce
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import Cause, IncarnationState, Purpose
from hpcdl.core.model.world import Job, JobState, World


class IllegalEvent(ValueError):
    """The event cannot follow what happened before; the message tells the job's story."""


_G, _R, _S, _X = IncarnationState.GATED, IncarnationState.RUNNING, IncarnationState.SAVING, IncarnationState.EXITED

TRANSITIONS: dict[tuple[IncarnationState | None, type[ev.Event]], IncarnationState] = {
    # A start with GPUs makes RUNNING, one without makes GATED (`effects._start_requested`).
    (None, ev.StartRequested): _R,
    (_G, ev.Started): _G,
    (_G, ev.Attached): _G,
    (_G, ev.AtGate): _G,
    (_G, ev.Noted): _G,
    (_G, ev.OpenRequested): _R,
    (_G, ev.EndRequested): _G,
    (_G, ev.Exited): _G,
    (_G, ev.GpusFreed): _G,
    (_R, ev.Started): _R,
    (_R, ev.Attached): _R,
    (_R, ev.AtGate): _R,
    (_R, ev.TrainerReady): _R,
    (_R, ev.Progressed): _R,
    (_R, ev.Saved): _R,
    (_R, ev.CheckpointDamaged): _R,
    (_R, ev.Noted): _R,
    (_R, ev.RoleChanged): _R,
    (_R, ev.JoinRequested): _R,
    (_R, ev.RescaleRequested): _R,
    (_R, ev.LeaveRequested): _R,
    (_R, ev.LeftBehind): _R,
    (_R, ev.Reformed): _R,
    (_R, ev.Broken): _R,
    (_R, ev.PreemptRequested): _R,
    (_R, ce.JobStalled): _R,
    (_R, ce.StallOver): _R,
    (_R, ev.SuspendRequested): _S,
    (_R, ev.EndRequested): _R,
    (_R, ev.Exited): _R,
    (_R, ev.GpusFreed): _R,
    (_S, ev.Started): _S,
    (_S, ev.Attached): _S,
    (_S, ev.AtGate): _S,
    (_S, ev.TrainerReady): _S,
    (_S, ev.Progressed): _S,
    (_S, ev.Saved): _S,
    (_S, ev.CheckpointDamaged): _S,
    (_S, ev.Noted): _S,
    (_S, ev.LeftBehind): _S,
    (_S, ev.Reformed): _S,
    (_S, ev.Broken): _S,
    (_S, ev.EndRequested): _S,
    (_S, ev.Exited): _S,
    (_S, ev.GpusFreed): _S,
    (_X, ev.IncarnationEnded): _X,
}
"""(state before, event) -> state after. When the last part of an incarnation is gone, it becomes EXITED by itself."""


def state_of(job: Job) -> JobState:
    """The state that a user sees."""
    if job.outcome is not None:
        return job.outcome
    running = job.running
    if running is not None:
        if running.state is IncarnationState.SAVING:
            return JobState.RESCALING if running.purpose is Purpose.RESCALE else JobState.SUSPENDING
        if job.spec.rescale != "restart" and running.ready_at is None:
            return JobState.STARTING
        if running.members:
            return JobState.RUNNING if running.rescale_at is None else JobState.RESCALING
        return JobState.RUNNING if all(part.started for part in running.parts) else JobState.STARTING
    began = job.suspended or (job.held and job.first_start_at is not None)
    return JobState.SUSPENDED if began else JobState.QUEUED


FAILURES = frozenset({Cause.USER_ERROR, Cause.OUT_OF_MEMORY, Cause.INFRASTRUCTURE, Cause.STALLED})
"""Causes that the poison guard counts. Neither a lost node nor a preemption is the job's doing."""


def accepts(world: World, event: ev.Report) -> bool:
    """Whether a report still concerns anything: its incarnation lives, and the table knows the step.

    False is no error: reports of an incarnation that was given up arrive late, and are dropped.
    """
    job = world.jobs.get(event.job)
    incarnation = job.incarnation(event.incarnation) if job else None
    if incarnation is None or (incarnation.state, type(event)) not in TRANSITIONS:
        return False
    part = incarnation.part(event.node)
    if part is None or part.lost:
        return False
    if isinstance(event, ev.Reformed | ev.Broken):
        current = event.membership == incarnation.membership and part.node in incarnation.members
        return current and (isinstance(event, ev.Broken) or incarnation.rescale_at is not None)
    if not (event.membership == part.since or part.since <= event.membership <= incarnation.membership):
        return False
    if isinstance(event, ev.Exited):
        return not part.exited
    if isinstance(event, ev.GpusFreed):
        return part.exited and not part.freed
    if isinstance(event, ev.Started):
        return not part.started
    if isinstance(event, ev.Progressed | ev.TrainerReady):
        # What was left out of its membership, or is no part of one yet, is not where the job stands.
        return not part.leaving and (not incarnation.members or part.node in incarnation.members)
    return True
