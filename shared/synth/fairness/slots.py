"""The slots of one process for work that waits in it, shared among the organisations that want them.

Invariants. One organisation alone may have every slot. While several wait, a slot that gets free goes to the one that
holds least. No slot is taken from its holder; so that slow work does not keep others out until it ends, an organisation
that holds none may take a spare slot when all others are taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from synth.fairness.turns import FairTurns


class Slot:
    """A slot that its holder may give up before its work ends."""

    def __init__(self, slots: FairSlots, org: str) -> None:
        self._slots: FairSlots | None = slots
        self._org = org

    def release(self) -> None:
        """Give the slot to a waiting organisation; a second call does nothing."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.free(self._org)


class FairSlots:
    """Slots of one process. slots: how many; spare: how many more for organisations that hold none."""

    def __init__(self, slots: int, *, spare: int = 0) -> None:
        self._slots = slots
        self._spare = spare
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._turns = FairTurns()

    @asynccontextmanager
    async def hold(self, org: str) -> AsyncGenerator[Slot]:
        """Yield one slot, when it is this organisation's turn; it is released at the end, or before by its holder."""
        await self._acquire(org)
        slot = Slot(self, org)
        try:
            yield slot
        finally:
            slot.release()

    def has_room(self, org: str) -> bool:
        """Return whether this organisation would get a slot at once."""
        # Waiting organisations do not matter: a slot that they could take would be theirs already.
        return org not in self._waiting and self._admits(org)

    def free(self, org: str) -> None:
        """Take one slot back from this organisation."""
        self._held[org] -= 1
        if not self._held[org]:
            del self._held[org]
        self._hand_out()

    def _admits(self, org: str) -> bool:
        taken = self._held.total()
        return taken < self._slots or (taken < self._slots + self._spare and org not in self._held)

    async def _acquire(self, org: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(org, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(org, turn)
            else:
                self.free(org)
            raise

    def _leave(self, org: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(org, deque())
        if turn in queue:
            queue.remove(turn)
        if not queue:
            self._waiting.pop(org, None)

    def _hand_out(self) -> None:
        while self._waiting:
            org = self._turns.next(self._waiting, self._held)
            # It holds least: if it is not admitted, no other is.
            if not self._admits(org):
                return
            turn = self._waiting[org][0]
            self._leave(org, turn)
            if turn.cancelled():
                continue
            self._held[org] += 1
            self._turns.serve(org)
            turn.set_result(None)
