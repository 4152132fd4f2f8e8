"""The SideCar paper's figures: the case study's timeline, and what W1 to W4 come to."""

import math
from dataclasses import replace
from statistics import fmean

import pytest

from hpcdl.core.model import events as ev
from hpcdl.policies import all_policies
from hpcdl.sidecar import SideCar
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.intervals import interval
from hpcdl.sim.papers import sidecar
from hpcdl.sim.papers.sidecar import case_study, case_table, lengths_table, run_one, workloads_table
from hpcdl.sim.papers.table import PaperTable
from hpcdl.sim.workload import WorkloadError
from tests.support.extent import one_of


def test_the_case_study_in_time() -> None:
    rows = {row.policy: row for row in case_table().rows}
    assert {policy: row.paper["makespan_s"] for policy, row in rows.items()} == {
        "default": 1249,
        "termination": 1143,
        "sidecar": 845,
    }
    for row in rows.values():
        assert row.makespan_s == pytest.approx(row.paper["makespan_s"], rel=0.03)
    # What does not hang on the work is as printed, and the rest within 7 %.
    for policy in ("termination", "sidecar"):
        more, paper = rows[policy].more, rows[policy].paper
        for key in ("job2_runs", "reshape_down_s", "reshape_up_s"):
            assert more[key] == pytest.approx(paper[key])
        for key in ("job2_done", "job1_back_on_4", "job1_done"):
            assert more[key] == pytest.approx(paper[key], rel=0.07)
    assert rows["sidecar"].mean_jct_s < rows["default"].mean_jct_s < rows["termination"].mean_jct_s


def test_early_initialisation_through_a_real_gate() -> None:
    """Figure 1: job 2 is at the gate before job 1 stops, and opened when the GPUs are free; nothing idles but 27 s."""
    jobs = tuple(replace(job, profile=replace(job.profile, startup_s=110.0)) for job in case_study()["sidecar"].jobs)
    workload = replace(case_study()["sidecar"], jobs=jobs)
    for warm in (False, True):
        run = simulate(workload, "elastic", all_policies(), Conditions(warm=warm, exempt_starts=0.0))
        assert run.problems == ()
        first, second = run.history.jobs
        assert first.attempts[0].asked_at == pytest.approx(180 + 83)
        assert first.attempts[1].ready_at == pytest.approx(180 + 83 + 27)
        assert second.attempts[0].ready_at == pytest.approx(180 + 83 + 27)
        gates = [record.at for record in run.records if isinstance(record.event, ev.AtGate)]
        assert gates == ([180 + 83] if warm else [])


def test_the_case_study_has_the_same_jobs_under_all() -> None:
    cases = case_study()
    assert {tuple((job.submit_s, job.steps, job.profile.points) for job in case.jobs) for case in cases.values()} == {
        tuple((job.submit_s, job.steps, job.profile.points) for job in cases["default"].jobs)
    }


@pytest.mark.parametrize("name", one_of("W2", "W1", "W3", "W4"))
def test_reshaping_beats_termination_beats_the_default(name: str) -> None:
    seeds = range(3)
    runs = {policy: [run_one(name, seed, policy) for seed in seeds] for policy in ("k8s-default", "optimus", "elastic")}
    makespan = {policy: fmean(run.makespan_s for run in found) for policy, found in runs.items()}
    jct = {policy: fmean(run.jct_s for run in found) for policy, found in runs.items()}
    assert makespan["elastic"] < makespan["optimus"] < makespan["k8s-default"]
    assert jct["elastic"] < jct["optimus"] < jct["k8s-default"]
    assert all(run.adds == run.removes == run.moves == 0 for run in runs["k8s-default"])
    assert all(run.removes == 0 < run.adds for run in runs["optimus"])
    assert all(run.removes > 0 and run.overhead < 0.05 for run in runs["elastic"])
    assert all(run.with_starts > run.overhead for run in runs["elastic"])


def test_cheaper_reshapes_are_worth_more() -> None:
    dear, cheap = (fmean(run_one("W1", seed, "elastic", costs).jct_s for seed in range(3)) for costs in (1.0, 0.1))
    assert cheap < dear


def test_shorter_jobs_lose_more_to_reshapes() -> None:
    table = lengths_table((0,))
    rows = [row for row in table.rows if row.policy == "optimus"]
    assert [row.workload for row in rows] == ["W1 x 0.5", "W1 x 0.75", "W1 x 1", "W1 x 1.5"]
    overheads = [row.more["overhead"] for row in rows]
    assert overheads == sorted(overheads, reverse=True)


def test_same_seed_same_run() -> None:
    assert run_one("W2", 1001, "elastic") == run_one("W2", 1001, "elastic") != run_one("W2", 1002, "elastic")


def test_a_table_holds_each_policy_against_those_before_it() -> None:
    table = workloads_table("some", (0, 1), ("k8s-default", "elastic"), paper=True)
    assert len(table.rows) == 8
    row = table.rows[1]
    assert (row.workload, row.policy) == ("W1", "elastic")
    assert row.paper["makespan_vs_default"] == 0.45
    assert 0.2 < row.more["makespan_vs_default"] < 0.6
    assert row.more["makespan_vs_default_ci95"] > 0
    assert row.to_json()["seeds"] == 2
    assert table.notes[0] == "Seeds 0 to 1, 2 of them."


def test_interval() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / math.sqrt(3))
    assert interval([5.0]) == (5.0, 0.0)


def test_a_run_with_a_problem_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no idea")

    monkeypatch.setattr(SideCar, "decide", fail)
    with pytest.raises(WorkloadError, match=r"W2 seed 0 under elastic: policy elastic .*no idea"):
        run_one("W2", 0, "elastic")


def test_fewer_seeds_are_fewer_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, tuple[int, ...]] = {}

    def table(title: str, seeds: tuple[int, ...], *_: object, **__: object) -> PaperTable:
        taken[title] = seeds
        return PaperTable(title, ())

    monkeypatch.setattr(sidecar, "workloads_table", table)
    monkeypatch.setattr(sidecar, "lengths_table", lambda seeds: table("lengths", seeds))
    sidecar.tables((0, 1))
    assert sorted(taken.values()) == [(0, 1), (0, 1), (0, 1), (1000, 1001)]
    sidecar.tables()
    assert taken["SideCar W1 to W4, unseen seeds"] == sidecar.UNSEEN
