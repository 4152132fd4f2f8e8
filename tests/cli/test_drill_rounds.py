"""What one round of a drill is read to be, from the job's events."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdl.cli import drill_rounds
from hpcdl.cli.drill_rounds import BETWEEN, SAVE, SUSPEND, DrillRound


def event(at: float, kind: str, incarnation: int = 1, **body: Any) -> dict[str, Any]:
    return {"seq": int(at * 1000), "at": at, "kind": kind, "body": {"job": 7, "incarnation": incarnation, **body}}


def again(at: float, incarnation: int, step: int) -> list[dict[str, Any]]:
    """It is started again at that time, and trains."""
    return [
        event(at, "StartRequested", incarnation, placement={"shares": []}),
        event(at + 0.1, "Started", incarnation),
        event(at + 1.0, "TrainerReady", incarnation, step=step),
        event(at + 1.05, "Progressed", incarnation, step=step + 1),
    ]


ASKED = [event(9.0, "PreemptRequested"), event(10.0, "SuspendRequested", purpose="preempt")]
KILLED = event(20.0, "Exited", signal="SIGKILL", hint="preempted", step=60, detail="killed by a preemption test")
FREED = event(20.5, "GpusFreed")
ENDED = event(20.5, "IncarnationEnded", cause="preempted", reached=60, step=40)


def test_a_preemption() -> None:
    events = [
        *ASKED,
        event(10.1, "Progressed", step=41),
        event(10.5, "Saved", step=42, final=False),
        event(10.6, "Saved", step=42, final=True),
        event(11.0, "Exited", code=0, ended_by="suspend", step=42),
        event(11.25, "GpusFreed"),
        event(11.25, "IncarnationEnded", cause="suspended", reached=42, step=42),
        *again(13.0, 2, 42),
    ]
    for upto in range(len(events)):
        assert not drill_rounds.read(SUSPEND, events[:upto], 40).over
    found = drill_rounds.read(SUSPEND, events, 40)
    assert found.over
    assert not found.torn
    assert found.row == {
        "what": "suspend", "incarnation": 1, "save_s": 0.5, "exit_s": 0.5, "free_s": 0.25, "suspend_s": 1.25,
        "resume_s": 1.0, "first_step_s": pytest.approx(0.05), "durable_step": 42, "reached_step": 42,
        "resumed_step": 42, "lost_steps": 0, "in_a_save": False, "problem": "",
    }  # fmt: skip
    assert drill_rounds.grace_needed_s([found], 0.25) == pytest.approx(1.5 * 1.0 + 0.25 + 1.0, abs=0.1)


@pytest.mark.parametrize(
    ("durable", "resumed", "told", "torn", "lost", "problem"),
    [
        (40, 40, False, True, 20, ""),
        (None, 0, False, True, 60, ""),
        (40, 60, False, False, 0, ""),  # durable, and killed before it said so
        (40, 60, True, False, 0, ""),  # the kill came too late
        (40, 20, False, True, 40, "it went on at step 20, though step 40 was in a durable checkpoint"),
        (40, 0, True, True, 60, "it went on at step 0, though step 60 was in a durable checkpoint"),
        (40, 80, False, True, 0, "it went on at step 80, though it had only come to 60"),
    ],
)
def test_a_kill_in_a_save(durable: int | None, resumed: int, told: bool, torn: bool, lost: int, problem: str) -> None:
    saved = [event(19.9, "Saved", step=60, final=False)] if told else []
    found = drill_rounds.read(SAVE, [*saved, KILLED, FREED, ENDED, *again(21.0, 2, resumed)], durable, 1)
    assert (found.killed, found.lost, found.reached, found.resumed) == (True, lost, 60, resumed)
    if not (told and torn):
        assert found.torn is torn
    assert found.problem.startswith(problem)
    assert bool(found.problem) is bool(problem)
    assert found.row["suspend_s"] is None


def test_a_job_of_several_nodes_whose_rest_follows() -> None:
    other = event(25.0, "Exited", node="n2", signal="SIGTERM", ended_by="end", step=None)
    found = drill_rounds.read(SAVE, [KILLED, FREED, other, event(26.0, "GpusFreed"), ENDED, *again(27.0, 2, 40)], 40, 1)
    assert (found.killed, found.exited, found.freed, found.lost, found.problem) == (True, 25.0, 26.0, 20, "")


def test_a_warm_start_that_waited_and_one_that_failed() -> None:
    """They are other incarnations, which say nothing of this one."""
    events = [
        *ASKED,
        event(10.0, "StartRequested", 2, placement=None),
        event(10.2, "Exited", 2, code=1),
        event(10.3, "IncarnationEnded", 2, cause="user error"),
        event(10.5, "Saved", step=42, final=True),
        event(11.0, "Exited", code=0, ended_by="suspend", step=42),
        event(11.1, "StartRequested", 3, placement=None),
        event(11.2, "GpusFreed"),
        event(11.3, "OpenRequested", 3, placement={"shares": []}),
        event(11.4, "TrainerReady", 3, step=42),
        event(11.5, "Progressed", 3, step=43),
    ]
    found = drill_rounds.read(SUSPEND, events, 40)
    assert (found.incarnation, found.next, found.problem, found.row["resume_s"]) == (1, 3, "", pytest.approx(0.1))


def test_ranks_that_go_on_without_the_killed_node() -> None:
    events = [KILLED, FREED, event(22.0, "Reformed", step=58), event(22.5, "Progressed", step=59)]
    found = drill_rounds.read(BETWEEN, events, 40, 1)
    assert (found.over, found.lost, found.problem) == (True, 2, "")
    events[2] = event(22.0, "Reformed", step=63)  # they had come further than was told
    assert drill_rounds.read(BETWEEN, [event(21.0, "Broken", step=62), *events], 40, 1).problem == ""
    saved = event(19.0, "Saved", step=40, final=False)
    assert drill_rounds.last_durable([saved, *events]) == 40
    assert drill_rounds.only_in_memory([saved, *events])
    assert not drill_rounds.only_in_memory([saved, *events, event(23.0, "Saved", step=80, final=False)])
    assert not drill_rounds.only_in_memory([event(0.0, "Reformed", step=0), saved])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            [
                *again(21.0, 2, 40)[:2],
                event(30.0, "IncarnationEnded", 2, cause="user error", detail="exit code 1: bad"),
            ],
            "it was started again and ended before its first step: user error, exit code 1: bad",
        ),
        ([event(21.0, "JobEnded", state="FAILED", detail="exit code 1")], "job 7 is FAILED: exit code 1"),
        ([event(21.0, "JobEnded", state="DONE", detail="")], "job 7 is DONE"),
    ],
)
def test_what_never_trains_again(more: list[dict[str, Any]], problem: str) -> None:
    found = drill_rounds.read(SAVE, [KILLED, FREED, ENDED, *more], 40, 1)
    assert (found.over, found.problem, found.lost) == (True, problem, None)


def test_intervals_are_those_of_saves_that_nobody_asked_for() -> None:
    events = [
        event(1.0, "TrainerReady", step=0),
        event(2.0, "Saved", step=37, final=False),
        event(2.0, "Saved", step=37, final=True),
    ]
    assert drill_rounds.interval(events) is None
    events += [
        event(3.0, "TrainerReady", 2, step=37),
        event(4.0, "Saved", 2, step=40, final=False),
        event(5.0, "Saved", 2, step=60, final=False),
        event(5.1, "Saved", 2, step=60, final=False),
        event(6.0, "Saved", 2, step=90, final=True),
    ]
    assert drill_rounds.interval(events) == 20


def test_from_a_save_that_was_asked_for_to_the_next_is_a_part_of_an_interval() -> None:
    events = [
        event(1.0, "TrainerReady", step=0),
        event(2.0, "Saved", step=67, final=True),
        event(3.0, "TrainerReady", 2, step=67),
        event(4.0, "Saved", 2, step=200, final=False),
    ]
    assert drill_rounds.interval(events) == 133
    cut = DrillRound(SAVE, 2, 3, 200, reached=400, resumed=200, killed=True)
    assert drill_rounds.allowed_loss(events, [cut]) == 200
    events += [event(5.0, "TrainerReady", 3, step=200), event(6.0, "Saved", 3, step=400, final=False)]
    assert drill_rounds.interval(events) == 200
    twice = DrillRound(SAVE, 3, 4, 400, reached=800, resumed=400, killed=True)
    assert drill_rounds.allowed_loss(events, [cut, twice]) == 200  # a save at 600 was missing
    assert drill_rounds.allowed_loss(events[:2], []) is None


def test_a_step_takes_what_the_slowest_stretch_says() -> None:
    events = [*again(0.0, 1, 0), event(3.05, "Progressed", step=5), event(4.05, "Progressed", step=15)]
    assert drill_rounds.step_s(events) == pytest.approx(0.5)
    assert drill_rounds.step_s([]) == 0.0


def test_nothing_is_said_of_what_was_not_seen() -> None:
    assert drill_rounds.grace_needed_s([DrillRound(SAVE, killed=True, asked=1.0, exited=9.0)], 0.1) is None
    assert drill_rounds.middle([], "save_s") is drill_rounds.largest([], "save_s") is None
    assert drill_rounds.middle([{"save_s": 1.0}, {"save_s": None}, {"save_s": 3.0}], "save_s") == 2.0
