"""What a workload refuses to hold."""

import math
from typing import Any

import pytest

from hpcdl.core.model.profile import Profile
from hpcdl.sim.workload import NodeSpell, SimJob, Workload, WorkloadError, check_fits, cluster

PROFILE = Profile("p", ((1, 1, 1.0),))


def job(**more: Any) -> SimJob:
    values: dict[str, Any] = {"submit_s": 0.0, "name": "j", "profile": PROFILE, "steps": 5}
    return SimJob(**(values | more))


@pytest.mark.parametrize(
    "more, told",
    [
        ({"name": ""}, "name must have 1 to 200"),
        ({"name": "a\nb"}, "name must have 1 to 200"),
        ({"submit_s": math.nan}, "job j: submit_s: must be a number"),
        ({"submit_s": -1.0}, "job j: submit_s: must be a number"),
        ({"steps": 0}, "job j: steps: must be from 1"),
        ({"gpus_min": 0}, "job j: gpus: must be from 1"),
        ({"gpus_min": 4, "gpus_max": 2}, r"job j: gpus: the maximum must be from 4 \(the minimum\)"),
        ({"gpus_max": 5000}, "job j: gpus: the maximum"),
        ({"gpus_counts": (2, 1)}, "ascending and distinct"),
        ({"gpus_counts": (1, 1)}, "ascending and distinct"),
        ({"gpus_counts": (1, 8), "gpus_max": 4}, "must lie in 1:4"),
        ({"gpus_counts": (0, 8)}, "must lie in 1:"),
        ({"draw": 0}, "draw: 0 GPUs are not in 1:"),
        ({"draw": 3, "gpus_counts": (2, 4)}, "draw: 3 GPUs are none of"),
        ({"nodes": 0}, "nodes: 0:0: needs"),
        ({"nodes": 3, "nodes_max": 2}, "nodes: 3:2: needs"),
        ({"kind": "serving"}, "kind: must be training or inference"),
        ({"user": "a\tb"}, "user: must be printable"),
        ({"submit_s": 5.0, "deadline_s": 4.0}, "deadline_s: 4.0 is before its submit at 5"),
        ({"deadline_s": math.nan}, "deadline_s: nan"),
        ({"predicted": math.inf}, "predicted: must be a finite"),
    ],
)
def test_a_job_that_makes_no_sense(more: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkloadError, match=told):
        job(**more)


def test_a_deadline_at_the_submit_is_one_that_cannot_be_met() -> None:
    assert job(submit_s=5.0, deadline_s=5.0).deadline_s == 5.0


def test_jobs_are_in_the_order_of_their_submits() -> None:
    with pytest.raises(WorkloadError, match="job b is submitted at 1, before job a at 2: sort the jobs"):
        Workload("w", (job(name="a", submit_s=2.0), job(name="b", submit_s=1.0)))


@pytest.mark.parametrize("more", [{"gpus": 0}, {"gpus": 5000}, {"name": ""}, {"kind": "V100"}])
def test_a_node_that_makes_no_sense(more: dict[str, Any]) -> None:
    values: dict[str, Any] = {"name": "n", "gpus": 4}
    with pytest.raises(WorkloadError):
        NodeSpell(**(values | more))


def test_a_cluster_has_nodes() -> None:
    assert [spell.name for spell in cluster(2, 4, first=3)] == ["n3", "n4"]
    with pytest.raises(WorkloadError, match="1 to 100000 nodes, got 0"):
        cluster(0, 4)


def test_what_fits_depends_on_allowed_numbers_and_nodes() -> None:
    nodes = (*cluster(2, 4), NodeSpell("big", 8))
    check_fits(Workload("w", (job(gpus_counts=(8, 16)), job(nodes=3, gpus_min=4), job(gpus_min=2)), nodes))
    with pytest.raises(WorkloadError, match="needs 2 nodes with 8 GPUs or more of one type, and never are more than 1"):
        check_fits(Workload("w", (job(nodes=2, gpus_min=8),), nodes))
    with pytest.raises(WorkloadError, match="needs 9 GPUs on a node, and the largest node, big, has 8"):
        check_fits(Workload("w", (job(gpus_min=9),), nodes))
