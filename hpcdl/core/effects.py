"""What each event does to the world; only `lifecycle` calls it. `transitions` has the one table of what is legal.

A function here may replace entries of the world's outer dicts, which are a draft's own; the values inside are frozen.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcdl.core import events as ev
from hpcdl.core.model import Cause, Incarnation, IncarnationState, Job, Node, Part, Placement, World
from hpcdl.core.observing import observe, observe_save, observe_start, thinned
from hpcdl.core.transitions import FAILURES, TRANSITIONS, IllegalEvent, state_of
from hpcdl.core.units import GpuRef


def _story(world: World, event: Any, why: str) -> IllegalEvent:
    job = world.jobs.get(getattr(event, "job", -1))
    told = "unknown job"
    if job is not None:
        lives = ", ".join(f"{inc.number} {inc.state} on {'+'.join(inc.nodes)}" for inc in job.live) or "none"
        told = f"job {job.id} is {state_of(job)}, incarnations: {lives}, last number {job.last_incarnation}"
    return IllegalEvent(f"{event.kind} after seq {world.seq}: {why} ({told})")


def _job(world: World, event: ev.JobEvent) -> Job:
    job = world.jobs.get(event.job)
    if job is None:
        raise _story(world, event, "no such job")
    return job


def _step(world: World, event: ev.IncarnationEvent) -> tuple[Job, Incarnation]:
    """The job and its incarnation with the state that the table gives."""
    job = _job(world, event)
    incarnation = job.incarnation(event.incarnation)
    if incarnation is None:
        raise _story(world, event, f"incarnation {event.incarnation} does not live")
    after = TRANSITIONS.get((incarnation.state, type(event)))
    if after is None:
        raise _story(world, event, f"not allowed while {incarnation.state}")
    return job, incarnation if after is incarnation.state else replace(incarnation, state=after)


def _put(world: World, job: Job, incarnation: Incarnation, **changes: Any) -> None:
    live = tuple(incarnation if inc.number == incarnation.number else inc for inc in job.live)
    world.jobs[job.id] = replace(job, live=live, **changes)


def _put_part(incarnation: Incarnation, part: Part) -> Incarnation:
    parts = tuple(part if old.node == part.node else old for old in incarnation.parts)
    state = IncarnationState.EXITED if all(each.gone for each in parts) else incarnation.state
    return replace(incarnation, parts=parts, state=state)


def _part(world: World, event: ev.Report, incarnation: Incarnation) -> Part:
    part = incarnation.part(event.node)
    if part is None:
        raise _story(world, event, f"it has no part on {event.node}")
    return part


def _hold(world: World, event: ev.IncarnationEvent, placement: Placement) -> None:
    for gpu in placement.gpus:
        holder = world.holders.get(gpu)
        if holder is not None:
            raise _story(world, event, f"GPU {gpu} is held by job {holder[0]}.{holder[1]}")
    world.holders.update((gpu, (event.job, event.incarnation)) for gpu in placement.gpus)


def _release(world: World, key: tuple[int, int], incarnation: Incarnation, node: str) -> None:
    for share in incarnation.placement.shares if incarnation.placement is not None else ():
        for gpu in [GpuRef(node, index) for index in share.gpus] if share.node == node else ():
            if world.holders.get(gpu) == key:
                del world.holders[gpu]


def _job_submitted(world: World, event: ev.JobSubmitted, at: float) -> None:
    if event.job in world.jobs:
        raise _story(world, event, "that job exists")
    spec, before = event.spec, world.jobs.get(event.job - 1)
    if before is not None and before.spec.env == spec.env:
        spec = replace(spec, env=before.spec.env)  # jobs of one shell share kilobytes of environment: keep them once
    world.jobs[event.job] = Job(id=event.job, spec=spec, submitted_at=at, total=spec.steps)
    world.active[event.job] = None
    for number in spec.after:
        world.awaited[number] = (*world.awaited.get(number, ()), event.job)
    world.request_ids[event.request_id] = (*world.request_ids.get(event.request_id, ()), event.job)
    world.next_job = max(world.next_job, event.job + 1)


def _job_held(world: World, event: ev.JobHeld, at: float) -> None:
    world.jobs[event.job] = replace(_unfinished(world, event), held=True)


def _job_released(world: World, event: ev.JobReleased, at: float) -> None:
    world.jobs[event.job] = replace(_unfinished(world, event), held=False)


def _cancel_requested(world: World, event: ev.CancelRequested, at: float) -> None:
    world.jobs[event.job] = replace(_unfinished(world, event), cancelling=True)


def _unfinished(world: World, event: ev.JobEvent) -> Job:
    job = _job(world, event)
    if job.finished:
        raise _story(world, event, "it is finished")
    return job


def _job_ended(world: World, event: ev.JobEnded, at: float) -> None:
    job = _unfinished(world, event)
    if job.live:
        raise _story(world, event, "an incarnation still lives")
    world.jobs[job.id] = replace(
        job, outcome=event.state, finished_at=at, held=False, suspended=False, last_detail=event.detail
    )
    del world.active[job.id]
    if job.id in world.targets:
        world.targets = {number: target for number, target in world.targets.items() if number != job.id}


def _start_requested(world: World, event: ev.StartRequested, at: float) -> None:
    job = _unfinished(world, event)
    # Not always the next number: where earlier jobs used the checkpoint folder, it is above theirs.
    if event.incarnation <= job.last_incarnation:
        raise _story(world, event, f"incarnation {event.incarnation} is not a new one")
    if any((inc.placement is None) == (event.placement is None) for inc in job.live) or (
        job.running is None and job.gated is not None
    ):
        raise _story(world, event, "another incarnation is in its way")
    placed = event.placement is not None
    if event.placement is not None:
        _hold(world, event, event.placement)
    incarnation = Incarnation(
        number=event.incarnation,
        state=IncarnationState.RUNNING if placed else IncarnationState.GATED,
        parts=tuple(Part(node) for node in event.nodes),
        placement=event.placement,
        warm=not placed,
        requested_at=at,
        granted_at=at if placed else None,
    )
    world.live[event.job] = None
    world.jobs[job.id] = replace(
        job,
        live=(*job.live, incarnation),
        last_incarnation=event.incarnation,
        first_start_at=at if placed and job.first_start_at is None else job.first_start_at,
    )


def _open_requested(world: World, event: ev.OpenRequested, at: float) -> None:
    job, incarnation = _step(world, event)
    if job.running is not None:
        raise _story(world, event, "an older incarnation still holds GPUs")
    if any(part.exited or part.lost for part in incarnation.parts):
        raise _story(world, event, "a part of it is gone")
    _hold(world, event, event.placement)
    opened = replace(incarnation, placement=event.placement, granted_at=at)
    _put(world, job, opened, first_start_at=at if job.first_start_at is None else job.first_start_at)


def _suspend_requested(world: World, event: ev.SuspendRequested, at: float) -> None:
    job, incarnation = _step(world, event)
    _put(world, job, replace(incarnation, purpose=event.purpose, asked_at=at))


def _end_requested(world: World, event: ev.EndRequested, at: float) -> None:
    job, incarnation = _step(world, event)
    if incarnation.ending is Cause.CANCELLED:
        raise _story(world, event, "it is being cancelled")
    _put(world, job, replace(incarnation, ending=event.cause, ending_detail=event.detail, asked_at=at))


def _role_changed(world: World, event: ev.RoleChanged, at: float) -> None:
    job, incarnation = _step(world, event)
    if incarnation.placement is not None:
        _put(world, job, replace(incarnation, placement=replace(incarnation.placement, role=event.role)))


def _started(world: World, event: ev.Started, at: float) -> None:
    job, incarnation = _step(world, event)
    incarnation = _put_part(incarnation, replace(_part(world, event, incarnation), started=True))
    if incarnation.started_at is None and all(part.started for part in incarnation.parts):
        incarnation = replace(incarnation, started_at=at)
    _put(world, job, incarnation)


def _at_gate(world: World, event: ev.AtGate, at: float) -> None:
    job, incarnation = _step(world, event)
    _put(world, job, _put_part(incarnation, replace(_part(world, event, incarnation), at_gate=True)))


def _attached(world: World, event: ev.Attached, at: float) -> None:
    job, incarnation = _step(world, event)
    _part(world, event, incarnation)
    _put(world, job, replace(incarnation, attached=True), can_suspend=True)


def _trainer_ready(world: World, event: ev.TrainerReady, at: float) -> None:
    job, incarnation = _step(world, event)
    _part(world, event, incarnation)
    if incarnation.ready_at is None:
        observe_start(world, job, incarnation, at)
        incarnation = replace(
            incarnation, ready_at=at, ready_step=event.step, progressed_at=at, progressed_step=event.step
        )
    _put(world, job, incarnation, step=event.step)


def _progressed(world: World, event: ev.Progressed, at: float) -> None:
    job, incarnation = _step(world, event)
    _part(world, event, incarnation)
    observe(world, job, incarnation, event.step, at)
    changes: dict[str, Any] = {"step": event.step}
    if event.total is not None:
        changes["total"] = event.total
    if event.metric is not None and math.isfinite(event.metric):
        changes["accuracy"] = thinned((*job.accuracy, (event.step, event.metric)))
    if incarnation.ready_at is not None:
        incarnation = replace(incarnation, progressed_at=at, progressed_step=event.step)
    _put(world, job, incarnation, **changes)


def _saved(world: World, event: ev.Saved, at: float) -> None:
    job, incarnation = _step(world, event)
    _part(world, event, incarnation)
    saved = replace(incarnation, saved_step=event.step, saved_final=incarnation.saved_final or event.final)
    step = event.step if job.step is None else max(job.step, event.step)
    _put(world, job, saved, saved_step=event.step, step=step, last_save_s=event.seconds)


def _exited(world: World, event: ev.Exited, at: float) -> None:
    job, incarnation = _step(world, event)
    part = replace(
        _part(world, event, incarnation),
        exited=True,
        code=event.code,
        signal=event.signal,
        ended_by=event.ended_by,
        done=event.done,
        hint=event.hint,
        detail=event.detail,
        exited_at=at,
        # At the gate no GPU is held, so the end of the processes is all there is to wait for.
        freed=incarnation.placement is None,
    )
    incarnation = _put_part(incarnation, part)
    attached = incarnation.attached or event.attached
    _put(world, job, replace(incarnation, attached=attached), step=job.step if event.step is None else event.step)


def _gpus_freed(world: World, event: ev.GpusFreed, at: float) -> None:
    job, incarnation = _step(world, event)
    part = _part(world, event, incarnation)
    if not part.exited:
        raise _story(world, event, f"its processes on {event.node} have not exited")
    _release(world, (job.id, incarnation.number), incarnation, event.node)
    _put(world, job, _put_part(incarnation, replace(part, freed=True)))


def _noted(world: World, event: ev.Noted, at: float) -> None:
    _step(world, event)


def _incarnation_ended(world: World, event: ev.IncarnationEnded, at: float) -> None:
    job, incarnation = _step(world, event)
    live = tuple(inc for inc in job.live if inc.number != incarnation.number)
    if not live:
        world.live.pop(job.id, None)
    if incarnation.placement is None:
        # A warm start that failed, or that ended well without the gate having been opened: from here on cold starts.
        failed = event.cause in FAILURES or event.cause is Cause.DONE
        world.jobs[job.id] = replace(job, live=live, warm_failed=job.warm_failed or failed)
        return
    if event.cause is Cause.SUSPENDED:
        observe_save(world, job, incarnation, at)
    signature = event.signature
    failed = event.cause in FAILURES
    same = failed and signature == job.last_failure
    granted = incarnation.granted_at
    held_s = at - (incarnation.requested_at if granted is None else granted)
    world.jobs[job.id] = replace(
        job,
        live=live,
        held_gpu_s=job.held_gpu_s + max(0.0, held_s) * len(incarnation.placement.gpus),
        last=incarnation.placement,
        suspended=event.cause is Cause.SUSPENDED,
        suspends=job.suspends + (event.cause is Cause.SUSPENDED),
        failures=job.failures + failed,
        repeats=job.repeats + 1 if same else int(failed),
        last_failure=signature if failed else "",
        retries_used=job.retries_used + (event.cause is Cause.USER_ERROR),
        retry_at=event.retry_at,
        last_cause=event.cause,
        last_detail=event.detail,
        exit_code=event.code,
        step=event.step,
        final=event.final,
        final_detail=event.final_detail,
    )


def _node_joined(world: World, event: ev.NodeJoined, at: float) -> None:
    old = world.nodes.get(event.node)
    same_log = old is not None and old.log_id == event.log_id
    world.nodes[event.node] = Node(
        name=event.node,
        gpus=event.gpus,
        cpus=event.cpus,
        memory_mib=event.memory_mib,
        agent_pid=event.agent_pid,
        boot_id=event.boot_id,
        emulated=event.emulated,
        connected=True,
        since=at,
        log_id=event.log_id,
        reports_seen=old.reports_seen if old is not None and same_log else 0,
    )


def _known_node(world: World, event: ev.NodeEvent) -> Node:
    node = world.nodes.get(event.node)
    if node is None:
        raise _story(world, event, f"no such node {event.node}")
    return node


def _node_silent(world: World, event: ev.NodeSilent, at: float) -> None:
    world.nodes[event.node] = replace(_known_node(world, event), connected=False, reason=event.reason, since=at)


def _node_lost(world: World, event: ev.NodeLost, at: float) -> None:
    node = _known_node(world, event)
    world.nodes[event.node] = replace(node, connected=False, lost=True, reason=event.reason, since=at)
    for number in world.live:
        for incarnation in world.jobs[number].live:
            part = incarnation.part(event.node)
            if part is not None and not part.gone:
                _release(world, (number, incarnation.number), incarnation, event.node)
                # What has exited was not ended by the loss; only its GPUs went with the node.
                gone = replace(part, freed=True) if part.exited else replace(part, lost=True, detail=event.reason)
                _put(world, world.jobs[number], _put_part(incarnation, gone))


def _gpu_changed(world: World, event: ev.GpuChanged, at: float) -> None:
    node = _known_node(world, event)
    gpus = tuple(
        replace(gpu, state=event.state, detail=event.detail) if gpu.index == event.index else gpu for gpu in node.gpus
    )
    world.nodes[event.node] = replace(node, gpus=gpus)


def _reports_seen(world: World, event: ev.ReportsSeen, at: float) -> None:
    world.nodes[event.node] = replace(_known_node(world, event), reports_seen=event.number)


def _daemon_started(world: World, event: ev.DaemonStarted, at: float) -> None:
    if event.fence <= world.fence:
        raise _story(world, event, f"fence {event.fence} is not above {world.fence}")
    world.fence = event.fence
    world.stopping = world.stopping_now = False
    for name, node in world.nodes.items():
        if node.connected:
            world.nodes[name] = replace(node, connected=False, reason="the daemon restarted", since=at)


def _daemon_stopping(world: World, event: ev.DaemonStopping, at: float) -> None:
    world.stopping = True
    world.stopping_now = world.stopping_now or event.now


def _policy_chosen(world: World, event: ev.PolicyChosen, at: float) -> None:
    world.policy = event.policy


def _objective_chosen(world: World, event: ev.ObjectiveChosen, at: float) -> None:
    world.objective = event.objective


def _plan_adopted(world: World, event: ev.PlanAdopted, at: float) -> None:
    targets = dict(world.targets)
    for target in event.targets:
        if target.placement is None:
            targets.pop(target.job, None)
        else:
            targets[target.job] = target
    world.targets = targets
    world.warm = event.warm


def _trouble_seen(world: World, event: ev.TroubleSeen, at: float) -> None:
    """Told to people; changes nothing."""


EFFECTS: dict[type[ev.Event], Callable[[World, Any, float], None]] = {
    ev.JobSubmitted: _job_submitted,
    ev.JobHeld: _job_held,
    ev.JobReleased: _job_released,
    ev.CancelRequested: _cancel_requested,
    ev.JobEnded: _job_ended,
    ev.StartRequested: _start_requested,
    ev.OpenRequested: _open_requested,
    ev.SuspendRequested: _suspend_requested,
    ev.EndRequested: _end_requested,
    ev.RoleChanged: _role_changed,
    ev.Started: _started,
    ev.AtGate: _at_gate,
    ev.Attached: _attached,
    ev.TrainerReady: _trainer_ready,
    ev.Progressed: _progressed,
    ev.Saved: _saved,
    ev.Exited: _exited,
    ev.GpusFreed: _gpus_freed,
    ev.Noted: _noted,
    ev.IncarnationEnded: _incarnation_ended,
    ev.NodeJoined: _node_joined,
    ev.NodeSilent: _node_silent,
    ev.NodeLost: _node_lost,
    ev.GpuChanged: _gpu_changed,
    ev.ReportsSeen: _reports_seen,
    ev.DaemonStarted: _daemon_started,
    ev.DaemonStopping: _daemon_stopping,
    ev.PolicyChosen: _policy_chosen,
    ev.ObjectiveChosen: _objective_chosen,
    ev.PlanAdopted: _plan_adopted,
    ev.TroubleSeen: _trouble_seen,
}
"""What `fold` does for each kind of event: (world, event, at), raising IllegalEvent before anything is changed."""

_OF_JOBS = ("jobs",)
WRITES: dict[type[ev.Event], tuple[str, ...]] = dict.fromkeys(EFFECTS, _OF_JOBS) | {
    ev.JobSubmitted: ("jobs", "active", "request_ids", "awaited"),
    ev.JobEnded: ("jobs", "active"),
    ev.StartRequested: ("jobs", "holders", "live"),
    ev.OpenRequested: ("jobs", "holders"),
    ev.TrainerReady: ("jobs", "observed"),
    ev.Progressed: ("jobs", "observed"),
    ev.GpusFreed: ("jobs", "holders"),
    ev.Noted: (),
    ev.IncarnationEnded: ("jobs", "live", "observed"),
    ev.NodeJoined: ("nodes",),
    ev.NodeSilent: ("nodes",),
    ev.NodeLost: ("nodes", "jobs", "holders"),
    ev.GpuChanged: ("nodes",),
    ev.ReportsSeen: ("nodes",),
    ev.DaemonStarted: ("nodes",),
    ev.DaemonStopping: (),
    ev.PolicyChosen: (),
    ev.ObjectiveChosen: (),
    ev.PlanAdopted: (),
    ev.TroubleSeen: (),
}
"""The dicts of the world in which each kind of event replaces entries; it leaves the others alone."""
