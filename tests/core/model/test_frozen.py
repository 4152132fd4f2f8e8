"""Copies of frozen values with some fields changed."""

from copy import copy
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from hpcdl.core.model.frozen import changed, unchecked
from hpcdl.core.model.incarnation import Incarnation, IncarnationState, Part, Share
from hpcdl.core.model.world import World


def test_is_what_replace_gives() -> None:
    part = Part("n1", (0, 1), address="a")
    found = changed(part, code=1, exited=True)
    assert type(found) is Part
    assert found == replace(part, code=1, exited=True)
    assert hash(found) == hash(replace(part, code=1, exited=True))
    assert repr(found) == repr(replace(part, code=1, exited=True))
    assert part == Part("n1", (0, 1), address="a")


def test_copies_are_frozen() -> None:
    incarnation = changed(Incarnation(1, IncarnationState.RUNNING, (), None), membership=2)
    with pytest.raises(FrozenInstanceError):
        incarnation.membership = 3  # type: ignore[misc]
    assert incarnation.membership == 2


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="Part has no field 'cod'"):
        changed(Part("n1"), cod=1)


def test_values_that_check_themselves_are_refused() -> None:
    share = Share("n1", (0, 1))
    with pytest.raises(TypeError, match=r"Share checks its values: use dataclasses\.replace"):
        changed(share, gpus=(2,))
    assert unchecked(share, gpus=(2,)) == Share("n1", (2,))


def test_too_few_fields_are_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class One:
        only: int = 0

    with pytest.raises(TypeError, match="One has too few fields"):
        changed(One(), only=1)


def test_a_copied_world_shares_what_is_in_it() -> None:
    world = World(seq=3)
    found = copy(world)
    assert type(found) is World
    assert found == world
    assert found.jobs is world.jobs
    assert found.live is world.live
    found.seq = 4
    assert world.seq == 3
