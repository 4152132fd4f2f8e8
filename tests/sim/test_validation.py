"""The comparison of a real run with its simulation: what passes, and what is told."""

from dataclasses import replace

import pytest

from hpcdl.policies import all_policies
from hpcdl.report.history import History
from hpcdl.sim import SimJob, cluster
from hpcdl.sim.validation import Comparison, compare, decisions, measured_pace, with_measured_costs
from tests.sim.runs import COSTS, run

NODES = cluster(1, 4)
PROFILE = replace(COSTS, gate_s=0.0)
JOBS = tuple(SimJob(0.0, f"j{number}", PROFILE, steps, gpus_max=2) for number, steps in enumerate((100, 200, 300), 1))


def story(*jobs: SimJob) -> History:
    """What really happened: told by the simulator itself, and changed from there."""
    return run(jobs, NODES).history


def compared(real: History, *jobs: SimJob) -> Comparison:
    return compare(real, dict(enumerate(jobs, 1)), NODES, "marble", all_policies(), "jct")


def ended(real: History, number: int, at: float) -> History:
    """The history in which a job ended at another time."""
    jobs = tuple(replace(job, finished_at=at) if job.id == number else job for job in real.jobs)
    return replace(real, jobs=jobs)


def test_the_same_is_the_same() -> None:
    real = story(*JOBS)
    found = compared(real, *JOBS)
    assert found.differences == ()
    assert found.error == pytest.approx(0.0)
    assert {each.kind for each in found.real} == {"start", "end"}
    assert found.real == found.simulated


def test_close_ends_may_be_swapped_and_distant_ones_not() -> None:
    first, second = (replace(JOBS[0], steps=steps) for steps in (400, 404))  # 2 s apart, of some 200 s
    real = story(first, second)
    one, two = (job.finished_at for job in real.jobs)
    assert one is not None
    assert two is not None
    swapped = ended(ended(real, 1, two), 2, one)
    assert compared(swapped, first, second).differences == ()
    real = story(*JOBS)
    late = ended(real, 1, real.jobs[1].finished_at or 0.0)
    late = ended(late, 2, real.jobs[0].finished_at or 0.0)
    told = compared(late, *JOBS).differences
    assert any(line.startswith("the other way round: ") and "end of job" in line for line in told)


def test_a_decision_that_is_missing_or_too_much() -> None:
    real = story(*JOBS)
    cut = replace(real, jobs=tuple(replace(job, finished_at=None) if job.id == 3 else job for job in real.jobs))
    told = compared(cut, *JOBS).differences
    assert any(line.startswith("only simulated: end of job 3 at ") for line in told)
    twice = replace(real.jobs[0], attempts=real.jobs[0].attempts * 2)
    told = compared(replace(real, jobs=(twice, *real.jobs[1:])), *JOBS).differences
    assert any(line.startswith("not simulated: resume of job 1 on 2 GPUs") for line in told)


def test_a_makespan_that_is_off() -> None:
    real = story(*JOBS)
    slow = [replace(job, profile=replace(PROFILE, points=((1, 1, 0.9), (1, 2, 1.8)))) for job in JOBS]
    told = compared(real, *slow)
    assert told.error == pytest.approx(0.1, abs=0.03)
    assert any(line.startswith("the makespan is ") for line in told.differences)


def test_less_than_a_busy_machine_takes_for_itself_is_nobodys_error() -> None:
    quick = SimJob(0.0, "quick", replace(PROFILE, startup_s=5.0), 2)
    real = story(quick)
    for startup_s, off in ((5.9, 0), (6.1, 1)):
        told = compared(real, replace(quick, profile=replace(PROFILE, startup_s=startup_s)))
        assert told.error > 0.05
        assert len(told.differences) == off


def test_measured_pace() -> None:
    jobs = [(job, steps) for job, steps in zip(story(*JOBS).jobs, (100, 200, 300), strict=True)]
    assert measured_pace(PROFILE, jobs) == pytest.approx(1.0, abs=0.02)
    quicker = replace(PROFILE, points=tuple((nodes, gpus, 1.25 * rate) for nodes, gpus, rate in PROFILE.points))
    assert measured_pace(quicker, jobs) == pytest.approx(0.8, abs=0.02)
    slower = replace(PROFILE, points=tuple((nodes, gpus, 0.5 * rate) for nodes, gpus, rate in PROFILE.points))
    assert measured_pace(slower, jobs) == 1.0  # trainers are paced by it, so that is an error of measurement
    assert measured_pace(PROFILE, [(replace(job, finished_at=None), steps) for job, steps in jobs]) == 1.0


def test_measured_costs() -> None:
    real = story(*JOBS)
    assert with_measured_costs(replace(PROFILE, startup_s=99.0), real.jobs).startup_s == 10.0
    assert with_measured_costs(PROFILE, real.jobs).save_s == PROFILE.save_s  # none was seen
    assert len(decisions(real)) == 6
