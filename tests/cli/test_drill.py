"""What `hpcdl drill` concludes from its rounds, and whom it refuses."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from hpcdl.cli import drill
from hpcdl.cli.drill_rounds import BETWEEN, SAVE, SUSPEND, DrillRound
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row
from tests.cli.test_drill_rounds import event

ROW: dict[str, Any] = {"id": 7, "spec": {"grace_s": 2.0}}
SAVED = [event(0.0, "TrainerReady", step=0), event(1.0, "Saved", step=20), event(2.0, "Saved", step=40)]


def suspended() -> DrillRound:
    return DrillRound(SUSPEND, 1, 2, 40, 10.0, 10.5, 11.0, 11.5, 12.0, 13.0, 13.5, 42, 42)


def killed(what: str, durable: int | None, reached: int, resumed: int, **more: Any) -> DrillRound:
    return DrillRound(
        what, 2, 3, durable, reached=reached, resumed=resumed, killed=True, ready=1.0, stepped=2.0, **more
    )


def verdict(*rounds: DrillRound, events: list[Any] = SAVED, every: int | None = None) -> dict[str, Any]:
    conduct = SimpleNamespace(done=list(rounds), every=every, events=events)
    return drill._verdict(conduct, ROW, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kill", "every", "interval"),
    [
        (killed(SAVE, 40, 60, 40), None, 20),
        (killed(SAVE, 40, 60, 40), 20, 20),
        (killed(SAVE, 40, 64, 40), None, 24),  # saves by the clock are not all as far apart
        (killed(BETWEEN, 40, 59, 40), None, 20),
        (killed(SAVE, 40, 60, 60), None, 20),
    ],
)
def test_it_passes(kill: DrillRound, every: int | None, interval: int) -> None:
    found = verdict(suspended(), kill, every=every)
    assert (found["passed"], found["detail"], found["interval_steps"]) == (True, "", interval)
    assert (found["suspend_s"], found["save_s"], found["free_s"], found["resume_s"]) == (1.5, 0.5, 0.5, 1.0)
    assert found["grace_needed_s"] == pytest.approx(2.5)
    assert drill._graces(found) == ["job 7 needs a grace period of 2.5 s and has 2 s: submit it with --grace 2.5"]


@pytest.mark.parametrize(
    ("kill", "every", "why"),
    [
        (killed(SAVE, 40, 80, 40), None, "40 steps were lost, more than the 20 between two checkpoints"),
        (killed(SAVE, 40, 60, 40), 10, "20 steps were lost, more than the 10 between two checkpoints"),
        (killed(BETWEEN, 40, 70, 40), None, "30 steps were lost, more than the 20 between two checkpoints"),
        (killed(SAVE, 40, 60, 20, problem="it went on at step 20"), None, "it went on at step 20"),
    ],
)
def test_it_does_not(kill: DrillRound, every: int | None, why: str) -> None:
    found = verdict(suspended(), kill, every=every)
    assert not found["passed"]
    assert found["detail"].startswith(why)


def test_without_a_save_of_its_own_nothing_bounds_what_a_kill_costs() -> None:
    asked = killed(SAVE, 40, 60, 40, asked=5.0)
    found = verdict(suspended(), asked, events=SAVED[:1])
    assert not found["passed"]
    assert "or tell --every N" in found["detail"]
    assert verdict(suspended(), asked, events=SAVED[:1], every=25)["passed"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"state": "DONE"}, "job 1 is DONE: submit it again, and test it while it runs"),
        ({"state": "QUEUED"}, "job 1 is QUEUED, not training: test it once it runs (hpcdl why 1)"),
        ({"state": "SUSPENDING", "incarnations": [{"ready_at": 1.0, "attached": True}]}, "job 1 is SUSPENDING"),
        ({"state": "RUNNING", "gpus": 1, "spec": {"signal": "none"}}, "job 1 was submitted with --signal none"),
        ({"state": "RUNNING", "incarnations": [{"attached": False}]}, "job 1 has not called hpcdl.attach() so far"),
        (
            {"state": "RUNNING", "spec": {"signal": "SIGUSR1"}, "incarnations": [{"attached": False}]},
            "job 1 saves by a handler of its own (--signal SIGUSR1), and nobody sees when that is durable",
        ),
        ({"state": "RUNNING", "incarnations": [{"attached": True, "ready_at": None}]}, "job 1 is still loading"),
    ],
)
def test_what_cannot_be_drilled(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(drill.NotProven, match=f"^{re.escape(why)}"):
        drill._refuse({**row(1), "spec": {"signal": "hpcdl"}, "incarnations": [], **changed})


def test_a_job_that_waits(hpcdl: Run, fake: FakeDaemon) -> None:
    fake.world.jobs = {1: row(1, state="QUEUED")}
    done = hpcdl("drill", 1, "--json")
    told = "hpcdl: job 1 is QUEUED, not training: test it once it runs (hpcdl why 1)\n"
    assert (done.code, done.out, done.err) == (1, "", told)
