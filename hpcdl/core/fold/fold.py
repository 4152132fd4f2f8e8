"""What each event does to the world; only `lifecycle` calls it. `transitions` has the one table of what is legal.

A function here may replace entries of the world's outer dicts, which are a draft's own; the values inside are frozen.
"""

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdl.core.fold import incarnations as ms
from hpcdl.core.fold import jobs as sb
from hpcdl.core.fold import nodes
from hpcdl.core.fold import nodes as care
from hpcdl.core.fold import nodes as nd
from hpcdl.core.fold import notices as no
from hpcdl.core.fold import observations as ob
from hpcdl.core.fold import pilots as pl
from hpcdl.core.fold.jobs import deadline_foreseen, deadline_slipped, jobs_retired
from hpcdl.core.fold.write import (
    free_gpus,
    gpu_s,
    grant_gpus,
    jobs_on,
    part_of,
    put,
    put_part,
    put_without_gone_parts,
    step_of,
    story,
)
from hpcdl.core.model import events as ce
from hpcdl.core.model import events as de
from hpcdl.core.model import events as ev
from hpcdl.core.model import events as ne
from hpcdl.core.model import events as pe
from hpcdl.core.model import events as rt
from hpcdl.core.model.events import IdsRaised
from hpcdl.core.model.frozen import changed
from hpcdl.core.model.job import Cause, Incarnation, IncarnationState
from hpcdl.core.model.transitions import FAILURES
from hpcdl.core.model.world import World


def _start_requested(world: World, event: ev.StartRequested, at: float) -> None:
    job = sb.unfinished(world, event)
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
        parts=ms.first_parts(job, event.nodes, event.placement),
        placement=event.placement,
        membership=1 if job.spec.rescale == "restart" or not placed else 0,
        warm=not placed,
        requested_at=at,
        granted_at=at if placed else None,
    )
    world.live[event.job] = None
    world.jobs[job.id] = changed(
        job,
        live=(*job.live, incarnation),
        last_incarnation=event.incarnation,
        first_start_at=at if placed and job.first_start_at is None else job.first_start_at,
    )


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


def _preempt_requested(world: World, event: ev.PreemptRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, changed(incarnation, preempt=True))


def _suspend_requested(world: World, event: ev.SuspendRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    put(world, job, changed(incarnation, purpose=event.purpose, asked_at=at))


def _end_requested(world: World, event: ev.EndRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if incarnation.ending is Cause.CANCELLED:
        raise story(world, event, "it is being cancelled")
    put(world, job, changed(incarnation, ending=event.cause, ending_detail=event.detail, asked_at=at))


def _join_requested(world: World, event: ev.JoinRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if any(part.node in event.placement.nodes for part in incarnation.parts):
        raise story(world, event, "it has a part there already")
    grant_gpus(world, event, event.placement)
    put_without_gone_parts(world, job, ms.joined(incarnation, event.placement, at), at)


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


def _leave_requested(world: World, event: ev.LeaveRequested, at: float) -> None:
    job, incarnation = step_of(world, event)
    if not {part.node for part in (*incarnation.joining, *incarnation.newcomers)}.issuperset(event.nodes):
        raise story(world, event, f"{'+'.join(event.nodes)} is not about to join")
    put_without_gone_parts(world, job, ms.left(incarnation, event.nodes), at)


def _left_behind(world: World, event: ev.LeftBehind, at: float) -> None:
    job, incarnation = step_of(world, event)
    for node in event.nodes:
        part = incarnation.part(node)
        if part is None or part.gone or not part.leaving:
            raise story(world, event, f"its part on {node} is not one that is to leave")
        free_gpus(world, (job.id, incarnation.number), part)
        incarnation = put_part(incarnation, changed(part, lost=True, detail="its agent is silent"))
    put_without_gone_parts(world, job, incarnation, at)


def _role_changed(world: World, event: ev.RoleChanged, at: float) -> None:
    job, incarnation = step_of(world, event)
    if incarnation.placement is not None:
        put(world, job, changed(incarnation, placement=replace(incarnation.placement, role=event.role)))


def _started(world: World, event: ev.Started, at: float) -> None:
    job, incarnation = step_of(world, event)
    incarnation = put_part(incarnation, changed(part_of(world, event, incarnation), started=True))
    if incarnation.started_at is None and all(part.started for part in incarnation.parts):
        incarnation = changed(incarnation, started_at=at)
    put(world, job, incarnation)


def _at_gate(world: World, event: ev.AtGate, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = part_of(world, event, incarnation)
    if not part.at_gate and incarnation.ready_at is not None:
        ob.observe_join(world, job, part, at)
    gate_at = part.gate_at if part.at_gate else at
    part = changed(part, started=True, at_gate=True, gate_at=gate_at, address=event.address)
    put(world, job, put_part(incarnation, part))


def _attached(world: World, event: ev.Attached, at: float) -> None:
    job, incarnation = step_of(world, event)
    part_of(world, event, incarnation)
    put(world, job, changed(incarnation, attached=True), can_suspend=True)


def _trainer_ready(world: World, event: ev.TrainerReady, at: float) -> None:
    job, incarnation = step_of(world, event)
    part_of(world, event, incarnation)
    if incarnation.ready_at is None:
        ob.observe_start(world, job, incarnation, at)
        step = event.step
        incarnation = changed(incarnation, ready_at=at, ready_step=step, progressed_at=at, progressed_step=step)
    incarnation = ob.began(incarnation, at)
    put(world, job, incarnation, step=event.step, startup_s=incarnation.startup_s)


def _reformed(world: World, event: ev.Reformed, at: float) -> None:
    job, incarnation = step_of(world, event)
    if incarnation.ready_at is None:
        ob.observe_start(world, job, incarnation, at)
        incarnation = changed(incarnation, ready_at=at, ready_step=event.step)
    else:
        ob.observe_rescale(world, job, incarnation, event.seconds)
        incarnation = ob.reformed(incarnation, event.seconds, at)
    # Its rates are another matter from here on.
    incarnation = changed(
        ob.began(incarnation, at),
        formed=incarnation.members,
        rescale_at=None,
        broken_at=None,
        progressed_at=at,
        progressed_step=event.step,
        join_failures=0,
    )
    put(world, job, incarnation, step=event.step, startup_s=incarnation.startup_s)


def _broken(world: World, event: ev.Broken, at: float) -> None:
    job, incarnation = step_of(world, event)
    if incarnation.broken_at is None:
        put(world, job, changed(incarnation, broken_at=at))


def _progressed(world: World, event: ev.Progressed, at: float) -> None:
    job, incarnation = step_of(world, event)
    part_of(world, event, incarnation)
    ob.observe(world, job, incarnation, event.step, at)
    changes: dict[str, Any] = {"step": event.step}
    if event.total is not None:
        changes["total"] = event.total
    if event.metric is not None and math.isfinite(event.metric):
        changes["accuracy"] = ob.thinned((*job.accuracy, (event.step, event.metric)))
    if incarnation.ready_at is not None:
        breaks = incarnation.breaks if event.step <= incarnation.progressed_step else 0
        incarnation = changed(incarnation, progressed_at=at, progressed_step=event.step, breaks=breaks)
    elif incarnation.begun_at is None:
        incarnation = ob.began(incarnation, at)
        changes["startup_s"] = incarnation.startup_s
    put(world, job, incarnation, **changes)


def _saved(world: World, event: ev.Saved, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = part_of(world, event, incarnation)
    # The writer of an older membership may be heard late: what it saved is there, but the others have gone on.
    saved = event.step if incarnation.saved_step is None else max(incarnation.saved_step, event.step)
    final = incarnation.saved_final or (event.final and not part.leaving)
    step = job.step if part.leaving else saved if job.step is None else max(job.step, event.step)
    incarnation = changed(incarnation, saved_step=saved, saved_final=final)
    put(world, job, incarnation, saved_step=saved, step=step, last_save_s=event.seconds)


def _exited(world: World, event: ev.Exited, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = changed(
        part_of(world, event, incarnation),
        exited=True,
        code=event.code,
        signal=event.signal,
        ended_by=event.ended_by,
        done=event.done,
        hint=event.hint,
        detail=event.detail,
        repeats=event.repeats,
        kept=event.kept,
        older=event.older,
        exited_at=at,
        # At the gate no GPU is held, so the end of the processes is all there is to wait for.
        freed=incarnation.placement is None,
    )
    incarnation = put_part(incarnation, part)
    trained = not incarnation.members or part.node in incarnation.members
    step = event.step if event.step is not None and trained and not part.leaving else job.step
    if event.attached and not incarnation.attached:
        incarnation = changed(incarnation, attached=True)
    put_without_gone_parts(world, job, incarnation, at, step=step)


def _gpus_freed(world: World, event: ev.GpusFreed, at: float) -> None:
    job, incarnation = step_of(world, event)
    part = part_of(world, event, incarnation)
    if not part.exited:
        raise story(world, event, f"its processes on {event.node} have not exited")
    free_gpus(world, (job.id, incarnation.number), part)
    put_without_gone_parts(world, job, put_part(incarnation, changed(part, freed=True)), at)


def _noted(world: World, event: ev.Noted | ev.CheckpointDamaged, at: float) -> None:
    step_of(world, event)


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
    if event.cause is Cause.SUSPENDED:
        ob.observe_save(world, job, incarnation, at)
    care.note_ending(world, job.id, incarnation, event.cause, at)
    failed = event.cause in FAILURES
    same = failed and event.signature == job.last_failure
    world.jobs[job.id] = changed(
        job,
        live=live,
        held_gpu_s=job.held_gpu_s + gpu_s(incarnation, at),
        last=incarnation.placement,
        suspended=event.cause is Cause.SUSPENDED,
        suspends=job.suspends + (event.cause is Cause.SUSPENDED),
        failures=job.failures + failed,
        repeats=job.repeats + 1 if same else int(failed),
        last_failure=event.signature if failed else "",
        retries_used=job.retries_used + (event.cause is Cause.USER_ERROR),
        retry_at=event.retry_at,
        last_cause=event.cause,
        last_detail=event.detail,
        exit_code=event.code,
        step=event.step,
        final=event.final,
        final_detail=event.final_detail,
    )


EFFECTS: dict[type[ev.Event], Callable[[World, Any, float], None]] = {
    ev.JobSubmitted: sb.job_submitted,
    ev.ArraySubmitted: sb.array_submitted,
    ev.JobRetried: sb.job_retried,
    ev.JobHeld: sb.job_held,
    ev.JobReleased: sb.job_released,
    ev.CancelRequested: sb.cancel_requested,
    ev.JobDrilled: sb.job_drilled,
    ev.JobEnded: sb.job_ended,
    ev.StartRequested: _start_requested,
    ev.OpenRequested: _open_requested,
    ev.PreemptRequested: _preempt_requested,
    ev.SuspendRequested: _suspend_requested,
    ev.EndRequested: _end_requested,
    ev.RoleChanged: _role_changed,
    ev.JoinRequested: _join_requested,
    ev.RescaleRequested: _rescale_requested,
    ev.LeaveRequested: _leave_requested,
    ev.LeftBehind: _left_behind,
    ev.Started: _started,
    ev.AtGate: _at_gate,
    ev.Attached: _attached,
    ev.TrainerReady: _trainer_ready,
    ev.Reformed: _reformed,
    ev.Broken: _broken,
    ev.Progressed: _progressed,
    ev.Saved: _saved,
    ev.Exited: _exited,
    ev.GpusFreed: _gpus_freed,
    ev.CheckpointDamaged: _noted,
    ev.Noted: _noted,
    ev.IncarnationEnded: _incarnation_ended,
    ev.NodeJoined: nd.node_joined,
    ev.NodeSilent: nd.node_silent,
    ev.NodeLost: nd.node_lost,
    ev.NodeLeaves: nd.node_leaves,
    ev.GpuChanged: nd.gpu_changed,
    ev.ReportsSeen: nd.reports_seen,
    ev.DaemonStarted: nd.daemon_started,
    ev.DaemonStopping: nd.daemon_stopping,
    ev.PolicyChosen: nd.policy_chosen,
    ev.ObjectiveChosen: nd.objective_chosen,
    ev.PlanAdopted: nd.plan_adopted,
    ev.TroubleSeen: nd.trouble_seen,
    pe.PilotRequested: pl.pilot_requested,
    pe.PilotSubmitted: pl.pilot_submitted,
    pe.PilotRefused: pl.pilot_refused,
    pe.PilotSeen: pl.pilot_seen,
    pe.PilotCancelRequested: pl.pilot_cancel_requested,
    pe.PilotEnded: pl.pilot_ended,
    pe.PilotFound: pl.pilot_found,
    ce.JobStalled: care.job_stalled,
    ce.StallOver: care.stall_over,
    ce.GpuFaulted: care.gpu_faulted,
    ce.GpuAvoided: care.gpu_avoided,
    ce.AvoidLifted: care.avoid_lifted,
    de.DeadlineForeseen: deadline_foreseen,
    de.DeadlineSlipped: deadline_slipped,
    ne.NoticeDue: no.notice_due,
    ne.NoticesSent: no.notices_sent,
    ne.NoticesFailed: no.notices_failed,
    ne.NoticesGivenUp: no.notices_given_up,
    ne.NoticesRetried: no.notices_retried,
    ne.NoticeDropped: no.notice_dropped,
    rt.JobsRetired: jobs_retired,
    IdsRaised: nodes.ids_raised,
}
"""What `fold` does for each kind of event: (world, event, at), raising IllegalEvent before anything is changed."""

WRITES: dict[type[ev.Event], tuple[str, ...]] = dict.fromkeys(EFFECTS, ("jobs",)) | {
    ev.JobSubmitted: ("jobs", "active", "request_ids", "awaited"),
    ev.ArraySubmitted: ("jobs", "active", "request_ids", "awaited"),
    ev.JobRetried: ("jobs", "active", "awaited"),
    ev.JobEnded: ("jobs", "active"),
    ev.StartRequested: ("jobs", "holders", "live"),
    ev.OpenRequested: ("jobs", "holders"),
    ev.JoinRequested: ("jobs", "holders"),
    ev.LeftBehind: ("jobs", "holders"),
    ev.AtGate: ("jobs", "observed"),
    ev.Reformed: ("jobs", "observed"),
    ev.TrainerReady: ("jobs", "observed"),
    ev.Progressed: ("jobs", "observed"),
    ev.GpusFreed: ("jobs", "holders"),
    ev.CheckpointDamaged: (),
    ev.Noted: (),
    ev.IncarnationEnded: ("jobs", "live", "observed", "nodes"),
    ev.NodeJoined: ("nodes",),
    ev.NodeSilent: ("nodes",),
    ev.NodeLost: ("nodes", "jobs", "holders"),
    ev.NodeLeaves: ("nodes",),
    ev.GpuChanged: ("nodes",),
    ev.ReportsSeen: ("nodes",),
    ev.DaemonStarted: ("nodes",),
    **dict.fromkeys((ev.DaemonStopping, ev.PolicyChosen, ev.ObjectiveChosen, ev.PlanAdopted, ev.TroubleSeen), ()),
    ce.GpuFaulted: (),
    ce.GpuAvoided: ("nodes",),
    ce.AvoidLifted: ("nodes",),
    **dict.fromkeys(de.DEADLINE_EVENTS, ("jobs",)),
    **dict.fromkeys(pe.PILOT_EVENTS, ("pilots",)),
    **dict.fromkeys(ne.NOTICE_EVENTS, ("notices", "routes")),
    rt.JobsRetired: ("jobs", "awaited"),
    IdsRaised: (),
}
"""The dicts of the world in which each kind of event replaces entries; it leaves the others alone."""

# `fold`: the only way in which the world changes, live, on restart and in tests.
#
# `effects` says what each event does, `transitions` when it may. The world is pure at its border: the outer dicts
# that
# events write to are copied first, and the frozen values inside are replaced.

_OF_ANY = (ev.DaemonStarted, ev.DaemonStopping)

_OF_THEIR_JOBS = (ev.NodeJoined, ev.NodeSilent, ev.NodeLost, ev.NodeLeaves, ce.GpuAvoided, ce.AvoidLifted)

_DICTS = (
    "jobs", "active", "nodes", "holders", "request_ids", "observed", "live", "awaited", "pilots", "notices", "routes",
)  # fmt: skip


@dataclass(slots=True)
class ChangeSet:
    """What events were about: `jobs` by id, `nodes` that came, went or changed, by name; None where it may be any."""

    jobs: set[int] | None = field(default_factory=set)
    nodes: set[str] | None = field(default_factory=set)

    def add(self, event: ev.Event, near: Iterable[int] = ()) -> None:
        """Notes what an event is about. `near`: the jobs that have to do with the node that it is about."""
        if isinstance(event, ev.JobEvent):
            if self.jobs is not None:
                self.jobs.update(event.members if isinstance(event, ev.ArraySubmitted) else (event.job,))
        elif isinstance(event, ev.PlanAdopted):
            if self.jobs is not None:
                self.jobs.update([target.job for target in event.targets])
        elif isinstance(event, ev.NodeEvent):
            if self.nodes is not None and not isinstance(event, ev.ReportsSeen):
                self.nodes.add(event.node)
            if self.jobs is not None:
                self.jobs.update(near)
        elif isinstance(event, _OF_ANY):
            self.jobs = self.nodes = None

    def merge(self, other: "ChangeSet") -> None:
        """Notes what others were about."""
        self.jobs = None if self.jobs is None or other.jobs is None else self.jobs | other.jobs
        self.nodes = None if self.nodes is None or other.nodes is None else self.nodes | other.nodes


def _jobs_near(world: World, node: str) -> list[int]:
    """Those that live and have a part there, or are to have one."""
    found = jobs_on(world, node)
    for number in world.live:
        target = world.targets.get(number)
        if target is not None and target.placement is not None and node in target.placement.nodes:
            found.append(number)
    return found


class Draft:
    """A world that events are being added to, before they are recorded. Thrown away when recording fails."""

    def __init__(self, world: World) -> None:
        """Shares everything with `world` until an event writes to it."""
        self.world = copy(world)
        self.events: list[tuple[float, ev.Event]] = []
        self.touched = ChangeSet()
        self._shared = set(_DICTS)

    def add(self, event: ev.Event, at: float) -> Iterable[int]:
        """Applies one event as the next in the journal. Raises IllegalEvent and changes nothing.

        Of what happens to a node, returns the jobs that had something there, or were to have.
        """
        kind = type(event)
        for name in WRITES[kind]:
            if name in self._shared:
                self._shared.remove(name)
                setattr(self.world, name, dict(getattr(self.world, name)))
        near = _jobs_near(self.world, event.node) if isinstance(event, _OF_THEIR_JOBS) else ()
        EFFECTS[kind](self.world, event, at)
        self.world.seq += 1
        self.world.at = max(self.world.at, at)
        self.events.append((at, event))
        self.touched.add(event, near)
        return near


def copied(world: World) -> World:
    """A world of its own: what is done to it does not show in `world`."""
    own = copy(world)
    for name in _DICTS:
        setattr(own, name, dict(getattr(world, name)))
    return own


def fold(world: World, records: Iterable[ev.Recorded]) -> World:
    """The world after these records, in order. `world` is left as it was. Raises IllegalEvent."""
    folded = copied(world)
    for record in records:
        EFFECTS[type(record.event)](folded, record.event, record.at)
        folded.seq = record.seq
        folded.at = max(folded.at, record.at)
    return folded
