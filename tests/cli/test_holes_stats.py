"""`hpcdl holes --stats`: its outputs, and its errors."""

import random
from pathlib import Path

import pytest

from tests.batch.record.polls import Poll, write
from tests.cli.conftest import Run

TRACE = """node,idle_from_s,idle_until_s
a,0,7200
b,0,3600
c,1800,7200
b,4000,5000
"""
POLLS = [
    Poll(1_700_000_000.0, frozenset({"n1"})),
    Poll(1_700_000_030.0, frozenset({"n1", "n2"})),
    Poll(1_700_000_060.0, frozenset({"n1"})),
    Poll(1_700_000_090.0, frozenset({"n1", "n3"})),
    Poll(1_700_000_120.0, frozenset({"n1", "n3"})),
    Poll(1_700_000_150.0, frozenset({"n1"})),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "idle.csv"
    path.write_text(TRACE)
    return path


@pytest.fixture
def record(tmp_path: Path) -> Path:
    write(tmp_path / "record", POLLS, random.Random(0))
    return tmp_path / "record"


def test_table_1_of_a_file(hpcdl: Run, trace: Path) -> None:
    value = hpcdl("holes", "--stats", trace, "--json").value
    assert list(value)[:10] == [
        "schema", "inc_per_hour", "dec_per_hour", "idle_node_hours", "ratio", "equivalent_nodes", "nodes", "hours",
        "pieces", "cdf",
    ]  # fmt: skip
    assert (value["hours"], value["inc_per_hour"], value["dec_per_hour"]) == (2.0, 1.5, 1.5)
    assert value["idle_node_hours"] == pytest.approx((7200 + 3600 + 5400 + 1000) / 3600)
    assert value["equivalent_nodes"] == pytest.approx(value["idle_node_hours"] / 2)
    assert (value["nodes"], value["ratio"], value["pieces"], value["cut"]) == (None, None, 4, 3)
    assert value["cdf"][-1] == [120.0, 1.0, 1.0]
    assert [1000 / 60, 1.0, 1.0] in value["cdf"]
    given = hpcdl("holes", "--stats", trace, "--nodes", 10, "--json").value
    assert (given["nodes"], given["ratio"]) == (10, pytest.approx(value["equivalent_nodes"] / 10))


def test_it_is_printed(hpcdl: Run, record: Path) -> None:
    done = hpcdl("holes", "--stats", record)
    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line}
    assert rows["INC/h"] == ["72.00"]  # n1 idles at the begin, n2 and n3 join, in 150 s
    assert rows["DEC/h"] == ["72.00"]
    assert rows["pieces"] == ["3,", "1", "of", "them", "cut", "by", "an", "end", "or", "a", "gap"]
    assert rows["eq-nodes"][:2] == ["1.6,", "10.0"]
    assert hpcdl("holes", "--stats", record, "--quiet").out == "1.6\n"


def test_a_node_of_a_single_poll_is_passed_over(hpcdl: Run, record: Path) -> None:
    value = hpcdl("holes", "--stats", record, "--skip-single", "--json").value
    assert (value["pieces"], value["nodes"], value["events"]) == (2, 16, 2)
    assert value["inc_per_hour"] == pytest.approx(48)


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (("--stats", "{folder}"), 1, "holds no record of idle nodes: hpcdl holes --record {folder} makes one"),
        (("--stats", "{folder}/idle.cs"), 1, "there is no file {folder}/idle.cs: did you mean {folder}/idle.csv?"),
        (("--stats", "{folder}/idle.csv", "--nodes", "2"), 2, "3 nodes idled at some time: give at least as many"),
        (("--stats", "{folder}/idle.csv", "--skip-single"), 1, "nobody polled for a CSV file"),
        (("--stats", "{folder}/idle.csv", "--record", "{folder}/r"), 2, "--record and --stats exclude each other"),
        (
            ("--stats", "{folder}/idle.csv", "--every", "5"),
            2,
            "--every is of --record: hpcdl holes --record DIR --every",
        ),
        (("--nodes", "4"), 2, "--nodes is of --stats: hpcdl holes --stats DIR --nodes N"),
        (("--skip-single",), 2, "--skip-single is of --stats: hpcdl holes --stats DIR --skip-single (see"),
    ],
)
def test_what_makes_no_sense_is_one_line(hpcdl: Run, trace: Path, argv: tuple[str, ...], code: int, told: str) -> None:
    done = hpcdl("holes", *(part.format(folder=trace.parent) for part in argv))
    assert (done.code, done.out) == (code, "")
    assert told.format(folder=trace.parent) in done.err
    assert len(done.err.splitlines()) == 1


def test_it_is_drawn(hpcdl: Run, record: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = hpcdl("holes", "--stats", record, "-o", page)
    assert (done.code, done.out.splitlines()[-1]) == (0, f"wrote {page}")
    assert "<h1>Idle nodes of record</h1>" in page.read_text()
    assert hpcdl("holes", "--stats", record, "-o", page, "--json").value["pieces"] == 3
    refused = hpcdl("holes", "-o", page)
    assert (refused.code, "--output is of --stats: hpcdl holes --stats DIR --output FILE" in refused.err) == (2, True)
