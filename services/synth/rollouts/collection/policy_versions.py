"""Which policy versions are served, by which replica."""

from __future__ import annotations

import asyncio
import contextlib

from synth.errors import Transient


class PolicyVersions:
    """Which policy version is served, and waits for one that is fresh enough."""

    def __init__(self) -> None:
        self.latest = -1
        self._of: dict[str, int] = {}
        self._news = asyncio.Condition()

    async def loaded(self, version: int, replica: str) -> None:
        """This replica serves this version."""
        async with self._news:
            self.latest = max(self.latest, version)
            self._of[replica] = version
            self._news.notify_all()

    def is_at(self, replica: str, version: int) -> bool:
        """Whether a replica serves this version or a later one."""
        return self._of.get(replica, -1) >= version

    async def at_least(self, version: int, *, timeout: float) -> None:
        """Return when this version, or a later one, is served. Raises `Transient` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout), self._news:
                await self._news.wait_for(lambda: self.latest >= version)
        except TimeoutError as error:
            raise Transient(f"policy version {version} is not served after {timeout:.0f} s") from error

    async def news(self, *, timeout: float) -> None:
        """Return when a replica has loaded a version, or after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._news:
                await self._news.wait()
