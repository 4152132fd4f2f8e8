"""Jobs and incarnations of snapshots of format 8, whose fields were all beside each other."""

import pytest

from hpcdl.core.model.frozen import from_json
from hpcdl.core.model.incarnation import (
    Cause,
    DurableCheckpoint,
    Incarnation,
    IncarnationState,
    InPlaceRescale,
    Part,
    Purpose,
    Stall,
    StopRequest,
    TrainingProgress,
    TrainingStart,
)
from hpcdl.ledger.flat_records import nested_incarnation, nested_job

PLAIN = {"number": 2, "state": "SAVING", "parts": [{"node": "n1"}], "placement": None}
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


def test_every_value_of_an_incarnation_is_made_of_its_flat_fields() -> None:
    found = from_json(Incarnation, nested_incarnation(PLAIN | FLAT))
    assert {name: getattr(found, name) for name in FULL} == FULL


@pytest.mark.parametrize("flat", [{}, {name: None if name.endswith("_at") else value for name, value in FLAT.items()}])
def test_there_is_none_without_its_first_field(flat: dict[str, object]) -> None:
    found = from_json(Incarnation, nested_incarnation(PLAIN | flat | {"saved_step": None}))
    assert found == BARE


def test_so_it_is_in_a_job() -> None:
    assert nested_job({"id": 1, "live": [PLAIN | FLAT]})["live"][0]["checkpoint"] == {"step": 50, "final": True}
    assert nested_job({"id": 1})["live"] == []
