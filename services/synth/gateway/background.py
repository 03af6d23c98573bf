"""Background work beside the requests, which runs until the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from synth.bus.cancellation import cancel_until_ended
from synth.errors import SynthError


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never ends by itself, and cancel it at the stop. Its exceptions propagate."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            raise SynthError("a part of the gateway that never ends has ended")
    finally:
        stopped.cancel()
        await cancel_until_ended(working, what="a part of the gateway", again_s=0.2)
