"""Numbers that a training reports by name: the newest of each, read only when they are sent."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest

from hpcdl.trainer.metrics import MOST, PendingMetrics
from tests.trainer.supervisor import supervisor


class Tensor:
    """As much of one as is used; counts how often its number was read."""

    def __init__(self, value: Any) -> None:
        self.value, self.read, self.graph = value, 0, True

    def detach(self) -> "Tensor":
        other = Tensor(self.value)
        other.graph = False
        return other

    def __float__(self) -> float:
        assert not self.graph, "its graph would stay in memory"
        return float(self.value)


def test_the_newest_of_each_is_sent_once() -> None:
    metrics = PendingMetrics()
    assert not metrics
    metrics.take({"loss": 1.0, "lr": 1e-3})
    metrics.take({"loss": Tensor(0.5), "none": None})
    metrics.take({"train/acc": math.nan, "big": math.inf, "whole": 3})
    assert metrics
    expected = {"loss": 0.5, "lr": 1e-3, "train/acc": None, "big": None, "whole": 3.0}
    assert metrics.numbers() == metrics.numbers() == expected
    metrics.sent()
    assert not metrics
    assert metrics.numbers() == {}


def test_what_is_no_number_is_said_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    metrics = PendingMetrics()
    with caplog.at_level(logging.WARNING, "hpcdl.trainer"):
        for _ in range(3):
            metrics.take({"loss": 1.0, "text": "x", "list": Tensor([1, 2]), "two words": 1.0, "": 2.0})
            assert metrics.numbers() == {"loss": 1.0}
    assert len(caplog.records) == 4
    many = PendingMetrics()
    many.take({f"m{number}": number for number in range(MOST + 5)})
    assert len(many.numbers()) == MOST


SCRIPT = """
import hpcdl.trainer as hpcdl
class Tensor:
    detach = lambda self: 0.5  # PyTorch warns of a float of one that has a graph
hpcdl.attach()
hpcdl.ready(0)
for step in range(1, 201):
    hpcdl.progress(step, 200, loss=1 / step)
    if step == 200:
        hpcdl.progress(step, 200, metric=Tensor(), last=float("inf"))
hpcdl.done(200)
"""


def test_the_last_numbers_come_before_the_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with supervisor(tmp_path / "run", None) as parent:
        child = parent.start([str(script)])
        assert parent.end(child) == 0
        told = parent.of("progress")
        assert told[0]["metrics"] == {"loss": 1.0}
        newest: dict[str, Any] = {}
        for packet in told:
            newest |= packet.get("metrics", {}) | ({"metric": packet["metric"]} if "metric" in packet else {})
        assert newest == {"loss": 1 / 200, "metric": 0.5, "last": None}
        assert told[-1]["step"] == 200
        assert parent.kinds()[-2:] == ["done", "left"]


def test_what_a_script_reports_within_a_loop_keeps_the_loops_total(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import hpcdl.trainer as hpcdl\n"
        "from hpcdl.trainer import session\n"
        "session.PROGRESS_INTERVAL_S = 0.0\n"
        "for step in hpcdl.steps(5, save=lambda folder: None, load=lambda folder: None):\n"
        "    hpcdl.progress(step, loss=1.0)\n"
        "hpcdl.progress(5, 9, loss=1.0)\n"
        "hpcdl.progress(6, loss=1.0)\n"
    )
    with supervisor(tmp_path / "run", None) as parent:
        child = parent.start([str(script)])
        assert parent.end(child) == 0
        told = [(each["step"], each["total"]) for each in parent.of("progress")]
    assert told[0] == (0, None), "before the loop has said it"
    assert {total for step, total in told[1:] if step < 5} == {5}
    assert told[-2:] == [(5, 9), (6, 9)]
