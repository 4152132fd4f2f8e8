"""Sweeps: their axes, their rows with intervals, and the simulations behind them."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.core.model.profile import Profile
from hpcdl.policies import all_policies
from hpcdl.sim import Conditions, SimJob, Workload, WorkloadError, cluster, simulate, summarise
from hpcdl.sim.beliefs import Beliefs
from hpcdl.sim.intervals import interval
from hpcdl.sim.sweep import SweepInput, SweepRun, at_load, parse_axes, rows_of, settings_of, simulated
from hpcdl.sim.sweep_page import sweep_page

NET = Profile("Net", ((1, 1, 1.0), (1, 4, 3.0)), startup_s=10.0)
KNOWN = ("load", "seed", "unknown")


def workload(steps: int = 300) -> Workload:
    jobs = tuple(SimJob(20.0 * number, f"j{number}", NET, steps + 50 * number, gpus_max=4) for number in range(6))
    return Workload("made", jobs, cluster(1, 4))


def test_axes_and_their_settings() -> None:
    axes = parse_axes(["load=0.8,1 seed=0..2,7", "unknown=none,curves+steps"], KNOWN)
    assert axes["seed"] == ("0", "1", "2", "7")
    assert settings_of(axes) == [
        (("load", load), ("unknown", unknown)) for load in ("0.8", "1") for unknown in ("none", "curves+steps")
    ]
    assert settings_of({"seed": ("0",)}) == [()]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("laod=1", "cannot sweep over 'laod=1': did you mean load?"),
        ("load", "cannot sweep over 'load': write KEY=VALUE,VALUE,.."),
        ("load=", "give each axis once, with different values"),
        ("load=1,1", "give each axis once, with different values"),
        ("load=1 load=2", "give each axis once, with different values"),
        ("seed=3..1", "seed=3..1: write N or FIRST..LAST"),
        ("seed=x", "seed=x: write N or FIRST..LAST"),
    ],
)
def test_axes_that_make_no_sense(text: str, says: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_axes([text], KNOWN)
    assert says in str(caught.value)


def test_a_load_brings_submits_closer_and_keeps_deadlines_as_far() -> None:
    jobs = tuple(replace(job, deadline_s=job.submit_s + 90.0) for job in workload().jobs)
    at = at_load(replace(workload(), jobs=jobs), 2.0)
    assert [job.submit_s for job in at.jobs] == [10.0 * number for number in range(6)]
    assert {(job.deadline_s or 0.0) - job.submit_s for job in at.jobs} == {90.0}


def test_rows_are_means_over_draws_with_paired_differences() -> None:
    runs = []
    for policy in ("fifo", "srt"):
        for steps in (200, 300, 500):
            done = summarise(simulate(workload(steps), policy, all_policies(), Conditions()))
            runs += [SweepRun((("load", "1"),), (f"w{steps}", seed), replace(done, jobs=())) for seed in (0, 1)]
    first, second = rows_of(runs)
    assert (first.policy, first.draws, second.draws) == ("fifo", 3, 3), "a seed that changes nothing is no draw"
    jcts = [[run.results.mean_jct_s or 0.0 for run in runs if run.results.policy == name] for name in ("fifo", "srt")]
    assert (first.figures["mean_jct_s"], first.figures["mean_jct_s_ci95"]) == interval(jcts[0][::2])
    ratios = [mine / its - 1 for mine, its in zip(jcts[1][::2], jcts[0][::2], strict=True)]
    assert (second.figures["jct_vs_first"], second.figures["jct_vs_first_ci95"]) == interval(ratios)
    assert "jct_vs_first" not in first.figures
    page = sweep_page([first, second], runs, "fifo")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("w300") == 4
    assert page == sweep_page([first, second], runs, "fifo")


def test_every_combination_is_simulated_in_processes_and_one_that_fails_costs_no_other(tmp_path: Path) -> None:
    setting = (("jitter", "0.3"),)
    cases = [
        SweepInput(setting, ("w", seed), workload(), Conditions(seed=seed, jitter=0.3), Beliefs(frozenset({"curves"})))
        for seed in (0, 1)
    ]
    cases.append(replace(cases[0], draw=("empty", 0), workload=Workload("empty", workload().jobs)))
    said: list[str] = []
    runs, problems = simulated(cases, ["fifo", "adaptive"], said.append, home=tmp_path, bound=True, workers=2)
    assert [(run.results.policy, run.draw) for run in runs] == [
        (policy, ("w", seed)) for seed in (0, 1) for policy in ("fifo", "adaptive")
    ]
    assert len(problems) == 2
    assert all("has no nodes" in problem for problem in problems)
    assert len(said) == 6
    assert all(0 < (run.results.bound_mean_jct_s or 0) <= (run.results.mean_jct_s or 0) for run in runs)
    assert {row.draws for row in rows_of(runs)} == {2}
    assert runs[0].to_json()["setting"] == {"jitter": "0.3"}
