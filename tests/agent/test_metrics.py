"""Metrics of trainers between two heartbeats of their agent."""

import math
import sys
from pathlib import Path

import pytest

from hpcdl.agent.metrics import MOST_WAITING, MetricBuffer
from hpcdl.core.model.series import MOST_NAMES
from hpcdl.wire.messages import HeartbeatMessage, MetricLine, decode_message, encode_message
from tests.agent.daemon import Agents, Daemon
from tests.agent.start_requests import begin
from tests.support.waiting import until

KEY = (7, 2)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_samples_of_a_second_become_one_point() -> None:
    clock = Clock()
    buffer = MetricBuffer(clock)
    for number in range(1, 11):
        buffer.take(KEY, {"loss": [number, float(number)]}, 10.0)
        buffer.take(KEY, {"loss": [number, float(number)]}, 10.0)  # as a supervisor repeats it
        clock.now += 0.2
    (line,) = buffer.hand_over()
    assert (line.job, line.incarnation, line.name) == (7, 2, "loss")
    steps = [(step, low, high, samples) for _, step, _, _, low, high, samples, _ in line.points]
    assert steps[0] == (1, 1.0, 1.0, 1), "the first sample of all stays alone"
    assert sum(samples for *_, samples in steps) == 10
    assert steps[-1][0] == 10
    assert len(steps) < 6
    assert [round(age, 1) for age, *_ in line.points] == sorted(
        (round(age, 1) for age, *_ in line.points), reverse=True
    )
    assert line.points[-1][0] == pytest.approx(0.2)
    assert buffer.hand_over() == ()
    heartbeat = HeartbeatMessage((), (), (), (line,))
    assert decode_message(encode_message(heartbeat)) == heartbeat


def test_it_is_bounded_while_no_daemon_is_there() -> None:
    clock = Clock()
    buffer = MetricBuffer(clock)
    for number in range(5000):
        buffer.take(KEY, {f"m{name}": [number, None if number == 40 else 1.0] for name in range(30)}, 1.0)
        clock.now += 1.0
    lines = buffer.hand_over()
    assert len(lines) == MOST_NAMES
    for line in lines:
        assert len(line.points) <= MOST_WAITING
        assert (sum(point[6] for point in line.points), sum(point[7] for point in line.points)) == (5000, 1)


def test_a_step_that_goes_back_is_a_new_curve_from_there_and_rubbish_is_none() -> None:
    clock = Clock()
    buffer = MetricBuffer(clock)
    for step in (1, 5, 9, 6, 7):
        clock.now += 2.0
        buffer.take(KEY, {"loss": [step, 1.0]}, 10.0)
    rubbish: object
    for rubbish in (None, 3, [], {"loss": 3}, {"loss": [1]}, {"loss": ["a", 1.0]}, {"a b": [1, 1.0]}, {3: [1, 1.0]},
                    {"loss": [-1, 1.0]}, {"loss": [1, "x"]}, {"loss": [True, 1.0]}):  # fmt: skip
        buffer.take(KEY, rubbish, 10.0)
    (line,) = buffer.hand_over()
    assert [point[1] for point in line.points] == [1, 5, 6, 7]
    buffer.forget(KEY)
    assert buffer.hand_over() == ()


SCRIPT = """
import os, sys, time
import hpcdl.trainer as hpcdl
hpcdl.attach()
hpcdl.ready(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for step in range(1, 6):
    hpcdl.progress(step, 5, loss=float("nan") if step == 5 else 1 / step)
hpcdl.done(5)
"""


def test_what_a_trainer_reports_last_comes_with_a_heartbeat(daemon: Daemon, agents: Agents, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    agents.start()
    begin(daemon, command=(sys.executable, str(script), str(tmp_path / "go")))
    daemon.wait("TrainerReady", 1)  # its agent listens
    (tmp_path / "go").touch()

    def lines() -> list[MetricLine]:
        return [line for beat in list(daemon.heartbeats) for line in beat.metrics]

    daemon.wait("GpusFreed", 1)
    until(lambda: any(line.points[-1][1] == 5 for line in lines()), "the last step's loss")
    found = lines()
    assert {(line.job, line.incarnation, line.name) for line in found} == {(1, 1, "loss")}
    points = [point for line in found for point in line.points]
    assert (points[-1][1], points[-1][2], points[-1][7]) == (5, None, 1)
    assert all(math.isfinite(age) and age >= 0 for age, *_ in points)
