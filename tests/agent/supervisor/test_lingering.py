"""When a trainer that said that it is done is taken for one that hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from hpcdl.agent.supervisor import watchdog
from hpcdl.agent.supervisor.packets import AttachPacket
from hpcdl.agent.supervisor.ranks import TrainerProcesses
from hpcdl.agent.supervisor.script_end import Lingering
from hpcdl.agent.supervisor.side_channel import SideChannelClient

PATIENCE_S = 100.0


class Trainer:
    """What is seen of one: its CPU seconds and its output, set by the test."""

    def __init__(self, folder: Path) -> None:
        self.cpu_s = 50.0
        self.log = folder / "log"
        self.log.write_text("")

    def prints(self) -> None:
        with self.log.open("a") as file:
            file.write("evaluated\n")


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    made = Trainer(tmp_path)
    monkeypatch.setattr(watchdog, "cpu_s", lambda root: made.cpu_s)
    return made


def ends_at(lingering: Lingering, until: int, each_second: object = None) -> int | None:
    """The second in which it is over, if it is before `until`."""
    for now in range(until):
        if callable(each_second):
            each_second(now)
        if lingering.over(1, float(now)):
            return now
    return None


def test_only_once_it_said_so(trainer: Trainer) -> None:
    lingering = Lingering(str(trainer.log), PATIENCE_S)
    assert ends_at(lingering, 1000) is None
    lingering.said_done(7, 1000.0, True)
    assert lingering.done
    assert not lingering.over(1, 1000.0)
    assert not lingering.over(1, 1099.0)
    assert lingering.over(1, 1110.0)


def test_the_word_of_a_rank_that_does_not_write_is_not_enough(trainer: Trainer) -> None:
    lingering = Lingering(str(trainer.log), PATIENCE_S)
    lingering.said_done(7, 0.0, False)
    assert not lingering.done
    assert ends_at(lingering, 1000) is None
    lingering.said_done(7, 1000.0, True)
    assert lingering.done
    lingering.trained(8)
    assert not lingering.done


def test_one_that_stands_still(trainer: Trainer) -> None:
    lingering = Lingering(str(trainer.log), PATIENCE_S)
    lingering.said_done(7, 0.0, True)

    def polls(now: int) -> None:
        trainer.cpu_s += 0.01  # 1 % of a CPU: threads that wait with a timeout

    found = ends_at(lingering, 1000, polls)
    assert found is not None
    assert PATIENCE_S <= found <= PATIENCE_S + 10


def test_one_that_computes(trainer: Trainer) -> None:
    lingering = Lingering(str(trainer.log), PATIENCE_S)
    lingering.said_done(7, 0.0, True)

    def computes(now: int) -> None:
        if now % 90 == 0:
            trainer.cpu_s += 2.0

    assert ends_at(lingering, 1000, computes) is None


def test_one_that_prints(trainer: Trainer) -> None:
    lingering = Lingering(str(trainer.log), PATIENCE_S)
    lingering.said_done(7, 0.0, True)
    assert ends_at(lingering, 1000, lambda now: trainer.prints() if now % 80 == 0 else None) is None


def test_the_writer_is_whoever_has_the_lowest_number_though_it_was_killed(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        trainer = TrainerProcesses("tag", folder)
        connection = cast(SideChannelClient, None)
        first = trainer.attach(AttachPacket(os.getpid(), 2, 1, 0), connection)
        assert trainer.writes(first)
        second = trainer.attach(AttachPacket(os.getppid(), 3, 1, 0), connection)
        first.connection = None
        assert trainer.writes(first)
        assert not trainer.writes(second)
    finally:
        os.close(folder)
