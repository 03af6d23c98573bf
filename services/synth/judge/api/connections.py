"""The connections to the judges that users name: each organisation has its own, up to a limit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from synth.fairness.slots import FairSlots
from synth.outbound.http_guard import GuardPolicy, guarded_client

#: The connections of an organisation that makes no calls for so long are closed.
_IDLE_S = 600.0


@dataclass
class _Pool:
    """The client of one organisation. users: calls that wait or are made."""

    client: httpx.AsyncClient
    users: int = 0
    used_at: float = 0.0


class OrgConnections:
    """HTTP clients that connect only to addresses that the policy allows. at_once: the calls of one organisation."""

    def __init__(self, policy: GuardPolicy, *, at_once: int) -> None:
        self._policy = policy
        self._at_once = at_once
        self._calls = FairSlots(per_organisation=at_once)
        self._pools: dict[str, _Pool] = {}

    @asynccontextmanager
    async def use(self, org: str) -> AsyncIterator[httpx.AsyncClient]:
        """Yield the client of an organisation for one call, which waits here for its connection."""
        pool = self._pools.get(org)
        if pool is None:
            client = guarded_client(self._policy, max_connections=self._at_once)
            pool = self._pools[org] = _Pool(client)
        pool.users += 1
        try:
            await self._close_idle()
            async with self._calls.hold(org):
                yield pool.client
        finally:
            pool.users -= 1
            pool.used_at = time.monotonic()

    async def aclose(self) -> None:
        """Drop all connections."""
        for pool in self._pools.values():
            await pool.client.aclose()

    async def _close_idle(self) -> None:
        now = time.monotonic()
        idle = [org for org, pool in self._pools.items() if not pool.users and now - pool.used_at > _IDLE_S]
        for pool in [self._pools.pop(org) for org in idle]:
            await pool.client.aclose()
