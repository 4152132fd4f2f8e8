"""The metric that a trainer reports, from its call or from its output to the daemon; with real processes."""

import sys
from pathlib import Path

import pytest

from hpcdl.agent.supervisor.output import ProgressReader
from hpcdl.agent.supervisor.packets import MalformedPacket, ProgressPacket, encode, parse
from hpcdl.agent.supervisor_link import LatestProgress as Newest
from hpcdl.agent.supervisor_link import Names
from tests.agent.daemon import Agents, Daemon
from tests.agent.start_requests import begin
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

MEASURES = """
import sys, time
import hpcdl.trainer as hpcdl

hpcdl.attach()
hpcdl.ready(0)
step = 0
while step < 30:
    step += 1
    hpcdl.progress(step, total=1000)
    if step % 10 == 0:
        hpcdl.progress(step, total=1000, metric=step / 100, samples=step)
        hpcdl.progress(step, total=1000, metric=float("nan"))
    time.sleep(0.02)
while True:
    hpcdl.progress(step, total=1000)  # what was not sent at once goes with these
    if hpcdl.should_suspend():
        hpcdl.exit_suspended()
    time.sleep(0.02)
"""

PRINTS = """
import time
for step in range(1, 4):
    print(f"step {step} loss 1.0", flush=True)
print("val_acc: 0.75", flush=True)
time.sleep(600)
"""


def metrics(daemon: Daemon) -> list[tuple[int, float]]:
    return [(each.step, each.metric) for each in daemon.of("Progressed", 1) if each.metric is not None]


def test_a_trainer_tells_its_metric(daemon: Daemon, agents: Agents, tmp_path: Path) -> None:
    script = tmp_path / "measures.py"
    script.write_text(MEASURES)
    agents.start()
    begin(daemon, command=(sys.executable, str(script)))
    until(lambda: metrics(daemon) and metrics(daemon)[-1] == (30, 0.3), "the newest metric")
    told = metrics(daemon)
    assert told == sorted(set(told))  # none twice
    assert {metric for _, metric in told} <= {0.1, 0.2, 0.3}
    daemon.ask("end", 1, grace_s=0.0)
    daemon.wait("GpusFreed", 1)
    assert metrics(daemon) == told


def test_a_metric_is_read_from_the_output(daemon: Daemon, agents: Agents, tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    agents.start()
    regex = r"step (?P<step>\d+)|val_acc: (?P<metric>[\d.]+)"
    begin(daemon, command=(sys.executable, str(script)), progress_regex=regex)
    until(lambda: metrics(daemon), "the metric")
    assert metrics(daemon) == [(3, 0.75)]
    daemon.ask("end", 1, grace_s=0.0)
    daemon.wait("GpusFreed", 1)


def test_lines_with_a_metric() -> None:
    notes: list[str] = []
    reader = ProgressReader(r"step (?P<step>\d+)|acc (?P<metric>\S+)", 50, notes.append)
    assert reader.feed(b"acc 0.1\n") is None  # of which step?
    assert reader.feed(b"step 1\nstep 2\n") == ProgressPacket(2, 50, None)
    assert reader.feed(b"step 3\nacc 0.5\nstep 4\nacc none\n") == ProgressPacket(4, 50, None, 0.5)
    assert reader.feed(b"acc nan\nacc 1e999\n") == ProgressPacket(4, 50, None, metrics={"metric": None})
    assert reader.feed(b"acc 0.6\nacc 0.7\n") == ProgressPacket(4, 50, None, 0.7)
    assert notes == []


def test_what_is_no_metric_is_no_packet() -> None:
    assert parse(encode("progress", step=1, metric=2)) == ProgressPacket(1, None, None, 2.0)
    for wrong in ("0.5", True, float("nan"), float("inf")):
        with pytest.raises(MalformedPacket):
            parse(encode("progress", step=1, metric=wrong))


def test_a_metric_is_told_once() -> None:
    newest, names = Newest(), Names(job=1, incarnation=1, membership=1, node="n1")

    def told(**packet: object) -> tuple[int, float | None] | None:
        newest.take({"type": "progress", **packet})
        event = newest.report(names)
        return None if event is None else (event.step, event.metric)

    assert told(step=5) == (5, None)
    assert told(step=7, metric=0.5, metric_step=6) == (7, 0.5)
    assert told(step=8, metric=0.5, metric_step=6) == (8, None)
    assert told(step=8, metric=0.5, metric_step=6) is None
    assert told(step=8, metric=0.6, metric_step=8) == (8, 0.6)
    newest.take({"type": "progress", "step": 9, "metric": 0.7, "metric_step": 9})
    newest.reached(12)  # a checkpoint says a later step
    event = newest.report(names)
    assert event is not None
    assert (event.step, event.metric) == (12, 0.7)
