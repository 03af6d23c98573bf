"""Places: a limit that moves, and an order that holds."""

from __future__ import annotations

import asyncio

import pytest

from synth.rollouts.concurrency.limiter import Order, Places, busy_share, mean_taken


class Guests:
    """Tasks that hold a place until they are let go."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.inside: list[Order] = []
        self.let_go: dict[Order, asyncio.Event] = {}
        self.tasks: dict[Order, asyncio.Task[None]] = {}

    async def come(self, *orders: Order) -> None:
        for order in orders:
            self.let_go[order] = asyncio.Event()
            self.tasks[order] = asyncio.create_task(self._stay(order))
        await settle()

    async def _stay(self, order: Order) -> None:
        async with self.places.one(order):
            self.inside.append(order)
            await self.let_go[order].wait()

    async def go(self, *orders: Order) -> None:
        for order in orders:
            self.let_go[order].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_whoever_is_first_in_order_is_next_whenever_it_came():
    guests = Guests(Places(1))
    await guests.come((1, 0), (3, 0), (2, 5), (2, 4))
    for order in ((1, 0), (2, 4), (2, 5)):
        await guests.go(order)
    assert guests.inside == [(1, 0), (2, 4), (2, 5), (3, 0)]
    await guests.go((3, 0))


async def test_a_limit_that_falls_is_reached_as_places_come_free_and_one_that_rises_at_once():
    places = Places(3)
    guests = Guests(places)
    await guests.come(*((1, i) for i in range(6)))
    places.resize(1)
    await guests.go((1, 0), (1, 1))
    assert (places.taken, places.full, len(guests.inside)) == (1, True, 3)
    places.resize(2)
    await settle()
    assert guests.inside[3:] == [(1, 3)]
    await guests.go(*guests.let_go)
    assert (places.taken, places.full) == (0, False)


async def test_who_gives_up_waiting_or_holding_leaves_the_place_to_others():
    places = Places(1)
    guests = Guests(places)
    await guests.come((1, 0), (1, 1), (1, 2), (1, 3))
    guests.tasks[1, 1].cancel()
    places.resize(2)
    # It has just been given a place, and does not know it yet.
    guests.tasks[1, 2].cancel()
    await settle()
    assert guests.inside == [(1, 0), (1, 3)]
    guests.tasks[1, 3].cancel()
    await guests.go((1, 0))
    assert places.taken == 0


async def test_its_use_is_counted_over_time(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("synth.rollouts.concurrency.limiter.time.monotonic", lambda: now)
    guests = Guests(Places(4))
    begun = guests.places.use()
    await guests.come((1, 0), (1, 1))
    now += 3
    await guests.go((1, 0), (1, 1))
    now += 1
    ended = guests.places.use()
    assert (mean_taken(begun, ended), busy_share(begun, ended)) == (1.5, 0.75)
