"""The limiter: a limit that moves, and priorities that hold."""

from __future__ import annotations

import asyncio

import pytest

from synth.rollouts.concurrency.limiter import Priority, PriorityLimiter, busy_share, mean_in_use


class Holders:
    """Tasks that hold a slot until they are released."""

    def __init__(self, limiter: PriorityLimiter) -> None:
        self.limiter = limiter
        self.inside: list[Priority] = []
        self.released: dict[Priority, asyncio.Event] = {}
        self.tasks: dict[Priority, asyncio.Task[None]] = {}

    async def enter(self, *priorities: Priority) -> None:
        for priority in priorities:
            self.released[priority] = asyncio.Event()
            self.tasks[priority] = asyncio.create_task(self._stay(priority))
        await settle()

    async def _stay(self, priority: Priority) -> None:
        async with self.limiter.acquire(priority):
            self.inside.append(priority)
            await self.released[priority].wait()

    async def leave(self, *priorities: Priority) -> None:
        for priority in priorities:
            self.released[priority].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_waiter_of_the_lowest_priority_is_next_whenever_it_came():
    holders = Holders(PriorityLimiter(1))
    await holders.enter((1, 0), (3, 0), (2, 5), (2, 4))
    for priority in ((1, 0), (2, 4), (2, 5)):
        await holders.leave(priority)
    assert holders.inside == [(1, 0), (2, 4), (2, 5), (3, 0)]
    await holders.leave((3, 0))


async def test_a_limit_that_falls_is_reached_as_slots_are_released_and_one_that_rises_at_once():
    limiter = PriorityLimiter(3)
    holders = Holders(limiter)
    await holders.enter(*((1, i) for i in range(6)))
    limiter.resize(1)
    await holders.leave((1, 0), (1, 1))
    assert (limiter.in_use, limiter.full, len(holders.inside)) == (1, True, 3)
    limiter.resize(2)
    await settle()
    assert holders.inside[3:] == [(1, 3)]
    await holders.leave(*holders.released)
    assert (limiter.in_use, limiter.full) == (0, False)


async def test_a_waiter_or_holder_that_is_cancelled_leaves_its_slot_to_others():
    limiter = PriorityLimiter(1)
    holders = Holders(limiter)
    await holders.enter((1, 0), (1, 1), (1, 2), (1, 3))
    holders.tasks[1, 1].cancel()
    limiter.resize(2)
    # It has just been given a slot, and has not run since.
    holders.tasks[1, 2].cancel()
    await settle()
    assert holders.inside == [(1, 0), (1, 3)]
    holders.tasks[1, 3].cancel()
    await holders.leave((1, 0))
    assert limiter.in_use == 0


async def test_occupancy_is_counted_over_time(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("synth.rollouts.concurrency.limiter.time.monotonic", lambda: now)
    holders = Holders(PriorityLimiter(4))
    begun = holders.limiter.occupancy()
    await holders.enter((1, 0), (1, 1))
    now += 3
    await holders.leave((1, 0), (1, 1))
    now += 1
    ended = holders.limiter.occupancy()
    assert (mean_in_use(begun, ended), busy_share(begun, ended)) == (1.5, 0.75)
