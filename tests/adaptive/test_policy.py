"""What `adaptive` decides in views that a person can follow."""

from dataclasses import replace

import pytest

from hpcdl.adaptive import Adaptive, AdaptiveFifo, choice
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.policies import all_policies
from tests.adaptive.views import CONCAVE, FLAT, LINEAR, counts, decide, gpus, job, node, reasons, running, view

POLICY = Adaptive()


def test_one_job_gets_the_count_on_which_it_is_fastest() -> None:
    assert counts(decide(POLICY, view(job(1)))) == [8]
    assert counts(decide(POLICY, view(job(1, profile=FLAT)))) == [2]


def test_two_equal_jobs_share() -> None:
    assert counts(decide(POLICY, view(job(1, submitted_at=0.0), job(2, submitted_at=0.0)))) == [4, 4]


def test_a_small_gain_is_not_worth_a_stall() -> None:
    plan = decide(POLICY, view(running(1, 0, 1, 2, 3, total=1500)))
    assert gpus(plan) == ["n1:0,1,2,3,4,5,6,7"]
    dear = Profile("dear", ((1, 1, 1.0), (1, 4, 2.6), (1, 8, 3.0)), 60.0, 200.0, 400.0)
    plan = decide(POLICY, view(running(1, 0, 1, 2, 3, total=1500, profile=dear)))
    assert gpus(plan) == ["n1:0,1,2,3"]
    assert reasons(plan) == ["keeps 4 of 8 GPUs of n1: 2.6x one GPU; 1 more would gain 4 % and cost 600 s"]


def test_one_gpu_is_not_compared_with_one_gpu() -> None:
    plan = decide(POLICY, view(job(1, gpus_max=1)))
    (said,) = reasons(plan)
    assert said == "gets 1 of 8 GPUs of n1"


def test_a_job_prefers_the_kind_on_which_it_is_fast() -> None:
    nodes = (node("a", 8, "k80"), node("b", 8, "v100"))
    plan = decide(POLICY, view(job(1, profile=LINEAR), nodes=nodes))
    assert gpus(plan) == ["b:0,1,2,3,4,5,6,7"]


def test_who_cannot_be_suspended_keeps_what_it_holds() -> None:
    plan = decide(POLICY, view(running(1, 0, 1, 2, can_suspend=False), job(2), job(3)))
    assert gpus(plan)[0] == "n1:0,1,2"
    assert sum(counts(plan)[1:]) == 5
    assert "nothing shows yet" in reasons(plan)[0]


def test_a_job_on_a_node_that_is_away_keeps_it() -> None:
    plan = decide(POLICY, view(running(1, 0, on="n9"), job(2)))
    assert gpus(plan) == ["n9:0", "n1:0,1,2,3,4,5,6,7"]
    assert reasons(plan)[0] == "keeps its 1 GPU of n9, whose agent is away"


def test_gpus_of_a_blocked_job_are_not_given_while_it_holds_them() -> None:
    plan = decide(POLICY, view(running(1, 0, 1, blocked="held by its user"), job(2)))
    assert gpus(plan) == ["-", "n1:2,3,4,5,6,7"]
    assert reasons(plan)[0] == "held by its user"


def test_a_lost_gpu_is_given_up() -> None:
    plan = decide(POLICY, view(running(1, 0, 1, 2, 3), nodes=(node("n1", 3),)))
    assert gpus(plan) == ["n1:0,1,2"]


def test_who_can_run_nowhere_is_told_why() -> None:
    plan = decide(POLICY, view(job(1, gpus_min=9, gpus_max=9), job(2)))
    assert counts(plan) == [0, 8]
    assert reasons(plan)[0] == "needs 9 GPUs; the largest of 1 node has 8"
    plan = decide(POLICY, view(job(1), nodes=()))
    assert reasons(plan) == ["needs 1 GPU; no node is connected"]


@pytest.mark.parametrize("name", all_policies().names())
def test_a_drained_node_is_no_node_that_is_away(name: str) -> None:
    seen = View(0.0, (), (job(1, total=100),), bare=frozenset({"n1"}))
    (reason,) = reasons(all_policies().make(name).decide(seen))
    assert "no node is connected" not in reason
    assert "of n1 are lost, dirty, excluded or drained" in reason or "no GPU of n1 can be granted" in reason


def test_who_waits_is_told_when_it_comes_first() -> None:
    plan = decide(POLICY, view(running(1, *range(8), can_suspend=False), job(2)))
    assert reasons(plan)[1] == (
        "needs 1 GPU; other jobs gain more from the 8 GPUs now; it goes first once it has waited 5 h 06 min"
    )


def test_only_allowed_counts() -> None:
    plan = decide(POLICY, view(job(1, counts=(1, 3)), nodes=(node("n1", 4),)))
    assert counts(plan) == [3]


def test_jobs_of_several_nodes() -> None:
    nodes = tuple(node(f"n{number}", 4) for number in range(1, 4))
    wide = Profile("wide", ((1, 4, 4.0), (2, 4, 7.0), (3, 4, 9.0)), 10.0, 1.0, 5.0)
    plan = decide(POLICY, view(job(1, nodes=2, nodes_max=3, gpus_max=4, profile=wide), nodes=nodes))
    assert gpus(plan) == ["n1:0,1,2,3+n2:0,1,2,3+n3:0,1,2,3"]


def test_without_a_profile_a_common_curve_is_taken() -> None:
    plan = decide(POLICY, view(job(1, profile=None), job(2, profile=None, total=None)))
    assert sum(counts(plan)) == 8
    assert min(counts(plan)) > 0
    assert "no profile yet" in reasons(plan)[0]


def test_a_job_on_its_way_goes_on_to_its_target() -> None:
    target = Placement((Share("n1", (0, 1, 2, 3)),))
    leaving = running(1, 0, 1, target=target, leaving=True, state=JobState.RESCALING, step_at=None)
    assert gpus(decide(POLICY, view(leaving, running(2, 4, 5, 6, 7))))[0] == "n1:0,1,2,3"


def test_who_waits_for_gpus_is_started_ahead() -> None:
    many = [running(1, *range(8), total=100_000), *(job(number, total=500) for number in range(2, 6))]
    plan = decide(POLICY, view(*many))
    assert plan.warm
    assert set(plan.warm) <= {target.job for target in plan.targets if target.placement is not None}


def test_first_come_first_started() -> None:
    """Job 2 needs the whole node, which the others use better: the order of start keeps job 3 from overtaking it."""
    seen = view(
        running(1, 0, 1, 2, 3, total=4000),
        job(2, gpus_min=8, total=100_000, profile=FLAT),
        job(3, total=300),
    )
    free = decide(POLICY, seen)
    assert counts(free)[2] > 0
    assert counts(free)[1] == 0
    assert counts(decide(AdaptiveFifo(), seen))[2] == 0


@pytest.mark.parametrize("objective", ["jct", "throughput", "fair", "makespan"])
def test_every_objective_uses_the_gpus(objective: str) -> None:
    seen = view(*(job(number, total=300 * number) for number in range(1, 5)), objective=objective)
    assert sum(counts(decide(POLICY, seen))) == 8


def test_fairness_helps_who_is_late() -> None:
    late = job(1, total=1000, submitted_at=0.0)
    plan = decide(POLICY, view(late, *(job(number, submitted_at=999.0) for number in range(2, 10)), objective="fair"))
    assert counts(plan)[0] == max(counts(plan))


def test_an_overdue_job_gets_gpus_before_all_others() -> None:
    day = 24 * 3600.0
    big = job(1, gpus_min=8, total=100, submitted_at=0.0, profile=FLAT)
    others = [running(number, number - 2, submitted_at=day - 10.0, step_at=day) for number in range(2, 10)]
    plan = decide(POLICY, view(big, *others, now=day))
    assert counts(plan) == [8, *[0] * 8]


def test_an_overdue_job_is_kept_a_node_where_nobody_can_be_suspended() -> None:
    day = 24 * 3600.0
    big = job(1, gpus_min=8, total=100, submitted_at=0.0)
    stays = running(2, 0, submitted_at=day - 10.0, step_at=day, can_suspend=False)
    plan = decide(POLICY, view(big, stays, job(3, submitted_at=day - 5.0), now=day))
    assert counts(plan) == [0, 1, 0]


def test_a_large_cluster_is_used_whole_and_stays_as_it_is() -> None:
    """Forty nodes of two kinds are two pools: what fits nowhere as wished is placed with fewer GPUs."""
    nodes = tuple(node(f"n{at:02d}", 8, "v100" if at % 2 else "k80") for at in range(40))
    jobs = [
        job(number, total=200 * (1 + number % 17), profile=(CONCAVE, LINEAR)[number % 2]) for number in range(1, 99)
    ]
    plan = decide(POLICY, view(*jobs, nodes=nodes))
    assert plan.optimal
    assert sum(counts(plan)) == 320
    held = [
        running(each.id, 0, total=each.total, profile=each.profile, placement=target.placement, target=target.placement)
        for each, target in zip(jobs, plan.targets, strict=True)
        if target.placement is not None
    ]
    again = decide(POLICY, view(*held, nodes=nodes))
    assert [each.placement for each in again.targets] == [each.placement for each in held]


@pytest.mark.parametrize("objective", ["jct", "makespan", "throughput", "deadline", "fair"])
@pytest.mark.parametrize("size", [2, 8])
def test_a_job_gets_only_nodes_whose_gpus_have_the_memory_that_it_needs(size: int, objective: str) -> None:
    """With 2 nodes each is a pool of its own, with 8 of them nodes that are alike are one."""
    small, large = (tuple((gpu, mib) for gpu in range(4)) for mib in (16_384, 81_920))
    nodes = tuple(replace(node(f"n{at}", 4, "v100"), memory=small if at % 2 else large) for at in range(size))
    jobs = [job(number, needs_mib=40_960 if number % 3 else 8_192) for number in range(1, 4 * size)]
    plan = decide(POLICY, view(*jobs, nodes=nodes, objective=objective))
    held = {each.job: each.placement.nodes for each in plan.targets if each.placement is not None}
    assert any(number % 3 for number in held)
    assert any(number % 3 == 0 for number in held)
    assert all(int(name[1:]) % 2 == 0 for number, names in held.items() if number % 3 for name in names)
    wide = view(job(1, nodes=size, nodes_max=size, needs_mib=40_960), nodes=nodes, objective=objective)
    (why,) = reasons(decide(POLICY, wide))
    assert why.startswith(f"needs 1 GPU on each of {size} nodes; {size // 2} of {size} nodes have 40 GiB a GPU")


@pytest.mark.parametrize("objective", ["jct", "makespan", "throughput", "deadline", "fair"])
def test_a_job_may_have_nodes_of_different_sizes_where_it_needs_more_than_there_are_of_one(objective: str) -> None:
    nodes = (node("a1", 4), node("a2", 4), node("b1", 2), node("b2", 2))
    wide = job(1, nodes=3, nodes_max=3, gpus_max=4)
    seen = view(wide, nodes=nodes, objective=objective)
    placement = decide(POLICY, seen).by_job()[1].placement
    assert placement is not None
    assert [len(share.gpus) for share in placement.shares] == [2, 2, 2]
    never = view(job(1, nodes=3, nodes_max=3, gpus_min=3, gpus_max=4), job(2), nodes=nodes, objective=objective)
    assert [bool(target.placement) for target in decide(POLICY, never).targets] == [False, True]
    of_two_types = (node("a1", 4, "v100"), node("a2", 4, "v100"), node("b1", 4, "p100"))
    plan = decide(POLICY, view(wide, job(2), nodes=of_two_types, objective=objective))
    assert [bool(target.placement) for target in plan.targets] == [False, True]


def test_a_choice_that_is_not_proven_does_not_alternate_with_what_jobs_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is too large: from each of two layouts the search found the other one, which was worth less."""
    monkeypatch.setattr(choice, "BUDGET", 0)
    nodes = tuple(node(f"n{at}", 8, kind) for at, kind in enumerate(("", "b", "c", "d"), 1))
    places = [("n1", 0), ("n2", 0), ("n1", 4), ("n4", 0), ("n3", 0)]
    scales = [(0.5, 5, 3, 8), (0.7, 7, 7, 9), (0.5, 4, 9, 5), (0.7, 6, 7, 8), (0.8, 3, 9, 3)]
    jobs = []
    for number, ((where, first), (power, *others), left, many) in enumerate(
        zip(places, scales, (32_000, 10_000, 8_000, 4_000, 8_000), (4, 8, 4, 8, 8), strict=True), 1
    ):
        curves = [tuple((1, gpus, round(each * gpus**power, 1)) for gpus in (1, 2, 4, 8)) for each in (10, *others)]
        free = Profile(f"free {number}", curves[0], kinds=tuple(zip("bcd", curves[1:], strict=True)))
        held = range(first, first + many)
        jobs.append(running(number, *held, on=where, total=left + 1, profile=free, counts=(1, 2, 4, 8)))
    plan = decide(Adaptive(), view(*jobs, nodes=nodes))
    assert not plan.optimal
    assert [each.placement for each in plan.targets] == [each.placement for each in jobs]
