"""The slowdown loop on simulated plants: what a background's duty does to a foreground's steps."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import pytest

from hpcdl.agent.slowdown_loop import BACKOFF_MOST, QUIET_EVERY, SETTLE, WINDOW, SlowdownLoop, clipped_mean
from tests.support.extent import one_of

STEPS = 6000


@dataclass(frozen=True)
class Plant:
    """`slowdown`: of a step at a duty. `alone`: how long the step of that number takes without a background."""

    slowdown: Callable[[float], float]
    alone: Callable[[int], float] = lambda step: 1.0


PLANTS = {
    "weak": Plant(lambda duty: 0.08 * duty),
    "strong": Plant(lambda duty: 0.3 * duty),
    "very strong": Plant(lambda duty: duty),
    "cliff": Plant(lambda duty: 0.4 if duty >= 0.5 else 0.0),
    "low cliff": Plant(lambda duty: 0.15 if duty >= 0.3 else 0.02 * duty),
    "hopeless": Plant(lambda duty: 0.6 if duty else 0.0),
    "nearly hopeless": Plant(lambda duty: 0.15 if duty else 0.0),
    "drift": Plant(lambda duty: 0.3 * duty, lambda step: 1 + 0.15 * step / STEPS),
    "slower phase": Plant(lambda duty: 0.3 * duty, lambda step: 1.0 if step < STEPS / 2 else 1.4),
    "faster phase": Plant(lambda duty: 0.3 * duty, lambda step: 1.0 if step < STEPS / 2 else 0.7),
    "phases": Plant(lambda duty: 0.3 * duty, lambda step: 1.0 if step // 500 % 2 else 1.3),
}
DUTIES = {"weak": (0.5, 0.95), "strong": (0.15, 0.33), "very strong": (0.03, 0.1), "cliff": (0.2, 0.5)}


def run(plant: Plant, seed: int, noise: float, limit: float = 0.1) -> tuple[float, float, float]:
    """Mean slowdown, the share of steps over the limit, and the mean duty."""
    chance, loop = random.Random(seed), SlowdownLoop(limit)
    slowed = alone = duties = 0.0
    over = 0
    for step in range(STEPS):
        duty = loop.duty
        assert 0.0 <= duty <= 1.0
        undisturbed = plant.alone(step) * (1 + chance.gauss(0, noise))
        slowdown = plant.slowdown(duty)
        alone, slowed = alone + undisturbed, slowed + undisturbed * (1 + slowdown)
        duties, over = duties + duty, over + (slowdown > limit)
        assert loop.observe(undisturbed * (1 + slowdown)) == (loop.duty != duty)
    return slowed / alone - 1, over / STEPS, duties / STEPS


@pytest.mark.parametrize("noise", one_of(0.05, 0.02))
@pytest.mark.parametrize("name", PLANTS)
def test_a_foreground_keeps_its_limit(name: str, noise: float) -> None:
    for seed in range(3):
        mean, over, duty = run(PLANTS[name], seed, noise)
        assert mean <= 0.1
        assert over <= 0.07
        low, high = DUTIES.get(name, (0.0, 1.0))
        assert low <= duty <= high


@pytest.mark.parametrize("limit", [0.02, 0.05, 0.3])
def test_another_limit_is_kept(limit: float) -> None:
    mean, over, duty = run(PLANTS["strong"], 1, 0.005, limit)
    assert mean <= limit
    assert over <= 0.07
    assert duty > 0.5 * limit  # of the third that it may have


def test_nobody_runs_before_the_baseline_is_known() -> None:
    loop = SlowdownLoop()
    window(loop, 1.2)
    assert (loop.duty, loop.baseline_s) == (0.0, 1.2)
    for _ in range(WINDOW - 1):
        assert not loop.observe(1.0)
    assert loop.observe(1.0)
    assert (loop.duty > 0, loop.baseline_s) == (True, 1.0)


def test_a_pause_after_twice_the_limit_doubles() -> None:
    loop = SlowdownLoop()
    window(loop, 1.0)
    pauses, quiet = [], 0
    for _ in range(400):
        before = loop.duty
        window(loop, 2.0 if before else 1.0)
        if before and not loop.duty:
            quiet = 0
        quiet += not loop.duty
        if not before and loop.duty:
            pauses.append(quiet)
    doubled = [2**each for each in range(BACKOFF_MOST.bit_length())]
    assert pauses[1 : 1 + len(doubled)] == doubled


def test_it_falls_above_the_limit_and_holds_below() -> None:
    loop = SlowdownLoop()
    window(loop, 1.0, 2)
    first = loop.duty
    window(loop, 1.08)
    assert loop.duty == first
    window(loop, 1.15)
    assert loop.duty == 0.0  # until a quiet window says who did it
    window(loop, 1.0)
    assert loop.duty == pytest.approx(first / 2)
    for _ in range(SETTLE):
        assert not loop.observe(100.0)  # a step that began before the change
    window(loop, 1.0)
    assert loop.duty == pytest.approx(first / 2)
    window(loop, 1.0)
    assert first / 2 < loop.duty < first


def test_a_foreground_that_is_slower_by_itself_costs_its_background_one_window() -> None:
    loop = SlowdownLoop()
    window(loop, 1.0, 2)
    first = loop.duty
    window(loop, 1.5)
    assert loop.duty == 0.0
    window(loop, 1.5)
    assert (loop.duty, loop.baseline_s) == (first, 1.5)


@pytest.mark.parametrize(("noise", "least"), [(0.2, 0.1), (0.5, 0.05)])
def test_steps_that_differ_much_are_judged_by_more_of_them(noise: float, least: float) -> None:
    """The background of such a foreground had 1.8 and 0.4 % of the time before."""
    runs = [run(PLANTS["strong"], seed, noise) for seed in range(5)]
    assert max(mean for mean, _, _ in runs) <= 0.1
    assert sum(duty for _, _, duty in runs) / len(runs) >= least
    assert max(run(PLANTS["hopeless"], seed, noise)[0] for seed in range(3)) <= 0.05


def test_whole_steps_of_a_background_count_in_full() -> None:
    """One step of so many is hit, by all of a background's step: a mean without the longest would not show it."""
    for seed in range(3):
        chance, loop = random.Random(seed), SlowdownLoop()
        lost = 0.0
        for _ in range(STEPS):
            hit = float(chance.random() < loop.duty)
            lost += hit
            loop.observe(1.0 + hit)
        assert 0.03 <= lost / STEPS <= 0.1


def test_quiet_windows_come_again_and_again() -> None:
    loop, quiet = SlowdownLoop(), 0
    window(loop, 1.0, 2)
    for _ in range(10 * QUIET_EVERY):
        window(loop, 1.0)
        quiet += not loop.duty
    assert 5 <= quiet <= 11


def window(loop: SlowdownLoop, step_s: float, number: int = 1) -> None:
    """So many windows of equal steps, and the steps that are ignored before them."""
    for _ in range(number):
        while loop._ignore:
            loop.observe(step_s)
        for _ in range(WINDOW):
            loop.observe(step_s)


def test_one_long_step_counts_for_little() -> None:
    assert clipped_mean([1.0] * 19 + [50.0])[0] == pytest.approx(1.15)
    assert clipped_mean([1.0, 3.0]) == (2.0, 1 / sqrt(2))
