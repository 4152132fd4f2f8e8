"""What is avoided: GPUs with faults, GPUs on which jobs fail, and what users say; and what becomes of jobs there."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ce
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.health import CONDITIONS, XIDS, Failed, FaultAction, fault_of, suspects
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import JobState
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", steps=400, profile="plain")


def cluster(nodes: dict[str, int] | None = None, **settings: Any) -> Cluster:
    model = Cluster(nodes or {"n1": 2}, settings=Settings(agent_lease_s=300.0, **settings))
    model.tick_every(10.0)
    model.run(1.0)
    return model


def fault(model: Cluster, name: str, node: str = "n1", index: int = 0) -> None:
    model._report(model.agents[node], ce.GpuFaulted(node, index, name, "x"))
    model.run(1.0)


def avoided(model: Cluster, node: str = "n1") -> list[tuple[int | None, float, int]]:
    return [
        (each.index, round(each.until - model.now), each.times)
        for each in model.world.nodes[node].avoided
        if not each.over
    ]


def test_a_job_leaves_a_gpu_with_a_bad_fault_and_the_gpu_comes_back() -> None:
    model = cluster()
    model.submit(SPEC)
    model.run(30.0)
    assert model.job(1).running.placement.shares[0].gpus == (0,)
    fault(model, "xid 79")
    assert model.world.nodes["n1"].usable == (1,)
    model.run(30.0)
    job = model.job(1)
    assert job.running.placement.shares[0].gpus == (1,)
    assert (job.last_incarnation, job.running.progress.ready_step) == (2, job.progress.saved_step)
    model.run_to_end()
    assert model.job(1).outcome is JobState.DONE
    model.run(3600.0)
    assert list(model.world.nodes["n1"].usable) == [0, 1]
    lifted = [r.event for r in model.journal.records if isinstance(r.event, ce.AvoidLifted)]
    assert lifted == [ce.AvoidLifted("n1", 0, "its time is over")]
    model.check_replay()


def test_each_time_is_twice_as_long_until_it_is_forgiven() -> None:
    model = cluster(avoid_s=100.0)
    fault(model, "xid 48")
    assert avoided(model) == [(0, 99, 1)]
    fault(model, "xid 48")
    assert avoided(model) == [(0, 98, 1)], "one fault tells itself several times"
    model.run(110.0)
    assert avoided(model) == []
    fault(model, "xid 95")
    assert avoided(model) == [(0, 199, 2)]
    model.run(300.0)
    fault(model, "xid 95")
    assert avoided(model) == [(0, 399, 3)]
    model.now += 2 * 24 * 3600.0  # the ticks of two days, in one
    model.send(cmd.Tick())
    fault(model, "xid 95")
    assert avoided(model) == [(0, 99, 1)]


def test_what_holds_on_keeps_it_avoided() -> None:
    model = cluster(avoid_s=100.0)
    fault(model, "remap failed")
    for _ in range(5):
        model.run(80.0)
        fault(model, "remap failed")
        assert avoided(model) == [(0, 99, 1)]


@pytest.mark.parametrize(
    "name", ["xid 63", "xid 13", "xid 92", "remap pending", "retirement pending", "nonsense", "xid"]
)
def test_what_jobs_survive_changes_nothing(name: str) -> None:
    model = cluster()
    fault(model, name)
    assert avoided(model) == []
    fault(model, "xid 79", index=7)  # a GPU that there is not
    assert avoided(model) == []


def test_a_fault_that_is_only_avoided_lets_jobs_go_on() -> None:
    model = cluster()
    model.submit(SPEC)
    model.run(30.0)
    fault(model, "xid 64")
    model.run(60.0)
    assert model.job(1).last_incarnation == 1
    assert model.job(1).running.placement.shares[0].gpus == (0,)
    assert model.world.nodes["n1"].usable == (1,)


def test_a_job_that_would_start_over_stays() -> None:
    model = cluster()
    model.submit(JobSpec(("train",), "j", steps=400, profile="plain", signal="none"))
    model.run(30.0)
    fault(model, "xid 79")
    model.run(30.0)
    assert model.job(1).last_incarnation == 1


def test_the_table_names_an_action_for_each() -> None:
    assert all(fault_of(f"xid {number}") is known for number, known in XIDS.items())
    assert all(fault_of(name) is known for name, known in CONDITIONS.items())
    assert XIDS[79].action is FaultAction.MOVE
    assert fault_of("xid 99999999") is None


def test_users_avoid_and_lift() -> None:
    model = cluster({"n1": 2, "n2": 1})
    model.send(cmd.Avoid("n1", 1, 600.0, "loud"), cmd.Avoid("n2", None, 60.0))
    assert (avoided(model), avoided(model, "n2")) == ([(1, 600, 1)], [(None, 60, 1)])
    assert (model.world.nodes["n1"].usable, model.world.nodes["n2"].usable) == ((0,), ())
    model.send(cmd.Lift("n1", 1))
    assert model.world.nodes["n1"].usable == (0, 1)
    refused = model.send(
        cmd.Lift("n1", 1), cmd.Lift("n2", 0), cmd.Avoid("n9", None, 60.0), cmd.Avoid("n1", 5, 60.0),
        cmd.Avoid("n1", 0, -1.0), cmd.Avoid("n1", 0, float("nan")),
    )  # fmt: skip
    assert all(isinstance(each, CommandRefused) for each in refused)
    assert str(refused[0]) == "n1:1 is not excluded (hpcdl avoid lists what is)"
    assert "all of n2 is: hpcdl avoid --lift n2" in str(refused[1])
    model.run(70.0)
    assert model.world.nodes["n2"].usable == (0,)


def test_it_survives_the_agent_and_another_numbering() -> None:
    model = cluster()
    fault(model, "xid 79", index=1)
    model.disconnect("n1")
    agent = model.agents["n1"]
    agent.gpus = [agent.gpus[1]]  # the other one fell off; this one is GPU 0 now
    agent.gpus[0] = type(agent.gpus[0])(0, agent.gpus[0].uuid)
    model.connect("n1")
    model.run(1.0)
    assert [index for index, _, _ in avoided(model)] == [0]
    assert model.world.nodes["n1"].usable == ()
    model.restart_daemon()
    model.run(1.0)
    assert model.world.nodes["n1"].usable == ()


def test_gpus_on_which_several_jobs_fail_are_suspected() -> None:
    failed = [Failed(10.0 * n, n % 2, (0, 1) if n % 2 else (1, 2)) for n in range(5)]
    assert suspects(failed, 60.0, 5) == (1,)
    assert suspects(failed, 60.0, 6) is None
    assert suspects(failed, 5000.0, 5) is None, "that was long ago"
    assert suspects([Failed(1.0, 1, (0,))] * 9, 60.0, 5) is None, "one job may be to blame itself"
    assert suspects([Failed(1.0, 1, (0,)), Failed(2.0, 2, (1,))], 60.0, 2) == ()
    assert suspects(failed, 60.0, 0) is None


def test_a_node_on_which_jobs_fail_while_others_are_well_is_avoided() -> None:
    model = cluster({"n1": 1, "n2": 1}, avoid_failures=3)
    model.submit(SPEC, SPEC, SPEC)
    for _ in range(6):
        model.run_until(lambda: any(model.users.get(gpu) for gpu in model.users if gpu.node == "n1"))
        here = next(job for gpu, (job, _) in model.users.items() if gpu.node == "n1")
        model.kill(here)
        model.run(2.0)
        if avoided(model):
            break
    (event,) = [r.event for r in model.journal.records if isinstance(r.event, ce.GpuAvoided)]
    assert (event.node, event.index, event.moves) == ("n1", 0, False)
    assert "failed there in a row: killed from outside" in event.reason
    model.run_to_end()
    assert set(model.states().values()) == {JobState.DONE}


def test_a_gpu_that_its_node_lost_meanwhile_is_not_suspected() -> None:
    model = cluster({"n1": 2, "n2": 1}, avoid_failures=2)
    model.submit(SPEC, SPEC, SPEC)
    model.run(30.0)
    (job,) = {job for gpu, (job, _) in model.users.items() if (gpu.node, gpu.number) == ("n1", 1)}
    node = model.world.nodes["n1"]
    gone = replace(node, gpus=node.gpus[:1], failed=tuple(Failed(model.now, other, (1,)) for other in (7, 8)))
    model.controller.world = replace(model.world, nodes=model.world.nodes | {"n1": gone})
    model.kill(job)
    model.run(5.0)
    assert job not in {user for user, _ in model.users.values()}, "its end was recorded"
    assert avoided(model) == []


def test_failures_are_forgotten_when_gpus_have_other_numbers() -> None:
    model = cluster({"n1": 2}, avoid_failures=2)
    model.submit(SPEC)
    model.run(30.0)
    model.kill(1)
    model.run(2.0)
    assert [each.gpus for each in model.world.nodes["n1"].failed] == [(0,)]
    agent = model.agents["n1"]
    for gpus, left in ((agent.gpus, [(0,)]), (agent.gpus[:1], [])):
        agent.gpus = gpus
        model.disconnect("n1")
        model.connect("n1")
        model.run(1.0)
        assert [each.gpus for each in model.world.nodes["n1"].failed] == left


def test_where_all_is_alike_nothing_is_avoided() -> None:
    model = cluster({"n1": 1}, avoid_failures=2)
    model.submit(SPEC, SPEC)
    for _ in range(4):
        model.run_until(lambda: bool(model.users))
        model.kill(next(iter(model.users.values()))[0])
        model.run(40.0)
    assert avoided(model) == []
    assert not [r for r in model.journal.records if isinstance(r.event, ev.TroubleSeen)]
