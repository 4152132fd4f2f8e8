"""BFTrainer's tables: from replays that are made up, by hand; and what is compared on which trace."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from hpcdl.sim.intervals import interval
from hpcdl.sim.papers import bftrainer
from hpcdl.sim.papers.bftrainer_tables import (
    FIGURE_14,
    FIGURE_15,
    POLICIES,
    RUNTIMES,
    T_FWD,
    TEXT,
    TRACE,
    WINDOWS,
)
from hpcdl.sim.papers.printed import printed_rows, summary, verdict
from hpcdl.sim.papers.table import PaperTable
from hpcdl.sim.replay import studies
from hpcdl.sim.workload import WorkloadError
from tests.support.bftrainer import made_up, small_trace

Tables = dict[str, PaperTable]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    path = small_trace(tmp_path_factory.mktemp("trace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "replayed", made_up)
        made, problems = bftrainer.simulated(bftrainer.replays((0, 1), path), lambda _: None)
        assert problems == ()
        yield {table.name: table for table in made}


def row(table: PaperTable, workload: str, policy: str = "bftrainer") -> dict[str, object]:
    return next(each.to_json() for each in table.rows if (each.workload, each.policy) == (workload, policy))


def test_tables_3_and_4_stand_as_in_the_paper(tables: Tables) -> None:
    third = row(tables[RUNTIMES["throughput"]], "DenseNet")
    assert [third[f"h_at_{many}"] for many in (5, 35)] == [35.0, 245.0]
    assert third["paper"] == dict(
        zip(
            (f"h_at_{many}" for many in (5, 10, 15, 20, 25, 30, 35)),
            (4.1, 9.5, 16.1, 22.4, 29.2, 36.3, 42.3),
            strict=True,
        )
    )
    assert row(tables[RUNTIMES["efficiency"]], "AlexNet")["paper"]["h_at_35"] == 8.8  # type: ignore[index]
    assert len(tables[RUNTIMES["efficiency"]].rows) == 7


def test_figures_are_means_over_seeds_with_intervals(tables: Tables, tmp_path: Path) -> None:
    asked = bftrainer.replays((0, 1), small_trace(tmp_path))
    first = [
        each.case.arrivals[0] % 1
        for name, (_, _, each) in asked.planned.items()
        if name.startswith("parallel, objective throughput, parallel 5, ") and each.case.arrivals is not None
    ]
    mean, half = interval([5 + 10 * part for part in first])
    third = row(tables[RUNTIMES["throughput"]], "AlexNet")
    assert (third["h_at_5"], third["h_at_5_ci95"]) == (pytest.approx(mean), pytest.approx(half))
    assert "h_at_5_ci95" in row(tables[RUNTIMES["throughput"]], "DenseNet")
    assert "U_ci95" not in row(tables[T_FWD], "T_fwd 120 s")  # nothing is drawn there


def test_u_of_both_policies_under_both_objectives(tables: Tables) -> None:
    assert [(each.workload, each.policy) for each in tables[POLICIES].rows] == [
        (workload, policy)
        for workload in ("ShuffleNet, throughput", "diverse, throughput", "diverse, efficiency")
        for policy in ("bftrainer", "equal-share")
    ]
    ours = row(tables[POLICIES], "ShuffleNet, throughput")
    assert (ours["U"], ours["bound_U"], ours["of_bound"]) == (0.75, 0.8, pytest.approx(0.75 / 0.8))
    assert ours["paper"] == {"U": 0.8}
    assert row(tables[POLICIES], "diverse, efficiency", "equal-share")["U"] == 0.6


def test_what_the_text_prints_is_computed_from_the_replays(tables: Tables) -> None:
    text = {each.workload: each.more["value"] for each in tables[TEXT].rows}
    assert text["rescale cost, equal split over T_fwd 10 s"] == pytest.approx(76)
    assert text["U of six hours, the largest"] == 0.8  # the last window is shorter
    assert text["U of six hours, largest gain"] == pytest.approx(0.6)
    assert text["events, worse"] == pytest.approx(1 / 5)
    assert text["events, twice as good"] == pytest.approx(2 / 5)
    assert text["events, five times"] == pytest.approx(2 / 5)
    assert text["events, mean speed-up"] == pytest.approx((5 + 0.5 + 1.25) / 3)
    assert text["node time used by 5 trainers"] == pytest.approx(0.8)
    assert text["35 trainers against 5, node-hours less by"] == pytest.approx(30 / 95)
    assert text["35 trainers against 5, run time of VGG-16"] == pytest.approx(7)
    assert text["U of a replay, the largest"] == pytest.approx(0.75)
    assert text["a decision, s"] == 0.005
    assert row(tables[TEXT], "events, worse")["paper"] == {"value": 0.069}
    assert row(tables[TEXT], "node time used by 10 trainers")["paper"] == {"value": 0.979}


def test_the_other_tables(tables: Tables) -> None:
    assert row(tables[T_FWD], "T_fwd 170 s")["paper"] == {"preempted_share": 0.9}
    assert row(tables[T_FWD], "equal split", "equal-share")["paper"] == {"U": 0.75, "rescale_cost_per_event": 1030000}
    assert len(tables[WINDOWS].rows) == 2 * 3
    assert row(tables[FIGURE_14], "efficiency, 35 trainers")["node_hours"] == 65.0
    assert row(tables[FIGURE_15], "DenseNet")["paper"] == {"U": 0.83}
    trace = row(tables[TRACE], "all of it", "any")
    assert trace["idle_nodes"] == pytest.approx((50_000 + 900 + 49_900 + 47_200) / 50_000)
    assert any("that arrive, 100" in note and "own making" not in note for note in tables[POLICIES].notes)


def test_numbers_are_compared_on_the_paper_s_own_trace_only(tables: Tables) -> None:
    ours = printed_rows(tables.values(), ["bftrainer"])
    theirs = printed_rows(tables.values(), ["bftrainer"], own_trace=True)
    assert [each | {"met": None} for each in theirs] == ours
    ran = [each for each in theirs if each["here"] is not None]
    assert {type(each["met"]) for each in ran} == {bool}
    assert all(each["met"] is None for each in ours)
    assert {verdict(each) for each in ours} == {"not their trace", "not run"}
    assert f"; {len(ran)} not compared, as ours are of another trace." in summary(ours)
    assert "another trace" not in summary(theirs)
    assert all(each["fitted"] is None for each in theirs)
    u = next(each for each in theirs if (each["figure"], each["printed"]) == ("Figure 10", 0.8))
    assert (u["here"], u["met"], u["tolerance"]) == (0.75, False, 0.05)
    without = {each["figure"] for each in theirs if each["here"] is None}
    assert without == {"Table 1", "Section 2.1"}  # of whole machines, over months


def test_100_trainers_and_60_hours_or_all_of_both(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    path.write_text("node,idle_from_s,idle_until_s\na,0,500000\nb,0,400000\n")
    for full, count, hours in ((False, 100, 60.0), (True, 1000, 500_000 / 3600)):
        planned = bftrainer.replays((0,), path, full).planned
        arrive = [each for _, _, each in planned.values() if each.case.arrivals is not None]
        assert {len(each.case.arrivals or ()) for each in arrive} == {count}
        endless = [(study, idle.end_s) for study, idle, each in planned.values() if each.case.arrivals is None]
        assert {study for study, _ in endless} == {"t-fwd", "scale", "costs"}
        assert [end_s / 3600 for _, end_s in endless] == pytest.approx([hours] * len(endless))
        assert all(before <= after for before, after in pairwise(arrive[0].case.arrivals or ()))
        assert len({each.case.arrivals for each in arrive}) == 1  # the same ones under every policy and maximum


def test_a_replay_that_fails_costs_the_figures_that_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(idle: object, case: object, progress: object = None) -> object:
        if getattr(case, "parallel", 0) == 35 or getattr(case, "policy", "") == "equal-share":
            raise WorkloadError("cannot")
        return made_up(idle, case)  # type: ignore[arg-type]

    monkeypatch.setattr(studies, "replayed", broken)
    made, problems = bftrainer.simulated(bftrainer.replays((0,), small_trace(tmp_path)), lambda _: None)
    assert len(problems) == 2 + 1 + 2
    assert all(problem.endswith(": cannot") for problem in problems)
    tables = {table.name: table for table in made}
    text = {each.workload for each in tables[TEXT].rows}
    assert "35 trainers against 5, node-hours less by" not in text
    assert "events, worse" not in text
    assert "U of six hours, the largest" in text
    assert "h_at_35" not in row(tables[RUNTIMES["throughput"]], "AlexNet")
