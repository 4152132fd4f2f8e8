"""Drawn arrivals, and the papers' workloads: on the files and like them."""

import math
import statistics
from collections import Counter
from pathlib import Path

import pytest

from hpcdl.sim.generators import (
    GENIE_LATENCY_S,
    GENIE_SHARES,
    chance,
    draw_genie,
    draw_sidecar,
    exponential_gaps,
    poisson,
)
from hpcdl.sim.papers.data import GENIE_LOADS, SIDECAR_WORKLOADS, genie, genie_profile, genie_speedup, sidecar
from hpcdl.sim.workload import WorkloadError, check_fits


def test_the_same_seed_draws_the_same() -> None:
    assert exponential_gaps(chance("a", 1), 9, 100) == exponential_gaps(chance("a", 1), 9, 100)
    assert exponential_gaps(chance("a", 1), 9, 100) != exponential_gaps(chance("a", 2), 9, 100)
    assert poisson(chance("a", 1), 5, 24) == poisson(chance("a", 1), 5, 24)
    assert draw_genie(chance(3), 10) == draw_genie(chance(3), 10)
    # Known draws: another Python must not draw others.
    assert [round(at, 3) for at in exponential_gaps(chance("known", 7), 3, 100)] == [0.0, 62.027, 66.357]
    assert [round(at, 1) for at in poisson(chance("known", 7), 1, 5)[:2]] == [1396.2, 7982.7]


def test_gaps_are_exponential_within_their_span() -> None:
    for jobs in (1, 2, 40):
        found = exponential_gaps(chance("span", jobs), jobs, 11_000)
        assert len(found) == jobs
        assert found[0] == 0
        assert list(found) == sorted(found)
        assert found[-1] <= 11_000
    gaps = [b - a for seed in range(50) for a, b in zip(*_neighbours(seed), strict=True)]
    assert statistics.fmean(gaps) == pytest.approx(11_000 / 41, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(1.0, abs=0.1)


def _neighbours(seed: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    found = exponential_gaps(chance("gaps", seed), 40, 11_000)
    return found[:-1], found[1:]


def test_a_poisson_process_has_its_rate_and_variance() -> None:
    counts = [len(poisson(chance("rate", seed), 10, 24)) for seed in range(200)]
    assert statistics.fmean(counts) == pytest.approx(240, rel=0.02)
    assert statistics.variance(counts) == pytest.approx(240, rel=0.35)
    assert poisson(chance(1), 1e-6, 1) == ()
    for rate, hours in ((0, 1), (1, 0), (math.nan, 1), (1, math.inf), (-1, 1)):
        with pytest.raises(WorkloadError, match="above 0"):
            poisson(chance(1), rate, hours)


@pytest.mark.parametrize("name", SIDECAR_WORKLOADS)
def test_sidecar_on_its_file(name: str) -> None:
    for seed in range(10):
        workload = sidecar(name, seed)
        check_fits(workload)
        assert len(workload.jobs) == (20 if name == "W2" else 40)
        assert all(job.draw in job.gpus_counts == (1, 2, 4, 8) for job in workload.jobs)
        assert all((job.predicted is not None) == (name == "W4") for job in workload.jobs)
    assert [spell.kind for spell in workload.nodes] == ["v100", "p100" if name in ("W1", "W2") else "k80"]
    assert workload == sidecar(name, 9)


def test_sidecar_as_it_stands_in_the_file() -> None:
    first, second = sidecar("W1", 0).jobs[:2]
    assert (first.submit_s, first.steps, first.draw, first.profile.name) == (0, 47580, 2, "R34-64")
    assert (second.submit_s, second.draw) == (88.1, 1)
    assert first.profile.rate(8) == pytest.approx(19.0)
    assert first.profile.on("p100").rate(2) == pytest.approx(9.775)
    assert first.profile.on("k80").rate(1) == pytest.approx(1.4)
    assert sidecar("W3", 4).jobs[5].submit_s == sidecar("W4", 4).jobs[5].submit_s


def test_sidecar_costs() -> None:
    profile = sidecar("W2", 1).jobs[0].profile
    assert (profile.startup_s, profile.gate_s) == (110, 83)
    change = {
        (2, 1, False, True): 27, (1, 2, False, True): 37, (2, 1, True, True): 242, (1, 2, True, False): 207,
    }  # fmt: skip
    assert {key: profile.restart_s(*key) for key in change} == change
    ended = sidecar("W2", 1, termination=True).jobs[0].profile
    assert (ended.startup_s, ended.gate_s) == (170, 0)
    assert (ended.restart_s(2, 1, False, True), ended.restart_s(1, 2, False, True)) == (204, 242)
    tenth = sidecar("W2", 1, costs=0.1).jobs[0].profile
    assert tenth.restart_s(1, 2, False, True) == pytest.approx(3.7)
    assert tenth.startup_s == pytest.approx(11)


def test_predictions_in_w4_are_off_by_their_sigma() -> None:
    errors = [job.predicted or 0.0 for seed in range(30) for job in sidecar("W4", seed).jobs]
    assert statistics.fmean(errors) == pytest.approx(0, abs=0.03)
    assert statistics.stdev(errors) == pytest.approx(0.4, rel=0.05)


def test_sidecar_of_other_seeds_is_of_the_same_kind() -> None:
    for name in ("W1", "W3"):
        filed = [job for seed in range(10) for job in sidecar(name, seed).jobs]
        drawn = [job for seed in range(100, 140) for job in sidecar(name, seed).jobs]
        assert {(job.profile.name, job.steps) for job in filed} == {(job.profile.name, job.steps) for job in drawn}
        types = Counter(job.profile.name for job in drawn)
        assert max(types.values()) / len(drawn) < 1 / 7 + 0.04
        assert min(types.values()) / len(drawn) > 1 / 7 - 0.04
        counts = Counter(job.draw for job in drawn)
        assert set(counts) == {1, 2, 4, 8}
        assert all(share / len(drawn) == pytest.approx(0.25, abs=0.04) for share in counts.values())
        last = [[sidecar(name, seed).jobs[-1].submit_s for seed in seeds] for seeds in (range(10), range(100, 140))]
        assert statistics.fmean(last[1]) == pytest.approx(statistics.fmean(last[0]), rel=0.03)
    assert len({job.submit_s for job in sidecar("W2", 77).jobs}) == 20
    assert [job.submit_s for job in sidecar("W4", 77).jobs] == [job.submit_s for job in sidecar("W3", 77).jobs]
    assert len(draw_sidecar(chance(1), ("a",), 5)) == 5


def test_what_sidecar_has_not(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no workload 'W5': choose from W1, W2, W3, W4"):
        sidecar("W5", 0)
    with pytest.raises(WorkloadError, match="costs must be a factor"):
        sidecar("W1", 0, costs=-1)
    with pytest.raises(WorkloadError, match=r"sidecar_curves.csv: No such file"):
        sidecar("W1", 0, folder=tmp_path)


@pytest.mark.parametrize("per_hour", GENIE_LOADS)
def test_genie_on_its_file(per_hour: int) -> None:
    jobs = [job for seed in range(8) for job in genie(per_hour, seed).jobs]
    assert len(jobs) == pytest.approx(per_hour * 24 * 8, rel=0.05)
    check_fits(genie(per_hour, 0))
    waits = {"urgent": 0, "prior": 1, "normal": 2}
    for job in jobs:
        assert job.deadline_s is not None
        seconds = job.profile.seconds_to_finish(0, job.steps, 1)
        assert job.deadline_s - job.submit_s == pytest.approx(waits[job.user] * seconds, abs=0.2)


def test_genie_as_it_stands_in_the_file() -> None:
    workload = genie(5, 0)
    first = workload.jobs[0]
    assert (first.submit_s, first.steps, first.kind, first.user) == (420.1, 42415, "inference", "prior")
    assert first.deadline_s == pytest.approx(420.1 + 30 + 4241.5)
    assert [(spell.gpus, spell.kind) for spell in workload.nodes] == [(4, "k80")] * 4
    assert len(genie(20, 0, nodes=32).nodes) == 32
    assert (first.nodes, first.nodes_max, first.gpus_min, first.gpus_max) == (1, 4, 1, 4)


def test_genie_speedup_by_its_formula() -> None:
    # ResNet-50, batch 64, 2 nodes x 4: Comm = (4 + 0.4 * 3) * 0.8 / 7, f(8) / f(64)
    expected = (8 - 5.2 * 0.8 / 7) * (8 / 14) / (64 / 70)
    assert genie_speedup("ResNet-50", "training", 64, 2, 4) == pytest.approx(expected)
    assert genie_speedup("ResNet-50", "inference", 64, 2, 4) == pytest.approx(8 * (8 / 14) / (64 / 70))
    assert genie_speedup("AlexNet", "training", 16, 1, 1) == 1.0
    profile = genie_profile("ResNet-50", "training", 64)
    assert profile.rate(4, 2) == pytest.approx(10 * expected)
    assert (profile.startup_s, profile.save_s, profile.resume_s) == (30, 27, 37)


def test_genie_of_other_seeds_is_of_the_same_kind() -> None:
    filed = [job for seed in range(8) for job in genie(20, seed).jobs]
    drawn = [job for seed in range(50, 58) for job in genie(20, seed).jobs]
    assert len(drawn) == pytest.approx(len(filed), rel=0.06)
    assert {job.profile for job in filed} == {job.profile for job in drawn}
    for name, share in GENIE_SHARES.items():
        assert sum(job.user == name for job in drawn) / len(drawn) == pytest.approx(share, abs=0.03)
    for kind, scale in (("training", 1), ("inference", 3)):
        steps = [sorted(job.steps for job in jobs if job.kind == kind) for jobs in (filed, drawn)]
        assert all(low == pytest.approx(other, rel=0.06) for low, other in zip(*map(_quartiles, steps), strict=True))
        low, high = (10 * each / scale for each in GENIE_LATENCY_S)
        assert low - 1 <= steps[0][0] <= steps[0][-1] <= high + 1
        assert low - 1 <= steps[1][0] <= steps[1][-1] <= high + 1


def _quartiles(values: list[int]) -> list[float]:
    return statistics.quantiles(values, n=4)
