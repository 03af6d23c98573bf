"""Both clients, called in one way, so that each test holds for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from synth.client import AsyncClient, Client

KEY = "synth_live_of_the_tests"
Use = Callable[[Any], Any]


def use_blocking(url: str, use: Use, **options: Any) -> Any:
    """Call the synchronous client; the items of an iterator as a list."""
    with Client(api_key=KEY, base_url=url, **{"retry_budget": 1.0, **options}) as client:
        result = use(client)
        return [*result] if isinstance(result, Iterator) else result


def use_async(url: str, use: Use, **options: Any) -> Any:
    """Call the asynchronous client in a loop of its own; the items of an iterator as a list."""

    async def call() -> Any:
        async with AsyncClient(api_key=KEY, base_url=url, **{"retry_budget": 1.0, **options}) as client:
            result = use(client)
            return [item async for item in result] if hasattr(result, "__aiter__") else await result

    return asyncio.run(call())


BOTH = [use_blocking, use_async]
