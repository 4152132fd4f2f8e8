"""Stories of rescales in place: nodes join, leave, slip away, and come back."""

import pytest

from hpcdl.core.controller.reconcile import (
    BROKEN_PATIENCE_S,
    JOIN_PATIENCE_S,
    MOST_BREAKS,
    MOST_JOIN_FAILURES,
    SWAP_PATIENCE_S,
)
from hpcdl.core.fold.incarnations import accepts
from hpcdl.core.fold.observations import observations_of
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, IncarnationState, Purpose
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import JobState
from hpcdl.estimators.scaling import learner
from tests.support.stage import Stage, Unmoved, running


def test_nodes_join_and_leave_without_a_suspend() -> None:
    stage = running(4, "12")
    stage.want(j1="1234")
    assert state_of(stage.job(1)) is JobState.RUNNING  # it trains on while they start
    assert [share.node for share in stage.job(1).running.placement.shares] == ["n1", "n2", "n3", "n4"]
    stage.until_trains(1, "1234")
    stage.want(j1="24")
    assert state_of(stage.job(1)) is JobState.RESCALING
    stage.until_trains(1, "24")
    assert stage.job(1).running.writer == "n2"
    stage.run(5.0)
    assert {gpu.node for gpu in stage.world.holders} == {"n2", "n4"}
    stage.finish()
    job = stage.job(1)
    assert (job.outcome, job.last_incarnation, job.suspends, job.failures.total) == (JobState.DONE, 1, 0, 0)
    assert [event.membership for event in stage.told(ev.Reformed)] == [1, 2, 3]


def test_a_lost_node_is_left_out_at_once() -> None:
    stage = running(3, "123")
    stage.crash_node("n3")
    stage.send(cmd.NodeGone("n3", "the batch job ended"))
    assert [event.members for event in stage.told(ev.RescaleRequested)][-1] == ("n1", "n2")
    stage.until_trains(1, "12")
    stage.finish()
    assert (stage.job(1).last_incarnation, stage.job(1).suspends) == (1, 0)


def test_too_few_that_are_left_save_what_they_have() -> None:
    stage = running(3, "12", nodes=2)
    stage.run(20.0)
    stage.kill(1)
    stage.run_until(lambda: stage.job(1).suspends == 1, within_s=60.0)
    step = stage.job(1).progress.saved_step
    assert step > 0
    stage.until_trains(1, "12")
    assert stage.job(1).running.progress.ready_step == step
    stage.finish()
    assert (stage.job(1).outcome, stage.job(1).failures.total) == (JobState.DONE, 0)


def test_the_others_start_without_a_node_that_is_gone() -> None:
    stage = Stage(3)
    stage.start("123")
    stage.crash_node("n2")
    stage.send(cmd.NodeGone("n2", "gone"))
    stage.until_trains(1, "13")
    stage.finish()
    assert stage.job(1).last_incarnation == 1


def test_joiners_that_are_not_wanted_any_more_leave_and_may_come_again() -> None:
    stage = running(3, "1")
    stage.want(j1="123")
    stage.run(0.5)
    stage.want(j1="1")
    assert [event.nodes for event in stage.told(ev.LeaveRequested)] == [("n2", "n3")]
    stage.want(j1="12")
    assert len(stage.told(ev.JoinRequested)) == 1  # their GPUs are not free yet
    stage.until_trains(1, "12")
    assert [part.since for part in stage.job(1).running.parts] == [1, 3]  # of a part that was there nobody had that
    stage.finish()
    assert len(stage.told(ev.RescaleRequested)) == 2


def test_a_late_end_of_an_earlier_part_is_not_that_of_the_next() -> None:
    stage = running(2, "1")
    stage.want(j1="12")
    stage.disconnect("n2")
    stage.send(cmd.NodeGone("n2", "it was thought"))
    stage.connect("n2")
    stage.run(0.01)
    part = stage.job(1).running.part("n2")
    assert part.since == 3
    assert not accepts(stage.world, ev.Exited(1, 1, 2, "n2", code=1))
    stage.until_trains(1, "12")
    stage.finish()


def test_who_is_ready_waits_for_others_a_while() -> None:
    stage = running(3, "1")
    stage.want(j1="123")
    stage.run_until(lambda: (1, 1, "n3") in stage.elastic.bodies)
    stage.elastic.bodies[1, 1, "n3"].alive = False  # it hangs
    stage.run_until(lambda: stage.job(1).running.part("n2").at_gate)
    ready_at = stage.now
    stage.run(JOIN_PATIENCE_S - 0.1)
    assert stage.job(1).running.membership == 1
    stage.until_trains(1, "12")
    assert stage.now - ready_at >= JOIN_PATIENCE_S
    assert stage.job(1).running.part("n3").stays


def test_ranks_that_lost_each_other_meet_again() -> None:
    stage = running(2, "12")
    stage.run(20.0)
    stage.elastic.hang(1)
    stage.run_until(lambda: stage.job(1).running.broken_at is not None)
    broken_at = stage.now
    stage.run_until(lambda: stage.job(1).running.membership == 2)
    assert stage.now == pytest.approx(broken_at + BROKEN_PATIENCE_S)
    stage.until_trains(1, "12")
    assert stage.job(1).running.breaks == 1
    stage.run(20.0)
    assert stage.job(1).running.breaks == 0  # it has got on
    stage.finish()


@pytest.mark.parametrize("trained", [True, False])
def test_ranks_that_never_meet_start_afresh(trained: bool) -> None:
    stage = running(2, "12")
    stage.run(20.0 if trained else 0.0)
    for _ in range(MOST_BREAKS + 1):
        stage.run_until(lambda: stage.trains(1, "12") or not stage.job(1).live)
        stage.elastic.hang(1)
        stage.run_until(lambda: stage.job(1).running.broken_at is not None)
    stage.run_until(lambda: stage.job(1).last.cause is not None, within_s=60.0)
    assert stage.job(1).last.cause is (Cause.SUSPENDED if trained else Cause.INFRASTRUCTURE)
    stage.finish()
    assert (stage.job(1).outcome, stage.job(1).last_incarnation) == (JobState.DONE, 2)


def test_after_too_many_that_never_joined_it_is_suspended_and_resumed() -> None:
    stage = running(2, "1")
    stage.run(10.0)
    stage.elastic.dies_joining[1] = 100
    stage.want(j1="12")
    stage.run_until(lambda: stage.job(1).suspends == 1, within_s=200.0)
    assert len(stage.told(ev.JoinRequested)) == MOST_JOIN_FAILURES
    stage.until_trains(1, "12")
    stage.finish()
    assert (stage.job(1).failures.total, stage.job(1).last_incarnation) == (0, 2)


def test_nobody_joins_on_gpus_that_are_not_free() -> None:
    stage = Stage(2)
    stage.start("1")
    stage.start("2", rescale="restart", nodes_max=None)
    stage.until_trains(1, "1")
    stage.want(j1="12", j2="")
    freed = stage.told(ev.GpusFreed)
    assert (freed, stage.told(ev.JoinRequested)) == ([], [])
    stage.until_trains(1, "12")
    kinds = [event.kind for event in stage.told(ev.GpusFreed, ev.JoinRequested)]
    assert kinds == ["GpusFreed", "JoinRequested"]


@pytest.mark.parametrize("least", [1, 2])
def test_two_jobs_swap_nodes(least: int) -> None:
    stage = Stage(4)
    stage.start("12", nodes=least)
    stage.start("34", nodes=least)
    stage.until_trains(1, "12")
    stage.until_trains(2, "34")
    stage.want(j1="13", j2="24")
    stage.run_until(lambda: stage.trains(1, "13") and (stage.trains(2, "42") or stage.trains(2, "24")), within_s=60.0)
    # Where neither can do with fewer nodes in between, they have to be suspended.
    assert [stage.job(number).suspends for number in (1, 2)] == ([0, 0] if least == 1 else [1, 1])
    stage.finish()


def test_a_node_is_given_back_only_when_another_has_joined_where_it_is_needed() -> None:
    stage = running(3, "12", nodes=2, steps=10_000)
    stage.want(j1="13")
    assert stage.trains(1, "12")
    stage.until_trains(1, "13")
    assert [event.members for event in stage.told(ev.RescaleRequested)] == [("n1", "n2"), ("n1", "n3")]
    stage.want(j1="12")  # its own ranks are still about to leave that node
    stage.run_until(lambda: len(stage.told(ev.JoinRequested)) == 2, within_s=10.0)
    stage.run(0.1)
    stage.elastic.bodies[1, 1, "n2"].alive = False  # it hangs
    stage.run(SWAP_PATIENCE_S - 20.0)
    assert stage.trains(1, "13")
    stage.run_until(lambda: stage.job(1).running.purpose is not None, within_s=60.0)
    assert stage.job(1).running.purpose is Purpose.RESCALE


@pytest.mark.parametrize(("rescale", "suspends"), [("in-process", 0), ("restart", 1)])
def test_a_drained_node_is_left(rescale: str, suspends: int) -> None:
    stage = Stage(3)
    stage.start("12" if rescale == "in-process" else "1", rescale=rescale)
    stage.run(20.0)
    stage.send(cmd.Drain("n1", stage.now + 300.0, True, "maintenance"))
    stage.want(j1="2")
    stage.run_until(lambda: not any(gpu.node == "n1" for gpu in stage.world.holders), within_s=30.0)
    assert stage.job(1).suspends == suspends
    stage.send(cmd.Drain("n1", None, False, "it stays"))
    stage.finish()
    assert stage.job(1).outcome is JobState.DONE


def test_a_drained_node_is_left_and_taken_again_though_the_policy_says_nothing() -> None:
    stage = running(2, "12")
    keeps = stage.world.targets[1]
    stage.policies._makers["wanted"] = lambda: Unmoved(keeps)
    stage.send(cmd.Drain("n2", None, True, "maintenance"))
    stage.until_trains(1, "1")
    stage.send(cmd.Drain("n2", None, False, "it stays"))
    stage.until_trains(1, "12")
    assert stage.job(1).running.number == 1
    stage.finish()


def joining() -> Stage:
    stage = running(3, "12")
    stage.run(20.0)
    stage.want(j1="123")
    stage.run(0.5)
    assert stage.job(1).running.joining
    return stage


@pytest.mark.parametrize("middle", ["joining", "rescaling"])
@pytest.mark.parametrize("verb", ["hold", "cancel"])
def test_a_user_may_ask_in_the_middle(middle: str, verb: str) -> None:
    stage = joining()
    if middle == "rescaling":
        stage.run_until(lambda: stage.job(1).running.rescale_at is not None)
    stage.send(cmd.Hold(1) if verb == "hold" else cmd.Cancel(1))
    stage.run(40.0)
    job = stage.job(1)
    if verb == "cancel":
        assert job.outcome is JobState.CANCELLED
        return
    assert (state_of(job), job.last.cause, job.live) == (JobState.SUSPENDED, Cause.SUSPENDED, ())
    stage.send(cmd.Release(1))
    stage.finish()
    assert stage.job(1).outcome is JobState.DONE


def test_who_was_to_join_leaves_when_the_training_is_complete() -> None:
    stage = running(3, "12", steps=40)
    group = stage.elastic.groups[1]
    stage.run((40 - 1) / group.rate)
    stage.want(j1="123")
    stage.run_until(lambda: stage.job(1).finished, within_s=15.0)
    assert (stage.job(1).outcome, stage.job(1).suspends, stage.job(1).failures.total) == (JobState.DONE, 0, 0)
    assert stage.told(ev.EndRequested) == []
    stage.finish()


def test_all_that_trained_are_lost_at_once() -> None:
    stage = running(3, "12")
    stage.run(40.0)
    stage.want(j1="123")
    saved = stage.durable.get(1, 0.0)
    for node in ("n1", "n2"):
        stage.crash_node(node)
        stage.send(cmd.NodeGone(node, "gone"))
    stage.run(5.0)
    assert stage.job(1).last.cause is Cause.NODE_LOST
    for node in ("n1", "n2"):
        stage.connect(node)
    stage.run_until(lambda: stage.job(1).running is not None and stage.job(1).running.progress is not None)
    assert stage.job(1).running.progress.ready_step == saved
    stage.finish()
    assert (stage.job(1).outcome, stage.job(1).failures.total) == (JobState.DONE, 0)


def test_torchrun_ends_with_the_node_where_its_ranks_meet_and_moves_off_it_by_a_suspend() -> None:
    stage = running(3, "12", rescale="torchrun")
    stage.want(j1="123")
    stage.until_trains(1, "123")
    assert {r.address for r in stage.told(ev.AtGate) if r.node == "n1"} == {stage.job(1).running.rendezvous}
    stage.want(j1="23")
    assert stage.job(1).running.state is IncarnationState.SAVING
    stage.until_trains(1, "23")
    assert stage.job(1).suspends == 1
    stage.agents["n2"].connected = False
    stage.elastic.vanish("n2")
    stage.send(cmd.NodeGone("n2", "gone"))
    stage.run(3.0)
    assert stage.job(1).last.cause is Cause.NODE_LOST
    stage.connect("n2")
    stage.finish()
    assert stage.job(1).outcome is JobState.DONE


def test_what_warms_up_does_not_count_as_training() -> None:
    stage = running(3, "1")
    stage.run(20.0)
    stage.want(j1="123")
    stage.run(80.0)
    (seen,) = stage.world.observed.values()
    assert {rate.nodes for rate in seen.rates} == {1, 3}
    for rate in seen.rates:
        assert rate.steps / rate.seconds == pytest.approx(stage.profiles.by_name["plain"].rate(2, rate.nodes), rel=0.2)


def test_who_was_told_to_join_a_training_that_has_just_ended_leaves() -> None:
    stage = running(3, "1")
    stage.want(j1="123")
    stage.run_until(lambda: stage.job(1).running.membership == 2, within_s=60.0)
    last = stage.elastic.bodies[1, 1, "n1"]
    stage.elastic.exit(last, code=0, attached=True, done=True, step=400)
    stage.run_until(lambda: stage.job(1).finished, within_s=20.0)
    assert stage.job(1).outcome is JobState.DONE
    assert [event.nodes for event in stage.told(ev.LeaveRequested)] == [("n2", "n3")]
    stage.finish()
    assert stage.job(1).last_incarnation == 1


def test_what_a_rescale_takes_lands_in_the_profile_that_is_learnt() -> None:
    stage = running(3, "1")
    stage.run(20.0)
    stage.want(j1="123")
    stage.until_trains(1, "123")
    stage.want(j1="1")
    stage.until_trains(1, "1")
    stage.run(60.0)
    key = stage.job(1).spec.learns_as
    told = {timing.what: timing.seconds / timing.times for timing in stage.world.observed[key].times}
    assert told["join_s"] > 0
    seen = observations_of(stage.world, key)
    assert seen is not None
    learnt = learner(2, 3, ())(key, seen)
    assert learnt is not None
    for what in ("grow_s", "shrink_s", "join_s"):
        assert getattr(learnt, what) == pytest.approx(told[what], rel=0.1)
