"""Parts that run side by side: the first that ends or fails ends the others."""

import asyncio

import pytest

from hpcdl.wire.messages import until_first


def test_the_others_are_cancelled_and_have_ended_when_it_returns() -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("ended")

    async def ends() -> None:
        seen.append("began")

    asyncio.run(until_first(waits(), ends()))
    assert seen == ["began", "ended"]


def test_the_first_failure_is_raised() -> None:
    async def fails() -> None:
        raise ConnectionResetError("gone")

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ConnectionResetError, match="gone"):
        asyncio.run(until_first(waits(), fails()))
