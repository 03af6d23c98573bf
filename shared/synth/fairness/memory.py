"""The memory of one process for data from outside, shared among the organisations for which it reads.

Invariants. All owners together hold at most the limit, and one owner at most half of it: if one of them sends much, or
slowly, the others still have room. Waiting bodies get room as soon as there is some, of the owner that holds least
first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class HeldBytes:
    """The room that one body takes."""

    owner: str
    size: int = 0


@dataclass(eq=False)
class _WaitingBytes:
    held: HeldBytes
    size: int
    turn: asyncio.Future[None]


@dataclass
class FairMemory:
    """Bytes in the memory of this process. limit: of all owners; one owner may have half."""

    limit: int
    _total: int = 0
    _held: Counter[str] = field(default_factory=Counter[str])
    _waiting: list[_WaitingBytes] = field(default_factory=list[_WaitingBytes])

    @contextmanager
    def hold(self, owner: str) -> Generator[HeldBytes]:
        """Yield the room of one body, which is given back at the end. owner: an organisation."""
        memory = HeldBytes(owner)
        try:
            yield memory
        finally:
            self.give_back(memory, memory.size)

    @property
    def held(self) -> int:
        """The bytes that all owners hold."""
        return self._total

    def held_by(self, owner: str) -> int:
        """Return the bytes that an owner holds."""
        return self._held[owner]

    def try_take(self, held: HeldBytes, size: int) -> bool:
        """Give `size` more bytes to a body. Returns False, and gives nothing, if there is no room now."""
        if self._total + size > self.limit or self._held[held.owner] + size > self.limit // 2:
            return False
        held.size += size
        self._total += size
        self._held[held.owner] += size
        return True

    async def wait_to_take(self, held: HeldBytes, size: int, *, seconds: float) -> None:
        """Give `size` more bytes to a body when there is room. Raises `TimeoutError` if there is none in time."""
        if self.try_take(held, size):
            return
        waiter = _WaitingBytes(held, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.turn
        finally:
            # It stays in the list until it has its room, which `hold` gives back in any case.
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def give_back(self, held: HeldBytes, size: int) -> None:
        """Take `size` bytes back from a body, for waiting bodies."""
        held.size -= size
        self._total -= size
        self._held[held.owner] -= size
        if not self._held[held.owner]:
            del self._held[held.owner]
        for waiter in sorted(self._waiting, key=lambda waiter: self._held[waiter.held.owner]):
            if not waiter.turn.done() and self.try_take(waiter.held, waiter.size):
                self._waiting.remove(waiter)
                waiter.turn.set_result(None)
