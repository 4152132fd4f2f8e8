"""The controller's thread survives whoever asks it, and does not outlive its own failure in silence."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hpcdl.controller import Controller
from hpcdl.core import commands as cmd
from hpcdl.core.journal import JournalError, MemoryJournal
from hpcdl.core.plan import Profiles
from hpcdl.core.policy import Policies
from hpcdl.daemon.clock import Clock
from hpcdl.daemon.loop import Loop
from hpcdl.marble import register

PATIENCE_S = 20.0


@dataclass
class Running:
    """A loop, and what it told of its own end."""

    loop: Loop
    lost: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def running() -> Iterator[Running]:
    policies = Policies()
    register(policies)
    controller = Controller(MemoryJournal(), policies, Profiles({}))
    lost: list[str] = []
    ended = threading.Event()

    def tell(why: str) -> None:
        lost.append(why)
        ended.set()

    loop = Loop(controller, Clock(0.0), 0.0, lambda world: None, lambda requests: None, tell)
    loop.start()
    yield Running(loop, lost, ended)
    loop.stop()


def test_who_stops_waiting_does_not_stop_the_controller(running: Running) -> None:
    """A connection that ends cancels what it waits for, in the middle of a commit if need be."""
    busy = threading.Event()
    running.loop.call(lambda controller: busy.wait(PATIENCE_S))
    left = [running.loop.send(cmd.Tick()), running.loop.call(lambda controller: 1)]
    assert [future.cancel() for future in left] == [False, False]
    busy.set()
    assert running.loop.call(lambda controller: 7).result(PATIENCE_S) == 7
    assert left[1].result(PATIENCE_S) == 1


def test_a_controller_that_fails_says_so_and_answers_nobody_any_more(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(running.loop, "_maybe_decide", fail)
    running.loop.call(lambda controller: None)
    assert running.ended.wait(PATIENCE_S)
    assert running.lost == ["the controller failed: broken"]
    assert "the controller failed" in caplog.text
    with pytest.raises(JournalError, match="the daemon is ending"):
        running.loop.send(cmd.Tick()).result(PATIENCE_S)
