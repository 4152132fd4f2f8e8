"""Which of a node's GPUs a job gets where it is known how far they are from each other."""

import random
from itertools import combinations

from hpcdl.placement.connections import Distances, closest


def both_ways(pairs: dict[tuple[int, int], int]) -> Distances:
    return tuple(each for (one, other), far in pairs.items() for each in ((one, other, far), (other, one, far)))


# 0 and 2 by NVLink, 1 and 3 too; the rest across sockets.
CROSSED = both_ways({(0, 2): 1, (1, 3): 1, (0, 1): 7, (0, 3): 7, (1, 2): 7, (2, 3): 7})


def test_a_pair_is_one_that_nvlink_joins_and_leaves_the_other_pair_whole() -> None:
    assert closest([0, 1, 2, 3], 2, CROSSED) == (0, 2)
    assert closest([1, 2, 3], 2, CROSSED) == (1, 3)
    assert closest([0, 1, 2, 3], 1, CROSSED) == (0,)
    assert closest([0, 1, 2, 3], 3, CROSSED) == (0, 1, 2)


def test_what_is_not_known_is_taken_in_order() -> None:
    assert closest([3, 1, 0], 2, ()) == (1, 3)
    assert closest([0, 1, 2], 2, (), keep=[5]) == (0, 1, 5)


def test_who_grows_keeps_what_it_has_and_gets_what_is_near_that() -> None:
    assert closest([0, 1, 2], 1, CROSSED, keep=[3]) == (1, 3)
    assert closest([0, 1, 2], 0, CROSSED, keep=[3]) == (3,)


def test_one_gpu_is_left_where_it_breaks_no_pair() -> None:
    assert closest([0, 1, 3], 1, CROSSED) == (0,), "1 and 3 stay together"


def test_no_choice_is_better() -> None:
    rng = random.Random(7)
    for _ in range(200):
        number = rng.randint(2, 6)
        far = {pair: rng.randint(1, 7) for pair in combinations(range(number), 2)}
        some = rng.randint(2, number)
        chosen = closest(list(range(number)), some, both_ways(far))
        assert len(chosen) == some
        sums = {each: sum(far[pair] for pair in combinations(each, 2)) for each in combinations(range(number), some)}
        assert sums[chosen] == min(sums.values())


def test_many_gpus_are_chosen_without_trying_all() -> None:
    """Of 24 in boards of 8, any 8 are 735,471 choices."""
    far = {(one, other): 1 if one % 3 == other % 3 else 7 for one, other in combinations(range(24), 2)}
    chosen = closest(list(range(24)), 8, both_ways(far))
    assert {each % 3 for each in chosen} == {0}


def test_a_pair_of_very_many_gpus_is_the_closest() -> None:
    far = {(one, other): 1 if (one, other) == (30, 170) else 7 for one, other in combinations(range(210), 2)}
    assert closest(list(range(210)), 2, both_ways(far)) == (30, 170)
