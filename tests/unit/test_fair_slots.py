"""Slots that organisations have in turn."""

from __future__ import annotations

import asyncio

import pytest

from synth.fairness.slots import FairSlots


class Work:
    """What holds slots, and notes who was given one."""

    def __init__(self, slots: FairSlots) -> None:
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}
        self._slots = slots

    async def wants(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await turn_round()

    async def ends_of(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await turn_round()

    async def _hold(self, name: str) -> None:
        async with self._slots.hold(name[0]):
            self.begun.append(name)
            await self.ends[name].wait()


async def turn_round() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_organisation_alone_has_every_slot():
    work = Work(FairSlots(3))
    await work.wants("a1", "a2", "a3", "a4")
    assert work.begun == ["a1", "a2", "a3"]


async def test_a_free_slot_goes_to_who_has_least_and_then_by_turns():
    work = Work(FairSlots(2))
    await work.wants("a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1")
    await work.ends_of("a1", "a2", "b1", "c1", "a3")
    assert work.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_who_comes_again_and_again_does_not_keep_out_who_waits():
    work = Work(FairSlots(1))
    await work.wants("a1", "b1", "b2")
    for n in range(1, 4):
        await work.wants(f"a{n + 1}")
        await work.ends_of(f"a{n}" if n < 3 else "a3", *([f"b{n}"] if n < 3 else []))
    assert work.begun == ["a1", "b1", "a2", "b2", "a3", "a4"]


async def test_who_has_none_takes_a_spare_slot_and_one_of_it_at_most():
    work = Work(FairSlots(2, spare=1))
    await work.wants("a1", "a2", "a3", "b1", "b2", "c1")
    assert work.begun == ["a1", "a2", "b1"]
    await work.ends_of("b1")
    assert work.begun[3:] == ["c1"]


async def test_an_organisation_has_its_number_of_slots_at_most_and_keeps_no_other_out():
    work = Work(FairSlots(4, per_organisation=2))
    await work.wants("a1", "a2", "a3", "a4", "b1", "c1", "d1")
    assert work.begun == ["a1", "a2", "b1", "c1"]
    await work.ends_of("b1")
    assert work.begun[4:] == ["d1"]
    await work.ends_of("c1", "d1")
    assert work.begun[5:] == []
    await work.ends_of("a1")
    assert work.begun[5:] == ["a3"]


async def test_slots_without_a_total_are_limited_for_each_organisation():
    work = Work(FairSlots(per_organisation=1))
    await work.wants("a1", "a2", "b1", "c1")
    assert work.begun == ["a1", "b1", "c1"]


async def test_a_slot_that_its_holder_gives_up_is_given_on_once():
    slots = FairSlots(1)
    async with slots.hold("a") as slot:
        assert not slots.has_room("b")
        slot.release()
        assert slots.has_room("b")
        async with slots.hold("b"):
            slot.release()
            assert not slots.has_room("a")
    assert slots.has_room("a")


@pytest.mark.parametrize("given", [False, True], ids=["while it waits", "in the moment of its turn"])
async def test_who_is_cancelled_keeps_no_slot(given: bool):
    work = Work(FairSlots(1))
    await work.wants("a1", "b1", "c1")
    if given:
        # Its turn has come, and it has not run since.
        work.ends["a1"].set()
        await asyncio.wait([work.tasks["a1"]])
    work.tasks["b1"].cancel()
    work.ends["a1"].set()
    await turn_round()
    assert work.begun[-1] == "c1"
    await work.ends_of("c1")
    await work.wants("d1")
    assert work.begun[-1] == "d1"
