"""The step gates of a node: what fails for one part closes no other part's gate."""

import functools
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.agent.colocation import BLIND_S, REPORT_S, Colocation, Foreground
from hpcdl.agent.context import Stage
from hpcdl.agent.gpus import Side
from hpcdl.agent.slowdown_loop import SETTLE, WINDOW, SlowdownLoop
from hpcdl.core.model.job import Sharing
from hpcdl.trainer.step_gate import COUNT, RING, STEPS, SharePage


@dataclass
class Part:
    """A part, as far as its gate needs it."""

    key: tuple[int, int]
    folder: Path
    side: Side
    stage: Stage = Stage.FOLLOWED
    step: int | None = None
    helds: int = 0
    reports: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.share = Sharing("background" if self.side is Side.BACKGROUND else "foreground")

    def held(self) -> None:
        self.helds += 1

    def report_throttle(self, *what: Any) -> None:
        self.reports.append(what)


def add_steps(page: SharePage, number: int, step_s: float) -> None:
    """The foreground makes steps of a known length, as if no test beside this one took the processor."""
    for _ in range(number):
        count = page.words[COUNT]
        newest = page.words[RING + (count - 1) % STEPS] if count else 1
        page.words[RING + count % STEPS] = newest + int(step_s * 1e9)
        page.words[COUNT] += 1


@pytest.mark.parametrize("broken", ["background", "foreground"])
def test_a_part_whose_folder_is_gone_closes_no_other_gate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    parts = {
        (job, 1): Part((job, 1), tmp_path / str(job), Side.BACKGROUND if job > 2 else Side.FOREGROUND)
        for job in (1, 2, 3, 4)
    }
    pairs = (("gpu0", (1, 1), (3, 1)), ("gpu1", (2, 1), (4, 1)))
    site = SimpleNamespace(gpus=SimpleNamespace(pairs=pairs))
    shutil.rmtree(parts[1 if broken == "foreground" else 3, 1].folder)
    node = Colocation(cast(Any, site), cast(Any, parts))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            node.tick(time.monotonic())
    assert parts[4, 1].reports
    assert SharePage(parts[4, 1].folder).duty is not None
    assert not parts[3, 1].reports
    assert parts[3, 1].helds >= 3
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        f"job {1 if broken == 'foreground' else 3}.1"
    ]


def test_a_quiet_window_begins_when_the_background_waits(tmp_path: Path) -> None:
    """Steps beside a background that is still in its own are no baseline, nor those of before its gate was closed."""
    page, loop = SharePage(tmp_path), SlowdownLoop()
    known, steps = Foreground(page, loop, count=0, ended_ns=1), functools.partial(add_steps, page)
    now = time.monotonic()
    for held, step_s in ((False, 0.02), (True, 0.02), (True, 0.01), (True, 0.01)):
        steps(WINDOW, step_s)
        known.look(None, now, held)
    assert loop.baseline_s == pytest.approx(0.01)
    duty = loop.duty
    assert duty > 0
    steps(WINDOW + SETTLE, 0.02)
    steps(WINDOW + SETTLE, 0.012)  # in one look: all of them ended before any gate hears of it
    known.look(None, now, False)
    known.look(None, now, False)
    steps(WINDOW + SETTLE, 0.02)  # it is still in its step
    known.look(None, now, False)
    assert loop.duty == 0.0
    assert loop.baseline_s == pytest.approx(0.01)
    known.look(None, now, True)
    steps(WINDOW + SETTLE, 0.01)
    known.look(None, now, True)
    assert loop.duty == pytest.approx(duty / 2)
    assert loop.slowdown == pytest.approx(1.0)


def test_a_background_that_never_waits_holds_up_no_baseline(tmp_path: Path) -> None:
    page, loop = SharePage(tmp_path), SlowdownLoop()
    known = Foreground(page, loop, count=0, ended_ns=1)
    now = time.monotonic()
    for look in range(4):
        add_steps(page, WINDOW + SETTLE, 0.01)
        known.look(None, now + look * (BLIND_S + 1), False)
    assert loop.baseline_s is not None


def test_a_background_has_what_the_less_tolerant_of_two_bears(tmp_path: Path) -> None:
    parts = {(job, 1): Part((job, 1), tmp_path / str(job), Side.FOREGROUND) for job in (1, 2)}
    parts[3, 1] = Part((3, 1), tmp_path / "3", Side.BACKGROUND)
    site = SimpleNamespace(gpus=SimpleNamespace(pairs=(("gpu0", (1, 1), (3, 1)), ("gpu1", (2, 1), (3, 1)))))
    node = Colocation(cast(Any, site), cast(Any, parts))
    node.tick(time.monotonic())
    for tolerant, strict in (((1, 1), (2, 1)), ((2, 1), (1, 1))):
        node._foregrounds[tolerant].loop.duty = 0.75
        node._foregrounds[strict].loop.duty = 0.25
        node.tick(time.monotonic())
        assert SharePage(parts[3, 1].folder).duty == pytest.approx(0.25)


def test_what_is_reported_is_the_slowdown_of_now(tmp_path: Path) -> None:
    """Found: 27.3 % stood for minutes after that window, while the gate was closed and after it was opened again."""
    parts = {
        (1, 1): Part((1, 1), tmp_path / "1", Side.FOREGROUND),
        (2, 1): Part((2, 1), tmp_path / "2", Side.BACKGROUND),
    }
    node = Colocation(
        cast(Any, SimpleNamespace(gpus=SimpleNamespace(pairs=(("gpu0", (1, 1), (2, 1)),)))), cast(Any, parts)
    )
    now = time.monotonic()
    node.tick(now)
    loop, reports = node._foregrounds[1, 1].loop, parts[2, 1].reports

    def report(beside_s: float, until: Callable[[], bool]) -> Any:
        """What is reported once that holds; a step takes 10 ms alone, and so long beside the background."""
        nonlocal now
        while not until():
            loop.observe(beside_s if loop.duty else 0.01)
        now += REPORT_S
        node._foregrounds[1, 1].stepped_at = now
        node.tick(now)
        return reports[-1]

    assert report(0.013, lambda: loop.slowdown is not None)[3] == pytest.approx(0.3)
    assert report(0.013, lambda: loop.pause > 1)[1:] == (0.0, 0.1, 0.0)  # nothing runs beside it
    assert report(0.013, lambda: not loop.pause)[3] is None  # the gate is open, and nobody knows yet
    assert report(0.0105, lambda: loop.slows is not None)[3] == pytest.approx(0.05, abs=0.01)
