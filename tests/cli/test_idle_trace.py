"""A record as a trace: what replays and simulations make of it."""

import random
from pathlib import Path

import pytest

from hpcdl.batch.record.lines import RecordError
from hpcdl.sim import WorkloadError
from hpcdl.sim.idle import table_of
from hpcdl.sim.readers import read_idle_record, read_idle_trace
from hpcdl.sim.replay import read_idle
from tests.batch.record.polls import Poll, random_polls, write
from tests.cli.conftest import Run

POLLS = [
    Poll(0.0, frozenset({"a", "b"})),
    Poll(30.0, frozenset({"a", "c"})),
    Poll(60.0, frozenset({"a"})),
    Poll(7200.0, frozenset({"a", "b"}), gap=True),
    Poll(7230.0, frozenset({"b"})),
    Poll(7260.0, frozenset({"b"})),
    Poll(7290.0, frozenset()),
    Poll(7320.0, frozenset()),
]
ROWS = [("a", 0.0, 90.0), ("b", 0.0, 30.0), ("c", 30.0, 60.0), ("b", 60.0, 150.0)]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    write(tmp_path / "record", POLLS, random.Random(0))
    return tmp_path / "record"


def test_gaps_are_cut_out(record: Path) -> None:
    assert [(each.name, each.from_s, each.until_s) for each in read_idle_trace(record, 4, "V100")] == ROWS
    assert {(each.gpus, each.kind) for each in read_idle_trace(record, 4, "V100")} == {(4, "v100")}
    idle = read_idle(record, None)
    assert (idle.end_s, idle.most) == (180.0, 2)
    assert idle.changes == (30.0, 60.0, 90.0, 150.0)
    assert read_idle(record, 60 / 3600).end_s == 60.0


def test_nodes_of_a_single_poll_are_passed_over(record: Path, tmp_path: Path) -> None:
    names = [(each.name, each.from_s, each.until_s) for each in read_idle_trace(record, 1, skip_single=True)]
    assert names == [("a", 0.0, 60.0), ("b", 60.0, 150.0)]  # each side of a gap is a piece of its own
    assert read_idle(record, None, skip_single=True).end_s == 180.0
    path = tmp_path / "idle.csv"
    path.write_text("node,idle_from_s,idle_until_s\na,0,5\n")
    for read in (lambda: read_idle(path, None, True), lambda: read_idle_trace(path, 1, skip_single=True)):
        with pytest.raises(RecordError, match="nobody polled"):
            read()


@pytest.mark.parametrize("seed", range(30))
def test_it_is_as_idle_as_the_table_says(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    write(tmp_path / "record", [*random_polls(rng, 20)], rng)
    table = table_of(read_idle_record(tmp_path / "record"))
    if not table.idle_node_hours:
        with pytest.raises(WorkloadError, match="no node is idle"):
            read_idle(tmp_path / "record", None)
        return
    idle = read_idle(tmp_path / "record", None)
    assert (idle.end_s / 3600, idle.mean) == pytest.approx((table.hours, table.equivalent_nodes))


def test_commands_take_it_as_they_take_a_file(hpcdl: Run, record: Path, tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    path.write_text(
        "node,idle_from_s,idle_until_s\n" + "".join(f"{n},{a},{b}\n" for n, a, b in [*ROWS, ("b", 170, 180)])
    )
    write(
        tmp_path / "same", [*POLLS[:-1], Poll(7310.0, frozenset("b")), Poll(7320.0, frozenset("b"))], random.Random(0)
    )
    fast = ("--parallel", 2, "--samples", "1e6", "--nodes", "1:4", "--json")
    ours, theirs = (hpcdl("replay", trace, *fast).value for trace in (tmp_path / "same", path))
    for value in (ours, theirs):
        del value["decisions"]
    assert ours == theirs
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submit_s,model,gpus,duration_s\n0,,1,100\n5,,1,30\n")
    runs = [
        hpcdl("simulate", "--workload", jobs, "--idle-trace", trace, "--policy", "fifo", "--json").value
        for trace in (tmp_path / "same", path)
    ]
    assert runs[0] == runs[1]
    assert runs[0]["nodes"] == 3


def test_commands_say_what_is_no_record(hpcdl: Run, tmp_path: Path) -> None:
    for argv in (("replay", tmp_path), ("simulate", "--workload", __file__, "--idle-trace", tmp_path)):
        done = hpcdl(*argv)
        assert (done.code, done.out) == (1, "")
        assert (
            done.err == f"hpcdl: {tmp_path} holds no record of idle nodes: hpcdl holes --record {tmp_path} makes one\n"
        )
    done = hpcdl("simulate", "--workload", __file__, "--nodes", 4, "--skip-single")
    assert (done.code, "--skip-single is of --idle-trace DIR" in done.err) == (2, True)
