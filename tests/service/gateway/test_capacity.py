"""New jobs and files are refused while there is still room for those that run."""

from __future__ import annotations

import asyncio
import shutil

import httpx

from synth.bus.connection import Connection, connect
from synth.bus.kv.secrets import SecretStore
from synth.bus.server.embedded import free_port
from synth.bus.server.provision import provision
from synth.bus.server.topology import EVENTS, topology
from synth.keys import new_api_key
from tests.keyrings import secrets_of
from tests.service.gateway import job_histories
from tests.service.process import running


async def test_a_disk_with_little_room_takes_no_new_job_and_no_file(start_gateway, client_of, tmp_path):
    free = shutil.disk_usage(tmp_path).free
    user = await client_of(await start_gateway(disk_reserve_bytes=2 * free))
    job = await user.http.post("/api/jobs", json={"config": "x"})
    file = await user.http.post("/api/files", files={"file": ("a.jsonl", b"{}")})
    for refused in (job, file):
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        error = refused.json()["error"]
        assert error["type"] == "no_room"
        assert "SYNTH_DISK_RESERVE_BYTES" in error["message"]
    # What is there is read as ever, and its health is its own.
    assert (await user.http.get("/api/jobs")).json()["data"] == []
    assert (await user.http.get("/healthz")).status_code == 200
    roomy = await client_of(await start_gateway(), user.key)
    assert (await roomy.http.post("/api/jobs", json={"config": "x"})).status_code == 201


async def test_a_log_with_little_room_takes_no_new_job_and_events_of_those_that_run(own_bus, tmp_path):
    opened: list[Connection] = []

    async def dial(user: str) -> Connection:
        opened.append(await connect(own_bus.settings(user), user))
        return opened[-1]

    admin = await dial("bus")
    await provision(admin.js, topology(log_max_bytes=2 << 20))
    key, port = new_api_key(), free_port()
    gateway = await dial("gateway")
    org = (await SecretStore(gateway, secrets_of("gateway")).ensure_api_key(key)).org
    extra = {"SYNTH_READ_MODEL_PATH": str(tmp_path / "g.db"), "SYNTH_LOG_RESERVE": "0.5"}
    # One organisation may take all of it here.
    extra |= {"SYNTH_ORG_LOG_BYTES": str(1 << 40), "SYNTH_CONFIG_INLINE_BYTES": "100000"}
    headers = {"Authorization": f"Bearer {key}"}
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)
    with running("gateway", own_bus.settings("gateway"), tmp_path / "gateway.log", port=port, **extra):
        jobs: list[str] = []
        async with asyncio.timeout(60):
            while (reply := await client.post("/api/jobs", json={"config": "#" * 60_000})).status_code == 201:
                jobs.append(reply.json()["id"])
                # As fast as the gateway looks at the log: half of it is left at least when the last one comes.
                await asyncio.sleep(0.5)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "30")
        assert "SYNTH_LOG_MAX_BYTES" in reply.json()["error"]["message"]
        # A job that is there goes on, and ends.
        trainer, fence = await job_histories.begin(dial, org, jobs[0])
        await job_histories.succeed(trainer, fence, steps=1)
        async with asyncio.timeout(20):
            while (await client.get(f"/api/jobs/{jobs[0]}")).json()["state"] != "succeeded":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await admin.js.stream_info(EVENTS)).state.bytes < 2 << 20
    await client.aclose()
    for connection in opened:
        await connection.close()
