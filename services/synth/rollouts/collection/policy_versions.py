"""The policy version that each replica serves."""

from __future__ import annotations

import asyncio
import contextlib

from synth.errors import Transient


class PolicyVersions:
    """The version that each replica has loaded last, and waits for a version that is new enough."""

    def __init__(self) -> None:
        self.latest = -1
        self._version_by_replica: dict[str, int] = {}
        self._changed = asyncio.Condition()

    async def record_loaded(self, version: int, replica: str) -> None:
        """Record that a replica serves this version now."""
        async with self._changed:
            self.latest = max(self.latest, version)
            self._version_by_replica[replica] = version
            self._changed.notify_all()

    def serves_at_least(self, replica: str, version: int) -> bool:
        """Return whether a replica serves this version or a later one."""
        return self._version_by_replica.get(replica, -1) >= version

    async def wait_at_least(self, version: int, *, timeout: float) -> None:
        """Return when this version, or a later one, is served. Raises `Transient` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: self.latest >= version)
        except TimeoutError as error:
            raise Transient(
                f"policy version {version} is not served after {timeout:.0f} s (SYNTH_POLICY_WAIT_S)"
            ) from error

    async def wait_for_change(self, *, timeout: float) -> None:
        """Return when a replica has loaded a version, or after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait()
