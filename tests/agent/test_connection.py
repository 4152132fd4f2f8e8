"""The call to the daemon: when it is made again."""

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest

from hpcdl.agent.connection import STROKE_S, Caller, Connection, until_stroke
from hpcdl.wire.access import NAME

LONG_S = 60.0


def test_a_daemon_that_has_just_started_is_called_at_once(tmp_path: Path) -> None:
    """A pause that has grown ends early when there is another access file: a start waits for its agents."""

    async def pause() -> float:
        connection = Connection(tmp_path, cast(Caller, None))
        (tmp_path / NAME).write_text("old")
        connection._called = connection._written()
        began = time.monotonic()
        pausing = asyncio.create_task(connection._pause(LONG_S))
        await asyncio.sleep(0.15)
        assert not pausing.done()
        (tmp_path / "new").write_text("new")
        (tmp_path / "new").replace(tmp_path / NAME)
        await pausing
        return time.monotonic() - began

    assert asyncio.run(pause()) < LONG_S / 4


def test_a_pause_without_a_new_daemon_lasts(tmp_path: Path) -> None:
    async def pause() -> float:
        connection = Connection(tmp_path, cast(Caller, None))
        began = time.monotonic()
        await connection._pause(0.25)
        return time.monotonic() - began

    assert 0.25 <= asyncio.run(pause()) < LONG_S / 4


@pytest.mark.parametrize("now", [0.0, 1.3, 1_795_400_000.499, 1_795_400_000.0])
@pytest.mark.parametrize("seconds", [1.0, 9.8, 10.0, 3600.0])
def test_what_is_told_at_an_interval_is_told_on_a_stroke(
    monkeypatch: pytest.MonkeyPatch, now: float, seconds: float
) -> None:
    monkeypatch.setattr(time, "time", lambda: now)
    wait = until_stroke(seconds)
    assert seconds - STROKE_S < wait <= seconds
    assert (now + wait) % STROKE_S == pytest.approx(0.0, abs=1e-5) or (now + wait) % STROKE_S > STROKE_S - 1e-5


@pytest.mark.parametrize(("seconds", "expected"), [(-0.1, 0.0), (0.0, 0.0), (0.3, 0.3), (0.99, 0.99)])
def test_short_intervals_are_as_long_as_they_were_set(seconds: float, expected: float) -> None:
    assert until_stroke(seconds) == expected
