"""What `hpcdl why` says of earlier jobs."""

import pytest

from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import Job, MeasuredCosts, World
from hpcdl.daemon.api.learnt import learnt_of

SPEC = JobSpec(("python", "train.py"), "train.py", user="ann")


def test_it_says_what_starts_and_saves_of_such_jobs_took() -> None:
    jobs = [Job(number, SPEC, 1.0, costs=MeasuredCosts(12.0 * number, 2.0), can_suspend=True) for number in (1, 2, 3)]
    world = World(jobs={job.id: job for job in jobs}, active={1: None, 2: None, 3: None}, next_job=4)
    lines, found = learnt_of(world, Job(4, SPEC, 2.0))
    assert lines[0] == "starts take about 24 s (12 s to 36 s, 3 starts of train.py)"
    assert lines[1].startswith("saves take about 2.0 s (")
    assert found["start"] == {
        "mean": 24.0, "low": 12.0, "high": 36.0, "times": 3, "of": "train.py", "spread": found["start"]["spread"]
    }  # fmt: skip
    assert 0.0 < found["start"]["spread"] < 1.0
    assert found["length"] is None


@pytest.mark.parametrize(
    ("saves", "said"),
    [
        ((0.003,), "saves take under 0.1 s (1 job of train.py)"),
        ((0.003, 0.049), "saves take under 0.1 s (2 jobs of train.py)"),
        ((0.003, 0.25), "saves take about 0.1 s (up to 0.2 s, 2 jobs of train.py)"),
        ((0.06, 0.25), "saves take about 0.2 s (0.1 s to 0.2 s, 2 jobs of train.py)"),
    ],
)
def test_what_takes_hardly_any_time_is_no_0_0_s(saves: tuple[float, ...], said: str) -> None:
    jobs = [Job(number, SPEC, 1.0, costs=MeasuredCosts(None, took)) for number, took in enumerate(saves, 1)]
    world = World(jobs={job.id: job for job in jobs}, active={job.id: None for job in jobs}, next_job=9)
    assert learnt_of(world, Job(9, SPEC, 2.0))[0] == [said]


def test_one_that_never_says_when_it_trains_has_no_starts() -> None:
    """It teaches others none, for it was first seen at some step; and of it, once it has run, others' say nothing."""
    silent = Job(1, SPEC, 1.0, costs=MeasuredCosts(90.0, None), first_start_at=1.0)
    world = World(jobs={1: silent}, active={1: None}, next_job=2)
    assert learnt_of(world, Job(2, SPEC, 2.0))[1]["start"] is None
    says = Job(2, SPEC, 1.0, costs=MeasuredCosts(12.0, None), first_start_at=1.0, can_suspend=True)
    world = World(jobs={1: silent, 2: says}, active={1: None, 2: None}, next_job=3)
    assert learnt_of(world, Job(3, SPEC, 2.0))[0] == ["starts take about 12 s (1 start of train.py)"]
    assert learnt_of(world, silent)[0] == []
    assert learnt_of(world, silent)[1]["start"] is None


def test_it_says_nothing_where_nothing_is_known() -> None:
    assert learnt_of(World(), Job(1, SPEC, 2.0)) == ([], dict.fromkeys(("start", "save", "length", "steps")))
