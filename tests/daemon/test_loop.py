"""The controller's thread: answers after the commit, one bad command harms no other, a lost lease ends it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError, LeaseLost, MemoryJournal, Stamped
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import CommandRefused, Request
from hpcdl.core.model.events import Recorded
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Policies, Profiles
from hpcdl.core.model.world import GpuInfo, World
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.loop import RETRY_S, ControllerLoop
from hpcdl.marble import POLICIES

SPEC = JobSpec(("true",), "job")


class Journal(MemoryJournal):
    """Fails when told to."""

    error: JournalError | None = None

    def append(
        self, events: Sequence[Stamped], requests: Sequence[Request] = (), settled: Sequence[int] = ()
    ) -> tuple[list[Recorded], list[Request]]:
        if self.error is not None:
            raise self.error
        return super().append(events, requests, settled)


class Running:
    """A loop with what it told."""

    def __init__(self) -> None:
        self.journal = Journal()
        policies = Policies()
        policies.add(*POLICIES)
        self.controller = Controller(self.journal, policies, Profiles({}))
        self.worlds: list[World] = []
        self.requests: Future[list[Request]] = Future()
        self.lost: Future[str] = Future()
        self.loop = ControllerLoop(
            self.controller, WallClock(0.0), 0.005, self.worlds.append, self._on_requests, self.lost.set_result
        )
        self.loop.start()

    def _on_requests(self, requests: list[Request]) -> None:
        if not self.requests.done():
            self.requests.set_result(requests)

    def ask(self, command: cmd.Command) -> Any:
        return self.loop.send(command).result(60)


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    running.loop.stop()


def inventory(node: str = "n1", gpus: int = 2) -> cmd.Inventory:
    infos = tuple(GpuInfo(index, f"{node}-{index}") for index in range(gpus))
    return cmd.Inventory(node, infos, 8, 1000, 1, "boot", "log", True)


def test_a_submit_is_answered_after_its_commit_and_decided_after_that(running: Running) -> None:
    running.ask(inventory())
    assert running.ask(cmd.Submit((SPEC,), "r")) == (1,)
    assert running.journal.records[-1].event.kind in {"JobSubmitted", "PlanAdopted", "StartRequested"}
    requests = running.requests.result(60)
    assert [(request.kind, request.node, request.job) for request in requests] == [("start", "n1", 1)]
    assert running.worlds[-1].jobs[1].running is not None


def test_a_refused_command_harms_no_other(running: Running) -> None:
    futures = [running.loop.send(cmd.Cancel(99)), running.loop.send(cmd.Submit((SPEC,), "r"))]
    with pytest.raises(CommandRefused, match="no job 99"):
        futures[0].result(60)
    assert futures[1].result(60) == (1,)


def test_a_command_that_breaks_harms_no_other(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def block(controller: Controller) -> None:
        hold.result(60)

    hold: Future[None] = Future()
    running.loop.call(block)  # the next three arrive together
    futures = [
        running.loop.send(cmd.Submit((SPEC,), "a")),
        running.loop.send(object()),  # type: ignore[arg-type]
        running.loop.send(cmd.Submit((SPEC,), "b")),
    ]
    hold.set_result(None)
    with pytest.raises(TypeError, match="no such command"):
        futures[1].result(60)
    assert [futures[0].result(60), futures[2].result(60)] == [(1,), (2,)]


def test_a_commit_that_fails_acknowledges_nothing_and_the_next_one_works(running: Running) -> None:
    running.journal.error = JournalError("the disk is full")
    with pytest.raises(JournalError, match="full"):
        running.ask(cmd.Submit((SPEC,), "r"))
    assert running.loop.world.jobs == {}
    running.journal.error = None
    assert running.ask(cmd.Submit((SPEC,), "r")) == (1,)


def test_a_decision_that_was_not_recorded_is_taken_again(running: Running) -> None:
    running.ask(inventory())
    failed: Future[None] = Future()
    append: Callable[..., Any] = running.journal.append

    def refuse_plans(events: Sequence[Stamped], *rest: Any) -> Any:
        if any(event.kind == "StartRequested" for _, event in events) and not failed.done():
            failed.set_result(None)
            raise JournalError("the disk is full")
        return append(events, *rest)

    running.journal.append = refuse_plans  # type: ignore[method-assign,assignment]
    running.ask(cmd.Submit((SPEC,), "r"))
    failed.result(60)
    assert running.requests.result(60)[0].kind == "start"


def test_a_lost_lease_ends_the_loop(running: Running) -> None:
    running.journal.error = LeaseLost("another daemon holds the lease")
    with pytest.raises(LeaseLost):
        running.ask(cmd.Submit((SPEC,), "r"))
    assert "another daemon" in running.lost.result(60)
    with pytest.raises(JournalError):
        running.ask(cmd.Submit((SPEC,), "r"))


def test_a_wake_up_whose_decision_is_not_recorded_is_not_tried_without_a_pause(running: Running) -> None:
    calls: list[float] = []
    twice: Future[None] = Future()

    def fail(now: float) -> list[Request]:
        calls.append(now)
        if len(calls) == 2:
            twice.set_result(None)
        raise JournalError("the disk is full")

    def wake(controller: Controller) -> None:
        controller.decide = fail  # type: ignore[method-assign]
        controller.wake_at = 1.0  # long past

    running.loop.call(wake).result(60)
    twice.result(60)
    assert calls[1] - calls[0] >= 0.9 * RETRY_S
