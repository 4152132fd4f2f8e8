"""What rows, their cache and `why` say of a job whose loss is not finite any more, also after its end."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import Job, JobEnd, JobProgress, JobState, LastAttempt, World
from hpcdl.daemon.api.job_list import JobList, JobQuery
from hpcdl.daemon.api.rows import RowBuilder

BEFORE = JobProgress(step=100, accuracy=((10, 0.5), (50, 0.25)))
AFTER = JobProgress(step=100, accuracy=((10, 0.5), (90, 0.25)))


def job(progress: JobProgress, state: JobState = JobState.DONE, detail: str = "") -> Job:
    found = Job(1, JobSpec(("train",), "train"), 90.0, progress=progress, end=JobEnd(state, 95.0))
    return replace(found, last=LastAttempt(detail=detail))


def row(found: Job, **since: int) -> dict[str, Any]:
    return RowBuilder(World(), Profiles({}), {}, 100.0, not_finite={1: since} if since else {}).job(found)


@pytest.mark.parametrize(
    ("progress", "since", "metric", "step"),
    [
        (BEFORE, {}, 0.25, None),
        (BEFORE, {"metric": 51}, None, 51),
        (BEFORE, {"loss": 51}, None, 51),  # the metric is from before the loss diverged
        (AFTER, {"val_loss": 51}, 0.25, 51),  # it was measured after that
        (AFTER, {"grad_norm": 51}, 0.25, None),
        (JobProgress(step=100), {"loss": 51}, None, 51),
    ],
)
def test_a_metric_that_is_not_finite_any_more_is_void(
    progress: JobProgress, since: dict[str, int], metric: float | None, step: int | None
) -> None:
    found = row(job(progress), **since)
    assert (found["metric"], found["not_finite_since"]) == (metric, step)


def test_the_note_outlives_the_job() -> None:
    said = "loss is not finite since about step 51"
    assert row(job(BEFORE))["note"] is None
    assert row(job(BEFORE), loss=51)["note"] == said
    failed = row(job(BEFORE, JobState.FAILED, "train.py: user error"), loss=51)
    assert failed["note"].endswith(f"; {said}")
    assert failed["note"].removesuffix(f"; {said}") == row(job(BEFORE, JobState.FAILED, "train.py: user error"))["note"]


@pytest.mark.parametrize(
    ("since", "said"),
    [
        ({"metric": 51, "loss": 51}, "metric and loss are not finite since about step 51"),
        ({"a": 51, "b": 51, "c": 51}, "a, b and c are not finite since about step 51"),
        (dict.fromkeys("abcde", 7), "a, b and 3 more are not finite since about step 7"),
        (
            {"loss": 51, "metric": 60, "val_loss": 51},
            "loss and val_loss are not finite since about step 51; metric is not finite since about step 60",
        ),
    ],
)
def test_the_note_says_it_once_of_all_that_diverged_at_a_step(since: dict[str, int], said: str) -> None:
    assert row(job(BEFORE), **since)["note"] == said


def test_a_kept_row_is_made_again_when_the_loss_diverges() -> None:
    """The last heartbeat may come after the end, and after somebody looked."""
    done, listed, query = job(BEFORE), JobList(), JobQuery.of({"all": "1", "fields": "id,metric,note"})
    metrics = []
    for not_finite in ({}, {1: {"loss": 51}}, {1: {"loss": 51}}, {}):
        rows = RowBuilder(World(jobs={1: done}), Profiles({}), {}, 100.0, not_finite=not_finite)
        metrics.append(json.loads(listed.answer(rows, query))["jobs"][0].get("metric"))
    assert metrics == [0.25, None, None, 0.25]
