"""The kill that a drill orders: in the middle of a save or between two, once, and never when it is too late."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdl.agent.supervisor import packets
from hpcdl.agent.supervisor.drill import DrillKill
from hpcdl.agent.supervisor.processes import Process
from hpcdl.agent.supervisor_link import Names, exit_of
from hpcdl.core.model.incarnation import Cause
from tests.agent.conftest import ATTACH, Agent

ORDER = packets.DrillPacket("a", saving=True, after_s=2.0, within_s=60.0)


class Nobody:
    """A trainer without a process."""

    living_ranks: tuple[()] = ()

    def processes(self) -> list[Process]:
        return []


def a_drill() -> tuple[DrillKill, list[str]]:
    told: list[str] = []

    def record(kind: str, **body: Any) -> None:
        told.append(f"{kind} {body.get('text', '')}".strip())

    return DrillKill(Nobody(), record), told  # type: ignore[arg-type]


def test_it_comes_a_part_of_the_usual_time_into_the_next_save() -> None:
    drill, told = a_drill()
    drill.saving(1.0)
    drill.order(ORDER, 2.0)
    drill.saved()  # of the save that was under way: when it began is not known
    drill.look(9.0)
    assert (drill.due, told) == (None, [])
    drill.saving(10.0)
    assert drill.due == 12.0
    drill.look(11.9)
    assert not drill.killed
    drill.look(12.0)
    assert drill.killed
    assert told == ["signalled", "note killed by a preemption test, in the middle of a save"]
    drill.order(packets.DrillPacket("b", saving=False, after_s=0.0, within_s=60.0), 13.0)
    assert len(told) == 2


def test_a_save_that_was_quicker_has_the_next_one_hit_sooner() -> None:
    drill, told = a_drill()
    drill.order(ORDER, 0.0)
    dues = []
    for began in (10.0, 20.0, 30.0):
        drill.saving(began)
        assert drill.due is not None
        dues.append(drill.due - began)
        drill.saved()
    assert dues == [2.0, 0.5, 0.125]
    drill.order(ORDER, 31.0)  # comes again on a new connection
    drill.saving(40.0)
    assert drill.due == 40.0 + 0.125 / 4
    assert not told


@pytest.mark.parametrize("way", ["late", "forgotten"])
def test_it_is_forgotten(way: str) -> None:
    drill, told = a_drill()
    drill.order(ORDER, 0.0)
    if way == "forgotten":
        drill.forget()
    drill.saving(60.0 if way == "late" else 1.0)
    drill.look(70.0)
    drill.saving(71.0)
    drill.look(90.0)
    assert (drill.killed, drill.due, told) == (False, None, [])


def test_a_real_trainer_in_the_middle_of_its_save(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
say("ready", step=0)
say("progress", step=3, total=9)
while True:
    say("saving", step=4)
    time.sleep(0.2)
"""
    )
    agent.connect().send("drill", id="x", saving=True, after_s=0.05, within_s=600)
    record = agent.exit()
    assert (record["code"], record["signal"], record["drill"], record["step"], record["oom"]) == (
        None,
        "SIGKILL",
        True,
        4,
        False,
    )
    assert [each["text"] for each in agent.of("note")] == ["killed by a preemption test, in the middle of a save"]
    event = exit_of(record, Names(job=7, incarnation=2, membership=1, node="n1"), None, False)
    assert (event.hint, event.detail, event.ended_by) == (Cause.PREEMPTED, "killed by a preemption test", None)


def test_saves_that_are_too_quick_are_hit_in_the_end(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
for step in range(1, 100000):
    say("saving", step=step)
    time.sleep(0.002)
    saved(step, final=False)
    time.sleep(0.02)
"""
    )
    agent.connect().send("drill", id="x", saving=True, after_s=0.5, within_s=600)
    assert agent.exit()["drill"] is True


def test_between_two_saves_with_all_that_it_started(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
import subprocess
child = subprocess.Popen(["sleep", "600"])
say("ready", step=0)
time.sleep(600)
"""
    )
    client = agent.connect()
    agent.wait("ready")
    client.send("drill", id="x", saving=False, after_s=0, within_s=60)
    record = agent.exit()
    assert (record["signal"], record["drill"]) == ("SIGKILL", True)
    assert len(agent.of("signalled")[0]["pids"]) == 2
