"""Trainers that arrive by a Poisson process, first come, first served: against a plain event loop, and by hand."""

import math
import random
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

import pytest

from hpcdl.policies import all_policies
from hpcdl.sim.replay import IdleTrace, ReplayCase, ScalingModel, idle_of, replayed, table2
from hpcdl.sim.replay.arrivals import LOAD, arriving, lasting, mean_gap_s
from hpcdl.sim.replay.check import counted
from hpcdl.sim.replay.run import ReplayRun, run
from hpcdl.sim.workload import NodeSpell, WorkloadError

MODELS = (
    ScalingModel("Fast", ((1, 10.0), (2, 19.0), (4, 33.0))),
    ScalingModel("Slow", ((1, 4.1), (2, 8.0), (4, 15.1))),
    ScalingModel("Other", ((1, 6.3), (2, 11.2), (4, 21.7))),
)
HOUR = 3600.0


def trace(*rows: tuple[str, float, float]) -> IdleTrace:
    return idle_of([NodeSpell(name, 1, "", begin, end) for name, begin, end in rows])


def drawn(seed: int, nodes: int = 4, hours: float = 12) -> IdleTrace:
    """Nodes that come and go at random; one of them is there all the time."""
    draws, rows = random.Random(seed), [("n0", 0.0, hours * HOUR)]
    for place in range(1, nodes):
        at = draws.expovariate(1 / 900)
        while at < hours * HOUR:
            until = at + 1 + draws.expovariate(1 / 2000)
            rows.append((f"n{place}", round(at, 2), round(min(until, hours * HOUR), 2)))
            at = until + 1 + draws.expovariate(1 / 900)
    return trace(*sorted((row for row in rows if row[1] < row[2]), key=lambda row: row[1]))


def arrivals(seed: int, count: int, gap_s: float) -> tuple[float, ...]:
    draws, at = random.Random(seed), 0.0
    return tuple(round(at := at + draws.expovariate(1 / gap_s), 2) for _ in range(count))


def ran(idle: IdleTrace, case: ReplayCase) -> ReplayRun:
    return run(idle, case, all_policies())


# --- a plain event loop ----------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    model: ScalingModel
    left: float
    nodes: list[str] = field(default_factory=list)

    def rate(self, nodes: int, most: int) -> float:
        return float(self.model.rates(most)[nodes])


def best(models: list[ScalingModel], nodes: int, case: ReplayCase) -> float:
    """F(N): the best of all splits."""
    splits = product(range(case.most + 1), repeat=len(models))
    rates = [model.rates(case.most) for model in models]
    return max(
        sum(float(rate[count]) for rate, count in zip(rates, split, strict=True))
        for split in splits
        if sum(split) <= nodes
    )


def decided(active: list[Trainer], there: int, case: ReplayCase) -> tuple[int, ...]:
    """Equal shares, or the counts that are best by eq. 16, of all that there are."""
    if case.policy == "equal-share":
        each, over = divmod(there, len(active))
        return tuple(min(case.most, each + (place < over)) for place in range(len(active)))

    def value(split: tuple[int, ...]) -> float:
        total = 0.0
        for trainer, count in zip(active, split, strict=True):
            now = len(trainer.nodes)
            cost_s = case.scale_up_s if count > now else case.scale_down_s if count < now else 0.0
            gain = case.t_fwd_s * trainer.rate(count, case.most) - cost_s * trainer.rate(now, case.most)  # type: ignore[operator]
            total += gain / (trainer.rate(1, case.most) if case.objective == "efficiency" else 1.0)
        return total

    return max((s for s in product(range(case.most + 1), repeat=len(active)) if sum(s) <= there), key=value)


def literal(idle: IdleTrace, case: ReplayCase) -> tuple[float, float, float]:
    """U, its bound and when the last one is done, by eqs. 16 and 18 of the paper, event by event."""
    assert case.arrivals is not None
    unit = {model: model.rates(case.most)[1] if case.objective == "efficiency" else 1.0 for model in case.models}
    waiting = [
        (at, Trainer(case.models[place % len(case.models)], float(case.samples)))
        for place, at in enumerate(case.arrivals)
    ]
    moments = sorted({*idle.changes, *case.arrivals})
    active: list[Trainer] = []
    free: list[str] = []
    spans: list[tuple[float, list[ScalingModel], int]] = []
    now = made = 0.0
    while True:
        active = [trainer for trainer in active if trainer.left > 1e-6 or free.extend(trainer.nodes)]  # type: ignore[func-returns-value]
        before = [len(trainer.nodes) for trainer in active]
        for spell in idle.spells:
            if spell.until_s == now:
                for held in (free, *(trainer.nodes for trainer in active)):
                    if spell.name in held:
                        held.remove(spell.name)
        free += [spell.name for spell in idle.spells if spell.from_s == now]
        for trainer, count in zip(active, before, strict=True):
            if len(trainer.nodes) < count:
                made -= case.scale_down_s * trainer.rate(count, case.most) / unit[trainer.model]
        while waiting and waiting[0][0] <= now and len(active) < case.parallel:
            active.append(waiting.pop(0)[1])
        if not active and not waiting:
            break
        if active:
            split = decided(active, len(free) + sum(len(trainer.nodes) for trainer in active), case)
            pairs = [*zip(active, split, [len(trainer.nodes) for trainer in active], strict=True)]
            for trainer, count, kept in pairs:
                if count != kept:
                    cost_s = case.scale_up_s if count > kept else case.scale_down_s
                    made -= cost_s * trainer.rate(kept, case.most) / unit[trainer.model]
                free += trainer.nodes[count:]
                del trainer.nodes[count:]
            for trainer, count, _ in pairs:
                while len(trainer.nodes) < count:
                    trainer.nodes.append(free.pop())
        rates = [trainer.rate(len(trainer.nodes), case.most) for trainer in active]
        ends = [now + trainer.left / rate for trainer, rate in zip(active, rates, strict=True) if rate]
        until = min([at for at in moments if at > now][:1] + ends)
        there = len(free) + sum(len(trainer.nodes) for trainer in active)
        spans.append((until - now, [trainer.model for trainer in active], there))
        for trainer, rate in zip(active, rates, strict=True):
            made += min(trainer.left, rate * (until - now)) / unit[trainer.model]
            trainer.left -= rate * (until - now)
        now = until
    mean = sum(seconds * there for seconds, _, there in spans) / now
    static = possible = 0.0
    for seconds, models, there in spans:
        mix = [model.per_node for model in models] if case.objective == "efficiency" else models
        low, part = int(mean), mean - int(mean)
        static += seconds * ((1 - part) * best(mix, low, case) + part * best(mix, low + 1, case))
        possible += seconds * best(mix, there, case)
    return made / static, possible / static, now


@pytest.mark.parametrize("policy", ["bftrainer", "equal-share"])
@pytest.mark.parametrize("seed", range(4))
def test_one_at_a_time_is_what_the_paper_accounts_for(seed: int, policy: str) -> None:
    case = ReplayCase(
        MODELS, policy, parallel=1, samples=20_000, most=4, arrivals=arrivals(seed, 5, 1500), objective="efficiency"
    )
    found, (U, bound_U, end_s) = replayed(drawn(seed), case), literal(drawn(seed), case)
    assert found.problems == ()
    assert pytest.approx(U, abs=1e-4) == found.U
    assert found.bound_U == pytest.approx(bound_U, abs=1e-4)
    assert found.idle.end_s == pytest.approx(end_s, abs=0.1)


@pytest.mark.parametrize("policy", ["bftrainer", "equal-share"])
@pytest.mark.parametrize("objective", ["throughput", "efficiency"])
@pytest.mark.parametrize("seed", range(3))
def test_several_differ_only_by_which_nodes_each_holds(seed: int, objective: str, policy: str) -> None:
    case = ReplayCase(
        MODELS, policy, parallel=3, samples=20_000, most=4, arrivals=arrivals(seed, 9, 600), objective=objective
    )
    found, (U, bound_U, end_s) = replayed(drawn(seed), case), literal(drawn(seed), case)
    plain = counted(drawn(seed), case)
    assert (found.problems, found.completed, plain.completed) == ((), 9, 9)
    assert pytest.approx(U, abs=0.03) == found.U
    assert found.bound_U == pytest.approx(bound_U, abs=0.02)
    assert found.idle.end_s == pytest.approx(end_s, rel=0.03)
    assert pytest.approx(plain.U, abs=0.03) == found.U
    assert 0 < found.U <= found.bound_U


# --- the queue -------------------------------------------------------------------------------------------------------


def test_first_come_first_served_and_never_more_than_the_maximum() -> None:
    case = ReplayCase(MODELS, parallel=2, samples=30_000, most=4, arrivals=arrivals(5, 12, 300))
    made = ran(drawn(5), case)
    assert case.arrivals is not None
    admitted = [made.admitted[number] for number in sorted(made.admitted)]
    ends = {number: at for number, (_, at) in made.timeline.ends.items()}
    assert admitted == sorted(admitted)
    assert len(admitted) == len(ends) == 12
    for number, at in made.admitted.items():
        others = sum(made.admitted[each] <= at < ends[each] for each in made.admitted)
        assert others <= 2
        come = case.arrivals[number - 1]
        # Whoever waited got the place of one that ended at that moment.
        assert at == pytest.approx(come) or (at > come and at in ends.values())
    assert made.end_s == max(ends.values())


def test_time_with_nothing_to_run_counts_neither_for_nor_against() -> None:
    nodes = trace(*((f"n{place}", 0.0, 10 * HOUR) for place in range(4)))
    case = ReplayCase(MODELS[:1], parallel=1, samples=33_000, most=4, arrivals=(500.0, 9000.0))
    found = replayed(nodes, case)
    assert found.idle.end_s == pytest.approx(10_000)
    assert found.completed == 2
    assert found.samples == pytest.approx(66_000)
    assert pytest.approx(1.0) == found.U
    assert found.bound_U == pytest.approx(1.0)
    assert found.static == pytest.approx(33 * 2000)
    assert found.active_h == pytest.approx({"Fast": 1000 / HOUR})
    assert found.used_share == pytest.approx(0.2)


def test_who_waits_has_no_nodes_and_is_counted_from_its_admission() -> None:
    nodes = trace(("n0", 0.0, 10 * HOUR), ("n1", 3000.0, 10 * HOUR))
    case = ReplayCase(MODELS[:1], parallel=2, samples=30_000, most=1, arrivals=(0.0, 0.0, 0.0))
    found = replayed(nodes, case)  # one node: 3,000 s each; then two of them
    assert found.active_h["Fast"] == pytest.approx(fmean((3000, 6000, 3000)) / HOUR, rel=1e-3)
    assert found.runtime_h["Fast"] == pytest.approx(3000 / HOUR, rel=1e-3)


def test_trainers_that_are_not_done_at_the_end_are_told() -> None:
    case = ReplayCase(MODELS[:1], parallel=1, samples=30_000, arrivals=(0.0, 1.0))
    found = replayed(trace(("n0", 0.0, HOUR)), case)
    assert found.problems == ("1 of 2 trainers were not done after 1 h",)
    assert found.idle.end_s == HOUR


@pytest.mark.parametrize("wrong", [(), (5.0, 4.0), (-1.0,), (math.nan,), (math.inf,)])
def test_arrivals_that_make_no_sense(wrong: tuple[float, ...]) -> None:
    with pytest.raises(WorkloadError, match="arrivals must be"):
        ReplayCase(MODELS, arrivals=wrong)


# --- arrivals, and a trace that lasts --------------------------------------------------------------------------------


def test_a_seed_gives_its_arrivals_and_the_gaps_are_those_of_a_poisson_process() -> None:
    idle, case = drawn(1), ReplayCase(table2())
    first, again, other = (arriving(idle, case, 4000, seed).arrivals for seed in (0, 0, 1))
    assert first == again != other
    assert first is not None
    gaps = [after - before for before, after in zip((0.0, *first), first, strict=False)]
    gap_s = mean_gap_s(idle, case.models, case.samples)
    assert fmean(gaps) == pytest.approx(gap_s, rel=0.05)
    assert fmean(gap > gap_s for gap in gaps) == pytest.approx(math.exp(-1), abs=0.03)  # exponential
    assert arriving(idle, case, 10, 0).arrivals == first[:10]


def test_the_rate_is_a_multiple_of_what_the_idle_nodes_could_serve() -> None:
    nodes = trace(*((f"n{place}", 0.0, HOUR) for place in range(6)))
    assert mean_gap_s(nodes, MODELS[:1], 30_000) == pytest.approx(30_000 / 10 / 6 / LOAD)


def test_a_trace_that_begins_again_goes_on_where_nodes_are_idle_at_both_sides() -> None:
    idle = trace(("a", 0, 100), ("b", 0, 40), ("c", 50, 100), ("d", 20, 60))
    twice = idle.repeated(2)
    assert twice.end_s == 200.0
    assert twice.mean == pytest.approx(idle.mean)
    spells = sorted((each.name, each.from_s, each.until_s) for each in twice.spells)
    assert spells == [
        ("a", 0, math.inf), ("b", 0, 40), ("b", 100, 140), ("c", 50, 100), ("c", 150, math.inf), ("d", 20, 60),
        ("d", 120, 160),
    ]  # fmt: skip
    assert twice.changes == (20, 40, 50, 60, 100, 120, 140, 150, 160)
    assert idle.repeated(3).mean == pytest.approx(idle.mean)
    assert idle.until(500) is idle
    assert idle.until(45).changes == (20, 40)


def test_a_trace_is_repeated_until_the_trainers_are_done() -> None:
    case = arriving(drawn(2), ReplayCase(MODELS, samples=100_000), 30, 0)
    long = lasting(drawn(2), case)
    assert long.end_s > drawn(2).end_s
    found: Any = replayed(long, case)
    assert (found.problems, found.completed) == ((), 30)
    few = replace(case, arrivals=(0.0,))
    assert lasting(drawn(2), few).end_s == drawn(2).end_s
