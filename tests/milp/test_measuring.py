"""Trainers whose curve nobody told are measured: where, in which order, and what becomes of the nodes meanwhile."""

from collections.abc import Sequence
from dataclasses import replace

from hpcdl.core.model.plan import JobView, Plan
from hpcdl.core.model.profile import Profile, RateTrial
from hpcdl.milp import BFTrainer, Reallocation
from hpcdl.milp.measuring import LONG, LOOK_S, PATIENCE_S
from tests.milp.trainer_views import ELASTIC, counts, decide, nodes, reasons, training, view, waiting

TEN = BFTrainer(Reallocation(parallel=10))
NOW = 1000.0


def learnt(*seen: int, hidden: float = 0.0, longer: Sequence[int] = ()) -> Profile:
    """ELASTIC as the daemon learnt it on these numbers of nodes, on the `longer` ones long ago."""
    trials = tuple(RateTrial("", each, 1, 0.05, 3, 0.02, hidden, (), 100.0, 0.0, "100 steps of job 1") for each in seen)
    return replace(ELASTIC, trials=trials, measured=tuple(("", each, 1) for each in longer))


def at(many: int, first: int = 1) -> list[str]:
    return [f"n{number:03d}" for number in range(first, first + many)]


def plan_of(*jobs: JobView, there: int = 8, now: float = NOW) -> Plan:
    return decide(TEN, view(*jobs, there=nodes(there), objective="efficiency", now=now))


def test_one_of_which_nothing_was_seen_starts_on_its_fewest_nodes() -> None:
    plan = plan_of(waiting(1, None, low=2))
    assert counts(plan) == [2]
    assert plan.wake_at == NOW + LOOK_S
    assert "6 more once its rate on 2 is seen: nobody knows its curve" in reasons(plan)[0]


def test_it_has_the_others_once_it_was_seen_there_and_what_is_best_once_it_was_seen_on_many() -> None:
    unseen = training(1, at(1), None, step=0, step_at=None, held_since=NOW - 5.0)
    plan = plan_of(unseen)
    assert (counts(plan), plan.wake_at) == ([1], NOW + LOOK_S)
    plan = plan_of(training(1, at(1), learnt(1)))
    assert (counts(plan), plan.wake_at) == ([8], NOW + LOOK_S)
    plan = plan_of(training(1, at(8), learnt(1)))
    assert (counts(plan), plan.wake_at) == ([8], NOW + LOOK_S)
    plan = plan_of(training(1, at(8), learnt(1, 8)))
    assert (counts(plan), plan.wake_at) == ([8], None)


def test_what_it_is_to_have_is_kept_for_it() -> None:
    """Who knows that it would gain from them does not get them for two seconds."""
    told = training(2, at(1), ELASTIC)
    plan = plan_of(told, waiting(3, None))
    assert counts(plan) == counts(plan_of(told, training(3, at(1, 2), None, step=0, step_at=None, held_since=NOW)))
    assert sum(counts(plan)) < 8
    after = plan_of(told, training(3, at(1, 2), learnt(1)))
    assert counts(after)[1] > 1 == counts(plan)[1]


def test_it_is_tried_on_what_is_free_and_takes_no_more_than_an_equal_share_from_others() -> None:
    steep = replace(ELASTIC, points=((1, 1, 10.0), (4, 1, 38.0), (8, 1, 60.0)))
    plan = plan_of(training(1, at(8), steep), training(2, at(1, 9), learnt(1)), there=9)
    assert counts(plan)[1] <= 5
    assert counts(plan_of(training(1, at(1), steep, nodes_max=1), training(2, at(1, 2), learnt(1)), there=9)) == [1, 8]


def test_one_that_was_seen_on_many_only_goes_to_its_fewest_where_that_pays() -> None:
    seen = training(1, at(8), learnt(8))
    assert counts(plan_of(seen)) == [1]
    cost_s = 20.0 + 5.0 + LOOK_S
    assert counts(plan_of(replace(seen, total=1 + int(50.0 * LONG * cost_s) - 10))) == [8]
    assert counts(plan_of(replace(seen, in_place=False))) == [8]
    slow = replace(learnt(8), points=tuple((many, gpus, rate / 1e3) for many, gpus, rate in ELASTIC.points))
    assert counts(plan_of(replace(seen, profile=slow))) == [8]


def test_who_loses_nodes_meanwhile_keeps_what_was_measured() -> None:
    """It was measured on one node and was to be measured on eight, of which five left: it goes on from there."""
    assert counts(plan_of(training(1, at(3), learnt(1)), there=3)) == [3]
    assert plan_of(training(1, at(3), learnt(1, 3)), there=3).wake_at is None
    assert counts(plan_of(waiting(1, learnt(1)), there=4)) == [4]
    assert counts(plan_of(waiting(1, learnt(4)), there=4)) == [4]


def test_nobody_waits_for_ever_for_a_report() -> None:
    silent = training(1, at(1), None, step=0, step_at=None, held_since=0.0)
    assert counts(plan_of(silent, now=NOW)) == [8]
    stalled = training(1, at(2), learnt(1))
    assert counts(plan_of(stalled, now=NOW)) == [2]
    assert counts(plan_of(stalled, now=NOW + PATIENCE_S + 1)) == [8]


def test_a_rate_that_may_be_a_warm_ups_is_not_seen_yet() -> None:
    assert counts(plan_of(training(1, at(1), learnt(1, hidden=0.9)))) == [1]


def test_who_is_told_or_shares_a_curve_or_starts_anew_is_not_measured() -> None:
    for profile in (ELASTIC, learnt(longer=(1, 8)), learnt(8, longer=(1,))):
        plan = plan_of(waiting(1, profile))
        assert (counts(plan), plan.wake_at) == ([8], None)
    for rescale in ("restart", "torchrun"):
        assert counts(plan_of(waiting(1, None, rescale=rescale))) == [8]
    assert counts(plan_of(waiting(1, None, low=5, high=8))) == [8]


def test_one_whose_rate_nobody_knows_is_taken_to_be_as_fast_as_the_others() -> None:
    """Else, under `throughput`, its number of steps alone decides what it is worth, and others are suspended for it."""
    known, new = training(1, at(2), learnt(1, 2)), waiting(2, None, total=10**12)
    plan = decide(TEN, view(known, new, there=nodes(2)))
    assert counts(plan) == [1, 1]
    assert counts(decide(TEN, view(known, new, there=nodes(4))))[1] == 1
