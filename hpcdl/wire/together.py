"""The parts of a connection, which run until one of them ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_first(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs them side by side until one ends or fails; the others are cancelled. Raises what that one raised."""
    running = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        for part in running:
            part.cancel()
        await asyncio.gather(*running, return_exceptions=True)
