"""A zone that never answers blocks no other, and nothing else that a service does on threads."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from synth.outbound.name_lookups import NameLookups

WAIT = 10.0


@pytest.fixture
def silent(monkeypatch) -> Iterator[threading.Event]:
    """Names of `slow.example` and `late.example` are answered only when the event is set."""
    answered = threading.Event()

    def resolve(host: str, port: int, **_: object):
        if host.endswith(("slow.example", "late.example", "slow.co.uk")) and not answered.wait(WAIT):
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        if host.startswith("none."):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.43.8", port))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield answered
    answered.set()


async def _stuck(lookups: NameLookups, host: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await lookups.addresses(host, 80)


async def test_a_zone_that_does_not_answer_leaves_places_and_threads_to_others(silent: threading.Event):
    lookups = NameLookups(most=4, most_of_a_zone=2)
    await asyncio.gather(*(_stuck(lookups, f"{n}.slow.example") for n in range(40)))
    async with asyncio.timeout(WAIT / 2):
        assert await lookups.addresses("api.other.example.org", 443) == ["192.0.43.8"]
        assert await asyncio.to_thread(lambda: 1) == 1


async def test_the_next_free_place_goes_to_the_zone_that_has_the_fewest(silent: threading.Event):
    lookups = NameLookups(most=2, most_of_a_zone=2)
    held = [asyncio.create_task(lookups.addresses(f"{n}.slow.example", 80)) for n in range(4)]
    await asyncio.sleep(0)
    done: list[str] = []

    async def wanted(host: str) -> None:
        await lookups.addresses(host, 80)
        done.append(host)

    other = asyncio.create_task(wanted("a.example.org"))
    await asyncio.sleep(0)
    silent.set()
    held[2].add_done_callback(lambda _: done.append("slow"))
    async with asyncio.timeout(WAIT):
        await asyncio.gather(other, *held)
    assert done == ["a.example.org", "slow"]


async def test_names_of_one_registry_are_not_one_zone(silent: threading.Event):
    lookups = NameLookups(most=8, most_of_a_zone=1)
    await _stuck(lookups, "a.slow.co.uk")
    async with asyncio.timeout(WAIT / 2):
        assert await lookups.addresses("api.bank.co.uk", 80) == ["192.0.43.8"]
    await _stuck(lookups, "b.slow.co.uk")


async def test_who_gives_up_in_the_queue_leaves_nothing_behind(silent: threading.Event):
    lookups = NameLookups(most=1, most_of_a_zone=1)
    await asyncio.gather(*(_stuck(lookups, f"{n}.late.example") for n in range(8)))
    silent.set()
    async with asyncio.timeout(WAIT):
        assert await lookups.addresses("9.late.example", 80) == ["192.0.43.8"]
        assert await lookups.addresses("10.late.example", 80) == ["192.0.43.8"]


async def test_a_name_that_is_not_there_is_the_resolvers_error_and_gives_its_place_back(silent: threading.Event):
    lookups = NameLookups(most=1, most_of_a_zone=1)
    for _ in range(3):
        with pytest.raises(socket.gaierror, match="no such name"):
            await lookups.addresses("none.example.org", 80)
    assert await lookups.addresses("is.example.org", 80) == ["192.0.43.8"]


async def test_an_address_needs_no_place(silent: threading.Event):
    lookups = NameLookups(most=1, most_of_a_zone=1)
    await _stuck(lookups, "a.slow.example")
    assert await lookups.addresses("10.0.0.1", 80) == ["192.0.43.8"]
