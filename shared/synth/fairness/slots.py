"""The slots of one process for work that waits in it, shared among the organisations that want them.

Invariants. While several wait, a slot that gets free goes to the one that holds least. One organisation alone may have
every slot, unless the slots of each are limited. No slot is taken from its holder; so that slow work does not keep
others out until it ends, an organisation that holds none may take a spare slot when all others are taken.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from synth.fairness.queue import FairQueue


@dataclass(eq=False)
class Slot:
    """A slot, or the wait for one. `release` gives it to a waiting organisation; a second call does nothing."""

    slots: FairSlots | None
    org: str
    turn: asyncio.Future[None]

    def release(self) -> None:
        slots, self.slots = self.slots, None
        if slots is not None:
            slots.free(self.org)


class FairSlots:
    """Slots of one process. slots: how many; spare: how many more for organisations that hold none.

    per_organisation: how many one of them may have.
    """

    def __init__(self, slots: int = sys.maxsize, *, spare: int = 0, per_organisation: int = sys.maxsize) -> None:
        self._slots = slots
        self._spare = spare
        self._per_organisation = per_organisation
        self._held: Counter[str] = Counter()
        self._waiting = FairQueue[Slot](lambda slot: slot.org)

    @asynccontextmanager
    async def hold(self, org: str) -> AsyncGenerator[Slot]:
        """Yield one slot, when it is this organisation's turn; it is released at the end, or before by its holder."""
        slot = await self.acquire(org)
        try:
            yield slot
        finally:
            slot.release()

    async def acquire(self, org: str) -> Slot:
        """Return a slot when it is this organisation's turn. Its holder must release it."""
        slot = Slot(self, org, asyncio.get_running_loop().create_future())
        self._waiting.add(slot)
        self._hand_out()
        try:
            await slot.turn
        except asyncio.CancelledError:
            if slot.turn.cancelled():
                self._waiting.remove(slot)
            else:
                slot.release()
            raise
        return slot

    def has_room(self, org: str) -> bool:
        """Return whether this organisation would get a slot at once."""
        # Waiting organisations do not matter: a slot that they could take would be theirs already.
        return not self._waiting.has(org) and self._admits(org)

    def free(self, org: str) -> None:
        """Take one slot back from this organisation."""
        self._held[org] -= 1
        if not self._held[org]:
            del self._held[org]
        self._hand_out()

    def _admits(self, org: str) -> bool:
        taken, own = self._held.total(), self._held[org]
        has_room = taken < self._slots or (taken < self._slots + self._spare and not own)
        return has_room and own < self._per_organisation

    def _hand_out(self) -> None:
        while self._waiting:
            slot = self._waiting.next(self._held)
            if slot.turn.cancelled():
                self._waiting.remove(slot)
                continue
            # Its organisation holds least: if it is not admitted, no other is.
            if not self._admits(slot.org):
                return
            self._waiting.take(slot)
            self._held[slot.org] += 1
            slot.turn.set_result(None)
