"""Runs side by side: what is marked as best; nodes as strips; ours beside what is printed."""

import re

import pytest

from hpcdl.report import read_history
from hpcdl.report.comparison import (
    ComparedRun,
    Measure,
    best_of,
    curves,
    decimals,
    number,
    queue_measures,
    side_by_side,
)
from hpcdl.report.curves import StepFunction
from hpcdl.report.heat import COLUMNS, LEVELS, MOST_ROWS, heat, heat_legend, node_rows, shares_of
from hpcdl.report.printed import Cell, Pair, bars, bars_legend, beside_table
from tests.report.story import rows, set_three
from tests.report.test_page import Checker

EVIL = '<script>alert("1")</script>&"\''
HISTORY = read_history(rows(set_three(origin=0.0)))


@pytest.mark.parametrize(
    ("values", "better", "whole", "best"),
    [
        ((3.0, 1.0, 2.0), -1, (True, True, True), (1,)),
        ((3.0, 1.0, 2.0), 1, (True, True, True), (0,)),
        ((1.0, 1.0, 2.0), -1, (True, True, True), (0, 1)),
        ((1.0, 1.001, 2.0), -1, (True, True, True), (0, 1)),  # nobody sees the difference
        ((1.0, 1.0, 1.0), -1, (True, True, True), None),
        ((3.0, 1.0, 2.0), -1, (True, False, True), (2,)),
        ((3.0, None, 2.0), -1, (True, True, True), (2,)),
        ((3.0, None, None), -1, (True, True, True), None),
        ((3.0, 1.0, 2.0), 0, (True, True, True), None),
    ],
)
def test_the_best(
    values: tuple[float | None, ...], better: int, whole: tuple[bool, ...], best: tuple[int, ...] | None
) -> None:
    measure = Measure("x", values, decimals, better)
    texts = ["–" if value is None else decimals(value) for value in values]
    assert best_of(measure, texts, whole) == best


def test_the_table_marks_the_best_by_more_than_colour() -> None:
    runs = [ComparedRun("a", HISTORY), ComparedRun(EVIL, HISTORY)]
    table = side_by_side(
        runs,
        [
            Measure("time", (100.0, 150.0), number, -1, EVIL, relative=True),
            Measure("far", (1.0, 250.0), number, -1, relative=True),
            Measure("none", (None, None), number),
        ],
    )
    Checker(table)
    assert '<b>100</b> <span class="star" title="best">★</span>' in table
    assert "+50 %" in table
    assert "× 250" in table
    assert "none" not in table
    assert "<script" not in table


def test_queue_measures() -> None:
    mean, most = queue_measures([ComparedRun("a", HISTORY)])
    assert mean.values[0] == pytest.approx(167 / 501)
    assert most.values == (1,)


def test_curves_are_four_drawings_with_a_legend() -> None:
    drawn = curves([ComparedRun(EVIL, HISTORY), ComparedRun("b", HISTORY)], StepFunction((0.0,), (6.0,), 501.0))
    checked = Checker(drawn)
    assert checked.tags.count("figure") == 4
    assert "script" not in checked.tags
    assert EVIL in "".join(checked.text)
    assert curves([], None).count("<figure") == 4
    assert curves([ComparedRun("none", read_history([]))]).count("<figure") == 4


def test_nodes_are_in_the_order_of_their_numbers_and_share_rows() -> None:
    assert node_rows({"n10", "n2", "n1", "a-3", "17"}) == [["17"], ["a-3"], ["n1"], ["n2"], ["n10"]]
    many = node_rows({f"n{number}" for number in range(1, 1001)})
    assert len(many) <= MOST_ROWS
    assert many[0] == [f"n{number}" for number in range(1, 17)]
    assert sum(map(len, many)) == 1000
    assert node_rows(set()) == []


def test_levels_are_the_share_of_gpus_held() -> None:
    levels = shares_of(HISTORY, [["n1"]], 501.0, {})
    scale = 501 / COLUMNS
    (row,) = levels
    assert row[0] == LEVELS
    assert row[int(159 / scale)] == 3  # 3 of 6 GPUs: up to 60 %
    assert row[int(400 / scale)] == 4  # 4 of 6: up to 80 %
    longer = shares_of(HISTORY, [["n1"]], 1002.0, {})[0]
    assert longer[: COLUMNS // 2].count(-1) == 0
    assert set(longer[COLUMNS // 2 :]) == {-1}
    away = shares_of(HISTORY, [["n1"]], 501.0, {"n1": [(0.0, 250.5)]})[0]
    assert set(away[COLUMNS // 2 :]) == {-1}
    assert row[:80] == away[:80]


def test_strips_are_well_formed() -> None:
    drawn = heat(HISTORY, 501.0) + heat_legend()
    Checker(drawn)
    assert re.search(r'class="h5" stroke-width="16" d="M0 9h\d+', drawn)
    assert "No GPU has joined" in heat(read_history([]), 1.0)


def test_ours_beside_what_is_printed() -> None:
    table = beside_table(("Workload", "Time"), [((EVIL,), (Cell("1", EVIL, "+1 %"),)), (("b",), (Cell("2"),))])
    drawn = bars(EVIL, [Pair(EVIL, 5.0, "5", 10.0, "10"), Pair("below 0", -5.0, "-5", 1.0, "1")]) + bars_legend()
    for text in (table, drawn):
        assert "<script" not in text
        assert EVIL in "".join(Checker(text).text)
    widths = [float(width) for width in re.findall(r'width="([0-9.]+)%" height="10"', drawn)]
    assert widths[0] == pytest.approx(widths[1] / 2)
    assert widths[2] < 1
    assert beside_table(("Workload",), []).count("<tr>") == 1
