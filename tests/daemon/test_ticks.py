"""Ticks go on after an error, and the error is told."""

import threading

from hpcdl.daemon.ticks import Ticks


def test_an_error_is_told_and_the_next_tick_comes() -> None:
    told: list[tuple[str, str]] = []
    calls = 0
    twice = threading.Event()

    def fail() -> None:
        nonlocal calls
        calls += 1
        if calls >= 2:
            twice.set()
        raise RuntimeError("the disk is on fire")

    ticks = Ticks(lambda where, detail: told.append((where, detail)))
    ticks.every(0.05, "looking", fail)
    ticks.start()
    try:
        assert twice.wait(60)
    finally:
        ticks.stop()
    assert told[0] == ("tick looking", "RuntimeError: the disk is on fire")


def test_a_tick_that_takes_long_never_runs_twice_at_a_time() -> None:
    running, most, rounds = 0, 0, 0
    enough = threading.Event()
    lock = threading.Lock()
    hold = threading.Event()

    def slow() -> None:
        nonlocal running, most, rounds
        with lock:
            running += 1
            most = max(most, running)
        hold.wait(0.2)
        with lock:
            running -= 1
            rounds += 1
            if rounds >= 3:
                enough.set()

    ticks = Ticks(lambda where, detail: None)
    ticks.every(0.02, "slow", slow)
    ticks.start()
    try:
        assert enough.wait(60)
    finally:
        ticks.stop()
    assert most == 1
