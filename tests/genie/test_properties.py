"""What holds for every policy of the package, on views that nobody thought of."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl import genie
from hpcdl.core.model.plan import JobView, NodeView, Policies
from hpcdl.core.model.profile import Profile
from tests.genie.made import CURVE, FLAT, job, live
from tests.support.seeds import seeds

POLICIES = Policies()
POLICIES.add(*genie.POLICIES)
KINDS = ("", "v100", "k80")
BY_KIND = Profile("by kind", CURVE.points, startup_s=5.0, kinds=(("k80", ((1, 1, 0.2), (1, 4, 0.5))),))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[NodeView, ...]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    kind = st.sampled_from(KINDS)
    first = draw(kind)
    others = (NodeView(f"n{number}", tuple(range(size)), draw(kind)) for number, size in enumerate(sizes, 1))
    return (NodeView("n0", (0, 1, 2, 3), first), NodeView("n00", (0, 1, 2, 3), first), *others)


@st.composite
def jobs(draw: st.DrawFn, number: int) -> JobView:
    low = draw(st.integers(1, 4))
    high = draw(st.integers(low, 6))
    counts: tuple[int, ...] = ()
    if draw(st.booleans()):
        counts = tuple(sorted({low, high, *draw(st.sets(st.integers(low, high), max_size=2))}))
    at = draw(st.floats(0, 500))
    nodes = draw(st.integers(1, 2))
    return job(
        number,
        gpus_min=low,
        gpus_max=high,
        counts=counts,
        nodes=nodes,
        nodes_max=draw(st.integers(nodes, 4)),
        total=draw(st.none() | st.integers(1, 3000)),
        profile=draw(st.sampled_from([None, CURVE, FLAT, BY_KIND])),
        submitted_at=at,
        deadline=draw(st.none() | st.floats(at, 4000)),
        user=draw(st.sampled_from("abc")),
    )


@pytest.mark.parametrize("name", POLICIES.names())
@settings(max_examples=seeds(40), deadline=None)
@given(nodes=clusters(), data=st.data())
def test_everyone_finishes_and_nobody_gets_what_it_does_not_take(
    name: str, nodes: tuple[NodeView, ...], data: st.DataObject
) -> None:
    # `live` checks each plan (no GPU twice, minimum and maximum, allowed counts), that nothing is preempted, that the
    # same view gives the same plan, and that the last job ends.
    some = [data.draw(jobs(number)) for number in range(1, data.draw(st.integers(2, 9)))]
    life = live(POLICIES.make(name), nodes, some)
    assert life.ended.keys() == {each.id for each in some}
    kinds = {node.name: node.kind for node in nodes}
    for number, placement in life.placed.items():
        assert len({kinds[name] for name in placement.nodes}) == 1, number
        assert len({len(share.gpus) for share in placement.shares}) == 1, number


@pytest.mark.parametrize("name", ["fifo"])
@settings(max_examples=seeds(40), deadline=None)
@given(nodes=clusters(), data=st.data())
def test_fifo_starts_in_the_order_of_submission(name: str, nodes: tuple[NodeView, ...], data: st.DataObject) -> None:
    some = sorted((data.draw(jobs(number)) for number in range(1, 8)), key=lambda each: each.submitted_at)
    life = live(POLICIES.make(name), nodes, [replace(each, id=number) for number, each in enumerate(some, 1)])
    starts = [life.started[number] for number in sorted(life.started)]
    assert starts == sorted(starts)
