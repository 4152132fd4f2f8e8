"""The policy bftrainer: what it decides, and in which words."""

import random
from dataclasses import replace

import pytest

from hpcdl.config.settings import PACKING as CONFIGURED
from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import View
from hpcdl.core.model.world import JobState
from hpcdl.milp import BFTrainer, Reallocation
from hpcdl.milp.policy import PATIENCE_RUNS, PATIENCE_S
from hpcdl.milp.values import PACKING
from tests.milp.trainer_views import (
    ELASTIC,
    GPUS,
    STEEP,
    best,
    counts,
    decide,
    names,
    nodes,
    on,
    reasons,
    training,
    view,
    waiting,
    worth,
)

TEN = BFTrainer(Reallocation(parallel=10))


def test_it_is_the_optimum_of_equation_16() -> None:
    for seed in range(150):
        chance = random.Random(seed)
        capacity = chance.randint(0, 9)
        there = nodes(capacity)
        free = [each.name for each in there]
        chance.shuffle(free)
        jobs = []
        for number in range(1, chance.randint(1, 4) + 1):
            low = chance.randint(1, 3)
            high = chance.randint(low, 8)
            profile = replace(
                chance.choice([ELASTIC, STEEP]),
                grow_s=chance.choice([0.0, 5.0, 60.0, 200.0]),
                shrink_s=chance.choice([0.0, 5.0, 60.0]),
            )
            held = chance.randint(0, min(high, len(free)))
            if held >= low and chance.random() < 0.7:
                mine, free = free[:held], free[held:]
                jobs.append(training(number, mine, profile, low=low, high=high))
            else:
                jobs.append(waiting(number, profile, low, high))
        horizon_s = chance.choice([10.0, 120.0, 600.0])
        policy = BFTrainer(Reallocation(horizon_s, parallel=10))
        plan = decide(policy, view(*jobs, there=there))
        value = sum(worth(job, many, horizon_s) for job, many in zip(jobs, counts(plan), strict=True))
        assert value == pytest.approx(best(jobs, capacity, horizon_s), rel=1e-9, abs=1e-6), f"seed {seed}"
        assert plan.optimal, f"seed {seed}"
        for job, kept in zip(jobs, names(plan), strict=True):  # nobody migrates (eq. 6)
            held_now = set() if job.placement is None else set(job.placement.nodes)
            assert held_now <= set(kept) or set(kept) <= held_now, f"seed {seed}"


def test_first_come_first_served_and_no_more_than_allowed() -> None:
    jobs = [waiting(number, STEEP) for number in range(1, 8)]
    plan = decide(BFTrainer(Reallocation(parallel=3)), view(*jobs, there=nodes(20)))
    assert [many > 0 for many in counts(plan)] == [True] * 3 + [False] * 4
    assert reasons(plan)[3] == "3 trainers are before it, the most allowed"
    blocked = (replace(jobs[0], blocked="held by its user"), *jobs[1:])
    plan = decide(BFTrainer(Reallocation(parallel=3)), view(*blocked, there=nodes(20)))
    assert [many > 0 for many in counts(plan)] == [False, True, True, True, False, False, False]
    assert reasons(plan)[0] == "held by its user"


def test_who_can_never_run_takes_nobodys_place() -> None:
    jobs = [waiting(1, STEEP, low=9, high=9), waiting(2, STEEP, gpus_min=2, gpus_max=2), waiting(3)]
    plan = decide(BFTrainer(Reallocation(parallel=1)), view(*jobs, there=nodes(4)))
    assert counts(plan) == [0, 0, 4]
    assert reasons(plan)[:2] == [
        "needs 1 GPU on each of 9 nodes; 4 nodes could hold it",
        "needs 2 GPUs; the largest node has 1",
    ]


def test_without_a_limit_as_many_as_there_are_nodes_for() -> None:
    jobs = [waiting(number, low=2) for number in range(1, 9)]
    plan = decide(BFTrainer(), view(*jobs, there=nodes(6)))
    assert counts(plan) == [2, 2, 2, 0, 0, 0, 0, 0]
    assert reasons(plan)[3] == "3 trainers before it can use all of 6 nodes"


def test_what_does_not_pay_is_not_done() -> None:
    """8 s of training at +2 steps/s do not pay 20 s at 10; 120 s do."""
    there = nodes(2)
    one = training(1, ["n001"])
    assert counts(decide(BFTrainer(Reallocation(20.0)), view(one, there=there))) == [1]
    plan = decide(BFTrainer(Reallocation(120.0)), view(one, there=there))
    assert counts(plan) == [2]
    assert reasons(plan) == ["1 -> 2 nodes: +8 steps/s for 120 s pays 20 s of rescaling"]
    kept = decide(BFTrainer(Reallocation(20.0)), view(one, there=there))
    assert reasons(kept) == ["keeps 1 node: 10 steps/s; another one would add 8, and rescaling takes 20 s"]


def test_who_can_only_be_rescaled_grows_where_that_pays() -> None:
    """That it must keep nodes, since it cannot be suspended or is overdue, makes its rescale no dearer."""
    one = training(1, ["n001"])
    overdue = replace(one, total=100, submitted_at=-1e6)
    for must in (replace(one, can_suspend=False), overdue, replace(overdue, can_suspend=False)):
        for horizon_s, many in ((20.0, 1), (120.0, 2)):
            policy = BFTrainer(Reallocation(horizon_s))
            assert counts(decide(policy, view(must, there=nodes(2)))) == [many]
    under_way = replace(one, can_suspend=False, target=on(["n001", "n002"]))
    assert counts(decide(BFTrainer(Reallocation(120.0)), view(under_way, there=nodes(3)))) == [3]


def test_what_is_left_after_a_loss() -> None:
    """Below its fewest nodes a trainer waits; the others get what it has to give up."""
    left = training(1, ["n001", "n002", "n003"], low=4)
    plan = decide(TEN, view(left, there=nodes(3)))
    assert counts(plan) == [0]
    assert reasons(plan) == ["needs 1 GPU on each of 4 nodes; 3 nodes could hold it"]
    other = training(2, ["n004"], STEEP)
    assert counts(decide(TEN, view(left, other, there=nodes(5)))) == [5, 0]
    stuck = replace(other, can_suspend=False, in_place=False)
    plan = decide(TEN, view(left, stuck, there=nodes(4)))
    assert counts(plan) == [0, 1]
    assert reasons(plan)[1] == "keeps n004: nothing shows yet that it can be suspended"
    exempt = decide(TEN, view(left, replace(stuck, exempt=True), there=nodes(4)))
    assert reasons(exempt)[1] == "keeps n004: not preempted before it has trained 3 times as long as its start took"


def test_below_its_fewest_nodes_the_rest_is_given_to_others() -> None:
    short = training(1, ["n001", "n002"], low=3)
    big = training(2, ["n003", "n004", "n005"], low=3, weight=2.0)
    plan = decide(TEN, view(short, big, there=nodes(5), objective="priority"))
    assert counts(plan) == [0, 5]
    assert reasons(plan)[0] == "below its 3 nodes: 2 are left"


def test_until_is_respected() -> None:
    """A node that leaves in 30 s does not pay 20 s of rescaling of a trainer that does 10 steps/s on one node."""
    soon = nodes(1, first=2, until=1030.0)
    one = training(1, ["n001"])
    plan = decide(TEN, view(one, there=(*nodes(1), *soon)))
    assert counts(plan) == [1]
    assert reasons(plan)[0].endswith("1 node more would leave in 30 s, before 20 s of rescaling pay")
    assert not plan.optimal
    later = nodes(1, first=2, until=1100.0)
    assert counts(decide(TEN, view(one, there=(*nodes(1), *later)))) == [2]
    start = decide(TEN, view(waiting(1), there=nodes(2, until=1015.0)))
    assert counts(start) == [0]
    assert counts(decide(TEN, view(waiting(1), there=nodes(2, until=1050.0)))) == [2]


def test_all_nodes_leave_together_and_the_horizon_is_what_is_left() -> None:
    one = training(1, ["n001"])
    assert counts(decide(TEN, view(one, there=nodes(2, until=1024.0)))) == [1]
    assert counts(decide(TEN, view(one, there=nodes(2, until=1030.0)))) == [2]


def test_nodes_that_leave_first_go_to_who_loses_least() -> None:
    there = (*nodes(4), *nodes(2, first=5, until=1090.0))
    cheap = training(1, ["n001"], replace(ELASTIC, grow_s=1.0, shrink_s=0.0), high=3)
    dear = training(2, ["n002"], replace(ELASTIC, grow_s=1.0, shrink_s=30.0), high=3)
    plan = decide(TEN, view(cheap, dear, there=there))
    assert names(plan) == [("n001", "n005", "n006"), ("n002", "n003", "n004")]


def test_the_first_member_of_torchrun_is_kept() -> None:
    members = ["n004", "n001", "n002", "n003"]
    other = waiting(2, STEEP, low=3, high=3, weight=50.0)
    for rescale, kept in (("torchrun", ("n004",)), ("in-process", None)):
        job = training(1, members, rescale=rescale)
        plan = decide(TEN, view(job, other, there=nodes(4), objective="priority"))
        assert counts(plan) == [1, 3]
        assert kept is None or names(plan)[0] == kept


def test_nodes_of_unequal_size_and_kind_are_groups() -> None:
    there = (*nodes(2, size=4, kind="v100"), *nodes(3, size=2, kind="k80", first=3))
    slow = replace(GPUS, kinds=(("k80", ((1, 1, 0.2), (1, 4, 0.6), (2, 4, 1.0))),))
    wide = waiting(1, slow, low=1, high=4, gpus_max=8)
    plan = decide(TEN, view(wide, there=there))
    assert names(plan) == [("n001", "n002")]
    placement = next(iter(plan.targets)).placement
    assert placement is not None
    assert [len(share.gpus) for share in placement.shares] == [4, 4]
    two = decide(TEN, view(wide, replace(wide, id=2, submitted_at=2.0), there=there, objective="efficiency"))
    assert all(len({name in ("n001", "n002") for name in each}) == 1 for each in names(two))


def test_a_job_that_needs_more_nodes_than_there_are_of_one_size() -> None:
    there = (*nodes(1, size=1), *nodes(1, size=2, first=2))
    plan = decide(TEN, view(waiting(1, GPUS, low=2, high=2), there=there))
    assert names(plan) == [("n001", "n002")]


def test_a_node_that_has_left_is_given_up_and_a_silent_one_is_not() -> None:
    job = training(1, ["n001", "n002", "n003"], high=3)
    seen = view(job, there=nodes(2))
    silent = decide(TEN, seen)
    assert names(silent) == [("n001", "n002", "n003")]
    assert "one of whose agents is away" in reasons(silent)[0]
    left = decide(TEN, replace(seen, bare=frozenset(["n003"])))
    assert names(left) == [("n001", "n002")]
    assert reasons(left)[0].startswith("keeps 2 nodes: 18 steps/s; 1 node left")


def test_objectives() -> None:
    """The same two trainers on 4 nodes: one that does many steps, one that does few."""
    many, few = waiting(1, ELASTIC, high=4), waiting(2, STEEP, high=4)
    there = nodes(4)
    assert counts(decide(TEN, view(many, few, there=there))) == [4, 0]
    assert counts(decide(TEN, view(many, few, there=there, objective="efficiency"))) == [1, 3]
    heavy = replace(many, weight=3.0)
    assert counts(decide(TEN, view(heavy, few, there=there, objective="priority"))) == [4, 0]
    short = replace(few, total=10)
    long = replace(few, id=3, total=10_000_000)
    assert counts(decide(TEN, view(short, long, there=there, objective="jct"))) == [4, 0]
    due = replace(long, deadline=1000.0 + 20.0 + 10_000_000 / 3.5)
    assert counts(decide(TEN, view(short, due, there=there, objective="deadline"))) == [0, 4]
    late = replace(long, deadline=1010.0)
    assert sum(counts(decide(TEN, view(short, late, there=there, objective="deadline")))) == 4


def test_the_first_one_starves_no_longer_than_its_patience() -> None:
    slow, fast = waiting(1, STEEP, high=4, total=100), training(2, ["n001", "n002", "n003", "n004"], high=4)
    plan = decide(TEN, view(slow, fast, there=nodes(4)))
    assert counts(plan) == [0, 4]
    due_at = slow.submitted_at + PATIENCE_S + PATIENCE_RUNS * 100.0
    assert plan.wake_at == due_at
    later = decide(TEN, view(slow, fast, there=nodes(4), now=due_at))
    assert counts(later) == [1, 3]
    assert later.wake_at is None


def test_a_job_without_a_profile_runs_and_is_looked_at_again() -> None:
    plan = decide(TEN, view(waiting(1, None, rescale="restart"), there=nodes(3)))
    assert counts(plan) == [3]
    assert plan.wake_at == 1060.0
    assert "estimated: it has no profile yet" in reasons(plan)[0]


def test_jobs_between_two_plans_keep_their_way() -> None:
    """One that is about to start gets what it was promised; one that is leaving for other nodes too."""
    about = replace(waiting(1, high=2), target=on(["n001", "n002"]))
    leaves = replace(
        training(2, ["n003"], high=2), leaving=True, state=JobState.RESCALING, target=on(["n003", "n004"]), step_at=None
    )
    plan = decide(TEN, view(about, leaves, there=nodes(5)))
    assert names(plan) == [("n001", "n002"), ("n003", "n004")]


def test_gpus_that_others_left_over_are_no_whole_node() -> None:
    """Another policy gave it one GPU of a node with two: it gets the node, and its neighbour another one."""
    first = training(1, ["n001"], GPUS, gpus_max=1, high=1)
    one, other = replace(first, gpus_max=4), replace(first, id=2, gpus_max=4, submitted_at=2.0)
    shared = replace(other, placement=replace(on(["n001"]), shares=(replace(on(["n001"]).shares[0], gpus=(1,)),)))
    plan = decide(TEN, view(one, replace(shared, target=shared.placement), there=nodes(2, size=2)))
    assert sorted(names(plan)) == [("n001",), ("n002",)]
    assert "that it has not whole" in reasons(plan)[0]


def test_the_horizon_follows_the_changes_of_the_nodes() -> None:
    policy = BFTrainer(Reallocation(t_fwd_s=None))
    one = training(1, ["n001"])
    seen = view(one, there=nodes(2))

    def after(gap_s: float, many: int = 64) -> list[int]:
        return counts(decide(policy, View(seen.now, seen.nodes, seen.jobs, seen.objective, gaps=(gap_s,) * many)))

    assert after(600.0) == [2]
    assert after(5.0) == [2]  # 45 s or more: never below what pays at all
    dear = training(1, ["n001"], replace(ELASTIC, grow_s=60.0))
    seen = view(dear, there=nodes(2))
    assert after(600.0) == [2]
    assert after(5.0) == [1]
    assert after(5.0, many=3) == [2]  # too few gaps to believe


def test_settings_that_make_no_sense() -> None:
    assert CONFIGURED == PACKING
    for wrong in ({"t_fwd_s": 0.0}, {"t_fwd_s": float("nan")}, {"parallel": 0}, {"packing": "genie"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Reallocation(**wrong)


def test_a_change_that_is_under_way_is_no_reason_for_another_one() -> None:
    """One trainer shrinks for another: asked again before the other has what it gets, the plan is the same."""
    there = nodes(9)
    shrinks = training(1, [each.name for each in there[:5]], STEEP)
    grows = training(2, ["n006"])
    policy = BFTrainer(Reallocation(600.0, parallel=10))
    first = decide(policy, view(shrinks, grows, there=there))
    assert counts(first) == [1, 8]
    targets = [target.placement for target in first.targets]
    assert targets[0] is not None
    shrunk = replace(shrinks, placement=targets[0], target=targets[0], members=targets[0].nodes, rescaling=True)
    for joined in (1, 4, 8):
        assert targets[1] is not None
        part = Placement(tuple(share for share in targets[1].shares if share.node in targets[1].nodes[-joined:]))
        part = part if "n006" in part.nodes else on(["n006", *part.nodes[1:]])
        joins = replace(grows, placement=part, target=targets[1])
        again = decide(policy, view(shrunk, joins, there=there))
        assert [target.placement for target in again.targets] == targets
        assert reasons(again)[1].startswith("1 -> 8 nodes: +40 steps/s")
