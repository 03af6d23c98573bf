"""A read whose answer is lost with the connection is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from synth.bus.access.client import SERVICE_API
from synth.bus.connection import Connection
from synth.bus.consumers import start_on_consumers
from synth.bus.kv.secrets import SecretStore
from synth.bus.server.topology import API_KEYS
from synth.errors import Transient
from synth.events import FileUploaded
from synth.gateway.read_model.event_log import read_last, read_page
from synth.keys import new_api_key
from tests.keyrings import secrets_of
from tests.service.bus.way import Way, connection_by

ASKED_OF_THE_SERVER = f"{SERVICE_API}.".encode()


class Breaking(Way):
    """Breaks, as often as it is told to, when the next read passes: its answer never comes."""

    breaks = 0

    async def says(self, data: bytes) -> bool:
        if not self.breaks or ASKED_OF_THE_SERVER not in data:
            return True
        self.breaks -= 1
        return False


@pytest.fixture
async def broken(settings_of, bus_admin, monkeypatch) -> AsyncIterator[tuple[Breaking, Connection]]:
    """A gateway's connection, and the way that it goes."""
    monkeypatch.setattr("synth.gateway.read_model.event_log._TIMEOUT_S", 2.0)
    async with connection_by(Breaking, settings_of("gateway"), "gateway") as (way, bus):
        yield way, replace(bus, js=bus.nc.jetstream(timeout=2.0))


async def test_a_key_is_found_over_a_connection_that_breaks(broken, bus_as):
    way, bus = broken
    key = new_api_key()
    owner = await SecretStore(await bus_as("gateway"), secrets_of("gateway")).ensure_api_key(key)
    way.breaks = 2
    assert await SecretStore(bus, secrets_of("gateway")).find_api_key(key) == owner
    assert way.breaks == 0


async def test_the_log_is_read_over_a_connection_that_breaks(broken):
    way, bus = broken
    way.breaks = 1
    assert await read_last(bus, FileUploaded, "org_none", "file_none") is None
    way.breaks = 1
    page = await read_page(bus, "file.*.org_none.>", after=0, limit=10)
    assert (page.events, page.more, way.breaks) == ([], False, 0)


async def test_a_bus_that_never_answers_is_told(broken):
    way, bus = broken
    way.breaks = 1000
    with pytest.raises(Transient, match="did not answer a read"):
        await read_page(bus, "file.*.org_none.>", after=0, limit=10)


async def test_a_service_that_starts_waits_for_a_bus_that_does_not_answer(broken):
    way, bus = broken
    way.breaks = 2
    async with asyncio.timeout(30):
        await start_on_consumers(bus, [], asyncio.Event(), buckets=[API_KEYS], start=_nothing)
    assert way.breaks == 0


async def test_a_service_that_is_told_to_end_waits_for_no_bus(broken):
    way, bus = broken
    way.breaks = 1000
    stop = asyncio.Event()
    waiting = asyncio.create_task(start_on_consumers(bus, [], stop, buckets=[API_KEYS], start=_nothing))
    await asyncio.wait([waiting], timeout=0.7)
    assert not waiting.done()
    stop.set()
    await asyncio.wait_for(waiting, 20)


async def _nothing() -> None:
    """What there is to start."""
