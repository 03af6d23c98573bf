"""The clusters of one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from synth.keys import new_api_key
from tests.service.backup.clusters import Cluster


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[str], Cluster]]:
    """Makes a cluster of this name; the same key opens all of them."""
    key, made = new_api_key(), list[Cluster]()

    def new(name: str) -> Cluster:
        made.append(Cluster(tmp_path / name, key))
        return made[-1]

    yield new
    for cluster in made:
        for connection in cluster.opened:
            await connection.close()
        assert cluster.bus.process is not None
        cluster.bus.process.kill()
        cluster.bus.process.wait(10)
