"""GENIE's figures: the workloads made for them, what is measured of a run, the light profiling, and the tables."""

from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from hpcdl.policies import all_policies
from hpcdl.sim import Conditions, SimJob, Workload, cluster, simulate
from hpcdl.sim.papers import genie as figures
from hpcdl.sim.papers.data import GENIE_MODELS, genie, genie_profile


def test_what_is_measured_of_a_run() -> None:
    profile = genie_profile("ResNet-50", "training", 64)  # 10 steps/s on one GPU, 30 s of start-up
    jobs = (
        SimJob(0.0, "urgent", profile, 1000, gpus_max=1, deadline_s=0.0),
        SimJob(10.0, "prior", profile, 1000, gpus_max=1, deadline_s=10.0 + 130.0),
        SimJob(20.0, "normal", profile, 1000, gpus_max=1, deadline_s=20.0 + 260.0),
    )
    # One GPU: 0 to 130 s, 130 to 260 s (too late), 260 to 390 s (too late).
    run = simulate(Workload("three", jobs, cluster(1, 1, "k80")), "fifo", all_policies(), Conditions())
    found = figures.measure_run(run)
    assert found.qos == 0.0
    assert found.makespan_s == pytest.approx(390.0)
    assert found.jct_s == pytest.approx(fmean([130.0, 250.0, 370.0]))
    assert found.normalised_latency == pytest.approx(fmean([130.0, 250.0, 370.0]) / 130.0)
    assert found.longest_wait_missed_s == pytest.approx(240.0)
    two = simulate(Workload("three", jobs, cluster(1, 2, "k80")), "fifo", all_policies(), Conditions())
    found = figures.measure_run(two)
    assert found.qos == pytest.approx(2 / 3)
    assert found.qos_prior_normal == 1.0
    assert found.longest_wait_missed_s == 0.0


def test_a_run_that_did_not_end_is_no_figure() -> None:
    run = simulate(genie(5, 0), "genie", all_policies(), Conditions(until_s=3600.0))
    with pytest.raises(AssertionError, match=r"^5/h seed 0 under genie: "):
        figures.measure_run(run)


def test_priorities_drawn_anew_leave_everything_else() -> None:
    before = genie(20, 0)
    after = figures.with_priorities(before, (20, 40, 40), 0)
    times = Counter(
        round((job.deadline_s or 0.0) - job.submit_s) // round(figures.single_latency_s(job) - 1) for job in after.jobs
    )
    assert {key: round(number / len(after.jobs), 1) for key, number in times.items()} == {0: 0.2, 1: 0.4, 2: 0.4}
    assert [replace(job, deadline_s=None) for job in after.jobs] == [
        replace(job, deadline_s=None) for job in before.jobs
    ]
    assert figures.with_priorities(before, (20, 40, 40), 0) == after
    assert figures.with_priorities(before, (20, 40, 40), 1) != after


@pytest.mark.parametrize("hours", figures.DURATIONS_H)
def test_arrivals_at_15_an_hour(hours: int) -> None:
    found = figures.lasting(hours, 0)
    times = [job.submit_s for job in found.jobs]
    assert times == sorted(times)
    assert times[-1] < hours * 3600
    assert len(times) / hours == pytest.approx(15, rel=0.15)
    assert all(job.deadline_s is not None and job.deadline_s >= job.submit_s for job in found.jobs)
    last = [sum(hour * 3600 <= at < (hour + 1) * 3600 for at in times) for hour in range(hours)]
    assert min(last) > 0


def test_drawn_requests_are_of_the_jobs_placements() -> None:
    found = figures.with_drawn_requests(genie(20, 0), 0)
    assert {(job.nodes, job.gpus_max) for job in found.jobs} == {(n, g) for n in range(1, 5) for g in range(1, 5)}
    assert all(job.nodes == job.nodes_max and job.gpus_min == job.gpus_max for job in found.jobs)


def test_types_of_models_are_the_users() -> None:
    assert {job.user for job in figures.by_type(genie(20, 0)).jobs} == set(GENIE_MODELS)


@pytest.mark.parametrize("model", GENIE_MODELS)
@pytest.mark.parametrize("kind", ["training", "inference"])
def test_light_profiles_are_within_the_papers_error(model: str, kind: str) -> None:
    errors = []
    for batch in (16, 32, 64, 128):
        truth = genie_profile(model, kind, batch)
        told = figures.light_profile(truth, 0)
        assert told != truth
        assert [point[:2] for point in told.points] == [point[:2] for point in truth.points]
        errors += [abs(told.rate(g, n) / truth.rate(g, n) - 1) for n in range(1, 5) for g in range(1, 5)]
    assert fmean(errors) < 0.05
    assert figures.light_profile(truth, 1) != told


@pytest.mark.long
def test_genie_comes_out_as_the_probe_found() -> None:
    found = figures.measure(("genie",), figures.SEEDS, lambda seed: genie(5, seed))["genie"]
    assert fmean(each.qos for each in found) == pytest.approx(0.924, abs=0.01)
    assert fmean(each.makespan_s for each in found) / 3600 == pytest.approx(25.7, rel=0.03)


def test_rows_hold_gains_over_the_best_baseline() -> None:
    made = figures.measure(("fifo", "tetris-cer", "genie"), (0,), lambda seed: genie(10, seed))
    rows = figures.rows_of("10/h", made, {"qos_gain_up_to": 0.674})
    assert [row.policy for row in rows] == ["fifo", "tetris-cer", "genie"]
    last = rows[-1].to_json()
    assert last["paper"] == {"qos_gain_up_to": 0.674}
    assert rows[0].to_json()["paper"] == {}
    assert last["qos_gain"] == pytest.approx(last["qos"] / max(row.more["qos"] for row in rows[:2]) - 1)
    assert last["makespan_reduction"] == pytest.approx(1 - last["makespan_s"] / min(r.makespan_s for r in rows[:2]))
    assert last["qos"] > max(row.more["qos"] for row in rows[:2])
    assert "qos_gain" not in rows[0].more


def test_the_prediction_table() -> None:
    table = figures.prediction((0,), (5,))
    (row,) = table.rows
    assert 0 < row.more["error_mean"] < 0.05
    assert row.more["error_mean"] < row.more["error_p95"] < 0.11
    assert row.more["light_runs"] == 14
    assert row.to_json()["paper"] == {"error_mean_below": 0.05, "error_p95_below": 0.11}
    assert table.notes[0] == "Seeds 0 to 0, 1 of them."
