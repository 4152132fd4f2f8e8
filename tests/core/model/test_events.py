"""The catalogue of events, walked: each has one effect, is documented, and is read back as it was written."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from hpcdl.core.fold.effect import EFFECTS, TRANSITIONS, Decision, effect
from hpcdl.core.fold.fold import DICTS
from hpcdl.core.model import events as ev
from hpcdl.core.model.world import World
from tests.support.samples import sample

CATALOGUE = sorted(ev.KINDS.values(), key=lambda kind: kind.__name__)
VOCABULARY = Path(__file__).parents[3] / "docs" / "vocabulary.md"


def test_every_event_has_one_effect() -> None:
    assert EFFECTS.keys() == set(CATALOGUE)
    with pytest.raises(ValueError, match="JobHeld has an effect already"):
        effect(ev.JobHeld)


@pytest.mark.parametrize("kind", CATALOGUE)
def test_an_event_is_read_back_as_it_was_written(kind: type[ev.Event]) -> None:
    event = sample(kind)
    stored = json.loads(json.dumps(ev.encode(event)))
    assert stored.keys() == {field.name for field in structs.fields(event)}
    assert ev.decode(kind.__name__, stored) == event
    assert ev.decode(kind.__name__, stored | {"of a newer version": 1}) == event
    assert event.kind == kind.__name__


@pytest.mark.parametrize("kind", CATALOGUE)
def test_what_is_said_of_an_event(kind: type[ev.Event]) -> None:
    said, event = EFFECTS[kind], sample(kind)
    assert set(said.writes) <= set(DICTS)
    assert isinstance(said.decides(World(), event), Decision)
    of_incarnation = issubclass(kind, ev.IncarnationEvent)
    assert of_incarnation == any(of is kind for _, of in TRANSITIONS), (
        "`during` is said of incarnations, and only of them"
    )
    jobs, nodes = said.jobs(World(), event), said.nodes(World(), event)
    if issubclass(kind, ev.JobEvent):
        assert jobs is not None
        assert 1 in jobs
    assert nodes is None or set(nodes) <= {"x"}
    assert (kind.__doc__ or "").strip()
    assert VOCABULARY.read_text(encoding="utf-8").count(f"\n| `{kind.__name__}` | ") == 1
