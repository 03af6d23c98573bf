from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.service.bus.own_server import HEARTBEAT_S, OwnServer


@pytest.fixture
async def own(tmp_path, monkeypatch) -> AsyncIterator[OwnServer]:
    """A running nats-server of the test's own; what waits for it waits less, so that a death costs a test less."""
    monkeypatch.setattr("synth.bus.publish.PUBLISH_TIMEOUT_S", 0.5)
    monkeypatch.setattr("synth.bus.replay._REQUEST_S", 0.5)
    monkeypatch.setattr("synth.bus.held_deliveries.HEARTBEAT_S", HEARTBEAT_S)
    monkeypatch.setattr("synth.bus.tasks.worker.HEARTBEAT_S", HEARTBEAT_S)
    server = OwnServer.at(tmp_path)
    server.start()
    yield server
    await server.close()
