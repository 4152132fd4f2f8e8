"""Stories of rescales in place with nodes that fall silent, and without a daemon."""

from hpcdl.core.fold.incarnations import accepts
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState
from tests.support.stage import Stage, Unmoved, running


def silent(nodes: int = 3) -> Stage:
    """n3 does not answer any more, neither to its agent's daemon nor to the ranks of the others, which go on."""
    stage = running(nodes, "123")
    stage.run(20.0)
    stage.disconnect("n3")
    stage.elastic.hang(1)
    stage.until_trains(1, "12")
    return stage


def test_what_a_silent_node_holds_stays_held() -> None:
    stage = silent()
    assert GpuRef("n3", 0) in stage.world.holders
    assert [part.node for part in stage.job(1).running.parts if part.leaving] == ["n3"]
    assert [share.node for share in stage.job(1).running.placement.shares] == ["n1", "n2"]
    stage.send(cmd.NodeGone("n3", "gone"))
    assert GpuRef("n3", 0) not in stage.world.holders
    assert stage.job(1).running.nodes == ("n1", "n2")
    stage.crash_node("n3")
    stage.finish()


def test_a_silent_node_that_comes_back_leaves_and_joins_again() -> None:
    stage = silent()
    membership = stage.job(1).running.membership
    stage.connect("n3")
    stage.run(0.1)
    assert stage.elastic.bodies[1, 1, "n3"].leaving
    stage.until_trains(1, "123")
    ended = [event for event in stage.told(ev.Exited) if event.node == "n3"]
    assert [event.ended_by for event in ended] == ["leave"]
    assert stage.job(1).running.membership > membership
    stage.finish()
    assert stage.job(1).last_incarnation == 1


def test_a_daemon_that_was_away_waits_for_agents_to_call() -> None:
    stage = running(3, "123")
    stage.run(10.0)
    stage.elastic.hang(1)
    stage.run_until(lambda: stage.job(1).running.broken_at is not None)
    stage.delay_s = 0.5  # they do not call all at once
    stage.restart_daemon()
    stage.until_trains(1, "123")
    assert [event.members for event in stage.told(ev.RescaleRequested)] == [("n1", "n2", "n3")] * 2


def test_reports_of_a_part_that_was_left_out_move_nothing() -> None:
    stage = silent()
    before = stage.job(1)
    assert not accepts(stage.world, ev.Progressed(1, 1, 1, "n3", step=1))
    assert not accepts(stage.world, ev.TrainerReady(1, 1, 1, "n3", step=1))
    assert not accepts(stage.world, ev.Reformed(1, 1, before.running.membership, "n3", step=1))
    assert not accepts(stage.world, ev.Broken(1, 1, before.running.membership, "n3"))
    saved = ev.Saved(1, 1, 1, "n3", step=10**6, final=True)
    assert accepts(stage.world, saved)
    seen = stage.world.nodes["n3"].reports_seen
    stage.send(cmd.AgentReport("n3", "n3/1", seen + 1, saved))
    assert (stage.job(1).progress.step, stage.job(1).running.checkpoint.final) == (before.progress.step, False)
    older = ev.Saved(1, 1, 1, "n1", step=1)
    stage.send(cmd.AgentReport("n1", "n1/1", stage.world.nodes["n1"].reports_seen + 1, older))
    assert stage.job(1).progress.saved_step == 10**6


def test_under_torchrun_a_silent_node_is_left_out_once_its_ranks_are_missed() -> None:
    stage = running(3, "123", rescale="torchrun")
    told = len(stage.told(ev.RescaleRequested))
    keeps = stage.world.targets[1]
    stage.policies._makers["wanted"] = lambda: Unmoved(keeps)
    stage.disconnect("n3")
    stage.run(20.0)
    assert state_of(stage.job(1)) is JobState.RUNNING  # its agent is away, and perhaps no more than that
    assert len(stage.told(ev.RescaleRequested)) == told
    stage.elastic.hang(1)
    stage.until_trains(1, "12")
    assert stage.told(ev.RescaleRequested)[told:][0].members == ("n1", "n2")
    stage.connect("n3")
    stage.until_trains(1, "123")
    assert stage.job(1).last_incarnation == 1
    stage.finish()


def test_agents_without_a_daemon_for_long_lose_only_what_was_not_saved() -> None:
    stage = running(3, "123")
    stage.run(10.0)
    stage.disconnect("n3")
    stage.run(stage.settings.agent_lease_s + 1)  # its agent has ended its part
    stage.connect("n3")
    stage.run_until(lambda: stage.job(1).finished or stage.trains(1, "12") or stage.trains(1, "123"), within_s=60.0)
    stage.finish()
    assert (stage.job(1).outcome, stage.job(1).last_incarnation) == (JobState.DONE, 1)


def test_a_job_is_over_without_the_silent_node_that_it_left() -> None:
    stage = silent()
    stage.run_until(lambda: stage.job(1).finished, within_s=200.0)
    assert stage.job(1).outcome is JobState.DONE
    assert [event.nodes for event in stage.told(ev.LeftBehind)] == [("n3",)]
    assert stage.world.holders == {}
    assert ("n3", True) in [(body.node, body.alive) for body in stage.elastic.bodies.values()]
    stage.connect("n3")  # what it still has is expected by nobody
    stage.finish()


def test_a_membership_forms_without_one_that_is_silent_from_its_start() -> None:
    stage = running(3, "12")
    stage.want(j1="123")
    stage.run_until(lambda: all(part.at_gate for part in stage.job(1).running.parts), within_s=60.0)
    stage.disconnect("n3")
    stage.crash_node("n3")
    stage.run_until(lambda: stage.job(1).finished or stage.trains(1, "12"), within_s=60.0)
    stage.send(cmd.NodeGone("n3", "gone"))
    stage.finish()
    assert (stage.job(1).outcome, stage.job(1).last_incarnation) == (JobState.DONE, 1)
