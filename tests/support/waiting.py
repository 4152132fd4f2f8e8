"""The one way in which tests wait: for a condition, with a generous limit; in vain, the failure shows the scene."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 180.0
"""No right run waits so long, however much else the machine does."""
FIRST_S, POLL_S = 0.02, 0.05


def until(
    condition: Callable[[], T | None],
    what: str,
    seconds: float = PATIENCE_S,
    *,
    ignores: type[Exception] | tuple[type[Exception], ...] = (),
    story: Callable[[], str] = str,
    folders: Iterable[Path] = (),
) -> T:
    """Polls until the condition holds; its value. `ignores`: errors that mean "not yet"; `story`: what a failure tells
    more; `folders`: of processes and logs that neither a fixture nor a test of this file made."""
    began, pause = time.monotonic(), FIRST_S
    while True:
        with contextlib.suppress(*(ignores if isinstance(ignores, tuple) else (ignores,))):
            if value := condition():
                return value
        if time.monotonic() - began > seconds:
            raise _in_vain(what, began, story, folders)
        time.sleep(pause)
        pause = min(POLL_S, pause * 1.2)


async def until_async(
    condition: Callable[[], T | None],
    what: str,
    seconds: float = PATIENCE_S,
    *,
    story: Callable[[], str] = str,
) -> T:
    """As `until`, in an event loop, which goes on meanwhile."""
    began, pause = time.monotonic(), FIRST_S
    while not (value := condition()):
        if time.monotonic() - began > seconds:
            raise _in_vain(what, began, story, ())
        await asyncio.sleep(pause)
        pause = min(POLL_S, pause * 1.2)
    return value


def _in_vain(what: str, began: float, story: Callable[[], str], folders: Iterable[Path]) -> AssertionError:
    from tests.support.scene import scene  # only now: processes whose imports are looked at wait, too

    took = time.monotonic() - began
    try:
        more = story()
    except Exception as error:  # whom it asks may be what does not answer
        more = f"no more is known: {error!r}"
    return AssertionError(f"waited {took:.0f} s in vain for {what}\n{more}\n{scene(folders)}")
