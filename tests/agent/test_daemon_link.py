"""The call to the daemon: when it is made again."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.agent.agent import Agent
from hpcdl.agent.daemon_link import DaemonConnection, until_stroke
from hpcdl.core.model.commands import Request
from hpcdl.wire import messages as msg
from hpcdl.wire.access import NAME
from hpcdl.wire.messages import STROKE_S
from tests.support.waiting import until_async

LONG_S = 60.0


def test_a_daemon_that_has_just_started_is_called_at_once(tmp_path: Path) -> None:
    """A pause that has grown ends early when there is another access file: a start waits for its agents."""

    async def pause() -> float:
        connection = DaemonConnection(tmp_path, cast(Agent, None))
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
        connection = DaemonConnection(tmp_path, cast(Agent, None))
        began = time.monotonic()
        await connection._pause(0.25)
        return time.monotonic() - began

    assert 0.25 <= asyncio.run(pause()) < LONG_S / 4


@pytest.mark.parametrize("now", [0.0, 1.3, 7_000.499, 7_000.0])
@pytest.mark.parametrize("seconds", [1.0, 9.8, 10.0, 3600.0])
def test_what_is_told_at_an_interval_is_told_on_a_stroke(
    monkeypatch: pytest.MonkeyPatch, now: float, seconds: float
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stroke_at = now + 0.3
    wait = until_stroke(seconds, stroke_at)
    assert seconds - STROKE_S < wait <= seconds
    strokes = (now + wait - stroke_at) / STROKE_S
    assert strokes == pytest.approx(round(strokes), abs=1e-6)


@pytest.mark.parametrize(("seconds", "expected"), [(-0.1, 0.0), (0.0, 0.0), (0.3, 0.3), (0.99, 0.99)])
def test_short_intervals_are_as_long_as_they_were_set(seconds: float, expected: float) -> None:
    assert until_stroke(seconds, 0.1) == expected


def test_a_request_is_carried_out_and_acknowledged_once_it_is_in_the_log(tmp_path: Path) -> None:
    """Whoever comes after an agent that is killed there knows of it."""

    async def story() -> None:
        logged, sent = asyncio.Event(), list[msg.Message]()
        asked, done = list[msg.RequestMessage](), list[msg.RequestMessage]()

        async def take(message: msg.RequestMessage) -> None:
            asked.append(message)
            await logged.wait()

        async def send(text: str) -> None:
            sent.append(msg.decode_message(text))

        agent: Any = SimpleNamespace(reports=SimpleNamespace(fence=3, take=take), carry_out=done.append)
        taken: asyncio.Queue[msg.RequestMessage] = asyncio.Queue()
        request = msg.RequestMessage(3, Request("suspend", "n1", 7, 2, id=11))
        taken.put_nowait(request)
        taken.put_nowait(msg.RequestMessage(2, Request("suspend", "n1", 8, 1, id=10)))  # of a daemon before
        taking = asyncio.create_task(
            DaemonConnection(tmp_path, agent)._take(cast(Any, SimpleNamespace(send=send)), taken)
        )
        await until_async(lambda: asked != [], "the log")
        for _ in range(100):
            await asyncio.sleep(0)
        assert (done, sent) == ([], [])
        logged.set()
        await until_async(lambda: sent != [], "the answer")
        assert (asked, done, sent) == ([request], [request], [msg.TakenMessage(11)])
        taking.cancel()

    asyncio.run(story())
