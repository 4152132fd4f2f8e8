"""Looks at deadlines: bounded in number and time, sure before they are told, and told once over restarts."""

from collections.abc import Iterator
from typing import Any

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as de
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeRules
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo
from hpcdl.core.rules.intake import Settings
from hpcdl.daemon import deadline_watch as looks
from hpcdl.daemon.deadline_watch import PAUSE, SURE_S, DeadlineWatch
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.time_left import measured_rate
from hpcdl.policies import all_policies

NOW = 1_000_000.0
PROFILES = Profiles({"p": Profile("p", ((1, 1, 1.0),), startup_s=10.0)})
GPUS = (GpuInfo(0, "n1-0"),)


class Time:
    """The daemon's, and the monotonic one beside it."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        return self.time


class Daemon:
    """A controller on a journal that outlives it, the thread that calls it, and the watch."""

    def __init__(self) -> None:
        self.clock = Time()
        self.journal = MemoryJournal()
        self.begin()
        self.send(cmd.ChoosePolicy("adaptive"), cmd.ChooseObjective("deadline"))

    def begin(self) -> None:
        controller = Controller(
            self.journal, all_policies(), PROFILES, Settings(notices=NoticeRules(("mailto:me@example.org",)))
        )
        controller.begin(ev.DaemonStarted(controller.world.fence + 1, "0", 1, "host"), self.clock.time)
        self.loop = ControllerLoop(controller, self.clock, 0.0, lambda _: None, lambda _: None, lambda _: None)  # type: ignore[arg-type]
        self.loop.start()
        self.watch = DeadlineWatch(self.loop, PROFILES, monotonic=self.clock.now)

    def call(self) -> None:
        """The agent calls."""
        self.send(cmd.Inventory("n1", GPUS, 8, 1, 1, "boot", "log", False))

    def restart(self) -> None:
        self.loop.stop()
        self.begin()

    def send(self, *commands: cmd.Command) -> list[Any]:
        return [future.result(60) for future in [self.loop.send(each) for each in commands]]

    def submit(self, **more: Any) -> int:
        values = {"command": ("train",), "name": "j", "profile": "p", "steps": 3600, **more}
        ((number,),) = self.send(cmd.Submit((JobSpec(**values),), f"r{self.loop.world.seq}"))
        return int(number)

    def look(self, after_s: float = 0.0) -> None:
        self.clock.time += after_s
        self.settle()
        self.watch.look()
        self.settle()

    def settle(self) -> None:
        """Returns once what was sent is recorded, and decided about, which comes after the first of these answers."""
        for _ in range(2):
            self.loop.call(lambda _: None).result(60)

    def told(self, *kinds: type) -> list[Any]:
        return [each.event for each in self.journal.records if isinstance(each.event, kinds)]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    daemon.call()
    yield daemon
    daemon.loop.stop()


def test_a_slip_is_told_once_it_is_sure_and_not_again_after_a_restart(daemon: Daemon) -> None:
    daemon.submit(deadline=NOW + 5000.0)
    daemon.look()
    (first,) = daemon.told(de.DeadlineForeseen)
    assert (first.meets, first.probability > 0.9, first.ends_at) == (True, True, NOW + 3600.0)
    daemon.send(
        cmd.Submit((JobSpec(("x",), "urgent", priority=9, steps=3600, profile="p", deadline=NOW + 3700.0),), "u")
    )
    daemon.look(1500.0)
    daemon.look(SURE_S / 2)
    assert daemon.told(de.DeadlineSlipped) == [], "not sure yet"
    daemon.look(SURE_S / 2)
    late = daemon.told(de.DeadlineSlipped)
    assert [(each.job, each.probability, each.passed) for each in late] == [(1, 0.0, False)], "it has not begun"
    assert [(each.job, each.meets) for each in daemon.told(de.DeadlineForeseen)] == [(1, True), (2, False)]
    assert [each.about for each in daemon.told(ev.NoticeDue)] == [1]
    daemon.restart()
    daemon.call()
    for _ in range(3):
        daemon.look(SURE_S)
    assert daemon.told(de.DeadlineSlipped) == late
    assert len(daemon.told(ev.NoticeDue)) == 1


def test_a_passed_deadline_is_told_at_once_if_it_was_to_be_met(daemon: Daemon) -> None:
    daemon.submit(deadline=NOW + 5000.0)
    unknown = daemon.submit(deadline=NOW + 5000.0, profile=None)
    daemon.look()
    daemon.restart()  # nobody calls: without GPUs nothing can be foreseen
    daemon.look(4999.0)
    assert daemon.told(de.DeadlineSlipped) == []
    daemon.look(2.0)
    assert [(each.job, each.passed) for each in daemon.told(de.DeadlineSlipped)] == [(1, True)]
    assert unknown not in {each.about for each in daemon.told(ev.NoticeDue)}
    before = daemon.loop.world.seq
    daemon.look(100.0)
    assert daemon.loop.world.seq == before


def test_looks_are_bounded(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def slow(view: Any, numbers: Any, measured: Any) -> dict[int, Any]:
        asked.append(list(numbers))
        daemon.clock.time += 2.0
        return {}

    monkeypatch.setattr("hpcdl.adaptive.forecast.outlooks", slow)
    monkeypatch.setattr(looks, "AT_ONCE", 2)
    daemon.look()
    assert asked == [], "nobody has a deadline"
    for _ in range(3):
        daemon.submit(deadline=NOW + 50_000.0)
    daemon.submit()
    daemon.look()
    daemon.look(2 * PAUSE - 3.0)
    assert asked == [[1, 2]]
    daemon.look(1.0)
    daemon.look(2 * PAUSE)
    assert asked == [[1, 2], [3, 1], [2, 3]]
    daemon.send(cmd.Stop(False))
    daemon.look(1000.0)
    assert len(asked) == 3


def test_the_rate_that_a_job_shows(daemon: Daemon) -> None:
    number = daemon.submit(deadline=NOW + 5000.0)
    daemon.settle()
    assert measured_rate(daemon.loop.world.jobs[number], NOW) is None
    reports = [ev.Started(1, 1, 1, "n1"), ev.Attached(1, 1, 1, "n1"), ev.TrainerReady(1, 1, 1, "n1", step=0)]
    for at, event in enumerate(reports, 1):
        daemon.send(cmd.AgentReport("n1", "log", at, event))
    daemon.clock.time += 100.0
    daemon.send(cmd.AgentReport("n1", "log", 4, ev.Progressed(1, 1, 1, "n1", step=50, total=3600)))
    job = daemon.loop.world.jobs[number]
    assert measured_rate(job, NOW + 110.0) == pytest.approx(0.5)
    assert measured_rate(job, NOW + 260.0) == pytest.approx(0.25), "it stands still"
    daemon.look()
    assert [each.meets for each in daemon.told(de.DeadlineForeseen)] == [], "it is late, and that is not sure yet"
    daemon.look(SURE_S)
    (found,) = daemon.told(de.DeadlineForeseen)
    assert not found.meets
    assert found.probability < 0.01
