"""Algorithm 1 on views made by hand."""

import pytest

from hpcdl.core.model.plan import NodeView, Policies
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.genie import POLICIES, Genie
from hpcdl.policies import all_policies
from tests.genie.made import CURVE, decide, decide_on, gpus, job, live, on, running, shapes


def test_lines_10_and_11_the_highest_cer_of_those_in_time() -> None:
    # On 2 GPUs (the highest CER) it takes 556 s, on 3 GPUs 455 s, on 4 GPUs 387 s, on 2 nodes x 4 280 s.
    assert shapes(decide(Genie(), job(1, deadline=600.0, nodes_max=2), n1=4, n2=4)) == [(1, 2)]
    assert shapes(decide(Genie(), job(1, deadline=420.0, nodes_max=2), n1=4, n2=4)) == [(1, 4)]
    assert shapes(decide(Genie(), job(1, deadline=300.0, nodes_max=2), n1=4, n2=4)) == [(2, 4)]


def test_lines_12_and_13_the_highest_cer_of_all_where_none_is_in_time() -> None:
    assert shapes(decide(Genie(), job(1, deadline=100.0, nodes_max=2), n1=4, n2=4)) == [(1, 2)]
    assert shapes(decide(Genie(), job(1, deadline=0.0), n1=4, now=50.0)) == [(1, 2)]


def test_equation_12_holds_at_the_very_second() -> None:
    seconds = 30 + 1000 / 1.9
    assert shapes(decide(Genie(), job(1, deadline=seconds))) == [(1, 2)]
    assert shapes(decide(Genie(), job(1, deadline=seconds - 0.001))) == [(1, 3)]


def test_line_15_the_shortest_allowance_first() -> None:
    plan = decide(Genie(), job(1, deadline=2000.0), job(2, deadline=900.0), job(3, deadline=1500.0))
    assert gpus(plan) == ["-", "n1:0,1", "n1:2,3"]
    assert (
        plan.targets[0].reason
        == "it can wait 24 min 04 s and still be on time; needs 2 GPUs on one node, 0 of 4 GPUs free"
    )


def test_late_jobs_come_first() -> None:
    plan = decide(Genie(), job(1, deadline=1200.0), job(2, deadline=100.0), n1=2)
    assert gpus(plan) == ["-", "n1:0,1"]
    assert plan.targets[1].reason == "on 2 GPUs of n1; done in 9 min 16 s, 7 min 36 s late"


def test_equal_allowances_in_the_order_of_submission() -> None:
    assert gpus(decide(Genie(), job(1), job(2), job(3))) == ["n1:0,1", "n1:2,3", "-"]


def test_the_placement_changes_as_time_goes() -> None:
    waits = job(1, deadline=600.0)
    assert shapes(decide(Genie(), waits, now=0.0)) == [(1, 2)]
    assert shapes(decide(Genie(), waits, now=100.0)) == [(1, 3)]


def test_a_job_that_does_not_fit_does_not_hold_up_others() -> None:
    busy = running(1, on(0, 1, 2), total=None)
    plan = decide(Genie(), busy, job(2, deadline=600.0), job(3, gpus_max=1))
    assert gpus(plan) == ["n1:0,1,2", "-", "n1:3"]
    assert plan.targets[1].reason == "it can wait 44 s and still be on time; needs 2 GPUs on one node, 1 free on n1"


def test_free_nodes_are_packed_best_fit() -> None:
    busy = running(1, on(0, node="n1")), running(2, on(0, 1, node="n2"))
    assert gpus(decide(Genie(), *busy, job(3, gpus_min=2, gpus_max=2), n1=4, n2=4, n3=4)) == [
        "n1:0",
        "n2:0,1",
        "n2:2,3",
    ]
    across = job(3, nodes=2, gpus_min=2, gpus_max=2)
    assert gpus(decide(Genie(), *busy, across, n1=4, n2=4, n3=4))[2] == "n1:1,2+n2:2,3"


def test_what_a_job_on_several_nodes_waits_for() -> None:
    busy = running(1, on(0, 1, 2, node="n1"), total=None)
    plan = decide(Genie(), busy, job(2, nodes=2, gpus_min=2, gpus_max=2, deadline=100.0), n1=4, n2=4)
    assert plan.targets[1].reason == (
        "would be 4 min 35 s late if it started now; needs 2 GPUs on each of 2 nodes, 1 node with them free"
    )


def test_what_runs_is_never_preempted() -> None:
    lazy = running(1, on(0, 1, 2, 3), deadline=1e9, step_at=0.0)
    plan = decide(Genie(), lazy, job(2, deadline=0.0), now=100.0)
    assert gpus(plan) == ["n1:0,1,2,3", "-"]
    assert plan.targets[0].reason.startswith("on 4 GPUs of n1; done in 4 min 17 s, ")
    assert plan.targets[0].reason.endswith(" before it is due")


def test_what_saves_keeps_its_gpus_until_they_are_free() -> None:
    leaving = running(1, on(0, 1, 2, 3), leaving=True)
    assert gpus(decide(Genie(), leaving, job(2)))[1] == "-"


def test_blocked_jobs_and_jobs_that_can_never_fit() -> None:
    plan = decide(
        Genie(), job(1, blocked="held"), job(2, gpus_min=8, gpus_max=8), job(3, counts=(3,), gpus_min=3), job(4)
    )
    assert gpus(plan) == ["-", "-", "-", "n1:0,1"]
    assert plan.targets[0].reason == "held"
    assert plan.targets[1].reason == "needs 8 GPUs; the largest node has 4"


def test_jobs_without_numbers_come_behind_those_with_them() -> None:
    plan = decide(Genie(), job(1, total=None), job(2, profile=None), job(3, deadline=9000.0))
    assert gpus(plan) == ["n1:2,3", "-", "n1:0,1"]
    assert "its length is not known; needs 4 GPUs on one node" in plan.targets[1].reason


def test_no_profile_but_a_deadline() -> None:
    assert gpus(decide(Genie(), job(1, deadline=9000.0), job(2, profile=None, deadline=10.0)))[1] == "n1:0,1,2,3"


def test_it_takes_the_kind_that_is_worth_it() -> None:
    profile = Profile("p", ((1, 1, 1.0), (1, 2, 2.0)), kinds=(("k80", ((1, 1, 0.1), (1, 2, 0.2))),))
    nodes = NodeView("a", (0, 1), "k80"), NodeView("b", (0, 1), "v100")
    assert gpus(decide_on(Genie(), nodes, [job(1, profile=profile)])) == ["b:0,1"]


def test_no_node_at_all() -> None:
    plan = decide_on(Genie(), (), [job(1)])
    assert plan.targets[0].reason == "needs 1 GPU; no node is connected"


def test_a_suspended_job_goes_on_where_it_was() -> None:
    profile = Profile("p", CURVE.points, startup_s=30.0, resume_s=37.0)
    plan = decide(Genie(), job(1, state=JobState.SUSPENDED, step=810, profile=profile, deadline=200.0))
    assert plan.targets[0].reason == "on 2 GPUs of n1; done in 2 min 17 s, 1 min 03 s before it is due"


def test_domino() -> None:
    # What is late goes first and makes the next one late: SWAF's weakness, which policies of ours must not have.
    life = live(
        Genie(), (NodeView("n1", (0, 1)),), [job(n, deadline=560.0 + n, submitted_at=float(n)) for n in range(4)]
    )
    assert [life.started[number] for number in sorted(life.started)] == sorted(life.started.values())
    assert sum(life.ended[number] <= 560.0 + number for number in life.ended) == 1


def test_registered() -> None:
    policies = Policies()
    policies.add(*POLICIES)
    names = ("capacity", "fifo", "genie", "min-min", "tetris-cer", "tetris-perf", "weighted-fair")
    assert policies.names() == names
    assert all(policies.make(name).name == name for name in names)
    with pytest.raises(ValueError, match="registered twice"):
        policies.add(*POLICIES)


def test_theta_weighs_the_nodes() -> None:
    two = {"n1": 4, "n2": 4}
    assert shapes(decide(Genie(), job(1, nodes_max=2), **two)) == [(1, 2)], "theta 0.4 of the paper"
    assert shapes(decide(Genie(theta=0.0), job(1, nodes_max=2), **two)) == [(1, 1)], "GPUs alone count"
    assert shapes(decide(Genie(theta=5.0), job(1, nodes_max=2), **two)) == [(1, 4)], "a node is used whole"
    for name in ("genie", "tetris-cer"):
        assert shapes(decide(all_policies(theta=0.0).make(name), job(1, nodes_max=2), **two)) == [(1, 1)]
