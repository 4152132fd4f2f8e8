"""Stories through the real Controller: gates, jobs on several nodes, lost nodes, holds, cancels, stops."""

from typing import Any

import pytest

from hpcdl.core import commands as cmd
from hpcdl.core import events as ev
from hpcdl.core.model import Cause, IncarnationState, JobSpec, JobState, Purpose
from hpcdl.core.reconcile import GATE_PATIENCE_S, STRAGGLER_S, reconcile
from hpcdl.core.transitions import state_of
from tests.model_cluster import Cluster
from tests.model_parts import Conduct


def spec(**more: object) -> JobSpec:
    known = {"gpus_max": 2, "steps": 100, "profile": "plain"} | more
    return JobSpec(("train",), "j", **known)  # type: ignore[arg-type]


def cluster(policy: str = "marble", **nodes: int) -> Cluster:
    made = Cluster(nodes or {"n1": 2}, policy=policy)
    made.run(1.0)
    return made


def finish(made: Cluster) -> None:
    made.run_to_end()
    made.run(1.0)
    made.check_replay()
    assert made.world.holders == {}


def told(made: Cluster, *kinds: type[ev.Event]) -> list[str]:
    return [record.event.kind for record in made.journal.records if isinstance(record.event, kinds)]


def promoted() -> Cluster:
    """Job 2, on 1 GPU with a gate, is to move to 2 when job 1 ends; now it saves, and its next incarnation warms up."""
    made = Cluster({"n1": 3}, policy="marble-warm")
    made.run(1.0)
    made.submit(spec(steps=40), spec(steps=200, gate=True))
    made.run_until(lambda: made.job(1).finished)
    assert state_of(made.job(2)) is JobState.RESCALING
    return made


def test_warm_start_waits_at_the_gate_and_is_let_in() -> None:
    made = promoted()
    gated = made.job(2).gated
    assert gated.state is IncarnationState.GATED
    made.run_until(lambda: made.job(2).running is None)
    # The GPUs are free before it has warmed up: it is waited for, and no cold start is made.
    assert made.job(2).gated is not None
    made.run_until(lambda: made.job(2).running is not None)
    assert made.job(2).running.number == gated.number
    assert made.job(2).running.warm
    finish(made)
    assert made.job(2).last_incarnation == 2
    assert told(made, ev.OpenRequested) == ["OpenRequested"]


def test_a_gate_that_fails_leads_to_a_cold_start() -> None:
    made = promoted()
    made.conduct[2] = Conduct(gate_fails=True)
    finish(made)
    job = made.job(2)
    assert (job.outcome, job.warm_failed, job.last_incarnation, job.retries_used) == (JobState.DONE, True, 3, 0)
    assert told(made, ev.OpenRequested) == []


def test_a_gate_that_is_never_reached_is_given_up() -> None:
    made = promoted()
    made.run_until(lambda: (2, 2) in made.trainers)
    made.trainers[2, 2].turn += 1  # it hangs
    made.tick_every(10.0)
    made.run(GATE_PATIENCE_S - 20)
    assert made.job(2).gated is not None
    finish(made)
    job = made.job(2)
    assert (job.outcome, job.warm_failed, job.last_incarnation) == (JobState.DONE, True, 3)


def test_a_hold_ends_the_warm_start_too() -> None:
    made = promoted()
    made.send(cmd.Hold(2))
    made.run(60.0)
    job = made.job(2)
    assert (state_of(job), job.live, job.warm_failed) == (JobState.SUSPENDED, (), False)
    made.send(cmd.Release(2))
    finish(made)
    assert made.job(2).outcome is JobState.DONE


def test_a_job_on_two_nodes_ends_as_one_when_a_part_fails() -> None:
    made = cluster(n1=2, n2=2)
    made.submit(spec(nodes=2, retries=1))
    made.conduct[1] = Conduct(fails=[7])
    made.run_until(lambda: bool(made.job(1).failures))
    ended = next(r.event for r in made.journal.records if isinstance(r.event, ev.IncarnationEnded))
    assert "its part on" in next(r.event.detail for r in made.journal.records if isinstance(r.event, ev.EndRequested))
    assert ended.incarnation == 1
    finish(made)
    assert made.job(1).outcome is JobState.DONE


def test_a_job_on_two_nodes_saves_as_one() -> None:
    made = cluster(n1=2, n2=2)
    made.submit(spec(nodes=2))
    made.run(20.0)
    made.send(cmd.Hold(1))
    made.run(20.0)
    job = made.job(1)
    assert (job.suspends, job.last_cause, job.saved_step) == (1, Cause.SUSPENDED, 34)
    made.send(cmd.Release(1))
    finish(made)
    assert made.job(1).outcome is JobState.DONE


def test_the_writer_may_save_when_another_part_has_failed() -> None:
    made = cluster(n1=2, n2=2)
    made.submit(spec(nodes=2))
    made.run(20.0)
    made.send(cmd.Hold(1))
    made.agents["n2"].connected = made.agents["n1"].connected = False
    for number, event in enumerate((ev.Exited(1, 1, 1, "n2", code=143), ev.GpusFreed(1, 1, 1, "n2")), 1):
        seen = made.world.nodes["n2"].reports_seen
        made.send(cmd.AgentReport("n2", "n2/1", seen + 1, event))
        assert made.job(1).running.ending is None, number
    made.send(cmd.AgentReport("n1", "n1/1", made.world.nodes["n1"].reports_seen + 1, ev.Exited(1, 1, 1, "n1", code=1)))
    assert made.job(1).running.state is IncarnationState.SAVING


def test_stragglers_are_ended() -> None:
    made = cluster(n1=2, n2=2)
    made.submit(spec(nodes=2))
    made.run(20.0)
    made.tick_every(10.0)
    made._exit(made.trainers[1, 1], "n1", code=0, attached=True)
    made.run(STRAGGLER_S - 1)
    assert made.job(1).running.ending is None
    made.run(12.0)
    ended = next(r.event for r in made.journal.records if isinstance(r.event, ev.EndRequested))
    assert ended.detail == "its part on n1 ended 60 s ago"
    assert ended.cause is Cause.INFRASTRUCTURE


def test_the_writer_may_go_on_when_the_others_are_through() -> None:
    made = cluster(n1=2, n2=2)
    made.submit(spec(nodes=2))
    made.run(20.0)
    made.tick_every(10.0)
    made._exit(made.trainers[1, 1], "n2", code=0, attached=True)
    made.run(2 * STRAGGLER_S)
    assert told(made, ev.EndRequested) == []
    made._exit(made.trainers[1, 1], "n1", code=0, attached=True)
    finish(made)
    assert (made.job(1).outcome, made.job(1).last_incarnation) == (JobState.DONE, 1)


@pytest.mark.parametrize(
    "how",
    [
        {"hint": Cause.INFRASTRUCTURE, "detail": "GPU 0: held by process 1"},  # never started
        {"hint": Cause.INFRASTRUCTURE, "code": 0},  # its agent ended it
        {"ended_by": "absence", "code": 0, "attached": True},
    ],
)
def test_a_part_that_is_not_through_ends_the_others_at_once(how: dict[str, Any]) -> None:
    made = cluster(n1=2, n2=2)
    made.submit(spec(nodes=2))
    made.run(20.0)
    made._exit(made.trainers[1, 1], "n2", **how)
    made.run(5.0)
    ended = next(r.event for r in made.journal.records if isinstance(r.event, ev.EndRequested))
    assert ended.detail == "its part on n2 ended"
    finish(made)
    assert (made.job(1).outcome, made.job(1).failures) == (JobState.DONE, 1)


def test_a_lost_node_and_its_late_reports() -> None:
    made = cluster(n1=2, n2=2)
    made.submit(spec())
    made.run(20.0)
    node = made.job(1).running.nodes[0]
    made.disconnect(node)
    made.run(5.0)
    made.send(cmd.NodeGone(node, "the batch job ended"))
    assert made.job(1).last_cause is Cause.NODE_LOST
    made.run(1.0)
    assert made.job(1).running.nodes != (node,)
    made.run(100.0)  # the old trainer is still running there, and finishes
    assert made.job(1).last_incarnation == 2
    made.connect(node)
    finish(made)
    assert made.job(1).outcome is JobState.DONE
    assert (made.job(1).last_incarnation, made.job(1).failures) == (2, 0)


def test_silence_changes_nothing_for_what_runs() -> None:
    made = cluster()
    made.submit(spec())
    made.run(10.0)
    made.disconnect("n1")
    made.run(100.0)
    assert state_of(made.job(1)) is JobState.RUNNING
    made.connect("n1")
    made.run(1.0)
    assert made.job(1).outcome is JobState.DONE
    assert made.job(1).last_incarnation == 1


def test_poisoned_jobs_stop_and_pauses_wake_the_controller() -> None:
    made = cluster()
    made.submit(spec(retries=99))
    made.submit(spec(after=(1,)))
    made.conduct[1] = Conduct(fails=[1] * 50)
    finish(made)
    assert made.job(1).last_detail.startswith("poison guard: 3 times the same at step 5")
    assert made.job(1).outcome is JobState.FAILED
    assert made.job(2).outcome is JobState.CANCELLED
    assert made.job(2).last_detail == "job 1, which it waited for, is FAILED"


def test_jobs_that_wait_for_others_start_when_these_are_done() -> None:
    made = cluster(n1=4)
    made.submit(spec())
    made.submit(spec(after=(1,)), spec())
    made.run(5.0)
    assert [state_of(made.job(n)) for n in (1, 2, 3)] == [JobState.RUNNING, JobState.QUEUED, JobState.RUNNING]
    finish(made)
    assert made.job(2).first_start_at >= made.job(1).finished_at
    ids = made.submit(spec(after=(1,)))
    finish(made)
    assert made.job(ids[0]).outcome is JobState.DONE


STAGES = {"queued": -1.0, "starting": 0.0, "running": 20.0, "saving": 0.0, "suspended": 60.0}


def at_stage(stage: str) -> Cluster:
    """Job 1 in that stage; it has the node's GPUs to itself, or waits for job 2 where it is queued."""
    made = cluster()
    if stage == "queued":
        made.submit(spec(steps=20))
    made.submit(spec())
    number = max(made.world.jobs)
    if stage in ("running", "saving", "suspended"):
        made.run(20.0)
    if stage in ("saving", "suspended"):
        made.send(cmd.Hold(number))
        made.run(60.0 if stage == "suspended" else 0.5)
    return made


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("verb", ["hold", "release", "cancel", "stop", "stop-now"])
def test_every_verb_in_every_stage(stage: str, verb: str) -> None:
    made = at_stage(stage)
    number = max(made.world.jobs)
    commands: dict[str, cmd.Command] = {
        "hold": cmd.Hold(number),
        "release": cmd.Release(number),
        "cancel": cmd.Cancel(number),
        "stop": cmd.Stop(now=False),
        "stop-now": cmd.Stop(now=True),
    }
    assert made.send(commands[verb]) == [None]
    made.run(200.0)
    job = made.job(number)
    if verb == "hold":
        assert state_of(job) is JobState.SUSPENDED
        assert job.running is None
        made.send(cmd.Release(number))
    elif verb == "cancel":
        assert job.outcome is JobState.CANCELLED
        assert job.last_detail == "cancelled by its user"
    elif verb == "release":
        assert job.outcome is JobState.DONE
    else:
        assert made.world.holders == {}
        assert not job.finished
        made.restart_daemon()
        made.run(1.0)
        if job.held:
            made.send(cmd.Release(number))
    finish(made)
    assert made.job(number).outcome is (JobState.CANCELLED if verb == "cancel" else JobState.DONE)


def test_stop_saves_and_stop_now_does_not() -> None:
    for now, cause, step in ((False, Cause.SUSPENDED, 34), (True, Cause.PREEMPTED, None)):
        made = at_stage("running")
        made.send(cmd.Stop(now=now))
        made.run(30.0)
        assert (made.job(1).last_cause, made.job(1).saved_step) == (cause, step)


def test_a_trainer_that_never_answers_is_ended_at_the_end_of_its_grace() -> None:
    made = cluster()
    made.submit(spec(steps=1000))
    made.run(20.0)
    made.conduct[1] = Conduct(never_answers=True)
    made.send(cmd.Hold(1))
    made.run(59.0)
    assert made.job(1).running is not None
    made.run(2.0)
    assert (made.job(1).running, made.job(1).last_cause) == (None, Cause.PREEMPTED)


def test_reconcile_again_yields_nothing_and_waits_for_gpus() -> None:
    made = promoted()
    steps = reconcile(made.world, made.now)
    assert (steps.events, steps.requests) == ([], [])
    running = made.job(2).running
    assert running.purpose is Purpose.RESCALE
    # However often the plan is looked at, nothing is granted before the agent has said that the GPUs are free.
    for _ in range(3):
        made.send(cmd.Tick())
    assert made.job(2).running == running


def test_a_clock_set_back_suspends_nothing() -> None:
    made = cluster()
    made.submit(spec(retries=5))
    made.conduct[1] = Conduct(fails=[1, 1])
    made.run_until(lambda: made.job(1).retries_used == 2 and made.job(1).running is not None)
    made.controller.decide(made.now - 1000.0)
    assert made.job(1).running.purpose is None


def test_a_policy_that_fails_changes_nothing_and_is_told_once() -> None:
    made = cluster()
    made.submit(spec())
    made.run(10.0)
    targets = made.world.targets

    class Broken:
        name = "broken"

        def decide(self, view: object) -> object:
            raise ZeroDivisionError("x / 0")

    made.policies.register("broken", Broken)  # type: ignore[arg-type]
    made.send(cmd.ChoosePolicy("broken"))
    made.send(cmd.Tick())
    assert made.world.targets == targets
    assert told(made, ev.TroubleSeen) == ["TroubleSeen"]
    finish(made)
    assert made.job(1).outcome is JobState.DONE
