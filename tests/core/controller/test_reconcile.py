"""Stories through the real Controller: gates, jobs on several nodes, lost nodes, holds, cancels, stops."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.controller.reconcile import GATE_PATIENCE_S, STRAGGLER_S, reconcile
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, IncarnationState, Placement, Purpose, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import JobState
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Conduct


def spec(**more: object) -> JobSpec:
    known = {"gpus_max": 2, "steps": 100, "profile": "plain"} | more
    return JobSpec(("train",), "j", **known)  # type: ignore[arg-type]


def cluster(policy: str = "marble", **nodes: int) -> Cluster:
    model = Cluster(nodes or {"n1": 2}, policy=policy)
    model.run(1.0)
    return model


def finish(model: Cluster) -> None:
    model.run_to_end()
    model.run(1.0)
    model.check_replay()
    assert model.world.holders == {}


def told(model: Cluster, *kinds: type[ev.Event]) -> list[str]:
    return [record.event.kind for record in model.journal.records if isinstance(record.event, kinds)]


def promoted(steps: int = 200) -> Cluster:
    """Job 2, on 1 GPU with a gate, is to move to 2 when job 1 ends; it trains on, and its next incarnation warms up."""
    model = Cluster({"n1": 3}, policy="marble-warm")
    model.run(1.0)
    model.submit(spec(steps=40), spec(steps=steps, gate=True))
    model.run_until(lambda: model.job(1).finished)
    assert state_of(model.job(2)) is JobState.RUNNING
    assert model.job(2).gated is not None
    return model


def test_warm_start_waits_at_the_gate_and_is_let_in() -> None:
    model = promoted()
    gated = model.job(2).gated
    assert gated.state is IncarnationState.GATED
    model.run_until(lambda: state_of(model.job(2)) is not JobState.RUNNING)
    # Only now that the next incarnation waits at the gate does this one stop training.
    assert state_of(model.job(2)) is JobState.RESCALING
    assert all(part.at_gate for part in model.job(2).gated.parts)
    model.run_until(lambda: model.job(2).gated is None)
    assert model.job(2).running.number == gated.number
    assert model.job(2).running.warm
    finish(model)
    assert model.job(2).last_incarnation == 2
    assert told(model, ev.OpenRequested) == ["OpenRequested"]


def test_a_gate_that_fails_leads_to_a_cold_start() -> None:
    model = promoted()
    model.conduct[2] = Conduct(gate_fails=True)
    finish(model)
    job = model.job(2)
    assert (job.outcome, job.warm_failed, job.last_incarnation, job.failures.retries_used) == (
        JobState.DONE,
        True,
        3,
        0,
    )
    assert told(model, ev.OpenRequested) == []


def test_a_gate_that_is_never_reached_is_given_up() -> None:
    model = promoted(steps=20_000)
    model.run_until(lambda: (2, 2) in model.trainers)
    model.trainers[2, 2].turn += 1  # it hangs
    model.tick_every(10.0)
    model.run(GATE_PATIENCE_S - 20)
    assert model.job(2).gated is not None
    assert state_of(model.job(2)) is JobState.RUNNING
    finish(model)
    job = model.job(2)
    assert (job.outcome, job.warm_failed, job.last_incarnation) == (JobState.DONE, True, 3)


def test_a_hold_ends_the_warm_start_too() -> None:
    model = promoted()
    model.send(cmd.Hold(2))
    model.run(60.0)
    job = model.job(2)
    assert (state_of(job), job.live, job.warm_failed) == (JobState.SUSPENDED, (), False)
    model.send(cmd.Release(2))
    finish(model)
    assert model.job(2).outcome is JobState.DONE


def test_a_job_on_two_nodes_ends_as_one_when_a_part_fails() -> None:
    model = cluster(n1=2, n2=2)
    model.submit(spec(nodes=2, retries=1))
    model.conduct[1] = Conduct(fails=[7])
    model.run_until(lambda: model.job(1).failures.total > 0)
    ended = next(r.event for r in model.journal.records if isinstance(r.event, ev.IncarnationEnded))
    assert "its part on" in next(r.event.detail for r in model.journal.records if isinstance(r.event, ev.EndRequested))
    assert ended.incarnation == 1
    finish(model)
    assert model.job(1).outcome is JobState.DONE


def test_a_job_on_two_nodes_saves_as_one() -> None:
    model = cluster(n1=2, n2=2)
    model.submit(spec(nodes=2))
    model.run(20.0)
    model.send(cmd.Hold(1))
    model.run(20.0)
    job = model.job(1)
    assert (job.suspends, job.last.cause, job.progress.saved_step) == (1, Cause.SUSPENDED, 34)
    model.send(cmd.Release(1))
    finish(model)
    assert model.job(1).outcome is JobState.DONE


def test_the_writer_may_save_when_another_part_has_failed() -> None:
    model = cluster(n1=2, n2=2)
    model.submit(spec(nodes=2))
    model.run(20.0)
    model.send(cmd.Hold(1))
    model.agents["n2"].connected = model.agents["n1"].connected = False
    for number, event in enumerate((ev.Exited(1, 1, 1, "n2", code=143), ev.GpusFreed(1, 1, 1, "n2")), 1):
        seen = model.world.nodes["n2"].reports_seen
        model.send(cmd.AgentReport("n2", "n2/1", seen + 1, event))
        assert model.job(1).running.ending is None, number
    model.send(
        cmd.AgentReport("n1", "n1/1", model.world.nodes["n1"].reports_seen + 1, ev.Exited(1, 1, 1, "n1", code=1))
    )
    assert model.job(1).running.state is IncarnationState.SAVING


def test_stragglers_are_ended() -> None:
    model = cluster(n1=2, n2=2)
    model.submit(spec(nodes=2))
    model.run(20.0)
    model.tick_every(10.0)
    model._exit(model.trainers[1, 1], "n1", code=0, attached=True)
    model.run(STRAGGLER_S - 1)
    assert model.job(1).running.ending is None
    model.run(12.0)
    ended = next(r.event for r in model.journal.records if isinstance(r.event, ev.EndRequested))
    assert ended.detail == "its part on n1 ended 60 s ago"
    assert ended.cause is Cause.INFRASTRUCTURE


def test_the_writer_may_go_on_when_the_others_are_through() -> None:
    model = cluster(n1=2, n2=2)
    model.submit(spec(nodes=2))
    model.run(20.0)
    model.tick_every(10.0)
    model._exit(model.trainers[1, 1], "n2", code=0, attached=True)
    model.run(2 * STRAGGLER_S)
    assert told(model, ev.EndRequested) == []
    model._exit(model.trainers[1, 1], "n1", code=0, attached=True)
    finish(model)
    assert (model.job(1).outcome, model.job(1).last_incarnation) == (JobState.DONE, 1)


@pytest.mark.parametrize(
    "how",
    [
        {"hint": Cause.INFRASTRUCTURE, "detail": "GPU 0: held by process 1"},  # never started
        {"hint": Cause.INFRASTRUCTURE, "code": 0},  # its agent ended it
        {"ended_by": "absence", "code": 0, "attached": True},
    ],
)
def test_a_part_that_is_not_through_ends_the_others_at_once(how: dict[str, Any]) -> None:
    model = cluster(n1=2, n2=2)
    model.submit(spec(nodes=2))
    model.run(20.0)
    model._exit(model.trainers[1, 1], "n2", **how)
    model.run(5.0)
    ended = next(r.event for r in model.journal.records if isinstance(r.event, ev.EndRequested))
    assert ended.detail == "its part on n2 ended"
    finish(model)
    assert (model.job(1).outcome, model.job(1).failures.total) == (JobState.DONE, 1)


def test_a_lost_node_and_its_late_reports() -> None:
    model = cluster(n1=2, n2=2)
    model.submit(spec())
    model.run(20.0)
    node = model.job(1).running.nodes[0]
    model.disconnect(node)
    model.run(5.0)
    model.send(cmd.NodeGone(node, "the batch job ended"))
    assert model.job(1).last.cause is Cause.NODE_LOST
    model.run(1.0)
    assert model.job(1).running.nodes != (node,)
    model.run(100.0)  # the old trainer is still running there, and finishes
    assert model.job(1).last_incarnation == 2
    model.connect(node)
    finish(model)
    assert model.job(1).outcome is JobState.DONE
    assert (model.job(1).last_incarnation, model.job(1).failures.total) == (2, 0)


def test_silence_changes_nothing_for_what_runs() -> None:
    model = cluster()
    model.submit(spec())
    model.run(10.0)
    model.disconnect("n1")
    model.run(100.0)
    assert state_of(model.job(1)) is JobState.RUNNING
    model.connect("n1")
    model.run(1.0)
    assert model.job(1).outcome is JobState.DONE
    assert model.job(1).last_incarnation == 1


def test_poisoned_jobs_stop_and_pauses_wake_the_controller() -> None:
    model = cluster()
    model.submit(spec(retries=99))
    model.submit(spec(after=(1,)))
    model.conduct[1] = Conduct(fails=[1] * 50)
    finish(model)
    assert model.job(1).last.detail.startswith("poison guard: 3 times the same at step 5")
    assert model.job(1).outcome is JobState.FAILED
    assert model.job(2).outcome is JobState.CANCELLED
    assert model.job(2).last.detail == "job 1, which it waited for, is FAILED"


def test_jobs_that_wait_for_others_start_when_these_are_done() -> None:
    model = cluster(n1=4)
    model.submit(spec())
    model.submit(spec(after=(1,)), spec())
    model.run(5.0)
    assert [state_of(model.job(n)) for n in (1, 2, 3)] == [JobState.RUNNING, JobState.QUEUED, JobState.RUNNING]
    finish(model)
    assert model.job(2).first_start_at >= model.job(1).finished_at
    ids = model.submit(spec(after=(1,)))
    finish(model)
    assert model.job(ids[0]).outcome is JobState.DONE


STAGES = {"queued": -1.0, "starting": 0.0, "running": 20.0, "saving": 0.0, "suspended": 60.0}


def at_stage(stage: str) -> Cluster:
    """Job 1 in that stage; it has the node's GPUs to itself, or waiting for job 2 where it is queued."""
    model = cluster()
    if stage == "queued":
        model.submit(spec(steps=20))
    model.submit(spec())
    number = max(model.world.jobs)
    if stage in ("running", "saving", "suspended"):
        model.run(20.0)
    if stage in ("saving", "suspended"):
        model.send(cmd.Hold(number))
        model.run(60.0 if stage == "suspended" else 0.5)
    return model


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("verb", ["hold", "release", "cancel", "stop", "stop-now"])
def test_every_verb_in_every_stage(stage: str, verb: str) -> None:
    model = at_stage(stage)
    number = max(model.world.jobs)
    commands: dict[str, cmd.Command] = {
        "hold": cmd.Hold(number),
        "release": cmd.Release(number),
        "cancel": cmd.Cancel(number),
        "stop": cmd.Stop(now=False),
        "stop-now": cmd.Stop(now=True),
    }
    assert model.send(commands[verb]) == [None]
    model.run(200.0)
    job = model.job(number)
    if verb == "hold":
        assert state_of(job) is (JobState.QUEUED if job.first_start_at is None else JobState.SUSPENDED)
        assert job.running is None
        model.send(cmd.Release(number))
    elif verb == "cancel":
        assert job.outcome is JobState.CANCELLED
        assert job.last.detail == "cancelled by its user"
    elif verb == "release":
        assert job.outcome is JobState.DONE
    else:
        assert model.world.holders == {}
        assert not job.finished
        model.restart_daemon()
        model.run(1.0)
        if job.held:
            model.send(cmd.Release(number))
    finish(model)
    assert model.job(number).outcome is (JobState.CANCELLED if verb == "cancel" else JobState.DONE)


def test_stop_saves_and_stop_now_does_not() -> None:
    for now, cause, step in ((False, Cause.SUSPENDED, 34), (True, Cause.PREEMPTED, None)):
        model = at_stage("running")
        model.send(cmd.Stop(now=now))
        model.run(30.0)
        assert (model.job(1).last.cause, model.job(1).progress.saved_step) == (cause, step)


def test_a_trainer_that_never_answers_is_ended_at_the_end_of_its_grace() -> None:
    model = cluster()
    model.submit(spec(steps=1000))
    model.run(20.0)
    model.conduct[1] = Conduct(never_answers=True)
    model.send(cmd.Hold(1))
    model.run(59.0)
    assert model.job(1).running is not None
    model.run(2.0)
    assert (model.job(1).running, model.job(1).last.cause) == (None, Cause.PREEMPTED)


def test_a_job_whose_gpus_others_wait_for_does_not_train_on_meanwhile() -> None:
    model = promoted()
    world = model.world
    moves = world.targets[2]
    held = model.job(2).running.placement
    assert reconcile(world, model.now).events == []
    other = replace(moves, job=3, placement=held)
    away = Placement((Share("n1", (0, 1)),))
    wanted = replace(world, targets={2: replace(moves, placement=away), 3: other})
    assert [event.kind for event in reconcile(wanted, model.now, {3}).events] == ["SuspendRequested"]


def test_a_job_on_a_node_that_is_wanted_back_does_not_train_on_meanwhile() -> None:
    model = promoted()
    world, node = model.world, model.world.nodes["n1"]
    elsewhere = replace(world.targets[2], placement=Placement((Share("n2", (0, 1)),)))
    more = {"n1": replace(node, leaving=True), "n2": replace(node, name="n2")}
    cold = replace(model.job(2), live=(model.job(2).running,))
    moves = replace(world, nodes=more | {"n1": node}, targets={2: elsewhere}, jobs=world.jobs | {2: cold})
    assert [event.kind for event in reconcile(moves, model.now).events] == ["StartRequested"]
    leaves = replace(moves, nodes=more)
    assert [event.kind for event in reconcile(leaves, model.now).events] == ["SuspendRequested", "StartRequested"]


def test_a_warm_start_that_is_not_wanted_any_more_ends() -> None:
    model = promoted()
    world, held = model.world, model.job(2).running.placement
    stays = replace(world, targets={2: replace(world.targets[2], placement=held)})
    (event,) = reconcile(stays, model.now).events
    assert isinstance(event, ev.EndRequested)
    assert event.incarnation == 2


def test_reconcile_again_yields_nothing_and_waits_for_gpus() -> None:
    model = promoted()
    model.run_until(lambda: state_of(model.job(2)) is JobState.RESCALING)
    steps = reconcile(model.world, model.now)
    assert (steps.events, steps.requests) == ([], [])
    running = model.job(2).running
    assert running.purpose is Purpose.RESCALE
    # However often the plan is looked at, nothing is granted before the agent has said that the GPUs are free.
    for _ in range(3):
        model.send(cmd.Tick())
    assert model.job(2).running == running


def test_a_clock_set_back_suspends_nothing() -> None:
    model = cluster()
    model.submit(spec(retries=5))
    model.conduct[1] = Conduct(fails=[1, 1])
    model.run_until(lambda: model.job(1).failures.retries_used == 2 and model.job(1).running is not None)
    model.controller.decide(model.now - 1000.0)
    assert model.job(1).running.purpose is None


def test_a_policy_that_fails_changes_nothing_and_is_told_once() -> None:
    model = cluster()
    model.submit(spec())
    model.run(10.0)
    targets = model.world.targets

    class Broken:
        name = "broken"

        def decide(self, view: object) -> object:
            raise ZeroDivisionError("x / 0")

    model.policies.register("broken", Broken)  # type: ignore[arg-type]
    model.send(cmd.ChoosePolicy("broken"))
    model.send(cmd.Tick())
    assert model.world.targets == targets
    assert told(model, ev.TroubleSeen) == ["TroubleSeen"]
    finish(model)
    assert model.job(1).outcome is JobState.DONE
