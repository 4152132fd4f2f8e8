"""Algorithm 1 on views: promotions, several nodes, strict order, reasons; and the baseline."""

from dataclasses import replace

import pytest

from hpcdl.adaptive import Adaptive
from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import JobView, NodeView, Plan, Policies, Policy, View, check
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState, Target
from hpcdl.marble import POLICIES, FifoExclusive, Marble, MarbleWarm
from hpcdl.milp import BFTrainer

BEST_4 = Profile("best4", ((1, 1, 1.0), (1, 4, 4.0), (1, 6, 3.0)))
BEST_2 = Profile("best2", ((1, 1, 1.0), (1, 2, 2.0), (1, 6, 1.5)))


def job(number: int, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": f"j{number}",
        "state": JobState.QUEUED,
        "gpus_min": 1,
        "gpus_max": 6,
        "nodes": 1,
        "step": 0,
        "total": None,
        "profile": BEST_4,
        "placement": None,
        "target": None,
        "leaving": False,
        "can_suspend": True,
        "blocked": "",
        "submitted_at": 0.0,
    }
    return JobView(id=number, **(known | more))  # type: ignore[arg-type]


def on(*gpus: int, node: str = "n1", role: Role = Role.PRIMARY) -> Placement:
    return Placement((Share(node, gpus),), role)


def running(number: int, placement: Placement, **more: object) -> JobView:
    return job(number, state=JobState.RUNNING, placement=placement, target=placement, **more)


def decide(policy: Policy, *jobs: JobView, **sizes: int) -> Plan:
    nodes = tuple(NodeView(name, tuple(range(size))) for name, size in (sizes or {"n1": 6}).items())
    view = View(0.0, nodes, jobs)
    plan = policy.decide(view)
    check(plan, view)
    assert policy.decide(view) == plan
    # Adopted, it is what the next view shows, and nothing changes any more.
    targets = plan.by_job()
    again = replace(view, jobs=tuple(replace(j, target=targets[j.id].placement) for j in jobs))
    if not any(j.placement is not None and not j.leaving and _moves(j, targets[j.id]) for j in jobs):
        assert {t.job: t.placement for t in policy.decide(again).targets} == {t.job: t.placement for t in plan.targets}
    return plan


def _moves(view: JobView, target: Target) -> bool:
    return view.placement is not None and target.placement != view.placement


def gpus(plan: Plan) -> list[str]:
    told = []
    for target in plan.targets:
        place = target.placement
        text = "+".join(f"{s.node}:{','.join(map(str, s.gpus))}" for s in place.shares) if place else "-"
        told.append(f"{text} {place.role}" if place else text)
    return told


SECONDARY = on(0, 1, 2, role=Role.SECONDARY)


def test_primary_then_what_is_left() -> None:
    plan = decide(Marble(), job(1), job(2), job(3))
    assert gpus(plan) == ["n1:0,1,2,3 primary", "n1:4,5 secondary", "-"]
    assert [target.reason for target in plan.targets] == [
        "primary on 4 of 6 GPUs of n1: its fastest number",
        "secondary on 2 of 6 GPUs of n1: what is left; fastest on 4",
        "needs 1 GPU, 0 of 6 GPUs free",
    ]


def test_a_primary_with_fewer_gpus_than_it_is_fastest_on_is_not_told_otherwise() -> None:
    plan = decide(Marble(), running(1, on(0)))  # as another policy, chosen before, left it
    assert plan.targets[0].reason == "primary on 1 of 6 GPUs of n1: what it has; fastest on 4"


def test_a_secondary_is_promoted_with_its_own_gpus_before_the_next_starts() -> None:
    plan = decide(Marble(), running(1, SECONDARY), job(2))
    assert gpus(plan) == ["n1:0,1,2,3 primary", "n1:4,5 secondary"]
    assert plan.targets[0].reason == (
        "runs on 3 GPUs of n1 as secondary; will move to 4 GPUs: its fastest number, and they are free"
    )


@pytest.mark.parametrize(
    "more",
    [{"can_suspend": False}, {"leaving": True}, {"state": JobState.STARTING}],
)
def test_who_is_not_promoted(more: dict[str, object]) -> None:
    stays = replace(running(1, SECONDARY), **more)  # type: ignore[arg-type]
    assert gpus(decide(Marble(), stays, job(2)))[0] == "n1:0,1,2 secondary"


def test_too_few_free_for_a_promotion() -> None:
    plan = decide(Marble(), running(1, SECONDARY), running(2, on(3, 4, 5), profile=BEST_2))
    assert gpus(plan) == ["n1:0,1,2 secondary", "n1:3,4,5 primary"]


def test_secondaries_are_promoted_in_order() -> None:
    first, second = on(0, 1, role=Role.SECONDARY), on(2, 3, role=Role.SECONDARY)
    assert gpus(decide(Marble(), running(1, first), running(2, second))) == ["n1:0,1,4,5 primary", "n1:2,3 secondary"]


def test_a_promotion_leaves_out_gpus_that_are_gone() -> None:
    view = View(0.0, (NodeView("n1", (0, 1, 3, 4, 5)),), (running(1, SECONDARY),))
    plan = Marble().decide(view)
    check(plan, view)
    assert gpus(plan) == ["n1:0,1,3,4 primary"]


def test_a_job_under_way_keeps_its_target() -> None:
    moving = replace(running(1, SECONDARY, leaving=True), target=on(0, 1, 2, 3))
    assert gpus(decide(Marble(), moving, job(2))) == ["n1:0,1,2,3 primary", "n1:4,5 secondary"]
    gone = replace(moving, placement=None, leaving=False, state=JobState.SUSPENDED)
    assert gpus(decide(Marble(), gone, job(2))) == ["n1:0,1,2,3 primary", "n1:4,5 secondary"]


@pytest.mark.parametrize("target", [on(0, 1, 2, 9), on(0, 1, 2, 3, node="n9"), on(0, 1, 2, 5)])
def test_a_target_that_cannot_be_had_is_dropped(target: Placement) -> None:
    other = running(2, on(5), gpus_max=1)
    assert gpus(decide(Marble(), job(1, target=target), other))[0] == "n1:0,1,2,3 primary"
    moving = running(1, SECONDARY, leaving=True)
    plan = decide(Marble(), replace(moving, target=target), other)
    assert plan.targets[0].placement is None
    assert plan.targets[0].reason == "its last processes on n1 are ending; then it is its turn"


def test_strict_order_except_for_the_blocked_and_the_impossible() -> None:
    plan = decide(
        Marble(),
        running(1, on(0, 1, 2, 3, 4), gpus_max=5, can_suspend=False),
        job(2, blocked="held by its user: hpcdl resume 2", target=on(5)),
        job(3, gpus_min=8, gpus_max=8),
        job(4, nodes=2),
        job(5, gpus_min=2),
        job(6),
    )
    assert gpus(plan)[1:] == ["-"] * 5
    assert [target.reason for target in plan.targets[1:]] == [
        "held by its user: hpcdl resume 2",
        "needs 8 GPUs; the largest node has 6",
        "needs 1 GPU on each of 2 nodes; 1 of 1 connected node could hold it",
        "needs 2 GPUs, 1 free on n1",
        "needs 1 GPU, 1 free on n1; job 5 is before it",
    ]


def test_no_nodes_and_nodes_that_are_away() -> None:
    view = View(0.0, (), (running(1, on(0)), job(2)))
    plan = Marble().decide(view)
    check(plan, view)
    assert gpus(plan) == ["n1:0 primary", "-"]
    assert plan.targets[0].reason == "keeps its 1 GPU of n1, whose agent is away"
    assert plan.targets[1].reason == "needs 1 GPU; no node is connected"
    view = replace(view, bare=frozenset({"n1"}))
    plan = Marble().decide(view)
    check(plan, view)
    assert gpus(plan) == ["n1:0 primary", "-"], "what still runs is left alone"
    assert [target.reason for target in plan.targets] == [
        "keeps its 1 GPU of n1, whose GPUs are lost, dirty, excluded or drained",
        "needs 1 GPU; all GPUs of n1 are lost, dirty, excluded or drained",
    ]


@pytest.mark.parametrize("policy", [Marble(), BFTrainer(), Adaptive()])
def test_a_node_that_is_left_out_is_named_where_it_is_missed(policy: Policy) -> None:
    view = View(0.0, (NodeView("n1", (0, 1)),), (job(1, nodes=2),), bare=frozenset({"n2"}))
    reason = policy.decide(view).targets[0].reason
    assert reason.startswith("needs 1 GPU on each of 2 nodes; ")
    assert "; all GPUs of n2 are lost, dirty, excluded or drained" in reason


def test_the_node_with_the_fewest_gpus_left_over() -> None:
    assert gpus(decide(Marble(), job(1), n1=6, n2=4)) == ["n2:0,1,2,3 primary"]
    assert gpus(decide(Marble(), job(1), n1=2, n2=3)) == ["n2:0,1,2 primary"]
    busy = running(2, on(0, 1, 2, 3), gpus_max=4)
    assert gpus(decide(Marble(), job(1), busy, n1=6, n2=3))[0] == "n2:0,1,2 primary"


def test_as_many_gpus_on_each_of_several_nodes() -> None:
    assert gpus(decide(Marble(), job(1, nodes=2), n1=6, n2=4)) == ["n1:0,1,2,3+n2:0,1,2,3 primary"]
    busy = running(2, on(0, 1, 2, node="n2"), gpus_max=3, can_suspend=False)
    plan = decide(Marble(), job(1, nodes=2), busy, n1=6, n2=4)
    assert gpus(plan)[0] == "n1:0+n2:3 secondary"
    assert plan.targets[0].reason == "secondary on 1 of 4 GPUs each of n[1-2]: what is left; fastest on 4"
    both = Placement((Share("n1", (0,)), Share("n2", (3,))), Role.SECONDARY)
    moved = decide(Marble(), running(1, both, nodes=2), n1=6, n2=4)
    assert gpus(moved) == ["n1:0,1,2,3+n2:0,1,2,3 primary"]


def test_a_job_without_a_profile_gets_its_maximum() -> None:
    plan = decide(Marble(), job(1, profile=None, gpus_max=5), job(2))
    assert gpus(plan) == ["n1:0,1,2,3,4 primary", "n1:5 secondary"]
    assert "it has no profile" in plan.targets[0].reason


def test_a_secondary_that_is_as_fast_as_it_can_be_becomes_primary() -> None:
    assert gpus(decide(Marble(), running(1, on(0, 1, 2, 3, role=Role.SECONDARY)))) == ["n1:0,1,2,3 primary"]


def test_warm_starts_are_for_those_whose_gpus_are_not_free_yet() -> None:
    moving = replace(running(2, SECONDARY, leaving=True), target=on(0, 1, 2, 3))
    assert decide(MarbleWarm(), job(1), moving).warm == (2,)
    assert decide(MarbleWarm(), running(1, SECONDARY), job(2)).warm == (1,)
    assert decide(MarbleWarm(), running(1, on(0, 1, 2, 3)), job(2)).warm == ()


def test_the_baseline_gives_whole_nodes_in_order() -> None:
    plan = decide(FifoExclusive(), job(1), job(2, gpus_max=2), job(3), n1=6, n2=4)
    assert gpus(plan) == ["n1:0,1,2,3,4,5 primary", "n2:0,1 primary", "-"]
    assert [target.reason for target in plan.targets] == [
        "has n1 to itself, on 6 GPUs",
        "has n2 to itself, on 2 GPUs",
        "gets a whole node; needs 1 GPU, 0 of 2 nodes empty",
    ]
    later = decide(FifoExclusive(), running(1, on(0)), job(2, nodes=2), job(3), n1=6, n2=4)
    assert gpus(later) == ["n1:0 primary", "-", "-"]
    assert later.targets[2].reason.endswith("1 of 2 nodes empty; job 2 is before it")
    assert gpus(decide(FifoExclusive(), running(1, SECONDARY), job(2))) == ["n1:0,1,2 secondary", "-"]


def test_names() -> None:
    policies = Policies()
    policies.add(*POLICIES)
    assert policies.names() == ("fifo-exclusive", "marble", "marble-warm")
    assert all(policies.make(name).name == name for name in policies.names())
