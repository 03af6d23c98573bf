"""Cancellations that nats-py loses: it waits by `asyncio.wait_for`, which Python 3.11 lets swallow one.

When a task is cancelled in the turn of the loop in which its answer has come, `wait_for` returns the answer, and the
task goes on as if nobody had cancelled it (CPython issue 86296, mended in 3.12). A job would train on after its user
had cancelled it. Our own calls heed it (`HeedingClient`). A caller that must know that a task has ended cancels it
until it has (`cancel_until_ended`), since a library may wait by `wait_for` as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg

from synth.errors import Transient
from synth.runtime import logs

log = logs.get("cancellation")

_T = TypeVar("_T")
#: Longer than a task takes to clean up: one that goes on after this has lost its cancellation somewhere.
AGAIN_S = 20.0
#: Nine times cancelled: no clean-up, and no race that is lost by chance.
WITHIN_S = 180.0


class HeedingClient(Client):
    """A client whose requests and flushes heed cancellations; so does its JetStream context, which makes requests."""

    async def request(self, *args: Any, **kwargs: Any) -> Msg:
        return await heed_cancellation(super().request(*args, **kwargs))

    async def flush(self, *args: Any, **kwargs: Any) -> None:
        await heed_cancellation(super().flush(*args, **kwargs))


async def heed_cancellation(call: Awaitable[_T]) -> _T:
    """Await a call. A cancellation that arrives during the call is raised, even if the call has swallowed it.

    An earlier cancellation does not count: code that cleans up after a cancellation may call the bus.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


async def cancel_until_ended(
    *tasks: asyncio.Future[Any], what: str, again_s: float | None = None, within_s: float | None = None
) -> None:
    """Cancel tasks, and again every `again_s` seconds, until all have ended. What they raise is not raised here.

    Each task has begun before it is cancelled: a task that has not begun would never run its clean-up.

    what: names the tasks in the log. Raises `Transient` when one has not ended `within_s` seconds after the first time.
    """
    again_s, within_s = AGAIN_S if again_s is None else again_s, WITHIN_S if within_s is None else within_s
    began = time.monotonic()
    going_on: list[asyncio.Future[Any]] = [task for task in tasks if not task.done()]
    try:
        # Tasks that were created in this turn of the loop begin in the next one.
        await asyncio.sleep(0)
    finally:
        for task in going_on:
            task.cancel()
    while going_on:
        await asyncio.wait(going_on, timeout=again_s)
        going_on = [task for task in going_on if not task.done()]
        passed = time.monotonic() - began
        if going_on and passed >= within_s:
            raise Transient(f"{what} goes on {passed:.0f} s after it was cancelled")
        if going_on:
            log.warning("it goes on though it was cancelled, and is cancelled again", what=what, after_s=round(passed))
        for task in going_on:
            task.cancel()
    for task in tasks:
        if not task.cancelled():
            task.exception()  # Looked at, so that asyncio does not say that nobody has.
