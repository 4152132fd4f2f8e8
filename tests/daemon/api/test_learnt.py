"""What `hpcdl why` says of earlier jobs."""

from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import Job, MeasuredCosts, World
from hpcdl.daemon.api.learnt import learnt_of

SPEC = JobSpec(("python", "train.py"), "train.py", user="ann")


def test_it_says_what_starts_and_saves_of_such_jobs_took() -> None:
    jobs = [Job(number, SPEC, 1.0, costs=MeasuredCosts(12.0 * number, 2.0)) for number in (1, 2, 3)]
    world = World(jobs={job.id: job for job in jobs}, active={1: None, 2: None, 3: None}, next_job=4)
    lines, found = learnt_of(world, Job(4, SPEC, 2.0))
    assert lines[0] == "starts take about 24 s (12 s to 36 s, 3 starts of train.py)"
    assert lines[1].startswith("saves take about 2.0 s (")
    assert found["start"] == {
        "mean": 24.0, "low": 12.0, "high": 36.0, "times": 3, "of": "train.py", "spread": found["start"]["spread"]
    }  # fmt: skip
    assert 0.0 < found["start"]["spread"] < 1.0
    assert found["length"] is None


def test_it_says_nothing_where_nothing_is_known() -> None:
    assert learnt_of(World(), Job(1, SPEC, 2.0)) == ([], dict.fromkeys(("start", "save", "length", "steps")))
