"""What `why` tells of jobs comes true as often as it claims: jobs that the bands were not fitted to."""

from benchmarks.eta_calibration import fitted, row, told
from hpcdl.adaptive.eta import CLAIM
from hpcdl.daemon.api.estimates import when
from hpcdl.daemon.queue import LastViews
from tests.support.stage import running


def test_the_bands_hold_as_often_as_they_claim() -> None:
    answers = told("mixed", 42, "off", "adaptive")
    runs = row([each for each in answers if each.state == "running"])
    assert len(answers) > runs["asked"] + 30 > 90
    assert row(answers)["ends"]["within"] >= CLAIM - 0.05
    assert runs["ends"]["within"] >= CLAIM
    assert runs["ends"]["median_error"] < 0.05
    assert row(answers)["ends"]["median_width"] < 2.0, "a band that says nothing would hold always"
    (weights,) = fitted(answers).values()
    assert all(0.0 <= weight < 10.0 for each in weights.values() for side in each.values() for weight in side)


def test_views_that_are_kept_say_the_same_and_an_older_world_is_looked_at_by_itself() -> None:
    stage = running(2, "1")
    views = LastViews()
    older = stage.world
    for _ in range(3):
        stage.run(40.0)
        job = stage.job(1)
        told_now = when(stage.world, job, stage.profiles, stage.now, views)
        assert told_now is not None
        assert told_now == when(stage.world, job, stage.profiles, stage.now)
    assert when(older, older.jobs[1], stage.profiles, stage.now, views) is not None
    assert when(stage.world, stage.job(1), stage.profiles, stage.now, views) is not None
