"""When jobs start and are done, and how wide the band is in which the truth is claimed to be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.adaptive.eta import (
    GRAIN_S,
    LEAST,
    NONE,
    OTHERS,
    OURS,
    BandBasis,
    Weights,
    grounds_of,
    in_turn,
    log_ratio,
    run,
    shortest_first,
)
from hpcdl.adaptive.options import candidates
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.plan import JobView, View
from tests.adaptive.views import LINEAR, job, node, running, view

HOURS = 3600.0
OLD = -10 * HOURS
"""Submitted so long ago that nothing is taken to go on coming."""


def linear(number: int, total: int, gpus: int = 1, **more: object) -> JobView:
    known: dict[str, object] = {"profile": LINEAR, "gpus_min": gpus, "gpus_max": gpus, "submitted_at": OLD}
    return job(number, total, **(known | more))


def held(number: int, total: int, *gpus: int, on: str = "n1") -> JobView:
    """It trains since now, with one step behind it."""
    more: dict[str, object] = {"gpus_min": len(gpus), "gpus_max": len(gpus), "submitted_at": OLD}
    return running(number, *gpus, on=on, total=total + 1, profile=LINEAR, **more)


def courses(seen: View, number: int) -> list[tuple[float, float] | None]:
    found = [run(candidates(seen), number, seen.now, order, HOURS) for order in (shortest_first, in_turn)]
    return [None if each is None else (each.waits_s, each.ends_s) for each in found]


def test_who_waits_starts_at_the_first_end_that_leaves_enough() -> None:
    seen = view(held(1, 1000, 0), held(2, 3000, 1), linear(3, 500, 2), nodes=(node("n1", 2),))
    assert courses(seen, 3) == [pytest.approx((3000.0, 3000.0 + 60.0 + 250.0))] * 2


def test_any_node_will_do() -> None:
    """Each node is a pool of its own here, and the first to be free is not the first of them."""
    nodes = (node("n1", 1), node("n2", 1))
    seen = view(held(1, 9000, 0, on="n1"), held(2, 100, 0, on="n2"), linear(3, 500), nodes=nodes)
    assert courses(seen, 3) == [pytest.approx((100.0, 100.0 + 60.0 + 500.0))] * 2


def test_the_order_decides_who_waits_longer() -> None:
    seen = view(held(1, 100, 0), linear(2, 5000), linear(3, 500), nodes=(node("n1", 1),))
    assert courses(seen, 3) == [pytest.approx((100.0, 660.0)), pytest.approx((5160.0, 5720.0))]
    assert courses(seen, 2) == [pytest.approx((660.0, 5720.0)), pytest.approx((100.0, 5160.0))]
    urgent = linear(2, 5000, priority=1)
    first = view(held(1, 100, 0), urgent, linear(3, 500), nodes=(node("n1", 1),))
    assert courses(first, 2) == [pytest.approx((100.0, 5160.0))] * 2, "of a higher priority"


def test_what_never_fits_has_no_end() -> None:
    assert courses(view(linear(1, 100, 8), nodes=(node("n1", 8),)), 1) != [None, None]
    lone = view(held(1, 1000, 0), linear(2, 100, 2), nodes=(node("n1", 1),))
    assert grounds_of(lone, lone.by_id[2], "adaptive") is None


def test_with_nothing_to_doubt_the_band_is_as_narrow_as_can_be() -> None:
    seen = view(held(1, 1000, 0), linear(2, 5000), nodes=(node("n1", 1),))
    for number in (1, 2):
        found = grounds_of(seen, seen.by_id[number], "adaptive")
        assert found is not None
        assert found.ends.signs == NONE
        ends = found.eta().ends
        assert log_ratio(ends.high_s, ends.expected_s) == pytest.approx(LEAST)
        assert log_ratio(ends.low_s, ends.expected_s) == pytest.approx(-LEAST)


def test_what_is_shown_counts_before_what_the_profile_says() -> None:
    seen = view(held(1, 1000, 0), nodes=(node("n1", 1),))
    found = grounds_of(seen, seen.by_id[1], "adaptive", 2500.0)
    assert found is not None
    assert found.starts is None
    assert found.ends.base_s == 2500.0


def test_who_may_be_overtaken_by_what_keeps_coming_has_a_wider_band() -> None:
    """Twenty short jobs came in the last hours, and go on coming."""
    nodes = (node("n1", 1),)
    few = view(held(1, 4000, 0), linear(2, 5000), nodes=nodes)
    short = [linear(number, 300, submitted_at=1000.0 - 60.0 * (30 - number)) for number in range(3, 23)]
    many = view(held(1, 4000, 0), linear(2, 5000), *short, nodes=nodes)
    widths = []
    for seen in (few, many):
        found = grounds_of(seen, seen.by_id[2], "adaptive-fifo")
        assert found is not None
        ends = found.eta().ends
        assert ends.low_s <= ends.expected_s <= ends.high_s
        widths.append(log_ratio(ends.high_s, ends.low_s))
    assert widths[1] > 2 * widths[0]
    found = grounds_of(many, many.by_id[2], "adaptive")
    assert found is not None
    assert found.ends.base_s > 20 * 300.0, "the shorter ones go first"
    assert found.ends.signs[1] > 0.0, "in their order it would be sooner"


def test_what_the_plan_has_given_gpus_starts_as_soon_as_they_are_free() -> None:
    aim = Placement((Share("n1", (0,)),))
    seen = view(linear(2, 5000, target=aim), linear(1, 100), nodes=(node("n1", 1),))
    found = grounds_of(seen, seen.by_id[2], "adaptive")
    assert found is not None
    eta = found.eta()
    assert eta.starts is not None
    assert eta.starts.expected_s == 0.0
    assert eta.ends.expected_s == pytest.approx(5060.0)


times = st.floats(0.0, 1e6)
opens = st.floats(0.0, 3.0)


@given(times, st.tuples(opens, opens, opens, opens), st.floats(0.0, 2.0), times, st.integers(0, 3))
def test_every_doubt_opens_the_band_and_none_closes_it(
    base_s: float, signs: tuple[float, float, float, float], rate: float, least_s: float, more: int
) -> None:
    for weights in (OURS.running, OURS.ends, OURS.starts, OTHERS.running, OTHERS.ends, OTHERS.starts):
        assert all(each >= 0.0 for each in (*weights.low, *weights.high))
        narrow = BandBasis(base_s, signs, rate, rate, least_s).band(weights)
        assert 0.0 <= narrow.low_s <= narrow.expected_s <= narrow.high_s
        assert narrow.expected_s == base_s
        doubted = tuple(each + (place == more) for place, each in enumerate(signs))
        wide = BandBasis(base_s, doubted, rate, rate, least_s).band(weights)  # type: ignore[arg-type]
        assert wide.low_s <= narrow.low_s
        assert wide.high_s >= narrow.high_s


def test_a_band_in_numbers() -> None:
    """A doubt and an unsure rate are independent of each other: their squares add."""
    weights = Weights((0.0, 0.0, 0.0, 0.3), (0.0, 0.0, 0.0, 0.3))
    band = BandBasis(1000.0, (0.0, 0.0, 0.0, 1.0), 0.4, 0.4).band(weights)
    later_s, slower_s = (1000.0 + GRAIN_S) * math.expm1(LEAST + 0.3), 1000.0 * math.expm1(0.4)
    sooner_s, faster_s = (1000.0 + GRAIN_S) * math.expm1(-LEAST - 0.3), 1000.0 * math.expm1(-0.4)
    assert band.high_s == pytest.approx(1000.0 + math.hypot(later_s, slower_s))
    assert band.low_s == pytest.approx(1000.0 - math.hypot(sooner_s, faster_s))
