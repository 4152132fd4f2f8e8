"""A record out of sacct, beside a plain count: who was on which node at each poll."""

import random
from pathlib import Path

import pytest

from hpcdl.batch.record.lines import RecordError
from hpcdl.batch.record.pieces import read_record
from hpcdl.sim import WorkloadError
from hpcdl.sim.idle.accounting import BusyNodes, jobs_of_sacct, record_jobs, sacct_argv
from tests.batch.record.polls import Poll, seen

SACCT = """JobIDRaw|State|Start|End|NodeList|
1|COMPLETED|1795325000|1795325600|n[1-2]|
1.batch|COMPLETED|1795325000|1795325600|n1|
2|RUNNING|1795325100|Unknown|n3|
3|PENDING|Unknown|Unknown|None assigned|
4|CANCELLED by 7|None|1795325000|None assigned|
5|COMPLETED|1795325900|1795326200|n1|
6|COMPLETED|1795326200|1795326500|n1|
"""


def test_what_sacct_prints(tmp_path: Path) -> None:
    assert jobs_of_sacct(tmp_path, SACCT) == (
        BusyNodes(("n1", "n2"), 1795325000.0, 1795325600.0),
        BusyNodes(("n3",), 1795325100.0, float("inf")),
        BusyNodes(("n1",), 1795325900.0, 1795326200.0),
        BusyNodes(("n1",), 1795326200.0, 1795326500.0),
    )
    assert "--allusers" in sacct_argv("now-30days")


def test_it_is_known_from_the_first_end_to_the_last_start(tmp_path: Path) -> None:
    assert record_jobs(jobs_of_sacct(tmp_path, SACCT), tmp_path / "r", 30.0) == (21, 2)
    record = read_record(tmp_path / "r")
    assert record.spans == ((1795325600.0, 1795326200.0),)
    assert record.nodes == 3
    assert [(piece.node, piece.begin, piece.end, piece.left) for piece in record.pieces] == [
        ("n1", 1795325600.0, 1795325900.0, True),
        ("n2", 1795325600.0, 1795326200.0, False),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_polls_would_have_seen(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    nodes = [f"n{number}" for number in range(6)]
    jobs = []
    for name in nodes:
        at = float(rng.randint(0, 200))
        for _ in range(rng.randint(1, 12)):
            end = at + rng.choice((0, 7, 30, 45, 300))
            jobs.append(BusyNodes((name, *rng.sample(nodes, rng.randint(0, 2))), at, end))
            at = end + rng.choice((0, 0, 5, 30, 60, 200))
    every_s = rng.choice((10.0, 30.0, 0.5))
    begin, last = min(job.end for job in jobs), max(job.start for job in jobs)
    if not begin < last:
        return
    polls, _ = record_jobs(jobs, tmp_path / "r", every_s)
    times = [begin + number * every_s for number in range(polls)]
    assert times[-1] <= last < times[-1] + every_s
    every = {name for job in jobs for name in job.nodes}
    plain = [
        Poll(at, frozenset(every - {name for job in jobs if job.start <= at < job.end for name in job.nodes}))
        for at in times
    ]
    pieces = {(p.node, p.begin, p.end, p.joined, p.left, p.polls) for p in read_record(tmp_path / "r").pieces}
    assert pieces == seen(plain)


def test_a_folder_that_has_a_record_is_left_alone(tmp_path: Path) -> None:
    jobs = jobs_of_sacct(tmp_path, SACCT)
    record_jobs(jobs, tmp_path / "r", 30.0)
    with pytest.raises(RecordError, match="holds a record already: name another folder"):
        record_jobs(jobs, tmp_path / "r", 30.0)
    assert len(read_record(tmp_path / "r").pieces) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty: the first line names the columns: Start|End|NodeList"),
        ("Start|End|\n1|2|\n", "NodeList: missing from the header"),
        ("Start|End|NodeList|\nyesterday|2|n1|\n", "x:2: Start: expected a time such as"),
        ("Start|End|NodeList|\n5|2|n1|\n", "x:2: End: '2' is before Start, '5'"),
        ("Start|End|NodeList|\nUnknown|Unknown|None assigned|\n", "lists no job that has run: ask sacct with"),
    ],
)
def test_what_is_no_accounting_is_refused(text: str, told: str) -> None:
    with pytest.raises(WorkloadError) as error:
        jobs_of_sacct(Path("x"), text)
    assert told in str(error.value)


def test_too_few_jobs_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="ask sacct for more days"):
        record_jobs([BusyNodes(("n1",), 0.0, 5.0), BusyNodes(("n1",), 5.0, 9.0)], tmp_path / "r", 30.0)
    assert not (tmp_path / "r").exists()
