"""Holes from idle nodes and what is planned for them."""

import pytest

from hpcdl.batch.holes import IdleNode, OpenQueue, PlannedUse, find_holes, planned_job
from hpcdl.core.model.pilot import Hole

NOW = 1000.0
GPU = OpenQueue("gpu", 3600.0, 1, 8)


def nodes(*names: str, queues: tuple[str, ...] = ("gpu",), planned: bool = False) -> list[IdleNode]:
    return [IdleNode(name, queues, 4, "a100", planned) for name in names]


def test_without_any_plan_a_hole_has_no_end() -> None:
    assert find_holes(NOW, nodes("n1", "n2"), [], [GPU]) == (
        Hole("gpu", 2, ("n1", "n2"), 4, "a100", None, "", 3600.0, 8),
    )


def test_the_first_use_of_a_node_ends_its_hole() -> None:
    uses = [
        planned_job("7", NOW + 600, ("n1", "n2", "n9")),
        planned_job("8", NOW + 300, ("n2",)),
        PlannedUse(NOW + 900, ("n1",), "maintenance m begins"),
    ]
    found = find_holes(NOW, nodes("n1", "n2", "n3"), uses, [GPU])
    assert [(hole.nodes, hole.until, hole.why) for hole in found] == [
        (("n2",), NOW + 300, "batch job 8 is expected on n2"),
        (("n1",), NOW + 600, "batch job 7 is expected on n[1-2,9]"),
        (("n3",), None, ""),
    ]


def test_a_reservation_limits_as_a_job_does() -> None:
    (hole,) = find_holes(NOW, nodes("n1"), [PlannedUse(NOW + 60, ("n1",), "maintenance m begins")], [GPU])
    assert (hole.until, hole.why) == (NOW + 60, "maintenance m begins on n1")


def test_what_should_have_begun_leaves_no_hole() -> None:
    assert find_holes(NOW, nodes("n1"), [planned_job("7", NOW, ("n1",))], [GPU]) == ()
    assert find_holes(NOW, nodes("n1"), [planned_job("7", NOW - 5, ("n1",))], [GPU]) == ()


def test_a_job_without_nodes_or_without_a_time_limits_nothing() -> None:
    uses = [planned_job("7", NOW + 100, ()), planned_job("8", None, ("n1",))]
    (hole,) = find_holes(NOW, nodes("n1"), uses, [GPU])
    assert hole.until is None


def test_our_own_plans_end_nothing() -> None:
    own = planned_job("7", NOW + 100, ("n1",), own=True)
    (hole,) = find_holes(NOW, nodes("n1", planned=True), [own], [GPU])
    assert hole.until is None
    other = planned_job("8", NOW + 200, ("n1",))
    (hole,) = find_holes(NOW, nodes("n1", planned=True), [own, other], [GPU])
    assert hole.until == NOW + 200


def test_a_node_kept_for_an_unnamed_job_is_wanted_by_the_first_that_is_expected() -> None:
    uses = [
        planned_job("7", NOW + 500, ()),
        planned_job("8", NOW + 400, ("n9",)),
        planned_job("6", NOW + 50, (), own=True),
    ]
    found = find_holes(NOW, [*nodes("n1", planned=True), *nodes("n2")], uses, [GPU])
    assert [(hole.nodes, hole.until, hole.why) for hole in found] == [
        (("n1",), NOW + 400, "batch job 8 is expected on n9"),
        (("n2",), None, ""),
    ]


def test_a_kept_node_is_no_hole_where_nobody_is_expected_at_a_known_time() -> None:
    found = find_holes(NOW, [*nodes("n1", planned=True), *nodes("n2")], [planned_job("7", None, ())], [GPU])
    assert [hole.nodes for hole in found] == [("n2",)]


def test_a_node_is_in_a_hole_of_each_open_queue() -> None:
    queues = [OpenQueue("scavenge"), OpenQueue("gpu", 60.0)]
    found = find_holes(NOW, nodes("n1", queues=("gpu", "scavenge", "closed")), [], queues)
    assert [(hole.queue, hole.nodes, hole.walltime_s) for hole in found] == [
        ("scavenge", ("n1",), None),
        ("gpu", ("n1",), 60.0),
    ]


def test_a_hole_below_a_queues_smallest_job_is_none() -> None:
    big = OpenQueue("big", nodes_min=3)
    assert find_holes(NOW, nodes("n1", "n2", queues=("big",)), [], [big]) == ()
    assert len(find_holes(NOW, nodes("n1", "n2", "n3", queues=("big",)), [], [big])) == 1


def test_different_gpus_make_different_holes() -> None:
    mixed = [IdleNode("n1", ("gpu",), 4, "a100"), IdleNode("n2", ("gpu",), 7, "1g.5gb"), IdleNode("n3", ("gpu",))]
    found = find_holes(NOW, mixed, [], [GPU])
    assert sorted((hole.gpus or 0, hole.kind, hole.nodes) for hole in found) == [
        (0, "", ("n3",)),
        (4, "a100", ("n1",)),
        (7, "1g.5gb", ("n2",)),
    ]


def test_names_in_their_natural_order() -> None:
    (hole,) = find_holes(NOW, nodes("n10", "n2", "gpu-a", "n1"), [], [GPU])
    assert hole.nodes == ("gpu-a", "n1", "n2", "n10")


@pytest.mark.parametrize(("at", "holes"), [(NOW, 0), (NOW + 30, 1)])
def test_a_limit_of_all_holes(at: float, holes: int) -> None:
    found = find_holes(
        NOW, nodes("n1"), [planned_job("7", NOW + 60, ("n1",))], [GPU], [PlannedUse(at, (), "no licence")]
    )
    assert len(found) == holes
    assert [(hole.until, hole.why) for hole in found] == [(NOW + 30, "no licence")] * holes


def test_a_limit_later_than_the_plan_changes_nothing() -> None:
    (hole,) = find_holes(
        NOW, nodes("n1"), [planned_job("7", NOW + 60, ("n1",))], [GPU], [PlannedUse(NOW + 90, (), "no licence")]
    )
    assert (hole.until, hole.why) == (NOW + 60, "batch job 7 is expected on n1")
