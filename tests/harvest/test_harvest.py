"""The policy harvest: how nodes are split between trainers on several nodes and packing."""

from dataclasses import replace

import pytest

from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import JobView
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.harvest import Harvest
from hpcdl.milp import Reallocation
from hpcdl.milp.policy import PATIENCE_RUNS, PATIENCE_S
from hpcdl.policies import all_policies
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.workload import NodeSpell, SimJob, Workload
from tests.milp.trainer_views import counts, decide, names, nodes, reasons, training, view, waiting

WIDE = Profile("wide", ((1, 4, 4.0), (2, 4, 7.8), (4, 4, 15.0)), 20.0, 5.0, 20.0, grow_s=10.0, shrink_s=2.0)
SMALL = Profile("small", ((1, 1, 1.0), (1, 2, 1.4), (1, 4, 1.8)), startup_s=10.0, save_s=2.0, resume_s=8.0)
BOTH = [Harvest(Reallocation(packing="adaptive")), Harvest(Reallocation(packing="marble"))]


def wide(number: int, **more: object) -> JobView:
    return waiting(number, WIDE, low=1, high=4, gpus_max=4, **more)


def small(number: int, **more: object) -> JobView:
    return waiting(number, SMALL, low=1, high=1, gpus_max=4, rescale="restart", **more)


def packed(number: int, node: str, *gpus: int, **more: object) -> JobView:
    held = Placement((Share(node, gpus),))
    return replace(
        small(number),
        placement=held,
        target=held,
        state=JobState.RUNNING,
        step=1,
        step_at=1000.0,
        held_since=0.0,
        started_at=0.0,
        **more,  # type: ignore[arg-type]
    )


def test_a_node_is_for_whom_it_is_worth_most() -> None:
    """Four small jobs do 2.2 times on a node what one does alone, and 0.9 more on another one; a trainer does 0.95."""
    policy = BOTH[0]
    there = nodes(3, size=4)
    plan = decide(policy, view(wide(1), *[small(at) for at in range(2, 6)], there=there, objective="efficiency"))
    assert counts(plan) == [2, 1, 1, 1, 1]
    assert len({name for each in names(plan)[1:] for name in each}) == 1
    few = decide(policy, view(wide(1), small(2), there=there, objective="efficiency"))
    assert counts(few)[1] == 1
    many = decide(policy, view(wide(1), *[small(at) for at in range(2, 20)], there=there, objective="efficiency"))
    assert counts(many)[0] == 0
    assert sum(counts(many)[1:]) == 12
    assert reasons(many)[0].startswith("other trainers gain more from the 3 nodes")


def test_marble_gives_each_job_the_number_that_it_is_fastest_on() -> None:
    """So a node is worth to packing what one job does on it: as much as a trainer's first, more than its second one."""
    jobs = [small(at) for at in range(2, 6)]
    plan = decide(BOTH[1], view(wide(1), *jobs, there=nodes(3, size=4), objective="efficiency"))
    assert counts(plan) == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("policy", BOTH)
def test_what_small_jobs_do_counts_in_steps_under_throughput(policy: Harvest) -> None:
    fast = replace(WIDE, points=((1, 4, 40.0), (4, 4, 150.0)))
    trainer = replace(wide(1), profile=fast)
    jobs = [small(at) for at in range(2, 10)]
    plan = decide(policy, view(trainer, *jobs, there=nodes(4, size=4)))
    assert counts(plan) == [4, *[0] * 8]
    assert reasons(plan)[5] == "trainers on several nodes gain more from 4 nodes now"


@pytest.mark.parametrize("policy", BOTH)
def test_who_is_packed_leaves_its_node_only_where_that_pays(policy: Harvest) -> None:
    there = nodes(2, size=4)
    on_one = [packed(at, "n001", at - 2) for at in range(2, 6)]
    plan = decide(policy, view(wide(1), *on_one, there=there, objective="efficiency"))
    assert names(plan) == [("n002",), *[("n001",)] * 4]
    heavy = replace(wide(1), weight=50.0)
    plan = decide(policy, view(heavy, *on_one, there=there, objective="priority"))
    assert counts(plan) == [2, 0, 0, 0, 0]
    stuck = [replace(on_one[0], can_suspend=False), *on_one[1:]]
    plan = decide(policy, view(heavy, *stuck, there=there, objective="priority"))
    assert names(plan)[0] == ("n002",)
    assert names(plan)[1] == ("n001",)


@pytest.mark.parametrize("policy", BOTH)
def test_nobody_starves(policy: Harvest) -> None:
    """Small jobs without end do more on the nodes than the trainer; once it is overdue it gets one. And vice versa."""
    there = nodes(2, size=4)
    first = wide(1, total=100, weight=0.5)
    flood = [small(at) for at in range(2, 30)]
    assert counts(decide(policy, view(first, *flood, there=there, objective="priority")))[0] == 0
    due_at = 1.0 + PATIENCE_S + PATIENCE_RUNS * 100 / 4.0
    plan = decide(policy, view(first, *flood, there=there, objective="priority", now=due_at))
    assert counts(plan)[0] == 1
    last = small(1, total=100)
    big = replace(training(2, ["n001", "n002"], WIDE, high=4, gpus_max=4), weight=100.0)
    assert counts(decide(policy, view(last, big, there=there, objective="priority"))) == [0, 2]
    due_at = 1.0 + PATIENCE_S + PATIENCE_RUNS * 100 / 1.8
    assert counts(decide(policy, view(last, big, there=there, objective="priority", now=due_at))) == [1, 1]


@pytest.mark.parametrize("policy", BOTH)
def test_one_kind_of_job_alone(policy: Harvest) -> None:
    there = nodes(2, size=4)
    assert counts(decide(policy, view(wide(1), there=there))) == [2]
    assert counts(decide(policy, view(small(1), small(2), there=there))) == [1, 1]
    assert counts(decide(policy, view(there=there))) == []
    alone = decide(policy, view(small(1), wide(2), there=()))
    assert counts(alone) == [0, 0]
    assert reasons(alone)[0] == "needs 1 GPU; no node is connected"


@pytest.mark.parametrize("packing", ["adaptive", "marble"])
@pytest.mark.parametrize("objective", ["efficiency", "jct", "makespan", "deadline"])
def test_everyone_finishes_where_several_nodes_stand_for_a_cluster(packing: str, objective: str) -> None:
    jobs = tuple(
        SimJob(7.0 * at, f"w{at}", WIDE, 900 + 100 * at, 1, 4, nodes=1 + at % 2, nodes_max=4, rescale="in-process")
        if at % 4 == 0
        else SimJob(7.0 * at, f"s{at}", SMALL, 60 + 13 * (at * 7 % 11), 1, 4)
        for at in range(24)
    )
    always = tuple(NodeSpell(f"n{at}", 4) for at in range(3))
    come = (NodeSpell("x1", 4, "", 30.0, 200.0), NodeSpell("x2", 4, "", 100.0, 160.0))
    policies = all_policies(Reallocation(packing=packing))
    run = simulate(Workload("both", jobs, always + come), "harvest", policies, Conditions(objective=objective))
    assert run.problems == ()
    assert not run.world.active
    if packing == "marble":
        return
    alone = simulate(Workload("both", jobs, always + come), "bftrainer", policies, Conditions(objective=objective))
    assert max(job.finished_at or 0.0 for job in run.world.jobs.values()) < max(
        job.finished_at or 0.0 for job in alone.world.jobs.values()
    )
