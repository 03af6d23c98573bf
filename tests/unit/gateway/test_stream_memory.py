"""The memory that the feeds of event streams share."""

from __future__ import annotations

from synth.gateway.streams.memory import StreamMemory


def test_the_oldest_items_of_all_feeds_are_dropped_for_newer_ones():
    memory, dropped = StreamMemory(2000), list[str]()
    for name in ("a", "b", "c"):
        memory.keep(name, 600, lambda name=name: dropped.append(name))
    assert dropped == ["a"]
    assert memory.total <= 2000


def test_an_ended_feed_takes_no_room_of_the_others():
    memory, dropped = StreamMemory(2000), list[str]()
    memory.keep("kept", 300, lambda: dropped.append("kept"))
    before = memory.total
    for number in range(1000):
        memory.keep(number, 900, lambda: dropped.append("ended"))
        memory.forget(number)
    assert dropped == []
    assert memory.total == before
    assert len(memory._kept) <= 3
    memory.keep("newer", 1600, lambda: None)
    assert dropped == ["kept"]
