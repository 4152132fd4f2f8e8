"""Printed against ours: every printed number finds its row, and is met by one rule."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace

import pytest

from hpcdl.sim.papers import bftrainer, deeppool, genie, malletrain, marble, sidecar
from hpcdl.sim.papers.printed import OF_SPREADS, TOLERANCE, Printed, printed, printed_rows, summary
from hpcdl.sim.papers.table import PaperRow, PaperTable
from hpcdl.sim.replay import studies
from tests.support.bftrainer import made_up, small_trace

NOT_PROFILED = "WideResNet-101-2"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PaperTable]]:
    """The tables as they are made; all but MARBLE's and DeepPool's from runs that are not simulated."""
    ran = sidecar.SidecarMeasures(100.0, 50.0, 5.0, 0.1, 0.2, 3, 2, 1, 4)
    day = genie.GenieMeasures(0.5, 0.5, 100.0, 50.0, 1.0, 10.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecar, "run_one", lambda *_, **__: ran)
        patch.setattr(malletrain, "run_one", lambda *_: malletrain.MalleTrainFigures(0.9, 100.0, 3, 2))
        patch.setattr(genie, "measure_run", lambda _: day)
        patch.setattr(genie, "prediction_errors", lambda _: [0.01, 0.02])
        patch.setattr(genie, "_run", lambda *_: SimpleNamespace())
        patch.setattr(studies, "replayed", made_up)
        trace = small_trace(tmp_path_factory.mktemp("trace"))
        made = chain(
            (marble.curves(), marble.single_node(), marble.predicted(), marble.against_optimus()),
            (marble.several_nodes("MARBLE sets 4 to 6", marble.COUNTED_TOGETHER),),
            sidecar.tables((0, 1)),
            (genie.densities((0,)), genie.sizes((0,)), genie.prediction((0,))),
            deeppool.tables(),
            malletrain.tables(),
            bftrainer.simulated(bftrainer.replays((0,), trace), lambda _: None)[0],
        )
        yield {table.name: table for table in made}


def test_every_number_finds_the_row_that_is_about_it(tables: dict[str, PaperTable]) -> None:
    said = [each for each in printed() if each.table is not None and each.workload is not None]
    assert len(said) > 200
    for each in said:
        count = len(each.numbers(tables))
        assert (count == 0) == (NOT_PROFILED in each.what), each
        assert count <= 1 or "figures 9 and 10, simulated" in str(each.table), each
    for each in printed():
        if each.table is not None and each.workload is None:
            assert len(each.numbers(tables)) > 1, each


def test_the_tables_print_the_same_numbers(tables: dict[str, PaperTable]) -> None:
    compared = 0
    for each in printed():
        for row in tables[each.table].rows if each.table else ():
            if (row.policy, row.workload) == (each.policy, each.workload) and each.key in row.paper:
                assert row.paper[each.key] == each.value, each
                compared += 1
    assert compared > 160


def test_a_figure_has_one_tolerance() -> None:
    found = defaultdict(set)
    for each in printed():
        found[each.paper, each.figure].add(each.tolerance)
    assert {len(tolerances) for tolerances in found.values()} == {1}
    assert set().union(*found.values()) == {TOLERANCE, OF_SPREADS}


@pytest.mark.parametrize(
    ("value", "here", "met"),
    [
        (100, 105, True), (100, 95, True), (100, 105.1, False), (100, 94.9, False), (0, 0, True), (0, 0.01, False),
        ([1.2, 2.3], 1.2, True), ([1.2, 2.3], 2.31, False), ([0, 0.05], 0.0, True), ([0, 0.05], 0.051, False),
    ],
)  # fmt: skip
def test_met_within_five_per_cent_or_within_the_spread(value: float | list[float], here: float, met: bool) -> None:
    assert Printed("P", "Figure 1", "what", value).met(here) is met


def test_rows_are_met_missed_or_not_run_and_name_what_was_fitted(tables: dict[str, PaperTable]) -> None:
    rows = printed_rows(tables.values())
    keys = {"paper", "figure", "what", "printed", "here", "met", "tolerance", "fitted"}
    assert {frozenset(row) for row in rows} == {frozenset(keys)}
    assert {row["paper"] for row in rows} == {"MARBLE", "SideCar", "GENIE", "DeepPool", "MalleTrain", "BFTrainer"}
    assert all((row["met"] is None) == (row["here"] is None or row["paper"] == "BFTrainer") for row in rows)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    fitted = {row["fitted"] for row in rows if row["fitted"]}
    for constant in ("six totals", "cold_startup_s: 220", "foreground_loss: 0.18", "noise of 2 %", "to set 1"):
        assert any(constant in each for each in fitted), constant
    both = {row["what"]: row for row in rows if row["paper"] == "MARBLE" and row["figure"] == "Figure 6a"}
    assert both["total of MARBLE, s: set 3"]["met"] is True
    assert both["total of MARBLE, s, predicted from set 1: set 3"]["met"] is False
    assert both["total of MARBLE, s, predicted from set 1: set 3"]["fitted"] is None
    words = summary(rows)
    assert words.startswith(f"{sum(row['met'] is True for row in rows)} of {len(rows)} are met, ")


def test_only_the_papers_that_were_asked_for() -> None:
    table = PaperTable("MARBLE sets 1 to 3", (PaperRow("set 1", "marble", 500.0, 300.0),))
    rows = printed_rows([table], ["marble"])
    assert {row["paper"] for row in rows} == {"MARBLE"}
    assert [(row["here"], row["met"]) for row in rows if row["here"] is not None] == [(500.0, True)]
    assert printed_rows([], ["unknown"]) == []
