"""For how long a submit may be repeated, and that what is remembered of submits does not grow for ever."""

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.fold.fold import fold
from hpcdl.core.fold.jobs import REMEMBERED, REPEATED_S, ROUND
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.commands import Entry
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import World
from hpcdl.ledger.snapshots import body_of, world_of
from hpcdl.policies import all_policies

SPEC = JobSpec(("train",), "j")
START = 1_000_000.0


@pytest.fixture
def controller() -> Controller:
    return Controller(MemoryJournal(), all_policies(), Profiles())


def submit(controller: Controller, requests: range, at: float) -> list[tuple[int, ...]]:
    return controller.step([cmd.Submit((SPEC,), f"r{number}") for number in requests], at)


def replayed(controller: Controller) -> World:
    journal = controller.journal
    assert isinstance(journal, MemoryJournal)
    return fold(World(), journal.records)


def test_old_submits_are_forgotten_and_new_ones_are_not(controller: Controller) -> None:
    first = submit(controller, range(2 * REMEMBERED), START)
    assert submit(controller, range(2 * REMEMBERED), START + REPEATED_S) == first, "they may still be repeated"
    later = START + REPEATED_S + 1.0
    second = submit(controller, range(10_000, 10_000 + ROUND), later)
    kept = controller.world.request_ids
    # those that came when it was time to look, and since, were not there yet: they do not count as the last ones
    assert REMEMBERED <= len(kept) <= REMEMBERED + ROUND
    assert submit(controller, range(10_000, 10_000 + ROUND), later) == second
    assert "r0" not in kept
    assert kept[f"r{2 * REMEMBERED - 1}"] == first[-1], "one of the last ones, however old"
    (again,) = submit(controller, range(1), later)
    assert again == (3 * REMEMBERED + 1,), "a new job"
    assert replayed(controller) == controller.world


def test_what_is_remembered_is_the_same_after_a_restart(controller: Controller) -> None:
    """Order counts, too: the oldest go first."""
    submit(controller, range(ROUND + 500), START)
    stored = world_of(body_of(controller.world))
    assert list(stored.request_ids.items()) == list(controller.world.request_ids.items())
    journal = controller.journal
    assert isinstance(journal, MemoryJournal)
    seen = len(journal.records)
    submit(controller, range(5_000, 5_000 + 2 * ROUND), START + 2 * REPEATED_S)
    assert fold(stored, journal.records[seen:]) == controller.world == replayed(controller)
    assert len(controller.world.request_ids) <= REMEMBERED + ROUND


def test_a_submit_of_many_is_remembered_as_a_whole(controller: Controller) -> None:
    """Its jobs are more than those between two looks."""
    submit(controller, range(2 * REMEMBERED), START)
    later = START + 2 * REPEATED_S
    many = cmd.Submit((Entry(SPEC, Array(((1, ROUND + 1, 1),))), Entry(SPEC), Entry(SPEC, None, True)), "many")
    (ids,) = controller.step([many], later)
    assert len(ids) == ROUND + 3
    assert controller.step([many], later) == [ids]
    assert controller.world.request_ids["many"] == ids
    assert len(controller.world.request_ids) <= REMEMBERED + 1
    assert replayed(controller) == controller.world
