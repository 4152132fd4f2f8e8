"""Which finished jobs leave the world, when, and what can still be asked of them."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.fold.fold import Draft, fold
from hpcdl.core.fold.jobs import REPEATED_S, ROUND
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.commands import CommandRefused, Entry
from hpcdl.core.model.events import JobsRetired
from hpcdl.core.model.incarnation import Cause, Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeKind, NoticeRules
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.transitions import IllegalEvent
from hpcdl.core.model.world import GpuInfo, JobState, World, beginning_of, last_number, validate
from hpcdl.core.rules.intake import Settings
from hpcdl.core.rules.retention import BATCH, DONE_S, FAILED_S, is_retired, jobs_to_retire
from hpcdl.ledger.snapshots import body_of, world_of
from hpcdl.policies import all_policies

START = 1_000_000.0
WEEK = START + FAILED_S
SPEC = JobSpec(("train",), "j", env=(("A", "b"),))


@pytest.fixture
def controller() -> Controller:
    return Controller(MemoryJournal(), all_policies(), Profiles())


def submit(controller: Controller, *specs: JobSpec | Entry, at: float = START, request: str = "") -> tuple[int, ...]:
    found = controller.step([cmd.Submit(specs, request or f"r{controller.world.next_job}")], at)[0]
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, tuple)
    return found


def end(controller: Controller, *numbers: int, state: JobState = JobState.DONE, at: float = START) -> None:
    """As if they had ended so: what is tested here does not look at how."""
    draft = Draft(controller.world)
    for number in numbers:
        draft.add(ev.JobEnded(number, state), at)
    controller.journal.append(draft.events)
    controller.world = draft.world


def retire(controller: Controller, keep: int = 0, at: float = WEEK) -> int:
    (number,) = controller.step([cmd.Retire(keep)], at)
    assert isinstance(number, int)
    journal = controller.journal
    assert isinstance(journal, MemoryJournal)
    assert fold(World(), journal.records) == controller.world == world_of(body_of(controller.world))
    validate(controller.world)
    return number


def refused(controller: Controller, command: cmd.Command) -> str:
    (answer,) = controller.step([command], WEEK)
    assert isinstance(answer, CommandRefused)
    assert answer.code in ("finished", "after")
    return str(answer)


def test_the_oldest_leave_once_there_are_many(controller: Controller) -> None:
    submit(controller, *[SPEC] * 40)
    end(controller, *range(1, 31))
    assert retire(controller, 30) == 0
    assert retire(controller, 28) == 2, "the share of a tenth that makes it worth the while"
    assert retire(controller, 10) == 18
    world = controller.world
    assert list(world.jobs) == list(range(21, 41))
    assert world.retired == {"DONE": 20}
    assert list(world.active) == list(range(31, 41))
    assert is_retired(world, 20)
    assert not any(is_retired(world, number) for number in (0, -1, 21, 41))
    assert submit(controller, SPEC, at=WEEK) == (41,), "ids go on"


def test_the_event_names_ranges() -> None:
    event = JobsRetired.of((1, 2, 3, 7, 9, 10))
    assert event.ranges == ((1, 3), (7, 7), (9, 10))
    assert list(event.jobs) == [1, 2, 3, 7, 9, 10]
    assert list(JobsRetired.of(()).jobs) == []


def test_not_before_they_are_old(controller: Controller) -> None:
    submit(controller, *[SPEC] * 4)
    end(controller, 1, 2)
    end(controller, 3, state=JobState.FAILED)
    end(controller, 4, state=JobState.CANCELLED)
    assert retire(controller, at=START + DONE_S - 1) == 0
    assert retire(controller, at=START + DONE_S) == 2
    assert list(controller.world.jobs) == [3, 4]
    assert retire(controller, at=START + FAILED_S - 1) == 0
    assert retire(controller, at=START + FAILED_S) == 2
    assert controller.world.retired == {"DONE": 2, "FAILED": 1, "CANCELLED": 1}


def test_few_of_many_are_not_worth_an_event_and_many_go_in_batches(controller: Controller) -> None:
    for _ in range(2):
        submit(controller, *[SPEC] * (BATCH + 100))
    many = 2 * (BATCH + 100)
    end(controller, *range(1, many + 1))
    world = controller.world
    assert jobs_to_retire(world, WEEK, many - 100) == ()
    assert jobs_to_retire(world, WEEK, many - 250) == tuple(range(1, 251))
    assert jobs_to_retire(world, WEEK, 0) == tuple(range(1, BATCH + 1))


def test_one_that_another_waits_for_stays(controller: Controller) -> None:
    submit(controller, SPEC, SPEC, SPEC)
    submit(controller, replace(SPEC, after=(1,)))
    end(controller, 1, 2, 3)
    assert retire(controller) == 2
    assert list(controller.world.jobs) == [1, 4]
    with pytest.raises(IllegalEvent, match="a job waits for job 1"):
        Draft(controller.world).add(JobsRetired.of((1,)), WEEK)
    with pytest.raises(IllegalEvent, match="job 4 is not a finished one"):
        Draft(controller.world).add(JobsRetired.of((4,)), WEEK)
    with pytest.raises(IllegalEvent, match="job 2 is not a finished one"):
        Draft(controller.world).add(JobsRetired.of((2,)), WEEK)
    end(controller, 4)
    assert retire(controller) == 2


def test_an_array_leaves_as_a_whole(controller: Controller) -> None:
    array = Entry(SPEC, Array(((1, 3, 1),)))
    assert submit(controller, array, SPEC, array) == tuple(range(1, 8))
    end(controller, 1, 2, 4, 5, 6, 7)
    assert retire(controller, keep=4) == 4, "the second array, whole, though two would do"
    assert list(controller.world.jobs) == [1, 2, 3]
    end(controller, 3, at=WEEK)
    assert retire(controller, at=WEEK) == 0
    assert retire(controller, at=WEEK + DONE_S) == 3


def test_one_that_a_notice_or_a_request_is_about_stays() -> None:
    settings = Settings(notices=NoticeRules(("mailto:a@b.c",), frozenset({NoticeKind.END})))
    controller = Controller(MemoryJournal(), all_policies(), Profiles(), settings)
    submit(controller, SPEC, SPEC, SPEC)
    controller.step([cmd.Cancel(1)], START)
    end(controller, 2, 3)
    assert [notice.job for notice in controller.world.notices.values()] == [1]
    assert jobs_to_retire(controller.world, WEEK, 0, busy=(2,)) == (3,)
    assert retire(controller) == 2
    controller.step([cmd.NoticesTaken("mailto:a@b.c", tuple(controller.world.notices))], WEEK)
    assert retire(controller) == 1


def test_what_is_said_of_one_that_has_left(controller: Controller) -> None:
    submit(controller, SPEC, SPEC, request="first")
    end(controller, 1)
    end(controller, 2, state=JobState.FAILED)
    assert retire(controller) == 2
    with pytest.raises(
        CommandRefused, match=r"job 1 ended long ago .*hpcdl show 1\): submit this one without waiting for it"
    ):
        submit(controller, replace(SPEC, after=(1,)), at=WEEK)
    verbs: list[Any] = [cmd.Retry(2), cmd.Cancel(2), cmd.Hold(2), cmd.Release(2), cmd.Preempt(2)]
    for command in verbs:
        assert "job 2 ended long ago and is kept as history only (hpcdl show 2): submit it" in refused(
            controller, command
        )
    assert submit(controller, SPEC, SPEC, at=WEEK, request="first") == (1, 2), "a submit that is repeated is known"
    (unknown,) = controller.step([cmd.Cancel(3)], WEEK)
    assert "there is no job 3" in str(unknown)


def test_one_that_waited_for_it_can_only_be_submitted_again(controller: Controller) -> None:
    submit(controller, SPEC)
    submit(controller, replace(SPEC, after=(1,)))
    end(controller, 1)
    end(controller, 2, state=JobState.FAILED, at=WEEK)
    assert retire(controller) == 1
    assert "job 2 waits for a job, and job 1 ended long ago" in refused(controller, cmd.Retry(2))


def test_a_retry_of_dependents_leaves_those_that_are_history(controller: Controller) -> None:
    submit(controller, SPEC)
    submit(controller, *[replace(SPEC, after=(1,))] * 2)
    end(controller, 1, state=JobState.FAILED, at=WEEK)
    end(controller, 2, state=JobState.CANCELLED)
    end(controller, 3, state=JobState.CANCELLED, at=WEEK)
    assert retire(controller) == 1
    (answer,) = controller.step([cmd.Retry(1, with_dependents=True)], WEEK)
    assert answer == cmd.Retried((1, 3), ())


def test_incarnations_and_beginnings_of_a_shared_folder_go_on(controller: Controller) -> None:
    folder = replace(SPEC, checkpoint_dir="/data/run")
    submit(controller, folder)
    draft = Draft(controller.world)
    draft.add(ev.NodeJoined("n1", (GpuInfo(0, "GPU-0"),), 4, 1, log_id="a"), START)
    draft.add(ev.StartRequested(1, 7, ("n1",), Placement((Share("n1", (0,)),))), START)
    draft.add(ev.Exited(1, 7, 1, "n1", code=1), START)
    draft.add(ev.GpusFreed(1, 7, 1, "n1"), START)
    draft.add(ev.IncarnationEnded(1, 7, Cause.USER_ERROR, 0, 0, 1, final=JobState.FAILED), START)
    draft.add(ev.JobEnded(1, JobState.FAILED), START)
    draft.add(ev.JobRetried(1, 3), START)
    draft.add(ev.JobEnded(1, JobState.FAILED), START)
    controller.journal.append(draft.events)
    controller.world = draft.world
    assert retire(controller) == 1
    (second,) = submit(controller, folder, at=WEEK)
    world = controller.world
    assert world.folders == {"/data/run": (7, 3)}
    assert beginning_of(world, world.jobs[second]) == 3
    assert last_number(world, world.jobs[second]) == 7
    (past,) = controller.journal.retired((1,))
    assert (past.last_incarnation, beginning_of(world, past)) == (7, 3)


def test_submits_of_retired_jobs_are_forgotten_in_time(controller: Controller) -> None:
    submits = [cmd.Submit((SPEC,), f"r{number}") for number in range(2 * ROUND)]
    controller.step(submits, START)
    end(controller, *range(1, ROUND + 501))
    while retire(controller):
        pass
    assert len(controller.world.jobs) == ROUND - 500
    later = START + REPEATED_S + 1.0
    controller.step([cmd.Submit((SPEC,), f"s{number}") for number in range(ROUND)], later)
    kept = controller.world.request_ids
    assert ROUND <= len(kept) <= 2 * ROUND
    assert not {"r0", f"r{ROUND - 1}"} & kept.keys()
    assert kept[f"r{2 * ROUND - 1}"] == (2 * ROUND,)


def test_memory_has_them_too(controller: Controller) -> None:
    submit(controller, *[SPEC] * 5)
    end(controller, 1, 3, 5)
    before = dict(controller.world.jobs)
    assert retire(controller) == 3
    journal = controller.journal
    assert journal.retired() == [before[5], before[3], before[1]]
    assert journal.retired(before=5, limit=1) == [before[3]]
    assert journal.retired((1, 2, 5)) == [before[1], before[5]]
