"""Time never runs backwards, whatever the machine's clock does."""

import time

import pytest

from hpcdl.daemon.clock import WallClock


def test_it_tells_the_time_of_day() -> None:
    assert abs(WallClock(0.0).now() - time.time()) < 5.0


def test_a_clock_that_was_stepped_back_between_two_daemons_goes_on_from_the_ledger() -> None:
    ahead = time.time() + 3600.0
    clock = WallClock(ahead)
    assert ahead <= clock.now() < ahead + 5.0


def test_a_clock_that_is_stepped_back_while_it_runs_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock(0.0)
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: before - 7200.0)
    assert before <= clock.now() < before + 5.0
