"""The daemon's own policy with real trainers: GPUs change hands, nothing is lost, nobody is moved for ever."""

from collections.abc import Callable

import pytest

from tests.system.cluster import Cluster

MakeCluster = Callable[..., Cluster]


def test_jobs_share_grow_and_survive_a_kill(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=4, policy="adaptive", objective="jct").start()
    first = cluster.submit(steps=600, gpus="1:4", options=("--model", "one"))
    cluster.until(lambda: (cluster.job(first)["step"] or 0) > 5)
    others = [cluster.submit(steps=200, gpus="1:2", options=("--model", "two")) for _ in range(3)]
    others.append(cluster.submit(steps=100, gpus="1,2,4", options=("--deadline", "+2h")))
    cluster.until(lambda: "Started" in cluster.kinds(others[0]))
    cluster.kill_daemon()
    cluster.start()
    jobs = [first, *others]
    cluster.until_done(*jobs)
    for job in jobs:
        # These trainers save in hundredths of a second, so every submit and end may pay for a change; nothing else may.
        assert cluster.job(job)["suspends"] < 2 * len(jobs), cluster.events(job)
    plans = [event["body"] for event in cluster.events() if event["kind"] == "PlanAdopted"]
    assert plans
    assert all(target["reason"] for plan in plans for target in plan["targets"])


@pytest.mark.long
def test_a_waiting_job_takes_gpus_from_one_that_has_many(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=2, policy="adaptive", objective="jct").start()
    large = cluster.submit(steps=100_000, gpus="1:2")
    cluster.until(lambda: cluster.job(large)["gpus"] == 2)
    small = cluster.submit(steps=50, gpus="1")
    cluster.until_done(small)
    assert "SuspendRequested" in cluster.kinds(large)
    assert not [event for event in cluster.events() if event["kind"] == "TroubleSeen"]


def test_a_preempted_job_says_for_whom_and_one_that_waits_for_another_says_only_that(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=1, policy="adaptive", objective="jct").start()
    low = cluster.submit(steps=100_000)
    waits = cluster.submit(steps=10, options=("--after", str(low)))
    cluster.until_step(low, 20)
    assert "kept until" not in cluster.cli("why", str(waits))
    held = cluster.submit(steps=10, options=("--hold",))
    assert "kept until" not in cluster.cli("why", str(held))
    urgent = cluster.submit("--step-s", "1", steps=1000, options=("--priority", "5"))
    cluster.until(lambda: "StartRequested" in cluster.kinds(urgent))
    (asked,) = (event["body"] for event in cluster.events(low) if event["kind"] == "SuspendRequested")
    assert (asked["purpose"], asked["takers"]) == ("preempt", [urgent])
    cluster.until(lambda: f"suspended for job {urgent} (priority 5)" in cluster.cli("why", str(low)))
    cluster.cli("cancel", f"{low},{waits},{held},{urgent}")
