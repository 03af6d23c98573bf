"""The gateway as the process that it is: killed, started again, and asked to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from synth.bus.kv.secrets import SecretStore
from synth.bus.server.embedded import free_port
from synth.keys import new_api_key
from tests.keyrings import secrets_of
from tests.service.gateway import job_histories


@pytest.fixture
async def spawn(settings_of, bus_as, bus_admin, tmp_path: Path) -> AsyncIterator:
    """Starts `synthd gateway` on a read model and a port that stay the same; returns when it is up."""
    base, port, metrics_port, key = settings_of("gateway"), free_port(), free_port(), new_api_key()
    await SecretStore(await bus_as("gateway"), secrets_of("gateway")).ensure_api_key(key)
    environment = os.environ | {
        "SYNTH_NATS_URL": base.nats_url,
        "SYNTH_NATS_USER": "gateway",
        "SYNTH_NATS_PASSWORD": base.nats_password.get_secret_value(),
        "SYNTH_CLUSTER_SECRET": base.cluster_secret.get_secret_value(),
        "SYNTH_BLOB_URL": base.blob_url,
        "SYNTH_WORK_DIR": str(tmp_path / "work"),
        "SYNTH_READ_MODEL_PATH": str(tmp_path / "gateway.db"),
        "SYNTH_PORT": str(port),
        "SYNTH_METRICS_PORT": str(metrics_port),
        "SYNTH_BOOTSTRAP_API_KEY": key,
        "SYNTH_PROJECTION_WAIT_S": "60",
    }
    processes: list[asyncio.subprocess.Process] = []

    async def start() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "synth.synthd", "gateway", env=environment, stderr=asyncio.subprocess.PIPE
        )
        processes.append(process)
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"service up" not in (line := await process.stderr.readline()):
                assert line, "the process ended"
        return process

    start.url, start.key = f"http://127.0.0.1:{port}", key  # type: ignore[attr-defined]
    start.metrics_url = f"http://127.0.0.1:{metrics_port}"  # type: ignore[attr-defined]
    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


def client(url: str, **headers: str) -> httpx.AsyncClient:
    """Connects again for a while: `service up` is said a moment before the socket listens."""
    transport = httpx.AsyncHTTPTransport(retries=5)
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, transport=transport)


async def test_killed_at_work_it_comes_back_with_everything(spawn, bus_as):
    process = await spawn()
    async with client(spawn.url, Authorization=f"Bearer {spawn.key}") as http:
        org = (await http.get("/api/me")).json()["org"]
        id = (await http.post("/api/jobs", json={"config": "x"})).json()["id"]
        trainer, fence = await job_histories.begin(bus_as, org, id)
        for k in range(1, 31):
            await job_histories.step(trainer, fence, k, of=60)
            if k == 20:
                process.kill()
                await process.wait()
        await spawn()
        for k in range(31, 61):
            await job_histories.step(trainer, fence, k, of=60)
        await job_histories.succeed(trainer, fence, steps=60)
        stream = await http.get(f"/api/jobs/{id}/events", headers={"Accept": "text/event-stream"})
        steps = [
            json.loads(line[6:])["data"]["step"]
            for line in stream.text.splitlines()
            if line.startswith("data: {") and '"train.step"' in line
        ]
        assert steps == list(range(1, 61))
        job = (await http.get(f"/api/jobs/{id}")).json()
        assert (job["state"], job["step"]) == ("succeeded", 60)
        points = (await http.get(f"/api/jobs/{id}/metrics", params={"name": "loss"})).json()["points"]
        assert [p["step"] for p in points] == list(range(1, 61))


async def test_it_ends_at_once_with_streams_open(spawn):
    process = await spawn()
    async with client(spawn.url, Authorization=f"Bearer {spawn.key}", Accept="text/event-stream") as http:
        opened = [asyncio.Event() for _ in range(50)]

        async def watch(i: int) -> None:
            async with http.stream("GET", "/api/events") as stream:
                async for _ in stream.aiter_lines():
                    opened[i].set()

        subscribers = [asyncio.create_task(watch(i)) for i in range(50)]
        async with asyncio.timeout(20):
            for event in opened:
                await event.wait()
        # Metrics have a port of their own here, and it ends with the process.
        assert (await http.get("/metrics")).status_code == 404
        assert "synth_gateway_streams_open 50.0" in (await http.get(f"{spawn.metrics_url}/metrics")).text
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 5) == 0
        await asyncio.wait(subscribers, timeout=5)
