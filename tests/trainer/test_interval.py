"""When checkpoints are due."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

import pytest

from hpcdl.trainer import interval, loop, session
from hpcdl.trainer.group.peers import RankAgreement
from hpcdl.trainer.interval import AutoInterval, FixedInterval, best_interval_s
from hpcdl.trainer.session import Session


def spent_s(interval_s: float, cost_s: float, between_s: float, work_s: float) -> float:
    """Simulated: seconds until `work_s` are done, with interruptions at random that lose what was not saved."""
    chance = random.Random(17)
    now, done = 0.0, 0.0
    interruption = chance.expovariate(1 / between_s)
    while done < work_s:
        end = now + interval_s + cost_s
        if interruption < end:
            now = interruption
            interruption = now + chance.expovariate(1 / between_s)
        else:
            now, done = end, done + interval_s
    return now


@pytest.mark.parametrize("cost_s,between_s", [(1, 3600), (30, 3600), (60, 1200), (300, 900)])
def test_no_other_interval_loses_less(cost_s: float, between_s: float) -> None:
    work_s = 1500 * between_s
    best = best_interval_s(cost_s, between_s)
    tried = {factor: spent_s(best * factor, cost_s, between_s, work_s) for factor in (0.25, 0.5, 0.8, 1.25, 2, 4)}
    ours = spent_s(best, cost_s, between_s, work_s)
    assert ours <= 1.01 * min(tried.values())
    assert ours < tried[0.25]
    assert ours < tried[4]


def test_the_formula() -> None:
    assert best_interval_s(2, 3600) == pytest.approx(math.sqrt(2 * 2 * 3600), rel=0.02), (
        "Young's, where saves are short"
    )
    assert best_interval_s(10, 4) == 4
    assert best_interval_s(0, 3600) == 0


@pytest.mark.parametrize("cost_s,between_s", [(1, 3600), (60, 3600), (300, 900)])
def test_it_is_near_the_exact_optimum(cost_s: float, between_s: float) -> None:
    """Of M (exp((t + C) / M) - 1) / t, Daly's expected seconds for a second of work."""

    def slope(t: float) -> float:
        return (t / between_s - 1) * math.exp((t + cost_s) / between_s) + 1

    low, high = 0.0, between_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    assert best_interval_s(cost_s, between_s) == pytest.approx(low, rel=0.005)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


ENVIRON = {"HPCDL_INTERRUPTION_S": "3600", "HPCDL_SAVE_S": "2"}


def due_at(auto: AutoInterval, clock: Clock, last: int, step_s: float, until: int = 10**5) -> int:
    for step in range(last + 1, until):
        clock.now += step_s
        if auto.due(step):
            return step
    raise AssertionError("none was due")


@pytest.mark.parametrize("step_s", [0.02, 1.0, 30.0, 500.0])
def test_it_is_due_when_the_formula_says(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    clock = Clock(monkeypatch)
    auto = AutoInterval("auto", RankAgreement(), ENVIRON)
    auto.begin(40)
    steps = max(1, best_interval_s(2, 3600) / step_s)
    assert due_at(auto, clock, 40, step_s) - 40 == pytest.approx(steps, abs=1.01)
    auto.saved(100, 8.0)  # it took longer than the job's last one
    steps = max(1, best_interval_s(8, 3600) / step_s)
    assert due_at(auto, clock, 100, step_s) - 100 == pytest.approx(steps, abs=1.01)
    auto.saved(200, None)
    assert due_at(auto, clock, 200, step_s) - 200 == pytest.approx(steps, abs=1.01)
    auto.saved(300, 0.001, least_s=1000.0)
    assert due_at(auto, clock, 300, step_s) - 300 == pytest.approx(max(1, 1000 / step_s), abs=1.01)


@pytest.mark.parametrize("first_s", [0.001, 60.0])
def test_first_steps_of_another_length_do_not_mislead_it(monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
    clock = Clock(monkeypatch)
    auto = AutoInterval("auto", RankAgreement(), ENVIRON)
    auto.begin(0)
    clock.now += first_s
    assert not auto.due(1)
    due = due_at(auto, clock, 1, 0.5)
    assert first_s + 0.5 * (due - 1) == pytest.approx(best_interval_s(2, 3600), rel=0.02)


def test_the_users_bound_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    auto = AutoInterval("auto:50", RankAgreement(), ENVIRON)
    auto.begin(7)
    assert due_at(auto, clock, 7, 0.01) == 57
    auto.saved(57, 500.0)
    assert due_at(auto, clock, 57, 0.01) == 107
    auto.saved(107, 0.5)
    assert due_at(auto, clock, 107, 20.0) == 107 + math.ceil(best_interval_s(0.5, 3600) / 20)


def test_ranks_follow_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    said: list[str] = []

    class First(RankAgreement):
        def gather(self, text: str) -> list[str]:
            said.append(text)
            return [text, "?"]

    class Second(RankAgreement):
        def gather(self, text: str) -> list[str]:
            return [said[-1], text]

    first, second = AutoInterval("auto", First(), ENVIRON), AutoInterval("auto", Second(), {"HPCDL_SAVE_S": "900"})
    second.saved(0, 1e6)
    dues = []
    for step in range(1, 1000):
        clock.now += 1.0
        both = [each.due(step) for each in (first, second)]
        assert both[0] == both[1]
        if both[0]:
            dues.append(step)
            first.saved(step, 2.0)
            second.saved(step, 1e6)
    assert len(dues) > 3
    assert len(said) < 60, "they exchange something at few steps only"


@pytest.mark.parametrize("every", ["often", "auto:", "auto:0", "auto:-3", "AUTO", "auto:1.5"])
def test_what_is_no_interval_is_refused(every: str) -> None:
    with pytest.raises(ValueError, match="must be a number of steps, 'auto'"):
        AutoInterval(every, RankAgreement(), {})


def test_the_environment_may_be_wrong() -> None:
    auto = AutoInterval("auto", RankAgreement(), {"HPCDL_INTERRUPTION_S": "nan", "HPCDL_SAVE_S": "soon"})
    assert (auto._between_s, auto._cost_s) == (interval.INTERRUPTION_S, interval.SAVE_S)


def test_a_fixed_one() -> None:
    assert [step for step in range(1, 10) if FixedInterval(3).due(step)] == [3, 6, 9]
    assert not any(FixedInterval(None).due(step) for step in range(1, 10))
    with pytest.raises(ValueError, match="every 0 must be positive"):
        FixedInterval(0)


def test_a_loop_saves_when_it_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(session, "_session", Session({}, 0, tmp_path))
    saves: list[int] = []

    def save(_session: Session, step: int, *rest: object) -> int:
        clock.now += 1.0
        saves.append(step)
        return step

    monkeypatch.setattr(loop, "save_periodically", save)
    list(loop.steps(50, save=lambda folder: None, load=lambda folder: None, every="auto:20"))
    assert saves == [20, 40]
