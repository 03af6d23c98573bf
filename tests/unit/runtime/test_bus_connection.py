"""A connection to the bus that is given up while it is made."""

from __future__ import annotations

import asyncio

import pytest

from synth.bus.access.client import BusClient
from synth.bus.connection import connect
from synth.runtime.settings import ServiceSettings


async def test_a_cancelled_connect_ends_even_if_the_client_swallows_the_cancellation(monkeypatch: pytest.MonkeyPatch):
    cancelled = 0

    async def dial(self: BusClient, **options: object) -> None:
        nonlocal cancelled
        while cancelled < 3:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1
        raise asyncio.CancelledError

    monkeypatch.setattr(BusClient, "connect", dial)
    connecting = asyncio.create_task(connect(ServiceSettings(), "gateway"))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connecting, 0.05)
    assert cancelled == 3
