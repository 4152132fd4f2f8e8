"""A job of a higher priority comes first under every policy, starves nobody for good, and takes nothing by itself."""

from dataclasses import replace

import pytest

from hpcdl.core.controller.view_builder import build_view
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import Entry
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.policies import all_policies
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", profile="plain", steps=200, gpus_max=1, signal="none")
POLICIES = all_policies().names()


def on(policy: str, gpus: int = 2) -> Cluster:
    cluster = Cluster({"n1": gpus})
    cluster.policies = cluster.controller.policies = all_policies()
    cluster.send(cmd.ChoosePolicy(policy))
    cluster.tick_every(10.0)
    return cluster


def later(cluster: Cluster, *specs: JobSpec) -> list[int]:
    """Submits them to what runs already; the jobs that start from then on, in that order, with all done in the end."""
    begun = set(cluster.world.live)
    cluster.submit(*specs)
    cluster.run_until(lambda: not cluster.world.active, within_s=50_000.0)
    started = {number: job.first_start_at or 0.0 for number, job in cluster.world.jobs.items()}
    cluster.check_replay()
    return sorted(started.keys() - begun, key=lambda number: (started[number], -number))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_highest_starts_first(policy: str) -> None:
    """Some run and cannot be suspended, others wait; then come three more, of priorities -1, 100 and 7."""
    cluster = on(policy)
    cluster.submit(*[SPEC] * 2)
    cluster.run(5.0)
    cluster.submit(*[replace(SPEC, steps=50 + 20 * number) for number in range(5)])
    cluster.run(30.0)
    order = later(cluster, *[replace(SPEC, priority=priority) for priority in (-1, 100, 7)])
    assert set(order[:2]) == {9, 10}, order
    assert order[-1] == 8


@pytest.mark.parametrize("objective", ["jct", "makespan", "throughput", "fair", "deadline", "efficiency"])
def test_under_every_objective(objective: str) -> None:
    cluster = on("adaptive")
    cluster.send(cmd.ChooseObjective(objective))
    cluster.submit(*[SPEC] * 6)
    cluster.run(5.0)
    assert later(cluster, replace(SPEC, steps=2000, priority=100))[0] == 7


@pytest.mark.parametrize("policy", ["adaptive", "marble", "fifo"])
def test_a_large_one_is_not_starved_by_small_ones(policy: str) -> None:
    cluster = on(policy, gpus=4)
    cluster.submit(*[replace(SPEC, steps=100 + 40 * number) for number in range(12)])
    cluster.run(5.0)
    assert later(cluster, replace(SPEC, gpus_min=4, gpus_max=4, priority=1))[0] == 13


def test_the_order_of_a_view() -> None:
    cluster = on("marble")
    held = Entry(replace(SPEC, priority=-3), held=True)
    cluster.send(cmd.Submit((SPEC, replace(SPEC, priority=5), held, SPEC, replace(SPEC, priority=5)), "r"))
    view = build_view(cluster.world, Profiles({}), cluster.now)
    assert [job.id for job in view.jobs] == list(view.by_id) == [2, 5, 1, 4, 3]
