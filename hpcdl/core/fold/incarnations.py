"""Effects of the events of incarnations: starts and other requests, reports of agents, stalls, ends.

Where each is legal is said in its decorator (`effect.py`). Rescales in place are in `membership.py`, what is learnt of
times and rates in `observations.py`; `rules/endings.py` concludes why an incarnation ended, nothing here does.
"""

import math
from dataclasses import replace

from hpcdl.core.fold import membership as ms
from hpcdl.core.fold import observations as ob
from hpcdl.core.fold.effect import EXITED, GATED, RUNNING, SAVING, TRANSITIONS, Decision, effect
from hpcdl.core.fold.jobs import unfinished
from hpcdl.core.fold.nodes import note_ending
from hpcdl.core.fold.write import (
    free_gpus,
    gpu_s,
    grant_gpus,
    part_of,
    put,
    put_part,
    put_without_gone_parts,
    step_of,
    story,
)
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import changed
from hpcdl.core.model.incarnation import (
    Cause,
    DurableCheckpoint,
    Incarnation,
    IncarnationState,
    Role,
    Stall,
    StopRequest,
    Throttle,
    TrainingProgress,
)
from hpcdl.core.model.notice import NoticeKind
from hpcdl.core.model.profile import Observations
from hpcdl.core.model.structure import ModelStructure
from hpcdl.core.model.transitions import FAILURES, is_interruption
from hpcdl.core.model.world import FailureHistory, Job, JobProgress, LastAttempt, Setback, Verdict, World

DAMAGED_KEPT = 4
"""Checkpoints that an attempt passed over which are named: a folder has two."""

NONCES = 64
"""Of so many starts of a job the nonces are kept. Whoever claims its checkpoint folder later does not meet an earlier
one there, unless none of those between came so far as to claim it."""


@effect(ev.StartRequested, during=(None,), then=RUNNING, writes=("jobs", "holders", "backgrounds", "live"))
def _start_requested(world: World, event: ev.StartRequested, at: float) -> None:
    job = unfinished(world, event)
    # Not always the next number: where earlier jobs used the checkpoint folder, it is above theirs.
    if event.incarnation <= job.last_incarnation:
        raise story(world, event, f"incarnation {event.incarnation} is not a new one")
    if any((inc.placement is None) == (event.placement is None) for inc in job.live) or (
        job.running is None and job.gated is not None
    ):
        raise story(world, event, "another incarnation is in its way")
    placed = event.placement is not None
    if event.placement is not None:
        grant_gpus(world, event, event.placement)
    incarnation = Incarnation(
        number=event.incarnation,
        state=IncarnationState.RUNNING if placed else IncarnationState.GATED,
        parts=ms.first_parts(event.nodes, event.placement),
        placement=event.placement,
        membership=1 if job.spec.rescale == "restart" or not placed else 0,
        warm=not placed,
        requested_at=at,
        granted_at=at if placed else None,
        nonce=event.nonce,
    )
    world.live[event.job] = None
    world.jobs[job.id] = changed(
        job,
        live=(*job.live, incarnation),
        last_incarnation=event.incarnation,
        first_start_at=at if placed and job.first_start_at is None else job.first_start_at,
        nonces=(*job.nonces, event.nonce)[-NONCES:] if event.nonce else job.nonces,
    )


@effect(ev.OpenRequested, during=(GATED,), then=RUNNING, writes=("jobs", "holders", "backgrounds"))
def _open_requested(world: World, event: ev.OpenRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if job.running is not None:
        raise story(world, event, "an older incarnation still holds GPUs")
    if any(part.exited or part.lost for part in incarnation.parts):
        raise story(world, event, "a part of it is gone")
    grant_gpus(world, event, event.placement)
    gpus = {share.node: share.gpus for share in event.placement.shares}
    parts = tuple(changed(part, gpus=gpus.get(part.node, ())) for part in incarnation.parts)
    opened = changed(incarnation, parts=parts, placement=event.placement, granted_at=at)
    put(world, job, opened, first_start_at=at if job.first_start_at is None else job.first_start_at)


@effect(ev.PreemptRequested, during=(RUNNING,))
def _preempt_requested(world: World, event: ev.PreemptRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, changed(incarnation, preempt=True))


@effect(ev.SuspendRequested, during=(RUNNING,), then=SAVING)
def _suspend_requested(world: World, event: ev.SuspendRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    before = incarnation.stop
    stop = StopRequest(at, event.purpose) if before is None else changed(before, at=at, purpose=event.purpose)
    put(world, job, changed(incarnation, stop=stop))
    world.jobs[job.id] = changed(world.jobs[job.id], suspended_for=event.takers)


@effect(ev.EndRequested, during=(GATED, RUNNING, SAVING))
def _end_requested(world: World, event: ev.EndRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if incarnation.ending is Cause.CANCELLED:
        raise story(world, event, "it is being cancelled")
    stop = StopRequest(at, incarnation.purpose, event.cause, event.detail)
    put(world, job, changed(incarnation, stop=stop))


@effect(ev.JoinRequested, during=(RUNNING,), writes=("jobs", "holders", "backgrounds"))
def _join_requested(world: World, event: ev.JoinRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if any(part.node in event.placement.nodes for part in incarnation.parts):
        raise story(world, event, "it has a part there already")
    if incarnation.is_background != (event.placement.role is Role.BACKGROUND):
        raise story(world, event, "a background grows as one, and nothing else does")
    grant_gpus(world, event, event.placement)
    put_without_gone_parts(world, job, ms.joined(incarnation, event.placement, at), at)


@effect(ev.RescaleRequested, during=(RUNNING,))
def _rescale_requested(world: World, event: ev.RescaleRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if event.membership <= incarnation.membership:
        raise story(world, event, f"membership {event.membership} does not follow {incarnation.membership}")
    staying = {part.node for part in incarnation.parts if part.stays}
    if not event.members or not staying.issuperset(event.members):
        raise story(world, event, f"of {'+'.join(event.members)} only {'+'.join(sorted(staying))} can be members")
    put_without_gone_parts(
        world, job, ms.form_membership(incarnation, event.membership, event.members, event.leaving, at), at
    )


@effect(ev.LeaveRequested, during=(RUNNING,))
def _leave_requested(world: World, event: ev.LeaveRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if not {part.node for part in (*incarnation.joining, *incarnation.newcomers)}.issuperset(event.nodes):
        raise story(world, event, f"{'+'.join(event.nodes)} is not about to join")
    put_without_gone_parts(world, job, ms.left(incarnation, event.nodes), at)


@effect(ev.LeftBehind, during=(RUNNING, SAVING), writes=("jobs", "holders", "backgrounds"))
def _left_behind(world: World, event: ev.LeftBehind, at: float) -> None:
    job, incarnation = step_of(world, event)
    for node in event.nodes:
        part = incarnation.part(node)
        if part is None or part.gone or not part.leaving:
            raise story(world, event, f"its part on {node} is not one that is to leave")
        free_gpus(world, (job.id, incarnation.number), part)
        incarnation = put_part(incarnation, changed(part, lost=True, detail="its agent is silent"))
    put_without_gone_parts(world, job, incarnation, at)


@effect(ev.RoleChanged, during=(RUNNING,), writes=("jobs", "holders", "backgrounds"))
def _role_changed(world: World, event: ev.RoleChanged, at: float) -> None:
    job, incarnation = step_of(world, event)
    if incarnation.placement is not None:
        if incarnation.is_background != (event.role is Role.BACKGROUND):
            if not all(part.stays for part in incarnation.parts):
                raise story(world, event, "a part of it is on its way out")
            left = world.backgrounds if incarnation.is_background else world.holders
            grant_gpus(world, event, replace(incarnation.placement, role=event.role))
            for gpu in incarnation.placement.gpus:
                del left[gpu]
        put(world, job, changed(incarnation, placement=replace(incarnation.placement, role=event.role)))


def _decides_started(world: World, event: ev.Started) -> Decision:
    return Decision.ASK if event.job in world.awaited else Decision.NONE  # for its start, perhaps


@effect(ev.Started, during=(GATED, RUNNING, SAVING), decides=_decides_started)
def _started(world: World, event: ev.Started, at: float) -> None:
    job, incarnation = step_of(world, event)
    incarnation = put_part(incarnation, changed(part_of(world, event, incarnation), started=True))
    if incarnation.started_at is None and all(part.started for part in incarnation.parts):
        incarnation = changed(incarnation, started_at=at)
    put(world, job, incarnation)


def _decides_at_gate(world: World, event: ev.AtGate) -> Decision:
    return Decision.CARRY_ON if event.address else Decision.ASK  # with one it waits for the next membership


@effect(ev.AtGate, during=(GATED, RUNNING, SAVING), writes=("jobs", "observed"), decides=_decides_at_gate)
def _at_gate(world: World, event: ev.AtGate, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = part_of(world, event, incarnation)
    if not part.at_gate and incarnation.progress is not None:
        ob.observe_join(world, job, part, at)
    gate_at = part.gate_at if part.at_gate else at
    part = changed(part, started=True, at_gate=True, gate_at=gate_at, address=event.address)
    put(world, job, put_part(incarnation, part))


def _decides_attached(world: World, event: ev.Attached) -> Decision:
    job = world.jobs.get(event.job)  # one of which it is known that it can be suspended is what it was
    return Decision.NONE if job is not None and job.can_suspend else Decision.ASK


@effect(ev.Attached, during=(GATED, RUNNING, SAVING), decides=_decides_attached)
def _attached(world: World, event: ev.Attached, at: float) -> None:
    job, incarnation = step_of(world, event)
    part_of(world, event, incarnation)
    put(world, job, changed(incarnation, attached=True), can_suspend=True)


@effect(
    ev.TrainerReady,
    during=(RUNNING, SAVING),
    writes=("jobs", "observed"),
    decides=Decision.NONE,
)
def _trainer_ready(world: World, event: ev.TrainerReady, at: float) -> None:
    job, incarnation = step_of(world, event)
    part_of(world, event, incarnation)
    if job.checkpoint_missing and event.step:
        job = changed(job, checkpoint_missing=False)  # what was put back counts: its user is asked again if that goes
    if incarnation.progress is None:
        ob.observe_start(world, job, incarnation, at)
        end_at = _end_at(job, incarnation, event.step, at)
        incarnation = changed(incarnation, progress=TrainingProgress(at, event.step, at, event.step), end_at=end_at)
    _put_trained(world, job, ob.began(incarnation, at), changed(job.progress, step=event.step))


@effect(ev.ResumedBehind, during=(RUNNING, SAVING), decides=Decision.NONE, notifies=NoticeKind.DAMAGE)
def _resumed_behind(world: World, event: ev.ResumedBehind, at: float) -> None:
    job, incarnation = step_of(world, event)
    setback = Setback(event.incarnation, event.step, event.saved, event.saved_by, event.damaged)
    progress = changed(job.progress, saved_step=event.step or None)
    put(world, job, incarnation, progress=progress, saved_by=0, setback=setback, checkpoint_missing=False)


@effect(ev.Reformed, during=(RUNNING, SAVING), writes=("jobs", "observed"), decides=Decision.CARRY_ON)
def _reformed(world: World, event: ev.Reformed, at: float) -> None:
    job, incarnation = step_of(world, event)
    progress = incarnation.progress
    if progress is None:
        ob.observe_start(world, job, incarnation, at)
        progress = TrainingProgress(at, event.step, at, event.step)
    else:
        ob.observe_rescale(world, job, incarnation, event.seconds)
        incarnation = ob.reformed(incarnation, event.seconds, at)
    # Its rates are another matter from here on.
    incarnation = changed(
        ob.began(incarnation, at),
        formed=incarnation.members,
        rescale_at=None,
        broken_at=None,
        progress=changed(progress, at=at, step=event.step),
        join_failures=0,
    )
    _put_trained(world, job, incarnation, changed(job.progress, step=event.step))


def _end_at(job: Job, incarnation: Incarnation, step: int, at: float) -> float | None:
    """Since when its script's end runs, where it is known since `at` that `step` is done, or saved: not every trainer
    says that all of its steps are."""
    total = job.progress.total if job.spec.total_is_known else None
    return at if incarnation.end_at is None and total is not None and step >= total else incarnation.end_at


def _put_trained(world: World, job: Job, incarnation: Incarnation, progress: JobProgress) -> None:
    """Puts an incarnation that is known to train, and what the job's last start took."""
    start = incarnation.training_start
    if start is None or start.took_s == job.costs.start_s:
        put(world, job, incarnation, progress=progress)
    else:
        put(world, job, incarnation, progress=progress, costs=changed(job.costs, start_s=start.took_s))


@effect(ev.TrainingDone, during=(RUNNING, SAVING))
def _training_done(world: World, event: ev.TrainingDone, at: float) -> None:
    job, incarnation = step_of(world, event)
    if event.node != incarnation.writer:
        return  # another node's ranks may not wait for it
    rate = ob.observe(world, job, incarnation, event.step, at)
    progress = incarnation.progress
    if progress is not None:
        progress = TrainingProgress(progress.ready_at, progress.ready_step, at, event.step, rate)
    step = max(event.step, job.progress.step or 0)
    put(world, job, changed(incarnation, progress=progress, end_at=at), progress=changed(job.progress, step=step))


@effect(ev.Broken, during=(RUNNING, SAVING))
def _broken(world: World, event: ev.Broken, at: float) -> None:
    job, incarnation = step_of(world, event)
    if incarnation.broken_at is None:
        put(world, job, changed(incarnation, broken_at=at))


@effect(ev.Progressed, during=(RUNNING, SAVING), writes=("jobs", "observed"), decides=Decision.NONE)
def _progressed(world: World, event: ev.Progressed, at: float) -> None:
    job, incarnation = step_of(world, event)
    part_of(world, event, incarnation)
    rate = ob.observe(world, job, incarnation, event.step, at)
    before, accuracy = job.progress, job.progress.accuracy
    if event.metric is not None and math.isfinite(event.metric):
        accuracy = ob.thinned((*accuracy, (event.step, event.metric)))
    total = before.total if event.total is None else event.total
    progress = incarnation.progress
    if progress is not None:
        breaks = incarnation.breaks if event.step <= progress.step else 0
        # A step that was saved, or said to be the last, may be heard of again.
        end_at = incarnation.end_at if event.step <= (before.step or 0) else None
        progress = TrainingProgress(progress.ready_at, progress.ready_step, at, event.step, rate)
        incarnation = changed(incarnation, progress=progress, breaks=breaks, end_at=end_at)
    else:
        incarnation = ob.began(incarnation, at)
        if not incarnation.attached:  # a program that knows nothing of hpcdl never says that it is ready
            incarnation = changed(incarnation, progress=TrainingProgress(at, event.step, at, event.step))
    _put_trained(world, job, incarnation, JobProgress(event.step, total, before.saved_step, accuracy))


def _decides_of_model(world: World, event: ev.ModelReported) -> Decision:
    """Most attempts say what was said of their type before."""
    job = world.jobs.get(event.job)
    known = None if job is None else world.observed.get(job.spec.type_name, Observations()).structure
    said = (event.layers, event.parameters, event.activation_bytes)
    return (
        Decision.NONE
        if known is not None and (known.layers, known.parameters, known.activation_bytes) == said
        else Decision.ASK
    )


@effect(ev.ModelReported, during=(GATED, RUNNING, SAVING), writes=("jobs", "observed"), decides=_decides_of_model)
def _model_reported(world: World, event: ev.ModelReported, at: float) -> None:
    job, incarnation = step_of(world, event)
    part_of(world, event, incarnation)
    try:
        found = ModelStructure(event.layers, event.parameters, event.activation_bytes)
    except ValueError as error:
        raise story(world, event, str(error)) from None
    ob.observe_structure(world, job, found)
    put(world, job, incarnation)


@effect(ev.Saved, during=(RUNNING, SAVING), decides=Decision.NONE)
def _saved(world: World, event: ev.Saved, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = part_of(world, event, incarnation)
    # The writer of an older membership may be heard late: what it saved is there, but the others have gone on.
    before = incarnation.checkpoint
    saved = event.step if before is None else max(before.step, event.step)
    final = (before is not None and before.final) or (event.final and not part.leaving)
    step = job.progress.step
    if not part.leaving:
        step = saved if step is None else max(step, event.step)
    end_at = incarnation.end_at if final else _end_at(job, incarnation, saved, at)
    incarnation = changed(incarnation, checkpoint=DurableCheckpoint(saved, final), end_at=end_at)
    progress, costs = changed(job.progress, step=step, saved_step=saved), changed(job.costs, save_s=event.seconds)
    put(world, job, incarnation, progress=progress, costs=costs)


def _decides_exited(world: World, event: ev.Exited) -> Decision:
    return Decision.CARRY_ON if event.ended_by == "leave" else Decision.ASK


@effect(ev.Exited, during=(GATED, RUNNING, SAVING), decides=_decides_exited)
def _exited(world: World, event: ev.Exited, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = changed(
        part_of(world, event, incarnation),
        exited=True,
        code=event.code,
        signal=event.signal,
        ended_by=event.ended_by,
        done=event.done,
        left=event.left,
        by_itself=event.by_itself,
        hint=event.hint,
        detail=event.detail,
        repeats=event.repeats,
        kept=event.kept,
        older=event.older,
        permanent=event.permanent,
        node_fault=event.node_fault,
        missing=event.missing,
        exited_at=at,
        # At the gate no GPU is held, so the end of the processes is all there is to wait for.
        freed=incarnation.placement is None,
    )
    incarnation = put_part(incarnation, part)
    trained = not incarnation.members or part.node in incarnation.members
    step = event.step if event.step is not None and trained and not part.leaving else job.progress.step
    if event.attached and not incarnation.attached:
        incarnation = changed(incarnation, attached=True)
    # Where its folder was another's, the next attempt has a number above that one's.
    last = max(job.last_incarnation, event.claimed)
    progress = changed(job.progress, step=step)
    put_without_gone_parts(world, job, incarnation, at, progress=progress, last_incarnation=last)


@effect(
    ev.GpusFreed, during=(GATED, RUNNING, SAVING), writes=("jobs", "holders", "backgrounds"), decides=Decision.CARRY_ON
)
def _gpus_freed(world: World, event: ev.GpusFreed, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = part_of(world, event, incarnation)
    if not part.exited:
        raise story(world, event, f"its processes on {event.node} have not exited")
    free_gpus(world, (job.id, incarnation.number), part)
    put_without_gone_parts(world, job, put_part(incarnation, changed(part, freed=True)), at)


@effect(ev.CheckpointDamaged, during=(RUNNING, SAVING), notifies=NoticeKind.DAMAGE)
def _checkpoint_damaged(world: World, event: ev.CheckpointDamaged, at: float) -> None:
    job, incarnation = step_of(world, event)
    if event.attempt:
        text = f"step {event.step} of attempt {event.attempt}: {event.why}; it is kept as {event.path}"
        put(world, job, changed(incarnation, damaged=(*incarnation.damaged, text)[-DAMAGED_KEPT:]))


@effect(ev.Noted, during=(GATED, RUNNING, SAVING), writes=(), decides=Decision.NONE)
def _noted(world: World, event: ev.Noted, at: float) -> None:
    step_of(world, event)


@effect(ev.Throttled, during=(RUNNING, SAVING), decides=Decision.NONE)
def _throttled(world: World, event: ev.Throttled, at: float) -> None:
    job, incarnation = step_of(world, event)
    throttle = Throttle(event.foreground, event.duty, event.limit, event.slowdown) if event.foreground else None
    put(world, job, changed(incarnation, throttle=throttle))


@effect(ev.GpuMemoryMeasured, during=(RUNNING,))
def _gpu_memory_measured(world: World, event: ev.GpuMemoryMeasured, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, incarnation, gpu_memory_mib=max(event.mib, job.gpu_memory_mib or 0))


@effect(ev.JobStalled, during=(RUNNING,), notifies=NoticeKind.STALL)
def job_stalled(world: World, event: ev.JobStalled, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, changed(incarnation, stall=Stall(event.since, event.what, event.restart)))


@effect(ev.StallOver, during=(RUNNING,), decides=Decision.NONE)
def stall_over(world: World, event: ev.StallOver, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, changed(incarnation, stall=None))


@effect(ev.GpusIdle, during=(RUNNING,), decides=Decision.NONE, notifies=NoticeKind.IDLE)
def _gpus_idle(world: World, event: ev.GpusIdle, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, changed(incarnation, idle_noted=True))


def _interruption_notified(event: ev.IncarnationEnded) -> NoticeKind | None:
    if event.hold and event.missing is not None:
        return NoticeKind.DAMAGE
    if event.hold:
        return NoticeKind.POISON
    survived = event.final is None and event.cause is not Cause.WALLTIME
    return NoticeKind.PREEMPTION if survived and is_interruption(event) else None


@effect(
    ev.IncarnationEnded, during=(EXITED,), writes=("jobs", "live", "observed", "nodes"), notifies=_interruption_notified
)
def _incarnation_ended(world: World, event: ev.IncarnationEnded, at: float) -> None:
    job, incarnation = step_of(world, event)
    live = tuple(inc for inc in job.live if inc.number != incarnation.number)
    if not live:
        world.live.pop(job.id, None)
    if incarnation.placement is None:
        # A warm start that failed, or that ended well without the gate having been opened: from here on cold starts.
        failed = event.cause in FAILURES or event.cause is Cause.DONE
        world.jobs[job.id] = changed(job, live=live, warm_failed=job.warm_failed or failed)
        return
    if event.cause is Cause.SUSPENDED and incarnation.end_at is None:
        ob.observe_save(world, job, incarnation, at)
    if event.cause is Cause.DONE:
        ob.observe_end(world, job, incarnation, at)
    ob.observe_metric(world, job)
    if not event.perhaps_own:
        note_ending(world, job.id, incarnation, event.cause, at)
    before, failed = job.failures, event.cause in FAILURES
    same = failed and event.signature == before.signature
    world.jobs[job.id] = changed(
        job,
        live=live,
        held_gpu_s=job.held_gpu_s + gpu_s(incarnation, at),
        # Of other jobs it is left out: what earlier versions recorded of them stays what it was.
        ran_s=job.ran_s if job.spec.time_s is None else job.ran_s + max(0.0, at - incarnation.holds_since),
        suspended=event.cause is Cause.SUSPENDED,
        suspends=job.suspends + (event.cause is Cause.SUSPENDED),
        failures=FailureHistory(
            total=before.total + failed,
            retries_used=before.retries_used + (event.cause is Cause.USER_ERROR),
            repeats=before.repeats + 1 if same else int(failed),
            signature=event.signature if failed else "",
            retry_at=event.retry_at,
        ),
        last=LastAttempt(event.cause, event.detail, event.code, incarnation.placement),
        progress=changed(job.progress, step=event.step),
        verdict=None if event.final is None else Verdict(event.final, event.final_detail),
        fruitless=event.fruitless,
        unfit_nodes=event.unfit_nodes,
        held=job.held or bool(event.hold),
        held_after=event.hold or job.held_after,
        ends_cut=job.ends_cut + 1 if incarnation.end_at is not None else 0 if incarnation.steps else job.ends_cut,
        saved_by=event.saved_by,
        checkpoint_missing=event.missing is not None if event.hold else job.checkpoint_missing,
    )


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
    if isinstance(event, ev.Progressed | ev.TrainerReady | ev.TrainingDone):
        # What was left out of its membership, or is no part of one yet, is not where the job stands.
        return not part.leaving and (not incarnation.members or part.node in incarnation.members)
    return True
