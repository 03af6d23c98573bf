"""Keys of one organisation that may do this or that, and what they call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.service.gateway.conftest import Client

CHAT = {"model": "nowhere", "messages": []}


async def key_with(user: Client, *scopes: str) -> dict:
    """A new API key of the user's organisation with these scopes: `id` and `key`."""
    reply = await user.http.post("/api/keys", json={"scopes": list(scopes)})
    assert reply.status_code == 201, reply.text
    return reply.json()


@asynccontextmanager
async def at(user: Client, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the user's gateway that sends these headers alone; `_` stands for `-`."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(base_url=user.http.base_url, headers=sent, timeout=60) as http:
        yield http


@asynccontextmanager
async def bearing(user: Client, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the user's gateway with this bearer."""
    async with at(user, Authorization=f"Bearer {key}") as http:
        yield http


async def chats(user: Client, key: str) -> list[int]:
    """The statuses of a chat with this key as X-API-Key and as the bearer: 401 where it opens none."""
    found: list[int] = []
    for headers in ({"X_API_Key": key}, {"Authorization": f"Bearer {key}"}):
        async with at(user, **headers) as http:
            found.append((await http.post("/v1/chat/completions", json=CHAT)).status_code)
    return found
