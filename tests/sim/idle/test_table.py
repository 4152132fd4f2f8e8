"""BFTrainer's table 1 of records and of CSV files, beside a plain count of the same polls."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.record.lines import RecordError
from hpcdl.batch.record.pieces import IdlePiece, IdleRecord, read_record
from hpcdl.sim.idle import table_of
from hpcdl.sim.idle.table import MARKS_MIN
from hpcdl.sim.readers import read_idle_record
from tests.batch.record.polls import Poll, random_polls, seen, write, written
from tests.support.extent import ALL

TRACES = 1_000


def counted(polls: Sequence[Poll], nodes: int) -> dict[str, Any]:
    """Table 1, of the polls one by one."""
    pairs = [(before, poll) for before, poll in pairwise(polls) if not poll.gap]
    hours = sum(poll.at - before.at for before, poll in pairs) / 3600
    joins = bool(polls[0].idle) + sum(bool(poll.idle - before.idle) for before, poll in pairs)
    leaves = bool(polls[-1].idle) + sum(bool(before.idle - poll.idle) for before, poll in pairs)
    idle_h = sum(len(before.idle) * (poll.at - before.at) for before, poll in pairs) / 3600
    pieces = seen(polls)
    whole = sorted(end - begin for _, begin, end, joined, left, _ in pieces if joined and left)
    return {
        "inc_per_hour": joins / hours if hours else None,
        "dec_per_hour": leaves / hours if hours else None,
        "idle_node_hours": idle_h,
        "equivalent_nodes": idle_h / hours if hours else None,
        "ratio": idle_h / hours / nodes if hours else None,
        "nodes": nodes,
        "hours": hours,
        "pieces": len(pieces),
        "cut": len(pieces) - len(whole),
        "events": sum(poll.idle != before.idle for before, poll in pairs),
        "gaps": sum(poll.gap for poll in polls),
        "lengths": whole,
    }


@pytest.mark.parametrize("first", range(0, TRACES, 50))
def test_a_record_says_what_a_plain_count_says(first: int) -> None:
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        polls = random_polls(rng)
        table = table_of(written(polls, rng)).to_json()
        plain = counted(polls, 16)
        lengths = plain.pop("lengths")
        assert {key: table[key] for key in plain} == pytest.approx(plain, abs=1e-9), seed
        assert bool(table["cdf"]) == bool(lengths)
        for minutes, by_count, by_time in table["cdf"]:
            below = [length for length in lengths if length / 60 <= minutes]
            assert by_count == pytest.approx(len(below) / len(lengths))
            assert by_time == pytest.approx(sum(below) / sum(lengths))
        assert {row[0] for row in table["cdf"]} >= {length / 60 for length in lengths}


@pytest.mark.parametrize("seed", range(200 if ALL else 30))
def test_a_csv_file_says_the_same_as_a_record_of_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows, end = [], 0
    for node in range(rng.randint(1, 6)):
        at = rng.choice((0, 0, 30 * rng.randint(1, 9)))
        while rng.random() < 0.8:
            until = at + 30 * rng.randint(1, 9)
            rows.append((at, until, f"n{node}"))
            at = until + 30 * rng.randint(1, 9)
            end = max(end, until)
    rows = sorted(rows) or [(0, 60, "n1")]
    end = max(until for _, until, _ in rows)
    path = tmp_path / "idle.csv"
    path.write_text("node,idle_from_s,idle_until_s\n" + "".join(f"{n},{a},{b}\n" for a, b, n in rows))
    # What idles from the last row's end on is not known: the last poll sees what idled until then.
    polls = [Poll(float(at), frozenset(n for a, b, n in rows if a <= at < b)) for at in range(0, end, 30)]
    polls.append(Poll(float(end), frozenset(n for a, b, n in rows if a < end <= b)))
    write(tmp_path / "record", polls, rng)
    table, same = (
        table_of(record, 9).to_json() for record in (read_idle_record(path), read_record(tmp_path / "record"))
    )
    for key in ("cdf", "windows", "harvest"):
        assert [pytest.approx(row) for row in table.pop(key)] == same.pop(key)
    assert table == pytest.approx(same)


def test_events_where_some_join_and_others_leave_are_both() -> None:
    table = table_of(_record([Poll(0.0, frozenset("a")), Poll(1800.0, frozenset("b")), Poll(3600.0, frozenset("b"))]))
    assert (table.inc_per_hour, table.dec_per_hour, table.events) == (2, 2, 1)


def test_figure_6_leaves_out_what_nobody_saw() -> None:
    hour = 3600.0
    polls = [
        Poll(0.0, frozenset("ab")),
        Poll(6 * hour, frozenset("a"), gap=False),
        Poll(30 * hour, frozenset("a"), gap=True),
        Poll(36 * hour, frozenset("abc")),
    ]
    record = _record(polls)
    first, second, third = table_of(record, 4).windows
    assert (first.events, first.idle_nodes, first.share) == (1, 2.0, 0.5)
    assert (second.events, second.idle_nodes, second.share) == (0, None, None)
    assert (third.from_h, third.until_h, third.events, third.idle_nodes) == (24.0, 36.0, 1, 1.0)
    table = table_of(record, 4)
    assert (table.gaps, table.gap_hours, table.hours) == (1, 24.0, 12.0)


def test_pilots_get_what_is_left_after_their_start() -> None:
    polls = [Poll(0.0, frozenset()), Poll(100.0, frozenset("a")), Poll(160.0, frozenset()), Poll(600.0, frozenset("a"))]
    polls += [Poll(640.0, frozenset())]
    harvest = {each.startup_s: each for each in table_of(_record(polls)).harvest}
    assert (harvest[30.0].pilots, harvest[30.0].node_hours * 3600, harvest[30.0].share) == (2, 40.0, 0.4)
    assert (harvest[60.0].pilots, harvest[60.0].node_hours) == (0, 0.0)


def test_a_single_poll_is_no_time() -> None:
    table = table_of(_record([Poll(5.0, frozenset("ab"))]))
    assert (table.hours, table.inc_per_hour, table.equivalent_nodes, table.ratio) == (0.0, None, None, None)
    assert (table.pieces, table.cut, table.cdf, table.shorter_than(10)) == (2, 2, (), None)


def test_nobody_polled_for_a_file(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    path.write_text("node,idle_from_s,idle_until_s\na,0,5\n")
    with pytest.raises(RecordError, match="nobody polled for a CSV file"):
        read_idle_record(path, skip_single=True)


def _record(polls: Sequence[Poll]) -> IdleRecord:
    """The record that these polls are, whatever the time between them."""
    begins = [poll.at for place, poll in enumerate(polls) if place == 0 or poll.gap]
    ends = [before.at for before, poll in pairwise(polls) if poll.gap] + [polls[-1].at]
    pieces = [
        IdlePiece(node, begin, end, sum(at <= begin for at in begins) - 1, joined, left, many)
        for node, begin, end, joined, left, many in sorted(seen(polls))
    ]
    return IdleRecord(tuple(pieces), tuple(zip(begins, ends, strict=True)))


def test_equal_lengths_are_one_however_late_the_dates_are() -> None:
    """A second at 1.8e9 s is a difference of floats that is off by 0.2 microseconds."""
    origin = 1_796_035_394.449
    begins = [round(origin + 30.013 * number, 3) for number in range(200)]
    pieces = tuple(IdlePiece("a", begin, round(begin + 600, 3)) for begin in begins)
    table = table_of(IdleRecord(pieces, ((begins[0], begins[-1] + 600),)))
    assert table.cdf[0] == pytest.approx((10.0, 1.0, 1.0), abs=1e-12)
    assert [row[0] for row in table.cdf] == list(MARKS_MIN)
