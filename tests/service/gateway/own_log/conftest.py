"""A bus of each test's own: for those that look through its whole store, and those that write so much that every later
gateway would have to read it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from synth.bus.connection import Connection, connect
from tests.service.own_bus import Bus, provisioned


@pytest.fixture
async def bus_as(own_bus: Bus) -> AsyncIterator[Any]:
    """Connects to a bus of this test's own."""
    await provisioned(own_bus)
    opened: list[Connection] = []

    async def dial(service: str) -> Connection:
        opened.append(await connect(own_bus.settings(service), service))
        return opened[-1]

    yield dial
    for bus in opened:
        await bus.close()


@pytest.fixture
def settings_of(own_bus: Bus) -> Any:
    return own_bus.settings


@pytest.fixture
def bus_admin() -> None:
    """`bus_as` has provisioned."""
