"""Deadlines under objectives that aim for something else."""

from dataclasses import replace

import pytest

from hpcdl.adaptive import Adaptive
from hpcdl.core.model.plan import View
from hpcdl.core.model.profile import Profile
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.results import summarise
from tests.adaptive.views import counts, decide, job, node, reasons, running, view

ONE = Profile("one", ((1, 1, 1.0),), startup_s=5.0, save_s=2.0, resume_s=5.0)
FOUR = (node("n1", 4),)


def busy(objective: str, deadline: float | None, units: int = 1) -> View:
    """Four GPUs, each with a job that is nearly done; and a long one that waits."""
    short = [running(number, number - 1, total=100, gpus_max=1, profile=ONE) for number in (1, 2, 3, 4)]
    long = job(5, total=3600, gpus_min=units, gpus_max=units, profile=ONE, deadline=deadline, submitted_at=500.0)
    return view(*short, long, nodes=FOUR, objective=objective)


@pytest.mark.parametrize("objective", ["jct", "fair", "throughput"])
def test_a_job_that_would_soon_be_late_gets_its_gpu(objective: str) -> None:
    without = counts(decide(Adaptive(), busy(objective, None)))[4]
    assert without == 0 or objective == "fair"
    assert counts(decide(Adaptive(), busy(objective, 1000.0 + 20_000)))[4] == without, "it has time"
    plan = decide(Adaptive(), busy(objective, 1000.0 + 4000))
    assert counts(plan)[4] == 1
    assert sum(counts(plan)) == 4
    assert "at risk: comes first" in reasons(plan)[4]
    assert counts(decide(Adaptive(), busy(objective, 1000.0 + 3000)))[4] == without, "it cannot be on time"


def test_under_makespan_it_is_the_next_to_start() -> None:
    """Nobody is suspended for good there; but of those that wait it goes first, where the longest would."""
    free = busy("makespan", 1000.0 + 4000)
    waiting = (*free.jobs[:3], replace(free.jobs[4], id=5), job(6, total=9000, gpus_max=1, profile=ONE))
    assert counts(decide(Adaptive(), replace(free, jobs=waiting)))[3:] == [1, 0]
    calm = (*waiting[:3], replace(waiting[3], deadline=None), waiting[4])
    assert counts(decide(Adaptive(), replace(free, jobs=calm)))[3:] == [0, 1]


def test_it_costs_the_others_no_more_than_its_share() -> None:
    assert counts(decide(Adaptive(), busy("jct", 5000.0, units=2)))[4] == 2, "one job may have half"
    assert counts(decide(Adaptive(), busy("jct", 5000.0, units=3)))[4] == 0
    seen = busy("jct", 5000.0)
    many = [replace(seen.jobs[4], id=number) for number in (5, 6, 7, 8)]
    assert counts(decide(Adaptive(), replace(seen, jobs=(*seen.jobs[:4], *many))))[4:] == [1, 0, 0, 0]


def test_it_is_looked_at_again_when_it_would_be_at_risk() -> None:
    early = Adaptive().decide(busy("jct", 1000.0 + 7000))
    assert early.wake_at == pytest.approx(1000 + 7000 - 3605 - 0.5 * 3605, abs=20)


def test_a_deadline_is_met_under_jct_and_the_others_lose_little() -> None:
    """Short jobs keep coming to 4 GPUs: a long one would wait for the very end."""
    short = [SimJob(36.0 * each, f"s{each}", ONE, 110, gpus_max=1) for each in range(40)]

    def ran(deadline_s: float | None) -> tuple[float, float]:
        jobs = (*short[:1], SimJob(1.0, "due", ONE, 700, gpus_max=1, deadline_s=deadline_s), *short[1:])
        workload = Workload("due", jobs, tuple(cluster(1, 4)))
        run = simulate(workload, "adaptive", all_policies(), Conditions())
        assert run.problems == ()
        took = {each.name: each.jct_s or 0.0 for each in summarise(run).jobs}
        due_s = took.pop("due")
        return due_s, sum(took.values()) / len(took)

    (due_s, with_s), (plain_s, without_s) = ran(900.0), ran(None)
    assert due_s <= 899.0 < plain_s
    assert with_s < 1.3 * without_s
