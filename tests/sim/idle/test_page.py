"""The page of a machine's idle nodes."""

import re

import pytest

from hpcdl.batch.record.pieces import IdlePiece, IdleRecord
from hpcdl.sim.idle import table_of
from hpcdl.sim.idle.page import idle_page
from hpcdl.sim.idle.table import MARKS_MIN, MOST_LENGTHS

HOUR = 3600.0
RECORD = IdleRecord(
    (
        IdlePiece("a", 0.0, 10 * HOUR, 0, joined=False),
        IdlePiece("b", HOUR, HOUR + 600),
        IdlePiece("c", 30 * HOUR, 30 * HOUR + 1800, 1, joined=False, left=False),
    ),
    ((0.0, 12 * HOUR), (30 * HOUR, 30 * HOUR + 1800)),
    4,
)


def test_it_has_the_table_and_both_figures() -> None:
    page = idle_page(RECORD, table_of(RECORD), "<summer>")
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>Idle nodes of &lt;summer&gt;</h1>" in page
    assert re.search(r"here, 12.5 h</td><td[^>]*>0.16</td><td[^>]*>0.24</td><td[^>]*>21.3 %</td><td[^>]*>0.9<", page)
    assert "Summit, 2 months (paper)" in page
    assert "12.5 h without 1 gap of 18 h in all: 10.7 idle node-hours" in page
    titles = re.findall(r"<title>(\d+ to [^<]*)</title>", page)
    assert titles == [
        "0 to 12 h: 3 events, 21.2 %",
    ]
    assert "figure 1" in page
    assert page == idle_page(RECORD, table_of(RECORD), "<summer>")


def test_the_numbers_stand_above_their_bars() -> None:
    for events in range(1, 60):
        pieces = tuple(IdlePiece("a", 60.0 * n, 60.0 * n + 30) for n in range(events))
        record = IdleRecord(pieces, ((0.0, 12 * HOUR),), 4)
        page = idle_page(record, table_of(record), "x")
        bars = re.findall(r'<rect [^>]* y="([\d.]+)"[^>]*class="fill">.*?<g><text [^>]* y="([\d.]+)"', page)
        assert bars
        for bar, label in bars:
            assert float(bar) - 4 == pytest.approx(float(label), abs=0.11)
            assert float(label) >= 12  # it is not cut above


def test_no_line_is_drawn_where_nobody_looked() -> None:
    pieces = (IdlePiece("a", 0.0, HOUR, 0, joined=False), IdlePiece("a", 30 * HOUR, 31 * HOUR, 1, joined=False))
    record = IdleRecord(pieces, ((0.0, 10 * HOUR), (30 * HOUR, 40 * HOUR)), 4)
    page = idle_page(record, table_of(record), "x")
    drawn = page[page.index("no line in gaps") :]
    paths = re.findall(r'<path d="([^"]*)" class="curve', drawn[: drawn.index("</figure>")])
    ends = [[int(x) for x in re.findall(r"[MH](\d+)", path)] for path in paths]
    assert [(min(each), max(each)) for each in ends] == [(0, 500), (1500, 2000)]


def test_of_a_year_the_times_at_the_axis_are_days_and_no_numbers_are_promised() -> None:
    record = IdleRecord((IdlePiece("a", HOUR, 8760 * HOUR),), ((0.0, 8760 * HOUR),), 4)
    page = idle_page(record, table_of(record), "x")
    drawn = page[page.index("(figure 6)") :]
    drawn = drawn[: drawn.index("</figure>")]
    assert "above, the share" not in drawn
    ticks = re.findall(r'class="tick">([^<]*)<', drawn)
    assert len(ticks) <= 8
    assert ticks[-1].endswith(" d")


def test_a_gap_of_half_a_century_is_no_large_page() -> None:
    """The clock of a machine may begin in 1970."""
    late = 1.796e9
    pieces = (IdlePiece("a", 30.0, 90.0, 0), IdlePiece("b", late + 30, late + 60, 1))
    record = IdleRecord(pieces, ((0.0, 120.0), (late, late + HOUR)), 4)
    assert len(idle_page(record, table_of(record), "x")) < 50_000


@pytest.mark.parametrize("spans", [((5.0, 5.0),), ((5.0, 900.0),), ((5.0, 9.0), (700.0, 700.0))])
def test_it_is_drawn_where_nothing_idled(spans: tuple[tuple[float, float], ...]) -> None:
    record = IdleRecord((), spans)
    page = idle_page(record, table_of(record), "x")
    assert "0.0 idle node-hours" in page


def test_a_million_lengths_are_a_few_thousand() -> None:
    pieces = tuple(IdlePiece("a", 10.0 * n, 10.0 * n + 1 + n / 5000) for n in range(20_000))
    table = table_of(IdleRecord(pieces, ((0.0, 200_010.0),)))
    assert MOST_LENGTHS <= len(table.cdf) <= MOST_LENGTHS + len(MARKS_MIN)
    seconds = sum(piece.end - piece.begin for piece in pieces)
    assert table.cdf[0] == pytest.approx((1 / 60, 1 / 20_000, 1 / seconds))
    assert table.cdf[-1] == (120.0, 1.0, 1.0)
    half = next(row for row in table.cdf if row[1] >= 0.5)
    assert half[0] * 60 == pytest.approx(1 + 10_000 / 5000, rel=1e-2)
