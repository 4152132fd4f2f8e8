"""What is believed of jobs of which nothing was seen, and what that costs."""

from dataclasses import replace
from statistics import fmean

import pytest

from hpcdl.adaptive import Adaptive
from hpcdl.adaptive.options import candidates
from hpcdl.adaptive.prior import COST_S, GRAIN, LENGTH_S, LOOK_S, PriorProfile, believed, look_again_at, usual
from hpcdl.core.model.plan import Policies
from hpcdl.core.model.profile import Profile
from hpcdl.estimators.scaling import learner
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.results import summarise
from hpcdl.sim.workload import SimJob, Workload, cluster
from tests.adaptive.views import CONCAVE, LINEAR, counts, decide, job, node, reasons, running, view


def test_nothing_is_assumed_where_everything_is_known() -> None:
    seen = view(job(1), job(2))
    assert usual(seen) is None
    assert believed(seen.jobs[0], ("",), None) is CONCAVE


def test_where_nothing_is_known_a_job_is_as_most_are() -> None:
    unknown = job(1, total=9000, profile=None)
    found = usual(view(unknown))
    assert found == PriorProfile()
    profile = believed(unknown, ("k80", "v100"), found)
    assert unknown.total is not None
    assert unknown.total / profile.on("v100").rate(1) == pytest.approx(LENGTH_S)
    assert 1.5 < profile.rate(2) / profile.rate(1) < 2
    assert profile.on("k80").rate(1) < 0.5 * profile.on("v100").rate(1)
    assert (profile.startup_s, profile.suspend_resume_s) == (COST_S, COST_S)
    assert profile.spread >= 1
    assert believed(replace(unknown), ("k80", "v100"), found) is profile
    assert believed(replace(unknown, total=None), ("",), None).rate(1) == 1


def test_length_and_costs_are_those_that_are_usual() -> None:
    dear = replace(CONCAVE, startup_s=100.0, save_s=10.0, resume_s=40.0, resume_up_s=50.0, gate_s=90.0)
    known = [job(number, total=steps, profile=dear) for number, steps in ((1, 100), (2, 4000), (3, 5000))]
    found = usual(view(*known, job(4, profile=None)))
    assert found is not None
    assert found.length_s == pytest.approx(4000, rel=GRAIN - 1)
    profile = believed(job(4, profile=None), ("",), found)
    assert profile.startup_s == pytest.approx(100, rel=GRAIN - 1)
    assert profile.restart_s(1, 2, moved=False, running=True) == pytest.approx(60, rel=GRAIN - 1)
    later = usual(view(*known, job(4, profile=None), job(5, total=4100, profile=dear), now=2000.0))
    assert later == found  # rounded, so it stays while little changes


def test_a_profile_that_starts_at_the_gate_alone_is_no_trouble() -> None:
    odd = Profile("odd", ((1, 1, 1.0),), startup_s=5.0, gate_s=5.0)
    found = usual(view(job(1, profile=odd), job(2, profile=None)))
    assert found is not None
    assert believed(job(2, profile=None), ("",), found).rate(8) > 0


def test_an_unknown_job_gets_its_share() -> None:
    seen = view(running(1, 0, 1, 2, 3, 4, 5, 6, 7, total=20_000), job(2, total=77, profile=None))
    plan = decide(Adaptive(), seen)
    assert min(counts(plan)) > 0
    assert "no profile yet" in reasons(plan)[1]
    nobody = view(*(job(number, profile=None) for number in range(1, 20)), nodes=(node("n1", 8), node("n2", 8, "k80")))
    assert sum(counts(decide(Adaptive(), nobody))) == 16


def test_an_unknown_job_that_runs_is_no_shorter_for_its_running() -> None:
    seen = view(running(1, 0, total=1000, profile=None, step=10), now=9000.0)
    found = candidates(seen).candidates[0]
    assert found.remaining == 990
    assert found.left_s == pytest.approx(LENGTH_S * 0.99)


def workload(told: bool) -> Workload:
    """Twelve jobs of three models that scale differently, whose steps last differently."""
    models = (
        replace(LINEAR, name="linear"),
        replace(CONCAVE, name="concave", points=tuple((n, g, 20 * rate) for n, g, rate in CONCAVE.points)),
        Profile("narrow", ((1, 1, 0.1), (1, 2, 0.12), (1, 8, 0.13)), 60.0, 5.0, 25.0),
    )
    lengths = (1500, 4000, 800, 2500, 900, 3000, 1200, 600, 3500, 2000, 700, 1800)
    jobs = tuple(
        SimJob(200.0 * at, f"j{at}", models[at % 3], max(1, round(length * models[at % 3].rate(1))), told=told)
        for at, length in enumerate(lengths)
    )
    return Workload("mixed", jobs, cluster(1, 8))


def mean_jct_s(told: bool, learns: bool = True) -> float:
    policies = Policies()
    policies.register("adaptive", Adaptive)
    run = simulate(workload(told), "adaptive", policies, Conditions(progress_s=60.0), learner(8) if learns else None)
    assert run.problems == ()
    assert len(run.history.jobs) == 12
    return fmean(each.jct_s for each in summarise(run).jobs if each.jct_s is not None)


def test_what_is_learnt_is_worth_almost_as_much_as_what_is_told() -> None:
    told, learnt, never = mean_jct_s(True), mean_jct_s(False), mean_jct_s(False, learns=False)
    assert learnt < 1.12 * told
    assert learnt < never


def test_the_first_report_is_waited_for() -> None:
    assert look_again_at(view(job(1), running(2, 0), job(3, profile=None))) is None
    assert look_again_at(view(running(1, 0, profile=None, step=0), now=500.0)) == 500 + LOOK_S
    assert look_again_at(view(running(1, 0, profile=None, step=70))) is None
    assert Adaptive().decide(view(running(1, 0, profile=None, step=0), now=500.0)).wake_at == 500 + LOOK_S
