"""A node whose mounts fail a job is told from a job that fails everywhere."""

from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import JobState
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", steps=400, profile="plain")
DENIED: dict[str, Any] = {
    "detail": "the checkpoint folder /data/c cannot be made: Permission denied", "permanent": True, "node_fault": True,
}  # fmt: skip
STALE: dict[str, Any] = {
    "code": 126, "detail": "cannot enter the working directory /home/ada: Stale file handle", "node_fault": True,
}  # fmt: skip


def cluster(nodes: dict[str, int], **faults: dict[str, Any]) -> Cluster:
    model = Cluster(nodes, settings=Settings(agent_lease_s=300.0, avoid_failures=5))
    for node, fault in faults.items():
        model.agents[node].fault = fault
    model.tick_every(1.0)
    model.run(1.0)
    return model


def excluded(model: Cluster) -> list[str]:
    return [node.name for node in model.world.nodes.values() if node.avoids(None) is not None]


@pytest.mark.parametrize("fault", [DENIED, STALE, {key: DENIED[key] for key in ("detail", "permanent")}])
def test_a_job_that_one_node_fails_runs_on_another(fault: dict[str, Any]) -> None:
    """The third is what an agent of an earlier version says."""
    model = cluster({"n1": 1, "n2": 1}, n1=fault)
    model.submit(SPEC)
    model.run_to_end()
    job = model.job(1)
    assert (job.outcome, job.last_incarnation, job.last.placement.nodes) == (JobState.DONE, 2, ("n2",))
    assert excluded(model) == ([] if fault.get("permanent") else ["n1"]), (
        "for as long as it may not be its user's doing"
    )
    (said,) = [r.event for r in model.journal.records if isinstance(r.event, ev.GpuAvoided)]
    where = "exit code 126: " if "code" in fault else ""
    assert (said.index, said.moves, said.reason) == (
        None,
        False,
        f"job 1 could not run there: {where}{fault['detail']}",
    )
    model.check_replay()


def test_the_others_do_not_try_that_node_meanwhile() -> None:
    model = cluster({"n1": 2, "n2": 1}, n1=STALE)
    model.submit(SPEC, SPEC, SPEC)
    model.run_to_end()
    assert set(model.states().values()) == {JobState.DONE}
    starts = [r.event.nodes for r in model.journal.records if isinstance(r.event, ev.StartRequested)]
    assert starts.count(("n1",)) <= 2, "those that were started there at once"
    model.run(2 * 3600.0)
    assert excluded(model) == []


def test_what_may_be_its_users_doing_keeps_no_node_from_others() -> None:
    """As a working directory that is nowhere: the others are busy for long, and it is tried again where it was."""
    model = cluster({"n1": 1, "n2": 1}, n2=DENIED)
    model.submit(SPEC)
    model.run(3.0)
    model.submit(SPEC)
    model.run_until(lambda: model.job(2).last_incarnation == 5)
    assert (model.job(2).outcome, model.job(2).unfit_nodes) == (None, ("n2",))
    assert not [r for r in model.journal.records if isinstance(r.event, ev.GpuAvoided)]
    model.run_to_end()
    assert set(model.states().values()) == {JobState.DONE}


def test_a_mistake_of_two_jobs_keeps_no_gpu_from_others() -> None:
    """An array with a mistyped folder fails its GPU again and again: that says nothing of the GPU."""
    model = cluster({"n1": 1, "n2": 1}, n2=DENIED)
    model.submit(SPEC)
    model.run(3.0)
    model.submit(SPEC, SPEC)
    model.run_until(lambda: all(model.job(number).last_incarnation >= 4 for number in (2, 3)))
    assert not [r for r in model.journal.records if isinstance(r.event, ev.GpuAvoided)]
    assert not model.world.nodes["n2"].failed
    model.check_replay()


def test_what_fails_on_several_nodes_is_the_jobs_own() -> None:
    model = cluster({"n1": 1, "n2": 1, "n3": 1, "n4": 1}, n1=DENIED, n2=DENIED, n3=DENIED, n4=DENIED)
    model.submit(SPEC)
    model.run_until(lambda: model.job(1).finished)
    job = model.job(1)
    assert (job.outcome, job.last_incarnation, len(job.unfit_nodes)) == (JobState.FAILED, 3, 3)
    assert job.last.detail == f"poison guard: 3 times the same: {DENIED['detail']}"
    assert excluded(model) == [], "it was no fault of theirs"
    lifted = {r.event.reason for r in model.journal.records if isinstance(r.event, ev.AvoidLifted)}
    assert lifted == {"job 1 fails on n[1-3] alike"}
    model.check_replay()


def test_where_there_is_one_node_what_no_attempt_changes_ends_the_job() -> None:
    model = cluster({"n1": 1, "n2": 1}, n2=DENIED)
    model.send(cmd.Drain("n1", until=None, now=True, reason=""))
    model.submit(SPEC)
    model.run_until(lambda: model.job(1).finished)
    assert (model.job(1).outcome, model.job(1).last_incarnation) == (JobState.FAILED, 3)
    assert excluded(model) == []


def test_a_server_that_is_away_everywhere_fails_no_job_and_excludes_nothing() -> None:
    model = cluster({"n1": 1, "n2": 1}, n1=STALE, n2=STALE)
    model.submit(SPEC)
    model.run_until(lambda: model.job(1).last_incarnation == 8)
    assert (model.job(1).outcome, model.job(1).unfit_nodes) == (None, ("n1", "n2"))
    assert excluded(model) == []
    for node in ("n1", "n2"):
        model.agents[node].fault = None
    model.run_to_end()
    assert (model.job(1).outcome, model.job(1).last.cause) == (JobState.DONE, Cause.DONE)
    assert model.job(1).unfit_nodes == ()


def test_a_node_that_alone_is_large_enough_is_not_excluded() -> None:
    model = cluster({"n1": 2, "n2": 1}, n1=STALE)
    model.submit(JobSpec(("train",), "j", steps=400, profile="plain", gpus_min=2, gpus_max=2))
    model.run_until(lambda: model.job(1).last_incarnation == 3)
    assert excluded(model) == []
    model.agents["n1"].fault = None
    model.run_to_end()
    assert model.job(1).outcome is JobState.DONE
