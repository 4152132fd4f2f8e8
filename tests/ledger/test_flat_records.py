"""Jobs and incarnations as they were stored first, with all of their fields beside each other."""

from dataclasses import dataclass

import pytest

from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.incarnation import (
    Cause,
    DurableCheckpoint,
    Incarnation,
    IncarnationState,
    InPlaceRescale,
    Part,
    Placement,
    Purpose,
    Share,
    Stall,
    StopRequest,
    TrainingProgress,
    TrainingStart,
)
from hpcdl.core.model.job import Drill, JobSpec
from hpcdl.core.model.world import (
    DrillRecord,
    FailureHistory,
    Job,
    JobEnd,
    JobProgress,
    JobState,
    LastAttempt,
    MeasuredCosts,
    Verdict,
)
from hpcdl.ledger.flat_records import flat_job, nested_incarnation, nested_job

PLAIN = {"number": 2, "state": "SAVING", "parts": [{"node": "n1"}], "placement": None}
HELD = Placement((Share("n1", (0,)),))
BARE = Incarnation(2, IncarnationState.SAVING, (Part("n1"),), None)
FLAT = {
    "begun_at": 2.0, "startup_s": 1.5, "ready_at": 3.0, "ready_step": 40, "progressed_at": 9.0, "progressed_step": 60,
    "saved_step": 50, "saved_final": True, "stalled_at": 10.0, "stalled_what": "no step", "stalled_restart": True,
    "asked_at": 11.0, "purpose": "hold", "ending": "stalled", "ending_detail": "no step for 1 s",
    "reformed_at": 4.0, "reform_s": 0.5,
}  # fmt: skip
FULL = {
    "training_start": TrainingStart(2.0, 1.5),
    "progress": TrainingProgress(3.0, 40, 9.0, 60),
    "checkpoint": DurableCheckpoint(50, final=True),
    "stall": Stall(10.0, "no step", restart=True),
    "stop": StopRequest(11.0, Purpose.HOLD, Cause.STALLED, "no step for 1 s"),
    "last_rescale": InPlaceRescale(4.0, 0.5),
}

SPEC = JobSpec(("train",), "j")
NEW = Job(7, SPEC, 1.0)
FLAT_JOB = {
    "outcome": "FAILED", "finished_at": 9.0, "step": 60, "total": 100, "saved_step": 50, "accuracy": [[60, 0.5]],
    "failures": 3, "retries_used": 2, "repeats": 1, "last_failure": "x", "retry_at": 4.0, "last_cause": "user error",
    "last_detail": "exit code 1", "exit_code": 1, "last": to_json(HELD), "startup_s": 1.5, "last_save_s": 0.5,
    "final": "FAILED", "final_detail": "exit code 1", "drill": to_json(Drill(passed=True)), "drilled_at": 3.0,
}  # fmt: skip
ENDED = Job(
    7,
    SPEC,
    1.0,
    end=JobEnd(JobState.FAILED, 9.0),
    verdict=Verdict(JobState.FAILED, "exit code 1"),
    progress=JobProgress(60, 100, 50, ((60, 0.5),)),
    failures=FailureHistory(3, 2, 1, "x", 4.0),
    last=LastAttempt(Cause.USER_ERROR, "exit code 1", 1, HELD),
    costs=MeasuredCosts(1.5, 0.5),
    drill=DrillRecord(Drill(passed=True), 3.0),
)


@dataclass(frozen=True)
class Required:
    """The fields that every row has."""

    id: int
    spec: JobSpec
    submitted_at: float


SPEC_ONLY = Required(7, SPEC, 1.0)


def test_every_value_of_an_incarnation_is_made_of_its_flat_fields() -> None:
    found = from_json(Incarnation, nested_incarnation(PLAIN | FLAT))
    assert {name: getattr(found, name) for name in FULL} == FULL


@pytest.mark.parametrize("flat", [{}, {name: None if name.endswith("_at") else value for name, value in FLAT.items()}])
def test_there_is_none_without_its_first_field(flat: dict[str, object]) -> None:
    found = from_json(Incarnation, nested_incarnation(PLAIN | flat | {"saved_step": None}))
    assert found == BARE


def test_every_value_of_a_job_is_made_of_its_flat_fields() -> None:
    flat = flat_job(to_json(ENDED))
    assert flat == {**flat_job(to_json(NEW)), **FLAT_JOB}, "and no other field differs from those of a new job"
    assert from_json(Job, nested_job(flat)) == ENDED
    assert from_json(Job, nested_job(to_json(SPEC_ONLY) | FLAT_JOB)) == ENDED, "what is so by default is left out"


def test_a_new_job_has_no_value_that_comes_later() -> None:
    assert from_json(Job, nested_job(flat_job(to_json(NEW)))) == NEW
    assert from_json(Job, nested_job(to_json(SPEC_ONLY))) == NEW
