"""The baseline equal-share, and what its split is."""

from dataclasses import replace

from hpcdl.milp import EqualShare, Reallocation
from tests.milp.trainer_views import ELASTIC, GPUS, counts, decide, names, nodes, training, view, waiting

TEN = EqualShare(Reallocation(parallel=10))


def test_an_equal_split_within_the_ranges_and_ties_in_order() -> None:
    jobs = [waiting(number) for number in range(1, 4)]
    assert counts(decide(TEN, view(*jobs, there=nodes(11)))) == [4, 4, 3]
    narrow = [waiting(1, high=2), waiting(2, low=5), waiting(3)]
    assert counts(decide(TEN, view(*narrow, there=nodes(11)))) == [2, 5, 4]
    assert counts(decide(TEN, view(*narrow, there=nodes(6)))) == [1, 5, 0]
    assert counts(decide(TEN, view(*narrow, there=nodes(40)))) == [2, 8, 8]


def test_first_come_first_served_and_no_more_than_allowed() -> None:
    jobs = [waiting(number) for number in range(1, 5)]
    assert counts(decide(EqualShare(Reallocation(parallel=2)), view(*jobs, there=nodes(10)))) == [5, 5, 0, 0]


def test_nodes_that_are_held_are_kept() -> None:
    """Whatever rescaling costs, the split is equal; but nobody migrates."""
    one, other = training(1, ["n002", "n003", "n004"], high=3), waiting(2)
    plan = decide(TEN, view(one, other, there=nodes(4)))
    assert counts(plan) == [2, 2]
    assert set(names(plan)[0]) < {"n002", "n003", "n004"}


def test_with_several_groups_each_trainer_has_one() -> None:
    there = (*nodes(2, size=4, kind="v100"), *nodes(4, size=2, kind="k80", first=3))
    jobs = [waiting(number, GPUS, gpus_max=8) for number in range(1, 4)]
    plan = decide(TEN, view(*jobs, there=there))
    assert counts(plan) == [2, 2, 2]
    assert sorted(len({name in ("n001", "n002") for name in each}) for each in names(plan)) == [1, 1, 1]


def test_a_share_that_is_slower_is_not_called_a_gain() -> None:
    slower = replace(ELASTIC, points=((1, 1, 10.0), (2, 1, 8.0)), kinds=())
    plan = decide(TEN, view(training(1, ["n001"], slower), there=nodes(2)))
    assert counts(plan) == [2]
    assert plan.targets[0].reason.startswith("1 -> 2 nodes: 10 -> 8 steps/s; ")
    plan = decide(TEN, view(training(1, ["n001"]), there=nodes(2)))
    assert "+" in plan.targets[0].reason
    assert " 0 s" not in plan.targets[0].reason
