"""What emulated GPUs show of the jobs that hold them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpcdl.agent.emulation import IDLE, Load, TrainingShare, resident_mib, shown
from hpcdl.agent.gpu.device import GpuSample
from hpcdl.agent.supervisor.watchdog import Watchdog
from tests.agent.daemon import Agents, Daemon
from tests.agent.start_requests import begin
from tests.support.waiting import until

FREE = GpuSample("EMU-0", 0, 0, 16384, pids=())
TAKEN = GpuSample("EMU-0", 80, 12000, 16384, pids=(7,))

BUSY = "while True: pass"
ASLEEP = "import time\nwhile True: time.sleep(0.01)"
PAUSES = """
import os, sys, time
import hpcdl.trainer as hpcdl
hpcdl.attach()
hpcdl.ready(0)
step = 0
while True:
    time.sleep(0.02)
    if step < 20 or not os.path.exists(sys.argv[1]):
        step += 1
        hpcdl.progress(step, 100000)
"""


def test_a_trainer_that_tells_steps_trains_between_them() -> None:
    training = TrainingShare(0.0)
    assert training.look(10.0) is None, "it may be one that tells no steps"
    training.began(0, 15.0)
    assert training.look(20.0) == pytest.approx(0.5)
    for at in range(21, 31):
        training.stepped(at, float(at))
    assert training.look(30.0) == pytest.approx(1.0)
    training.stepped(31, 31.0)
    assert training.look(40.0) == pytest.approx(0.1), "it stands"
    assert training.look(50.0) == 0.0
    training.stepped(32, 55.0)
    assert training.look(60.0) == pytest.approx(0.5), "it goes on; where it stood does not count"


def test_long_steps_are_training_too() -> None:
    training = TrainingShare(0.0)
    training.began(0, 0.0)
    training.stepped(1, 45.0)
    training.look(45.0)
    assert [training.look(at) for at in (55.0, 65.0, 75.0)] == [1.0, 1.0, 1.0]
    training.stepped(1, 80.0)
    training.stepped(None, 81.0)
    assert training.look(600.0) == 0.0, "the same step is none"


def test_saving_and_waiting_are_not_training() -> None:
    training = TrainingShare(0.0)
    training.began(0, 0.0)
    training.stepped(1, 2.0)
    training.saved(6.0, False, 8.0)
    training.stepped(2, 10.0)
    assert training.look(10.0) == pytest.approx(0.4)
    training.paused()
    assert training.look(20.0) == 0.0
    training.began(2, 20.0)
    assert training.look(22.0) == pytest.approx(1.0)
    training.saved(1.0, True, 23.0)
    assert training.look(32.0) == 0.0


def test_two_looks_at_once_are_one() -> None:
    training = TrainingShare(0.0)
    training.began(0, 0.0)
    training.stepped(1, 1.0)
    assert training.look(2.0) == 1.0
    training.paused()
    assert training.look(2.0) == 1.0
    assert training.look(3.0) == 0.0


def test_a_gpu_shows_what_its_trainer_said_as_long_as_that_trains() -> None:
    assert shown(TAKEN, None) == TAKEN
    assert shown(TAKEN, Load(None, 0.01, 5)) == TAKEN, "it tells no steps: it knows best"
    half = shown(TAKEN, Load(0.5, None, 5))
    assert (half.util, half.memory_used_mib) == (40, 12000)
    assert shown(TAKEN, IDLE).util == 0


def test_a_gpu_shows_the_processes_where_no_trainer_said_anything() -> None:
    def seen(load: Load) -> tuple[int | None, int | None]:
        sample = shown(FREE, load)
        return sample.util, sample.memory_used_mib

    assert seen(Load(0.75, 3.0, 300)) == (75, 300)
    assert seen(Load(None, 0.3, 300)) == (30, 300)
    assert seen(Load(None, 3.0, 99999)) == (100, 16384)
    assert seen(Load(None, None, None)) == (None, None)
    lost = GpuSample("EMU-0", state="lost", detail="gone")
    assert shown(lost, Load(1.0)) == lost


def test_memory_is_that_of_the_processes() -> None:
    assert resident_mib([os.getpid()]) > 1
    assert resident_mib([os.getpid(), 0, 1 << 30]) > 1
    assert resident_mib([]) == 0


def test_cores_are_known_from_the_second_look_on(monkeypatch: pytest.MonkeyPatch) -> None:
    used = 5.0
    monkeypatch.setattr("hpcdl.agent.supervisor.watchdog.cpu_s", lambda root: used)
    still = Watchdog("", 0.0)
    still.look(1, 10.0)
    assert still.cores is None
    used = 10.0
    still.look(1, 20.0)
    assert still.cores == pytest.approx(0.5)
    still.stood(3600.0)
    assert still.cores is None


def utils(daemon: Daemon) -> list[int | None]:
    until(lambda: daemon.heartbeats, "a heartbeat")
    return [line.util for line in daemon.heartbeats[-1].gpus]


def memories(daemon: Daemon) -> list[int | None]:
    return [line.memory_mib for line in daemon.heartbeats[-1].gpus]


@pytest.mark.timeout(180)
def test_gpus_show_their_jobs_and_nothing_once_these_are_gone(daemon: Daemon, agents: Agents) -> None:
    agents.gpus = 3
    agents.start()
    until(lambda: daemon.heartbeats, "a heartbeat")
    assert utils(daemon) == [0] * agents.gpus
    begin(daemon, steps=100_000, gpus=(0,))
    begin(daemon, 2, gpus=(1,), command=(sys.executable, "-S", "-c", BUSY))
    begin(daemon, 3, gpus=(2,), command=(sys.executable, "-S", "-c", ASLEEP))
    daemon.wait("TrainerReady", 1)
    daemon.wait("Started", 2)
    daemon.wait("Started", 3)
    until(lambda: (utils(daemon)[0] or 0) > 50, "a paced trainer to train")
    until(lambda: (utils(daemon)[1] or 0) > 5, "a busy process to be seen")
    until(lambda: utils(daemon)[2] is not None and (utils(daemon)[2] or 0) < 50, "one that sleeps to be seen")
    until(lambda: all(memories(daemon)[:3]), "their memory")
    for job in (1, 2, 3):
        daemon.ask("end", job, grace_s=5.0)
    for job in (1, 2, 3):
        daemon.wait("GpusFreed", job)
    until(lambda: utils(daemon) == [0] * agents.gpus and not any(memories(daemon)), "GPUs that do nothing")


@pytest.mark.timeout(180)
def test_a_trainer_that_stands_shows_nothing(daemon: Daemon, agents: Agents, tmp_path: Path) -> None:
    pause = tmp_path / "pause"
    agents.start()
    until(lambda: daemon.inventories, "the call")
    begin(daemon, gpus=(0,), command=(sys.executable, "-c", PAUSES, str(pause)))
    until(lambda: (utils(daemon)[0] or 0) > 50, "it to train")
    pause.touch()
    until(lambda: utils(daemon)[0] == 0, "it to stand")
    pause.unlink()
    until(lambda: (utils(daemon)[0] or 0) > 50, "it to train again")
    assert daemon.of("Exited") == []
