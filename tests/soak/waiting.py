"""Waiting for another process: it is looked at again and again, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(check: Callable[[], Awaitable[bool]], *, seconds: float, what: str) -> None:
    """Return when `check` says so. Raises `TimeoutError` with `what` after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if await check():
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise TimeoutError(f"{what}: not so after {seconds:.0f} s") from None
