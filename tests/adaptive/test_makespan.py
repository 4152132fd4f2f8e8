"""The objective `makespan`: its forward model, its allotments, and what it decides."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.adaptive import Adaptive, makespan, objectives
from hpcdl.adaptive.allotment import AllotmentTable, prices
from hpcdl.adaptive.case import RolloutCase
from hpcdl.adaptive.options import Option, candidates
from hpcdl.adaptive.prior import concave
from hpcdl.adaptive.rollout import Entrant, JobGrant, Running, at_once, fit, forward
from hpcdl.core.model.plan import Policies, View
from hpcdl.core.model.profile import Profile
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.workload import NodeSpell, SimJob, Workload, cluster
from tests.adaptive.views import CONCAVE, LINEAR, counts, decide, job, node, reasons, running, view
from tests.support.seeds import seeds

GOAL = "makespan"


def entrant(number: int, left: float, rates: dict[int, float], stall_s: float = 10.0, again_s: float = 30.0) -> Entrant:
    options = [Option("", 1, gpus, rate, stall_s) for gpus, rate in rates.items()]
    return Entrant(number, left, tuple(sorted(options, key=lambda option: (-option.rate, option.units))), again_s)


def on(job: Entrant, gpus: int) -> Option:
    return next(option for option in job.options if option.gpus == gpus)


RATES = {1: 1.0, 2: 1.8, 3: 2.4, 4: 2.8}


# --- the forward model -----------------------------------------------------------------------------------------------


def test_one_job_after_the_other() -> None:
    first, second = entrant(1, 100, RATES), entrant(2, 56, RATES)
    seen = forward([""], [4], [], [(first, on(first, 4)), (second, on(second, 4))], squeeze=False)
    assert seen.ends == {1: pytest.approx(10 + 100 / 2.8), 2: pytest.approx(10 + 100 / 2.8 + 10 + 56 / 2.8)}
    assert seen.makespan_s == seen.ends[2]
    assert seen.at_once == {1: JobGrant(on(first, 4), (0,))}
    assert seen.total_s == pytest.approx(sum(seen.ends.values()))


def test_who_does_not_fit_takes_less_or_is_passed_over() -> None:
    jobs = [entrant(number, 100, RATES, again_s=math.inf) for number in (1, 2, 3)]
    queue = [(jobs[0], on(jobs[0], 3)), (jobs[1], on(jobs[1], 2)), (jobs[2], on(jobs[2], 1))]
    squeezed = forward([""], [4], [], queue, squeeze=True)
    assert {number: given.option.gpus for number, given in squeezed.at_once.items()} == {1: 3, 2: 1}
    passed = forward([""], [4], [], queue, squeeze=False)
    assert {number: given.option.gpus for number, given in passed.at_once.items()} == {1: 3, 3: 1}
    strict = forward([""], [4], [], queue, squeeze=False, first=2)
    assert {number: given.option.gpus for number, given in strict.at_once.items()} == {1: 3}
    assert strict.ends.keys() == {1, 2, 3}


def test_free_gpus_go_to_the_job_that_ends_last_if_that_is_worth_its_restart() -> None:
    short, long = entrant(1, 20, RATES), entrant(2, 1000, RATES)
    both = [Running(short, on(short, 2), (0,), 0.0), Running(long, on(long, 2), (0,), 0.0)]
    seen = forward([""], [0], both, [], squeeze=True, settled=True)
    free_at = 20 / 1.8
    assert seen.ends[2] == pytest.approx(free_at + 30 + (1000 - free_at * 1.8) / 2.8)
    assert seen.at_once == {}
    dear = replace(long, again_s=400.0)
    seen = forward([""], [0], [both[0], replace(both[1], entrant=dear)], [], squeeze=True)
    assert seen.ends[2] == pytest.approx(1000 / 1.8)


def test_gpus_are_taken_from_a_job_that_has_time() -> None:
    short, long = entrant(1, 300, RATES), entrant(2, 1000, RATES)
    both = [Running(short, on(short, 2), (0,), 0.0), Running(long, on(long, 2), (0,), 0.0)]
    seen = forward([""], [0], both, [], squeeze=True)
    assert {number: given.option.gpus for number, given in seen.at_once.items()} == {1: 1, 2: 3}
    assert seen.makespan_s < 1000 / 1.8
    assert forward([""], [0], both, [], squeeze=True, settled=True).at_once == {}


def test_a_job_that_starts_is_not_changed_before_it_trains() -> None:
    starting = entrant(1, 1000, RATES)
    seen = forward([""], [2], [Running(starting, on(starting, 2), (0,), 5.0)], [], squeeze=True)
    assert seen.at_once == {}
    assert seen.ends == {1: pytest.approx(5 + 1000 / 1.8)}


def test_nodes_and_kinds() -> None:
    kinds, free = ["v100", "v100", "k80"], [3, 2, 4]
    assert fit(kinds, free, Option("v100", 1, 2, 1.0, 0.0)) == (1,)
    assert fit(kinds, free, Option("v100", 2, 2, 1.0, 0.0)) == (1, 0)
    assert fit(kinds, free, Option("v100", 1, 4, 1.0, 0.0)) is None
    assert fit(kinds, free, Option("v100", 2, 3, 1.0, 0.0)) is None
    assert fit(kinds, free, Option("k80", 1, 4, 1.0, 0.0)) == (2,)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 4), st.integers(0, 40)), min_size=1, max_size=7),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.booleans(),
)
@settings(max_examples=seeds(60), deadline=None)
def test_all_that_fit_end_and_never_more_is_used_than_there_is(
    drawn: list[tuple[int, int, int]], sizes: list[int], squeeze: bool
) -> None:
    jobs = [entrant(number, left, RATES, stall_s=stall_s) for number, (left, _, stall_s) in enumerate(drawn)]
    queue = [(each, on(each, gpus)) for each, (_, gpus, _) in zip(jobs, drawn, strict=True)]
    kinds = [""] * len(sizes)
    seen = forward(kinds, sizes, [], queue, squeeze)
    fitting = {each.id for each, wanted in queue if squeeze or fit(kinds, sizes, wanted) is not None}
    assert seen.ends.keys() == fitting
    used = [0] * len(sizes)
    for each in seen.at_once.values():
        for place in each.on:
            used[place] += each.option.gpus
    assert all(taken <= size for taken, size in zip(used, sizes, strict=True))
    least = max(
        (min(each.seconds(option) for option in each.options) for each in jobs if each.id in fitting), default=0
    )
    assert seen.makespan_s >= least - 1e-6
    assert forward(kinds, sizes, [], queue, squeeze) == seen
    if squeeze and len(queue) > sum(sizes):  # somebody waits, so nothing that runs is changed
        assert at_once(kinds, sizes, [], queue) == seen.at_once


# --- allotments and curves -------------------------------------------------------------------------------------------


def test_each_job_has_the_cheapest_option_that_is_in_time() -> None:
    jobs = (entrant(1, 100, RATES), entrant(2, 240, RATES))
    table = AllotmentTable(jobs)
    assert [option.gpus for option in table.wants(1e9)] == [1, 1]
    assert [option.gpus for option in table.wants(10 + 240 / 2.4)] == [1, 3]
    assert [option.gpus for option in table.wants(100)] == [2, 4]
    assert [option.gpus for option in table.wants(1.0)] == [4, 4]
    limits = table.limits()
    assert limits == sorted({each.seconds(option) for each in jobs for option in each.options})
    at = table.balance_s(limits, 0.0, 4)
    needed = [sum(each.seconds(o) * o.gpus for each, o in zip(jobs, table.wants(t), strict=True)) for t in limits]
    assert at == next(t for t, area in zip(limits, needed, strict=True) if area <= 4 * t)


def test_no_jobs_no_allotment() -> None:
    assert AllotmentTable(()).wants(5.0) == ()
    assert AllotmentTable(()).limits() == []


def test_a_gpu_of_a_slow_kind_costs_less() -> None:
    options = (Option("v100", 1, 1, 4.0, 0.0), Option("k80", 1, 1, 1.0, 0.0))
    assert prices([Entrant(1, 100.0, options, 1.0)]) == {"v100": 1.0, "k80": 0.25}


def test_a_concave_curve_stays_and_noise_shrinks() -> None:
    numbers, true = (1, 2, 3, 4, 5, 6), (3.89, 6.77, 7.84, 7.78, 7.71, 7.63)
    assert concave(numbers, true) == pytest.approx(true, rel=1e-6)
    before = after = 0.0
    for seed in range(60):
        chance = random.Random(seed)
        seen = tuple(rate * (1 + 0.1 * chance.gauss(0, 1)) for rate in true)
        smooth = concave(numbers, seen)
        steps = [b - a for a, b in zip((0.0, *smooth), smooth, strict=False)]
        assert all(later <= earlier + 1e-9 for earlier, later in pairwise(steps))
        before += sum((a / b - 1) ** 2 for a, b in zip(seen, true, strict=True))
        after += sum((a / b - 1) ** 2 for a, b in zip(smooth, true, strict=True))
    assert after < 0.8 * before
    assert concave((1, 2), (1.0, 5.0)) == (1.0, 5.0)


# --- decisions -------------------------------------------------------------------------------------------------------


def test_the_longest_job_is_not_kept_waiting() -> None:
    seen = view(job(1, 60), job(2, 60), job(3, 100_000), nodes=(node("n1", 2),), objective=GOAL)
    plan = decide(Adaptive(), seen)
    assert counts(plan)[2] >= 1
    assert "the last of 3 jobs ends in" in reasons(plan)[2]
    waiting = counts(plan).index(0)
    assert "longer jobs go first" in reasons(plan)[waiting]


def test_all_jobs_share_the_gpus_where_they_scale_badly() -> None:
    plan = decide(Adaptive(), view(*(job(number, 10_000) for number in range(1, 5)), objective=GOAL))
    assert counts(plan) == [2, 2, 2, 2]


def test_one_job_alone_gets_its_fastest_number_and_keeps_it() -> None:
    assert counts(decide(Adaptive(), view(job(1, 10_000), objective=GOAL))) == [8]
    assert counts(decide(Adaptive(), view(running(1, *range(8), total=10_000), objective=GOAL))) == [8]


def test_a_change_must_gain_more_than_it_costs() -> None:
    near = view(running(1, 0, 1, 2, 3, total=60), objective=GOAL)
    assert counts(decide(Adaptive(), near)) == [4]
    far = view(running(1, 0, 1, 2, 3, total=60_000), objective=GOAL)
    assert counts(decide(Adaptive(), far)) == [8]


def test_slow_gpus_are_left_to_those_that_can_wait() -> None:
    nodes = (node("a", 1, "v100"), node("b", 1, "k80"))
    seen = view(job(1, 1000, profile=LINEAR), job(2, 20_000, profile=LINEAR), nodes=nodes, objective=GOAL)
    held = [each.placement.nodes if each.placement else () for each in decide(Adaptive(), seen).targets]
    assert held == [("b",), ("a",)]


def test_jobs_of_unknown_length_or_speed_get_gpus_too() -> None:
    seen = view(job(1, None), job(2, 1000, profile=None), job(3, None, profile=None), objective=GOAL)
    assert all(number > 0 for number in counts(decide(Adaptive(), seen)))


def test_a_job_that_fits_no_node_stops_nobody() -> None:
    seen = view(job(1, gpus_min=16, gpus_max=16), job(2, 500), objective=GOAL)
    assert counts(decide(Adaptive(), seen)) == [0, 8]


def test_errors_of_a_curve_are_smoothed_only_if_told() -> None:
    rough = Profile("rough", ((1, 1, 1.0), (1, 2, 3.0), (1, 3, 2.0), (1, 4, 3.2)), 30.0)
    for spread, chosen in ((0.0, [2, 2]), (0.2, [2, 2])):
        seen = view(
            *(job(number, 10_000, profile=replace(rough, spread=spread), gpus_max=4) for number in (1, 2)),
            nodes=(node("n1", 4),),
            objective=GOAL,
        )
        assert counts(decide(Adaptive(), seen)) == chosen
        case = RolloutCase.of(seen, candidates(seen))
        rates = sorted(option.rate for option in case.waiting[0].options)
        assert (rates == [1.0, 2.0, 3.0, 3.2]) is (spread == 0.0)


def large(jobs: int) -> View:
    waiting = (job(number, 100 + 7919 * number % 5000, submitted_at=0.0) for number in range(jobs))
    return view(*waiting, nodes=tuple(node(f"n{at:03}", 8) for at in range(64)), objective=GOAL)


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = large(400)
    search = makespan.Search(RolloutCase.of(seen, candidates(seen)))
    search.starts()
    assert search.work > -makespan.WORK  # the last trial may go beyond it

    def never(*arguments: object) -> None:
        raise AssertionError("run forward")

    monkeypatch.setattr(makespan, "forward", never)
    plan = decide(Adaptive(), large(900))
    assert sum(counts(plan)) == 512


def test_what_nobody_waits_for_is_given_to_running_jobs_of_a_large_cluster() -> None:
    nodes = tuple(node(f"n{at:03}", 8) for at in range(300))
    jobs = [running(at, 0, 1, 2, 3, on=f"n{at:03}", total=50_000 if at == 7 else 100) for at in range(300)]
    plan = decide(Adaptive(), view(*jobs, nodes=nodes, objective=GOAL))
    assert counts(plan)[7] == 8


def policies() -> Policies:
    known = Policies()
    known.register("adaptive", Adaptive)
    return known


@pytest.mark.parametrize("wide", [1, 4])
def test_no_job_waits_beyond_the_bound(monkeypatch: pytest.MonkeyPatch, wide: int) -> None:
    """Longer jobs come faster than they can be served; the short one that could always wait starts nevertheless.

    It is overdue PATIENCE_S and PATIENCE_RUNS times its length after its submit, and then nobody starts before it but
    who was overdue earlier. Those are as many as were submitted before or within the bound of the flood's own.
    """
    monkeypatch.setattr(objectives, "PATIENCE_S", 600.0)
    monkeypatch.setattr(objectives, "PATIENCE_RUNS", 1.0)
    plain = Profile("plain", ((1, 1, 1.0), (1, 4, 1.05)), 5.0, 1.0, 4.0)
    flood = [SimJob(20.0 * number, f"s{number}", plain, 300, 1, 4) for number in range(70)]
    late = SimJob(30.0, "late", plain, 50, wide, 4)
    jobs = tuple(sorted([*flood, late], key=lambda each: each.submit_s))
    run = simulate(Workload("flood", jobs, (NodeSpell("n1", 4),)), "adaptive", policies(), Conditions(objective=GOAL))
    assert run.problems == ()
    started = {run.jobs[number].name: each.first_start_at for number, each in run.world.jobs.items()}
    begun = started["late"]
    assert begun is not None
    assert begun <= 30.0 + 600.0 + 50.0 + 305.0 + 305.0


def test_the_same_workload_twice() -> None:
    jobs = tuple(
        SimJob(60.0 * (number // 3), f"j{number}", CONCAVE, 200 + 97 * number % 1500, 1 + number % 2, 8)
        for number in range(20)
    )
    workload = Workload("w", jobs, cluster(2, 8))
    runs = [simulate(workload, "adaptive", policies(), Conditions(objective=GOAL)) for _ in range(2)]
    assert runs[0].records == runs[1].records
    assert runs[0].problems == ()
