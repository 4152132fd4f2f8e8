"""Checkpoints that a thread writes while training goes on."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.trainer import checkpoints, loop, session
from hpcdl.trainer.session import Session

WAIT_S = 60.0


class Training:
    """State that changes while a copy of it is written."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.session = Session({}, 0, directory)
        monkeypatch.setattr(session, "_session", self.session)
        self.value = 0
        self.goes_on = threading.Event()
        self.error: Exception | None = None

    def save(self, folder: Path) -> None:
        (folder / "value").write_text(str(self.value))

    def load(self, folder: Path) -> None:
        self.value = int((folder / "value").read_text())

    def snapshot(self) -> Callable[[Path], None]:
        copy, error = self.value, self.error

        def write(folder: Path) -> None:
            assert self.goes_on.wait(WAIT_S)
            if error is not None:
                raise error
            (folder / "value").write_text(str(copy))

        return write

    def run(self, total: int, suspend_at: int | None = None) -> None:
        for step in loop.steps(total, save=self.save, load=self.load, every=3, snapshot=self.snapshot):
            self.value += 10
            if step + 1 == suspend_at:
                self.session._asked = True
            if step == 4:
                assert self.complete() == [], "the save of step 3 is under way, and training goes on"
                self.goes_on.set()

    def complete(self) -> list[tuple[int, str]]:
        found = checkpoints.complete(self.directory)
        return [(each.step, (each.path / "value").read_text()) for each in found]


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(tmp_path, monkeypatch)


def test_what_is_saved_is_the_state_of_its_step(training: Training) -> None:
    training.run(8)
    assert training.complete() == [(8, "80"), (6, "60")]


def test_a_suspend_waits_for_the_save_under_way(training: Training) -> None:
    with pytest.raises(SystemExit) as ended:
        training.run(8, suspend_at=5)
    assert ended.value.code == 0
    assert training.complete() == [(5, "50"), (3, "30")]


def test_one_that_the_disk_refuses_costs_no_training(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.error = OSError(errno.ENOSPC, "full")
    training.run(8)
    assert training.complete() == [(8, "80")]
    assert "the checkpoint of step 3 failed, training goes on" in caplog.text
    assert "the checkpoint of step 6 failed, training goes on" in caplog.text


def test_what_else_goes_wrong_in_the_thread_is_raised_in_the_loop(training: Training) -> None:
    training.error = ValueError("a mistake in save")
    with pytest.raises(ValueError, match="a mistake in save"):
        training.run(8)
    assert training.complete() == []
