"""The table about jobs without profiles: its workloads, and that what is learnt is worth nearly what is told."""

import pytest

from hpcdl.sim.beliefs import learner_of
from hpcdl.sim.papers.data import sidecar
from hpcdl.sim.papers.unknown import CASES, POISSON, UnknownCase, run_one, tables, workload

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", ["W3", POISSON])
def test_steps_last_differently_and_jobs_as_long_as_before(name: str) -> None:
    work = workload(name, 3)
    rates = {job.profile.name: job.profile.rate(1) for job in work.jobs}
    assert len({round(rate, 6) for rate in rates.values()}) == len(rates) > 2
    if name != POISSON:
        for job, before in zip(work.jobs, sidecar(name, 3).jobs, strict=True):
            assert job.steps / job.profile.rate(1) == pytest.approx(before.steps / before.profile.rate(1), rel=0.02)
            assert job.submit_s == before.submit_s
            there, here = before.profile.on("k80"), job.profile.on("k80")
            assert here.speedup(4) == pytest.approx(there.speedup(4))
    again = workload(name, 4, steps_of=3)
    assert again.jobs != work.jobs
    assert all(job.profile.rate(1) == rates[job.profile.name] for job in again.jobs if job.profile.name in rates)


def test_the_learner_has_points_for_the_nodes_of_the_workload() -> None:
    learn = learner_of(workload("W3", 0))
    assert learn is not learner_of(workload("W3", 0))
    run = run_one("W2", 2, BY_NAME["adaptive, learnt"])
    told = run_one("W2", 2, BY_NAME["adaptive, told"])
    static = run_one("W2", 2, BY_NAME["fifo, no profile"])
    assert run.jct_s < 1.25 * told.jct_s
    assert run.jct_s < 0.8 * static.jct_s
    assert static.suspends == 0


def test_what_was_learnt_the_day_before_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run_one(POISSON, 1, BY_NAME["adaptive, told"])
    later = run_one(POISSON, 1, BY_NAME["adaptive, learnt before"])
    assert later.jct_s == pytest.approx(told.jct_s, rel=0.1)


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcdl.sim.papers import unknown

    monkeypatch.setattr(unknown, "SIDECAR_WORKLOADS", ())
    monkeypatch.setattr(
        unknown, "CASES", (BY_NAME["fifo, no profile"], BY_NAME["adaptive, told"], UnknownCase("n", "fifo"))
    )
    (table,) = tables([0, 1])
    assert [row.policy for row in table.rows] == ["fifo, no profile", "adaptive, told", "n"]
    assert table.rows[1].more["jct_vs_fifo"] < 0
    assert table.rows[2].more["jct_vs_fifo"] == 0
    assert table.rows[2].more["seeds"] == 2
