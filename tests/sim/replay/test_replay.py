"""Replays on traces that are small enough to compute U by hand."""

import random
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from hpcdl.milp import Reallocation
from hpcdl.policies import all_policies
from hpcdl.sim.replay import IdleTrace, Outcome, ReplayCase, ScalingModel, idle_of, replayed, table2
from hpcdl.sim.replay.check import counted
from hpcdl.sim.replay.run import BestThroughput, _Queue, _workload
from hpcdl.sim.workload import NodeSpell, WorkloadError

NET = ScalingModel("Net", ((1, 10.0), (2, 18.0), (4, 30.0)))
SLOW = ScalingModel("Slow", ((1, 5.0), (2, 10.0)))
ONE = ReplayCase((NET,), parallel=1, samples=10**12)


def idle(*rows: tuple[str, float, float], hours: float | None = None) -> IdleTrace:
    return idle_of([NodeSpell(name, 1, "", begin, end) for name, begin, end in rows], hours)


def four(*until: float) -> IdleTrace:
    return idle(*((f"n{place}", 0.0, end) for place, end in enumerate(until)))


def told(outcome: Outcome) -> dict[str, Any]:
    """All but the decision times."""
    values = outcome.to_json()
    values["decisions"] = None
    return values


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["bftrainer", "equal-share"])
def test_nodes_that_stay_are_used_in_full(policy: str) -> None:
    found = replayed(four(3600, 3600, 3600, 3600), replace(ONE, policy=policy))
    assert found.samples == pytest.approx(30 * 3600)
    assert pytest.approx(1.0) == found.U
    assert found.bound_U == pytest.approx(1.0)
    assert (found.rescale_loss, found.preemption_loss) == (0.0, 0.0)  # a start from nothing costs R x f(0)
    assert found.problems == ()


def test_a_start_stalls() -> None:
    found = replayed(four(3600, 3600, 3600, 3600), replace(ONE, accounting="stall"))
    assert found.samples == pytest.approx(30 * (3600 - 20))
    assert pytest.approx(3580 / 3600) == found.U
    assert found.rescale_loss == pytest.approx(30 * 20)
    assert found.preemption_loss == pytest.approx(0.0)


def test_a_forced_shrink_costs_what_ran_before() -> None:
    found = replayed(four(3600, 3600, 3600, 1800), ONE)
    static = 27 * 3600  # F(3.5), between f(3) = 24 and f(4) = 30
    assert found.static == pytest.approx(static)
    assert found.preemption_loss == pytest.approx(5 * 30)
    assert found.rescale_loss == pytest.approx(0.0)
    assert found.samples == pytest.approx(30 * 1800 + 24 * 1800 - 5 * 30)
    assert pytest.approx((static - 150) / static) == found.U
    assert found.bound_U == pytest.approx(1.0)
    assert found.preemptions == 1


def test_a_forced_shrink_stalls_what_is_left() -> None:
    found = replayed(four(3600, 3600, 3600, 1800), replace(ONE, accounting="stall"))
    assert found.rescale_loss == pytest.approx(20 * 30)
    assert found.preemption_loss == pytest.approx(5 * 24)
    assert found.samples == pytest.approx(30 * 1780 + 24 * 1795)


def test_a_growth_that_pays_within_the_horizon() -> None:
    joins = idle(("n1", 0, 3600), ("n2", 0, 3600), ("n3", 0, 3600), ("n4", 1800, 3600))
    found = replayed(joins, ONE)  # 120 s x (30 - 24) is more than 20 s x 24
    assert found.rescale_loss == pytest.approx(20 * 24)
    assert found.samples == pytest.approx(24 * 1800 + 30 * 1800 - 480)
    assert found.used_share == pytest.approx(1.0)
    stalled = replayed(joins, replace(ONE, accounting="stall"))
    assert stalled.samples == pytest.approx(24 * 1780 + 30 * 1780)
    assert stalled.rescale_loss == pytest.approx(20 * 24 + 20 * 30)


def test_a_growth_that_does_not_pay_is_left() -> None:
    joins = idle(("n1", 0, 3600), ("n2", 0, 3600), ("n3", 0, 3600), ("n4", 1800, 3600))
    found = replayed(joins, replace(ONE, t_fwd_s=60.0))
    assert found.samples == pytest.approx(24 * 3600)
    assert found.rescales == 1  # the start
    assert found.used_share == pytest.approx(3 / 3.5)


def test_the_queue_never_ends() -> None:
    found = replayed(four(3700, 3700, 3700, 3700), replace(ONE, samples=36_000))
    assert found.completed == 3
    assert found.samples == pytest.approx(30 * 3700)
    assert found.runtime_h == {"Net": pytest.approx(1200 / 3600)}


def test_all_nodes_of_a_trainer_may_go_and_nothing_is_done_twice() -> None:
    gaps = idle(("n1", 0, 1000), ("n1", 2000, 3000), ("n2", 1500, 1600), ("n2", 2500, 3000))
    found = replayed(gaps, ONE)
    assert found.samples + found.rescale_loss + found.preemption_loss == pytest.approx(found.held)
    assert found.samples == pytest.approx(10 * 1000 + 10 * 100 + 10 * 500 + 18 * 500 - 5 * 10 - 5 * 10 - 20 * 10)


def test_a_node_that_goes_and_comes_at_one_moment_was_gone() -> None:
    found = replayed(idle(("n1", 0, 1000), ("n1", 1000, 2000)), ONE)
    assert (found.preemptions, len(found.idle.changes)) == (1, 1)
    assert found.samples == pytest.approx(10 * 2000 - 5 * 10)


def test_trainers_of_different_models_are_measured_by_those_that_are_active() -> None:
    case = replace(ONE, models=(NET, SLOW), samples=1000)
    found = replayed(idle(("n1", 0, 600)), case)  # 100 s of Net, 200 s of Slow, and again
    assert found.completed == 3
    assert found.static == pytest.approx(10 * 200 + 5 * 400)
    assert pytest.approx(1.0) == found.U
    assert found.by_efficiency is not None
    assert np.allclose(found.by_efficiency, 1.0)
    assert found.runtime_h == {"Net": pytest.approx(100 / 3600), "Slow": pytest.approx(200 / 3600)}


def test_windows_add_up() -> None:
    hours = 13.0
    found = replayed(four(*(hours * 3600 for _ in range(3)), 5 * 3600.0), ONE)
    assert [(each.from_h, each.until_h) for each in found.windows] == [(0, 6), (6, 12), (12, 13)]
    assert sum(each.samples for each in found.windows) == pytest.approx(found.samples)
    assert [each.preemption_loss for each in found.windows] == pytest.approx([150, 0, 0])
    assert found.windows[1].idle_nodes == pytest.approx(3)


# --- against another way to do it ------------------------------------------------------------------------------------


def drawn(seed: int, nodes: int = 12, end_s: float = 6 * 3600.0) -> IdleTrace:
    """Nodes that come and go at random."""
    rng = random.Random(seed)
    rows = []
    for place in range(nodes):
        at = rng.expovariate(1 / 1200)
        while at < end_s:
            until = at + rng.expovariate(1 / 2400) + 1
            rows.append((f"n{place:02}", round(at, 1), round(until, 1)))
            at = until + rng.expovariate(1 / 1200) + 1
    return idle(*sorted(rows, key=lambda row: row[1]), hours=end_s / 3600)


@pytest.mark.parametrize("policy", ["bftrainer", "equal-share"])
@pytest.mark.parametrize("accounting", ["paper", "stall"])
def test_the_controller_loses_nothing_that_counts_alone_do_not(policy: str, accounting: str) -> None:
    case = ReplayCase(table2()[4:5], policy=policy, accounting=accounting, parallel=3, samples=20_000_000)
    trace = drawn(5)
    ours, plain = replayed(trace, case), counted(trace, case)
    assert ours.bound_U == pytest.approx(plain.bound_U)
    assert pytest.approx(plain.U, abs=0.01) == ours.U
    assert 0 < ours.U <= ours.bound_U
    assert ours.problems == ()


def test_the_same_replay_gives_the_same_figures() -> None:
    case = ReplayCase(table2(), parallel=4, samples=20_000_000)
    assert told(replayed(drawn(7), case)) == told(replayed(drawn(7), case))


def test_dearer_rescales_never_raise_the_bound() -> None:
    case = ReplayCase(table2()[:1], parallel=3)
    cheap, dear = (replayed(drawn(8), replace(case, scale_up_s=up, scale_down_s=up)) for up in (0.0, 60.0))
    assert cheap.bound_U == pytest.approx(dear.bound_U)
    assert cheap.U > dear.U
    assert pytest.approx(cheap.bound_U, abs=1e-6) == cheap.U  # nothing is lost where rescales are free


@pytest.mark.parametrize("fewest", [1, 2])
def test_the_best_split_is_that_of_all_splits(fewest: int) -> None:
    mix = (NET, SLOW, NET)
    best = BestThroughput(7, fewest, 4).of(mix)
    sizes = [0, *range(fewest, 5)]
    for nodes in range(8):
        splits = (split for split in product(sizes, repeat=3) if sum(split) <= nodes)
        expected = max(sum(model.rates(4)[count] for model, count in zip(mix, split, strict=True)) for split in splits)
        assert best[nodes] == pytest.approx(expected)
    assert all(after >= before for before, after in pairwise(best))


# --- traces ----------------------------------------------------------------------------------------------------------


def test_a_trace_is_cut_to_its_hours() -> None:
    found = idle(("a", 0, 7200), ("b", 1000, 3600), ("a", 9000, 9100), hours=1.0)
    assert found.end_s == 3600
    assert found.changes == (1000.0,)
    assert found.mean == pytest.approx((1000 + 2 * 2600) / 3600)
    assert found.most == 2
    assert found.node_hours == pytest.approx(6200 / 3600)
    assert np.array_equal(found.counts, [1, 2])
    assert idle(("a", 0, 7200), hours=100.0).end_s == 7200


def test_events_are_moments_and_preemptions_are_looked_for_after_them() -> None:
    found = replayed(idle(("a", 0, 3600), ("b", 0, 1000), ("c", 500, 1050)), ONE)
    assert len(found.idle.changes) == 3  # at 500, 1000 and 1050
    assert found.preempted_share(49) == 0.0
    assert found.preempted_share(50) == pytest.approx(1 / 3)
    assert found.preempted_share(500) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"parallel": 0}, "parallel must be"),
        ({"scale_up_s": -1.0}, "scale_up_s must be"),
        ({"t_fwd_s": 0.0}, "t_fwd_s must be"),
        ({"accounting": "free"}, "no accounting 'free'"),
        ({"fewest": 5, "most": 4}, "nodes 5:4"),
        ({"models": ()}, "a model at least"),
    ],
)
def test_cases_that_make_no_sense(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(WorkloadError, match=named):
        replace(ONE, **wrong)


def test_trainers_that_never_fit_are_refused() -> None:
    with pytest.raises(WorkloadError, match="can never fit"):
        replayed(four(100, 100), replace(ONE, fewest=3, most=4))
    with pytest.raises(WorkloadError, match="too few idle nodes"):
        replayed(idle(("a", 0, 1000), ("b", 0, 1), ("c", 0, 1)), replace(ONE, fewest=3, most=4))


# --- curves that nobody told -----------------------------------------------------------------------------------------

LEARNS = ReplayCase((NET, SLOW), parallel=2, samples=10**12, most=4, learns=True)


def test_what_users_believe_decides_and_what_is_true_counts() -> None:
    trace = four(*[7200.0] * 4)
    wrong = (ScalingModel("Net", ((1, 10.0), (4, 10.1))), ScalingModel("Slow", ((1, 1.0), (4, 4.0))))
    true = replayed(trace, replace(LEARNS, learns=False))
    fooled = replayed(trace, replace(LEARNS, learns=False, believed=wrong))
    assert pytest.approx(1.0) == true.U
    assert fooled.U < true.U
    with pytest.raises(WorkloadError, match="one for each"):
        replace(LEARNS, believed=wrong)


@pytest.mark.parametrize("accounting", ["paper", "stall"])
def test_curves_are_learnt_while_nodes_come_and_go(accounting: str) -> None:
    """After an hour it does nearly as much as if it had been told; the same each time."""
    rows = [("n0", 0.0, 14400.0), ("n1", 600.0, 4000.0), ("n2", 300.0, 14400.0), ("n3", 5.0, 9000.0)]
    trace = idle(*rows, ("n1", 5000.0, 14400.0), ("n3", 9500.0, 14400.0))
    case = replace(LEARNS, accounting=accounting)
    learnt, true = replayed(trace, case, window_h=1.0), replayed(trace, replace(case, learns=False), window_h=1.0)
    assert learnt.problems == true.problems == ()
    mine, its = (sum(window.samples for window in each.windows[1:]) for each in (learnt, true))
    assert mine > 0.98 * its
    assert told(learnt) == told(replayed(trace, case, window_h=1.0))


def test_a_daemon_that_starts_anew_knows_what_was_learnt() -> None:
    """Nodes leave while a trainer is measured; what was seen of it, and what it took, is in the journal."""
    case = replace(LEARNS, accounting="stall")
    trace = idle(("n0", 0.0, 3600.0), ("n1", 0.0, 70.0), ("n2", 0.0, 70.0), ("n3", 0.0, 70.0))
    replay = _Queue(_workload(trace, case), trace, case, all_policies(Reallocation(parallel=2)), None)
    replay.run()
    seen = replay.world.observed
    took = {each.what: each.seconds / each.times for known in seen.values() for each in known.times}
    assert took["grow_s"] == case.scale_up_s
    assert {(each.nodes, each.steps > 0) for known in seen.values() for each in known.rates} >= {(1, True)}
    assert dict(replay._new_controller().world.observed) == dict(seen)
