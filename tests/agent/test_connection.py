"""The call to the daemon: when it is made again."""

import asyncio
import time
from pathlib import Path
from typing import cast

from hpcdl.agent.connection import Caller, Connection
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
