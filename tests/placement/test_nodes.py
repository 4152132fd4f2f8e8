"""Which nodes: nobody moves, near stays near, and what leaves soon goes where it is missed least."""

import random
from collections.abc import Sequence

import pytest

from hpcdl.placement.nodes import WholeNode, choose
from hpcdl.placement.topology import Tree, position


def free(*names: str) -> list[WholeNode]:
    return [WholeNode(name) for name in names]


@pytest.mark.parametrize(
    ("name", "path", "number"),
    [
        ("h41n08", ("h", "h41"), 8),
        ("h41n08.summit.example.org", ("h", "h41"), 8),
        ("n17", ("n",), 17),
        ("gpu-a-03", ("gpu-a-",), 3),
        ("r1i2n3", ("r", "r1", "r1i", "r1i2"), 3),
        ("x1000c0s2b0n1", ("x", "x1000", "x1000c", "x1000c0", "x1000c0s", "x1000c0s2", "x1000c0s2b", "x1000c0s2b0"), 1),
        ("10.0.3.7", ("10", "10.", "10.0", "10.0.", "10.0.3"), 7),
        ("login", ("login",), -1),
        ("", (), -1),
    ],
)
def test_a_host_name_says_where_its_node_is(name: str, path: tuple[str, ...], number: int) -> None:
    found = position(name)
    assert (found.path, found.order) == (path, (number, name))
    assert position(name, ("switch3",)).path == ("switch3", *path)


def test_unchanged_counts_keep_nodes_and_their_order() -> None:
    nodes = free("n1", "n2", "n3", "n4")
    assert choose([["n3", "n1"], ["n2"]], [2, 1], nodes) == [("n3", "n1"), ("n2",)]
    assert choose([], [], nodes) == []
    assert choose([[], []], [0, 0], []) == [(), ()]


def test_a_grower_keeps_all_and_gets_what_is_near_to_it() -> None:
    nodes = free("h17n01", "h17n02", "h41n01", "h41n02", "h41n09", "h03n05")
    assert choose([["h41n02"]], [3], nodes) == [("h41n02", "h41n01", "h41n09")]
    assert choose([["h41n02", "h17n02"]], [3], nodes) == [("h41n02", "h17n02", "h17n01")]


def test_numbers_near_to_each_other_are_near() -> None:
    nodes = free(*(f"n{number}" for number in (1, 2, 9, 10, 11, 12, 30)))
    assert choose([["n10"]], [3], nodes) == [("n10", "n9", "n11")]
    assert choose([[]], [4], nodes) == [("n9", "n10", "n11", "n12")]
    assert choose([["n2"], ["n30"]], [2, 2], nodes) == [("n2", "n1"), ("n30", "n12")]


def test_the_network_of_the_batch_system_comes_before_the_names() -> None:
    nodes = [WholeNode("n1", place=("s1",)), WholeNode("n2", place=("s2",)), WholeNode("n9", place=("s1",))]
    assert choose([["n1"]], [2], nodes) == [("n1", "n9")]


def test_a_new_trainer_gets_the_smallest_rack_that_has_enough() -> None:
    nodes = free("h1n1", "h1n2", "h2n1", "h2n2", "h2n3", "h3n1", "h3n2", "h3n3", "h3n4")
    assert choose([[]], [3], nodes) == [("h2n1", "h2n2", "h2n3")]
    assert choose([[], []], [2, 4], nodes) == [("h1n1", "h1n2"), ("h3n1", "h3n2", "h3n3", "h3n4")]
    assert choose([[]], [6], nodes) == [("h3n1", "h3n2", "h3n3", "h3n4", "h1n1", "h1n2")]


def test_who_shrinks_gives_back_what_leaves_first_then_what_is_farthest() -> None:
    nodes = [WholeNode("h1n1", 50.0), WholeNode("h1n2"), WholeNode("h1n3"), WholeNode("h9n1"), WholeNode("h1n4", 90.0)]
    held = ["h9n1", "h1n1", "h1n2", "h1n3", "h1n4"]
    assert choose([held], [4], nodes) == [("h9n1", "h1n2", "h1n3", "h1n4")]
    assert choose([held], [3], nodes) == [("h9n1", "h1n2", "h1n3")]
    assert choose([held], [2], nodes) == [("h1n2", "h1n3")]
    assert choose([held], [2], nodes, keep_first=[True]) == [("h9n1", "h1n2")]
    assert choose([held], [0], nodes, keep_first=[True]) == [()]


def test_nodes_that_leave_soon_go_to_who_loses_least_or_stay_free() -> None:
    nodes = [WholeNode("n1", 10.0), WholeNode("n2"), WholeNode("n3", 99.0), WholeNode("n4")]
    assert choose([[], []], [1, 2], nodes, [1.0, 9.0]) == [("n3",), ("n2", "n4")]
    assert choose([[], []], [2, 2], nodes, [9.0, 1.0]) == [("n2", "n4"), ("n3", "n1")]
    assert choose([[]], [3], nodes) == [("n2", "n4", "n3")]


def test_nodes_that_have_left_are_no_ones() -> None:
    assert choose([["gone", "n1"], []], [1, 1], free("n1", "n2")) == [("n1",), ("n2",)]


@pytest.mark.parametrize(
    ("current", "counts", "nodes", "why"),
    [
        ([["n1"], ["n1"]], [1, 1], free("n1"), "a node is held twice"),
        ([["n1", "n1"]], [1], free("n1"), "a node is held twice"),
        ([[]], [1], free("n1", "n1"), "listed twice"),
        ([[]], [2], free("n1"), "2 more nodes are to be given, and 1 are free"),
        ([[]], [-1], free("n1"), "is to get -1 nodes"),
        ([[]], [], free("n1"), "0 counts for 1 trainers"),
    ],
)
def test_what_cannot_be_is_refused(
    current: list[list[str]], counts: list[int], nodes: Sequence[WholeNode], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        choose(current, counts, nodes)


def test_a_loss_for_each_trainer() -> None:
    with pytest.raises(ValueError, match="2 losses for 1 trainers"):
        choose([[]], [0], [], [1.0, 2.0])
    with pytest.raises(ValueError, match="2 flags for 1 trainers"):
        choose([[]], [0], [], keep_first=[True, False])


def test_the_tree_gives_what_it_has_and_no_more() -> None:
    tree = Tree(position(f"h{rack}n{node}") for rack in range(3) for node in range(4))
    assert len(set(tree.pick(5)) | set(tree.pick(7, [position("h1n2")]))) == 12
    with pytest.raises(ValueError, match="1 nodes of 0"):
        tree.pick(1)


def rounds(seed: int) -> tuple[list[list[str]], list[int], list[WholeNode]]:
    """A random map, counts that fit, and nodes; names of several fashions, ends known or not."""
    chance = random.Random(seed)
    kind = chance.choice(["h{0}n{1}", "n{2}", "x{0}c{1}", "{0}.{1}.0.7"])
    names = list(dict.fromkeys(kind.format(i % 5, i // 5, i * 7 % 97) for i in range(chance.randrange(60))))
    chance.shuffle(names)
    nodes = [WholeNode(name, chance.choice([None, None, 60.0, 3600.0])) for name in names]
    current: list[list[str]] = [[] for _ in range(chance.randrange(8))]
    for name in names:
        owner = chance.randrange(-3, len(current))
        if owner >= 0:
            current[owner].append(name)
    for mine in current:
        mine += [f"gone{len(mine)}"] * chance.randrange(2)
    left = len(names)
    counts = []
    for _ in current:
        counts.append(chance.choice([0, chance.randrange(left + 1)]))
        left -= counts[-1]
    return current, counts, nodes


@pytest.mark.parametrize("seed", range(300))
def test_nobody_moves_and_no_node_is_given_twice(seed: int) -> None:
    current, counts, nodes = rounds(seed)
    there = {node.name for node in nodes}
    found = choose(current, counts, nodes, [float(seed * j % 7) for j in range(len(current))])
    given = [name for names in found for name in names]
    assert len(given) == len(set(given)), seed
    assert set(given) <= there, seed
    for before, number, after in zip(current, counts, found, strict=True):
        held = [name for name in before if name in there]
        assert len(after) == number, seed
        kept = [name for name in held if name in after]
        assert list(after[: len(kept)]) == kept, seed  # ranks of those that stay come first, in their order
        assert len(kept) == min(len(held), number), seed
    assert found == choose(current, counts, nodes, [float(seed * j % 7) for j in range(len(current))]), seed
