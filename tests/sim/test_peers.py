"""`benchmarks/peers.py`: its rows beside the goals, and a small table from the command line."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.peer_rows import Rows, elastic, fairness, gain, missing, rigid, suspends
from benchmarks.peer_streams import Case, Outcome, Stream, workload_of
from benchmarks.peers import main
from hpcdl.sim.intervals import interval

NAMES = ("adaptive", "elastic", "srt", "las", "max-min")
TABLE = """model_and_batch_per_gpu,gpu,gpus,steps_per_s
Net,v100,1,2
Net,v100,2,3.8
Net,v100,4,6
Net,v100,8,9
Net,k80,1,0.5
"""
POLLUX = """schema: 1
cluster: {nodes: 2, gpus_per_node: 2}
profiles: {net: {points: [{gpus: 1, rate: 1.0}], startup_s: 30}}
jobs: [{profile: net, steps: 300}, {profile: net, steps: 900, submit_s: 20}]
"""


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "dev_1_load1.0.csv").write_text("submit_s,model,gpus,steps\n0,Net,1,900\n5,Net,4,2000\n9,Net,8,100\n")
    (tmp_path / "pollux_1.yaml").write_text(POLLUX)
    (tmp_path / "table.csv").write_text(TABLE)
    head = "trace,policy,v100:p100:k80,mean_jct_s,p99_jct_s\n"
    (tmp_path / "gavel.csv").write_text(
        f"{head}dev_1_load1.0,fifo,16:16:16,400,500\ndev_1_load1.0,best,16:16:16,300,900\n"
    )
    (tmp_path / "pollux.csv").write_text("trace,policy,mean_jct_s\npollux_1,pollux,1000\n")
    return tmp_path


def outcome(mean_s: float, worst: float = 1.0, bound_s: float = 1.0, suspended: int = 0) -> Outcome:
    return Outcome(mean_s, 2 * mean_s, 3 * mean_s, suspended, (1.0,) * 9 + (worst,), bound_s)


def done(cases: Iterable[Case], own: Outcome, peers: float = 100.0) -> dict[Case, Outcome]:
    return {case: own if case.policy == "adaptive" else outcome(peers) for case in cases}


def test_gains_are_means_over_draws_beside_their_goals() -> None:
    (line,) = gain("row", "what", [(80.0, 100.0), (90.0, 100.0), (1.0, None)], 14.0, 9.0)
    assert (line.draws, line.mean, line.half) == (2, *map(pytest.approx, interval([20.0, 10.0])))
    assert line.worst == pytest.approx(10.0)
    assert (line.goal, line.met) == ("+14 %, each +9 %", True)
    assert [each.met for each in gain("row", "what", [(80.0, 100.0), (95.0, 100.0)], 10.0, 6.0)] == [False]
    assert gain("row", "what", [], 0.0) == []


def test_rows_of_streams_are_met_or_missed(traces: Path) -> None:
    rows = Rows(traces, 2, (), NAMES)
    cases, lines = elastic(rows)
    assert len(cases) == 2 * 4, "a file at two loads, and two that are drawn"
    assert [line.met for line in lines(done(cases, outcome(74.0)))] == [True]
    some = done(cases, outcome(60.0)) | {cases[0]: outcome(90.0)}
    assert [line.met for line in lines(some)] == [False]
    assert [line.met for line in lines(some | {cases[0]: outcome(90.0, bound_s=89.0)})] == [True]
    cases, lines = rigid(rows)
    assert {case.policy for case in cases} == {"adaptive", "srt", "las", "max-min"}
    assert [line.met for line in lines(done(cases, outcome(98.0)))] == [True]
    assert [line.met for line in lines(done(cases, outcome(99.0)))] == [False]
    cases, lines = fairness(rows)
    assert [(line.worst, line.met) for line in lines(done(cases, outcome(1.0, worst=6.0)))] == [
        (6.0, True),
        (90.0, False),
    ]
    cases, lines = suspends(rows)
    assert [(line.mean, line.met) for line in lines(done(cases, outcome(1.0, suspended=20)))] == [(240.0, True)]
    cases, lines = missing(rows)
    assert {(case.stream.name, case.unknown) for case in cases if case.policy == "adaptive"} == {
        ("W3", "steps"), ("W1", "curves,startup,save")
    }  # fmt: skip
    assert [line.met for line in lines(done(cases, outcome(91.0)))] == [False, None, None, True, None, None]


def test_streams_are_rigid_or_elastic_and_drawn_by_seed(traces: Path) -> None:
    stream = Stream("trace", str(traces / "dev_1_load1.0.csv"), "rigid", mixed=True)
    work = workload_of(stream, traces / "table.csv")
    assert [job.gpus_counts for job in work.jobs] == [(1,), (4,), (8,)]
    assert sorted({spell.kind for spell in work.nodes}) == ["k80", "p100", "v100"]
    assert {job.profile.startup_s for job in work.jobs} == {0.0}
    drawn = [
        workload_of(Stream("poisson", "poisson", "elastic", 0.8, seed=seed), traces / "table.csv") for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {job.gpus_counts for job in drawn[0].jobs} == {(1, 2, 4, 8)}
    assert {job.profile.startup_s for job in drawn[0].jobs} == {30.0}
    assert drawn[0].jobs[-1].submit_s > 0


def test_a_table_from_the_command_line(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--traces", str(traces), "--throughputs", str(traces / "table.csv"), "--workers", "1"]
    published = ["--published", str(traces / "gavel.csv"), str(traces / "pollux.csv")]
    assert main([*command, *published, "--only", "pollux", "types", "--json"]) == 0
    found = capsys.readouterr()
    lines = {(line["row"], line["what"]): line for line in json.loads(found.out)["rows"]}
    assert lines["pollux, told", "gain over Pollux as published"]["draws"] == 1
    assert lines["pollux, told", "mean JCT, s"]["mean"] == pytest.approx(630.0, abs=40.0)
    assert lines["three types", "gain over Gavel's best"]["goal"] == "+5 %"
    assert "is ready after" in found.err
    assert main([*command, "--only", "pollux", "types"]) == 1
    found = capsys.readouterr()
    assert "types: no traces for it in the folder, or nothing published of them" in found.err
    assert found.out.splitlines()[0].startswith("ROW")
    with pytest.raises(SystemExit):
        main(["--traces", str(traces / "nowhere")])
