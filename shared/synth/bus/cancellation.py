"""Cancellations that nats-py loses: it waits by `asyncio.wait_for`, which Python 3.11 lets swallow one.

When a task is cancelled in the turn of the loop in which its answer has come, `wait_for` returns the answer, and the
task goes on as if nobody had cancelled it (CPython issue 86296, mended in 3.12). A job would train on after its user
had cancelled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg

_T = TypeVar("_T")


class HeedingClient(Client):
    """A client whose requests heed cancellations; those of its JetStream context, too, which asks by `request`."""

    async def request(self, *args: Any, **kwargs: Any) -> Msg:
        return await heed_cancellation(super().request(*args, **kwargs))


async def heed_cancellation(call: Awaitable[_T]) -> _T:
    """Await a call; a cancellation that came meanwhile is raised even where the call has swallowed it.

    One that came before does not count: what cleans up after a cancellation may call the bus.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError
