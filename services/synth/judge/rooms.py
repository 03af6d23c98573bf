"""Room for a number of questions at one time; no organisation takes more than its share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass
class _Share:
    """The share of one organisation. users: how many wait or are in."""

    free: asyncio.Semaphore
    users: int = 0


class Rooms:
    """So many rooms in all, of_one of them for one organisation."""

    def __init__(self, total: int, *, of_one: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._of_one = of_one
        self._shares: dict[str, _Share] = {}

    async def enter(self, org: str) -> None:
        """Take a room, in the order of arrival; a question that waits for its organisation's share takes none."""
        share = self._shares.setdefault(org, _Share(asyncio.Semaphore(self._of_one)))
        share.users += 1
        try:
            await share.free.acquire()
            try:
                await self._all.acquire()
            except BaseException:
                share.free.release()
                raise
        except BaseException:
            self._forget(org, share)
            raise

    def leave(self, org: str) -> None:
        """Give a room back."""
        share = self._shares[org]
        self._all.release()
        share.free.release()
        self._forget(org, share)

    def _forget(self, org: str, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[org]
