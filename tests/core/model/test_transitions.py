"""The table of transitions: what is in it works, everything else raises with the job's story."""

from typing import Any

import pytest

from hpcdl.core.fold.effect import TRANSITIONS
from hpcdl.core.fold.fold import Draft, fold
from hpcdl.core.fold.incarnations import accepts
from hpcdl.core.model import events as ce
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, IncarnationState, Placement, Purpose, Role, Share, Throttle
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import IllegalEvent, state_of
from hpcdl.core.model.world import GpuInfo, JobState, World, validate
from hpcdl.core.rules.endings import Rules, conclusions
from tests.support.samples import sample

NODES = ("n1", "n2")
PLACEMENT = Placement((Share("n1", (0, 1)), Share("n2", (0, 1))))
SPEC = JobSpec(("train",), "j", gpus_min=2, gpus_max=2, nodes=2)

SAMPLES: dict[type[ev.Event], ev.Event] = {
    type(event): event
    for event in (
        ev.StartRequested(1, 2, NODES, None),
        ev.OpenRequested(1, 1, PLACEMENT),
        ev.PreemptRequested(1, 1),
        ce.JobStalled(1, 1, 100.0, "no step", 4),
        ce.StallOver(1, 1),
        ev.SuspendRequested(1, 1, Purpose.PREEMPT, 30.0),
        ev.EndRequested(1, 1, Cause.PREEMPTED, 5.0),
        ev.RoleChanged(1, 1, Role.SECONDARY),
        ev.JoinRequested(1, 1, Placement((Share("n3", (0, 1)),))),
        ev.RescaleRequested(1, 1, 2, ("n1",), ("n2",)),
        ev.LeaveRequested(1, 1, ("n2",)),
        ev.LeftBehind(1, 1, ("n2",)),
        ev.Started(1, 1, 1, "n1", pid=7),
        ev.AtGate(1, 1, 1, "n1"),
        ev.Attached(1, 1, 1, "n1"),
        ev.TrainerReady(1, 1, 1, "n1", step=3),
        ev.Reformed(1, 1, 1, "n1", step=3, seconds=0.5),
        ev.Broken(1, 1, 1, "n1", step=3, why="n2 does not answer"),
        ev.Progressed(1, 1, 1, "n1", step=4, total=9),
        ev.Saved(1, 1, 1, "n1", step=5, final=True),
        ev.Exited(1, 1, 1, "n1", code=0),
        ev.GpusFreed(1, 1, 1, "n1"),
        ev.CheckpointDamaged(1, 1, 1, "n1", step=20, path="/c/damaged-step", why="flipped"),
        ev.Noted(1, 1, 1, "n1", text="hm"),
        ev.Throttled(1, 1, 1, "n1", foreground=2, duty=0.3, limit=0.1, slowdown=0.07),
        ev.IncarnationEnded(1, 1, Cause.SUSPENDED, step=5),
    )
}
SAMPLES |= {kind: sample(kind, node="n1") for _, kind in TRANSITIONS if kind not in SAMPLES}  # those that need no more
STATES = tuple(IncarnationState)


def draft_with(*events: ev.Event) -> Draft:
    draft = Draft(World())
    gpus = tuple(GpuInfo(index, f"u{index}") for index in range(4))
    for event in (*(ev.NodeJoined(name, gpus, log_id=name) for name in NODES), ev.JobSubmitted(1, SPEC, "r"), *events):
        draft.add(event, 1.0)
    return draft


def in_state(state: IncarnationState) -> Draft:
    start = ev.StartRequested(1, 1, NODES, None if state is IncarnationState.GATED else PLACEMENT)
    more: list[ev.Event] = []
    if state is IncarnationState.SAVING:
        more.append(SAMPLES[ev.SuspendRequested])
    if state is IncarnationState.EXITED:
        for name in NODES:
            more += [ev.Exited(1, 1, 1, name, code=0), ev.GpusFreed(1, 1, 1, name)]
    return draft_with(start, *more)


def incarnation_of(draft: Draft) -> Any:
    return draft.world.jobs[1].live[0]


# A start makes a new incarnation (below); at the gate no GPU is held, so there is nothing to free.
ELSEWHERE = {(state, ev.StartRequested) for state in STATES} | {(IncarnationState.GATED, ev.GpusFreed)}


@pytest.mark.parametrize(
    ("state", "kind"), [(state, kind) for state in STATES for kind in SAMPLES if (state, kind) not in ELSEWHERE]
)
def test_every_pair(state: IncarnationState, kind: type[ev.Event]) -> None:
    draft = in_state(state)
    if kind is ev.LeftBehind and state in (IncarnationState.RUNNING, IncarnationState.SAVING):
        asked = [SAMPLES[ev.SuspendRequested]] if state is IncarnationState.SAVING else []
        draft = draft_with(ev.StartRequested(1, 1, NODES, PLACEMENT), SAMPLES[ev.LeaveRequested], *asked)
    if kind is ev.GpusFreed and state is not IncarnationState.EXITED:
        draft.add(SAMPLES[ev.Exited], 2.0)
    before = draft.world.jobs[1]
    after = TRANSITIONS.get((state, kind))
    if after is None:
        with pytest.raises(IllegalEvent, match=rf"{kind.__name__} after seq \d+: .*job 1 is .*last number 1"):
            draft.add(SAMPLES[kind], 3.0)
        assert draft.world.jobs[1] is before
        return
    draft.add(SAMPLES[kind], 3.0)
    if kind is ev.IncarnationEnded:
        assert draft.world.jobs[1].live == ()
    else:
        assert incarnation_of(draft).state is after
    validate(draft.world)


def test_every_event_is_applied_somewhere() -> None:
    assert {kind for _, kind in TRANSITIONS} == set(SAMPLES)


@pytest.mark.parametrize("kind", SAMPLES)
def test_unknown_job_and_incarnation(kind: type[ev.Event]) -> None:
    if kind is ev.StartRequested:
        kind = ev.Started
    with pytest.raises(IllegalEvent, match="attempt 1 does not live"):
        draft_with(SAMPLES[kind])
    with pytest.raises(IllegalEvent, match=r"no such job \(unknown job\)"):
        Draft(World()).add(SAMPLES[kind], 1.0)


def test_what_a_start_must_not_do() -> None:
    start = ev.StartRequested(1, 1, NODES, PLACEMENT)
    draft = draft_with(start)
    with pytest.raises(IllegalEvent, match="incarnation 1 is not a new one"):
        draft.add(ev.StartRequested(1, 1, NODES, None), 2.0)
    with pytest.raises(IllegalEvent, match="another incarnation is in its way"):
        draft.add(ev.StartRequested(1, 2, NODES, PLACEMENT), 2.0)
    draft.add(ev.StartRequested(1, 2, NODES, None), 2.0)
    with pytest.raises(IllegalEvent, match="another incarnation is in its way"):
        draft.add(ev.StartRequested(1, 3, NODES, None), 2.0)
    with pytest.raises(IllegalEvent, match="an older incarnation still holds GPUs"):
        draft.add(ev.OpenRequested(1, 2, PLACEMENT), 2.0)
    draft.add(ev.JobSubmitted(2, SPEC, "s"), 2.0)
    with pytest.raises(IllegalEvent, match=r"GPU n1:0 is held by job 1\.1"):
        draft.add(ev.StartRequested(2, 1, NODES, PLACEMENT), 2.0)
    validate(draft.world)


def test_a_gate_with_a_part_gone_is_not_opened() -> None:
    draft = draft_with(ev.StartRequested(1, 1, NODES, None), ev.Exited(1, 1, 1, "n2", code=1))
    with pytest.raises(IllegalEvent, match="a part of it is gone"):
        draft.add(ev.OpenRequested(1, 1, PLACEMENT), 2.0)


def test_gpus_are_not_freed_before_the_exit() -> None:
    draft = in_state(IncarnationState.RUNNING)
    with pytest.raises(IllegalEvent, match="its processes on n1 have not exited"):
        draft.add(SAMPLES[ev.GpusFreed], 2.0)
    with pytest.raises(IllegalEvent, match="it has no part on n9"):
        draft.add(ev.Started(1, 1, 1, "n9"), 2.0)


def test_gpus_are_released_node_by_node() -> None:
    draft = in_state(IncarnationState.SAVING)
    draft.add(ev.Exited(1, 1, 1, "n1", code=0), 2.0)
    assert len(draft.world.holders) == 4
    draft.add(ev.GpusFreed(1, 1, 1, "n1"), 2.0)
    assert {gpu.node for gpu in draft.world.holders} == {"n2"}
    draft.add(ev.Exited(1, 1, 1, "n2", code=0), 2.0)
    assert incarnation_of(draft).state is IncarnationState.SAVING
    draft.add(ev.GpusFreed(1, 1, 1, "n2"), 2.0)
    assert incarnation_of(draft).state is IncarnationState.EXITED
    validate(draft.world)


def test_a_lost_node_does_not_change_how_its_parts_had_ended() -> None:
    draft = in_state(IncarnationState.RUNNING)
    for name in NODES:
        draft.add(ev.Exited(1, 1, 1, name, code=0, attached=True), 2.0)
    draft.add(ev.GpusFreed(1, 1, 1, "n1"), 2.0)
    draft.add(ev.NodeLost("n1", "gone"), 2.0)
    draft.add(ev.NodeLost("n2", "gone"), 2.0)
    (ended,) = conclusions(draft.world, [1], 3.0, Rules())
    assert isinstance(ended, ev.IncarnationEnded)
    assert ended.cause is Cause.DONE
    assert draft.world.holders == {}


def test_the_end_of_the_last_part_and_a_lost_node_in_one_batch() -> None:
    draft = in_state(IncarnationState.EXITED)
    draft.add(ev.NodeLost("n2", "gone"), 2.0)
    assert not any(part.lost for part in incarnation_of(draft).parts)


def test_only_a_failure_of_its_own_spoils_warm_starts() -> None:
    for code, spoilt in ((1, True), (0, True), (None, False)):
        draft = draft_with(ev.StartRequested(1, 1, NODES, None))
        for name in NODES:
            draft.add(ev.NodeLost(name, "x") if code is None else ev.Exited(1, 1, 1, name, code=code), 2.0)
        for event in conclusions(draft.world, [1], 3.0, Rules()):
            draft.add(event, 3.0)
        assert draft.world.jobs[1].warm_failed is spoilt
        assert draft.world.jobs[1].failures.total == 0


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((), JobState.QUEUED),
        ((ev.JobHeld(1),), JobState.QUEUED),
        ((ev.StartRequested(1, 1, NODES, None),), JobState.QUEUED),
        ((ev.StartRequested(1, 1, NODES, PLACEMENT),), JobState.STARTING),
        (
            (ev.StartRequested(1, 1, NODES, PLACEMENT), ev.Started(1, 1, 1, "n1"), ev.Started(1, 1, 1, "n2")),
            JobState.RUNNING,
        ),
        (
            (ev.StartRequested(1, 1, NODES, PLACEMENT), ev.SuspendRequested(1, 1, Purpose.RESCALE, 1)),
            JobState.RESCALING,
        ),
        ((ev.StartRequested(1, 1, NODES, PLACEMENT), ev.SuspendRequested(1, 1, Purpose.HOLD, 1)), JobState.SUSPENDING),
        ((ev.JobEnded(1, JobState.CANCELLED),), JobState.CANCELLED),
    ],
)
def test_states_for_users(events: tuple[ev.Event, ...], state: JobState) -> None:
    assert state_of(draft_with(*events).world.jobs[1]) is state


def test_finished_jobs_take_no_more() -> None:
    draft = draft_with(ev.JobEnded(1, JobState.DONE))
    for event in (ev.JobHeld(1), ev.JobReleased(1), ev.CancelRequested(1), ev.JobEnded(1, JobState.DONE)):
        with pytest.raises(IllegalEvent, match="it is finished"):
            draft.add(event, 2.0)
    with pytest.raises(IllegalEvent, match="that job exists"):
        draft.add(ev.JobSubmitted(1, SPEC, "r"), 2.0)


def test_a_job_with_a_live_incarnation_does_not_end() -> None:
    with pytest.raises(IllegalEvent, match="an incarnation still lives"):
        draft_with(ev.StartRequested(1, 1, NODES, None), ev.JobEnded(1, JobState.DONE))


def test_stale_and_repeated_reports_are_not_accepted() -> None:
    draft = in_state(IncarnationState.RUNNING)
    world = draft.world
    assert accepts(world, ev.Started(1, 1, 1, "n1"))
    assert not accepts(world, ev.Started(1, 2, 1, "n1"))  # no such incarnation
    assert not accepts(world, ev.Started(2, 1, 1, "n1"))  # no such job
    assert not accepts(world, ev.Started(1, 1, 2, "n1"))  # another membership
    assert not accepts(world, ev.Started(1, 1, 1, "n9"))
    assert not accepts(world, ev.GpusFreed(1, 1, 1, "n1"))
    draft.add(ev.Started(1, 1, 1, "n1"), 2.0)
    draft.add(ev.Exited(1, 1, 1, "n1", code=0), 2.0)
    assert not accepts(world, ev.Started(1, 1, 1, "n1"))
    assert not accepts(world, ev.Exited(1, 1, 1, "n1", code=1))
    draft.add(ev.NodeLost("n2", "gone"), 2.0)
    assert not accepts(world, ev.Exited(1, 1, 1, "n2", code=0))


def test_fold_leaves_the_world_it_was_given() -> None:
    draft = in_state(IncarnationState.RUNNING)
    records = [ev.Recorded(seq, at, 1, event) for seq, (at, event) in enumerate(draft.events, 1)]
    world = fold(World(), records[:3])
    copy = fold(World(), records[:3])
    assert fold(world, records[3:]) == draft.world
    assert world == copy


def test_a_daemon_starts_anew_with_a_higher_fence() -> None:
    draft = draft_with(ev.DaemonStarted(3, "0", 1, "h"), ev.DaemonStopping(now=True))
    assert (draft.world.stopping, draft.world.stopping_now) == (True, True)
    with pytest.raises(IllegalEvent, match="fence 3 is not above 3"):
        draft.add(ev.DaemonStarted(3, "0", 1, "h"), 2.0)
    draft.add(ev.NodeJoined("n1", ()), 5.0)
    draft.add(ev.DaemonStarted(4, "0", 1, "h"), 9.0)
    assert (draft.world.stopping, draft.world.stopping_now) == (False, False)
    assert [(node.connected, node.since) for node in draft.world.nodes.values()] == [(False, 9.0), (False, 1.0)]


def test_validate_finds_contradictions() -> None:
    held = in_state(IncarnationState.RUNNING).world
    del held.holders[PLACEMENT.gpus[0]]
    with pytest.raises(ValueError, match="holders are"):
        validate(held)
    dead = draft_with().world
    del dead.active[1]
    with pytest.raises(ValueError, match="job 1: finished is False"):
        validate(dead)


def test_a_throttle_is_noted_and_ends_with_its_foreground() -> None:
    draft = draft_with(ev.StartRequested(1, 1, NODES, PLACEMENT))
    draft.add(SAMPLES[ev.Throttled], 1.0)
    assert incarnation_of(draft).throttle == Throttle(2, 0.3, 0.1, 0.07)
    draft.add(ev.Throttled(1, 1, 1, "n1"), 2.0)
    assert incarnation_of(draft).throttle is None
