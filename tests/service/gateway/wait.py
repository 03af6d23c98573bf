"""Waiting for a gateway to show what another service has told."""

from __future__ import annotations

import asyncio

from tests.service.gateway.conftest import Client


async def wait_until_shown(user: Client, seq: int) -> None:
    """Return when the user's gateway shows this event of the user's organisation."""
    async with asyncio.timeout(10), user.http.stream("GET", "/api/events", params={"after": seq - 1}) as events:
        async for line in events.aiter_lines():
            if line.startswith("id: "):
                return
