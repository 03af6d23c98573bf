"""A thousand hostile requests at a gateway that is a process: none is our fault, none hangs, and its memory stays."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import psutil
import pytest

from synth.bus.kv.secrets import SecretStore
from synth.bus.server.embedded import free_port
from synth.keys import new_api_key
from tests.keyrings import secrets_of
from tests.service.gateway.hostile import Hostile
from tests.service.gateway.raw_http import exchange, status_of
from tests.service.process import running

pytestmark = pytest.mark.timeout(1200)

REQUESTS = 1000
WARM_UP = 100
AT_ONCE = 8
MEMORY_GROWTH = 200 << 20


async def test_a_thousand_hostile_requests_bring_nothing_down(settings_of, bus_as, bus_admin, tmp_path: Path):
    key, port = new_api_key(), free_port()
    await SecretStore(await bus_as("gateway"), secrets_of("gateway")).ensure_api_key(key)
    own = {
        "SYNTH_BOOTSTRAP_API_KEY": key,
        "SYNTH_READ_MODEL_PATH": str(tmp_path / "gateway.db"),
        "SYNTH_HTTP_HEADER_S": "1",
        "SYNTH_HTTP_BODY_WINDOW_S": "1",
    }
    hostile, url = Hostile(14, key), f"http://127.0.0.1:{port}"
    with running("gateway", settings_of("gateway"), tmp_path / "log", port=port, **own) as process:
        memory = psutil.Process(process.pid)
        await _send(hostile, url, WARM_UP)
        before = memory.memory_info().rss
        await _send(hostile, url, REQUESTS - WARM_UP)
        assert memory.memory_info().rss - before < MEMORY_GROWTH
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as http:
            assert (await http.get("/api/jobs")).status_code == 200


async def _send(hostile: Hostile, url: str, count: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def send(kind: str, sent: bytes) -> None:
        async with places:
            begun = time.monotonic()
            try:
                answer = await exchange(url, sent)
            except TimeoutError:
                pytest.fail(f"{kind} hangs after {time.monotonic() - begun:.0f} s: {sent[:300]!r}")
        status = status_of(answer)
        assert status < 500 or (status == 503 and b"retry-after" in answer.lower()), (kind, sent[:300], answer[:600])

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(send(*hostile.next()))
