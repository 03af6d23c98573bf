"""A gateway whose read model is of another log than the one it meets: an earlier state of it was restored, say."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import httpx

from synth.bus.connection import connect
from synth.bus.kv.secrets import SecretStore
from synth.bus.server.embedded import free_port
from synth.keys import new_api_key
from tests.keyrings import secrets_of
from tests.service.own_bus import provisioned
from tests.service.process import running


async def test_a_gateway_that_is_ahead_of_its_log_begins_anew(own_bus, tmp_path):
    await provisioned(own_bus)
    key = new_api_key()
    gateway = await connect(own_bus.settings("gateway"), "gateway")
    await SecretStore(gateway, secrets_of("gateway")).ensure_api_key(key)
    await gateway.close()
    port, log = free_port(), tmp_path / "gateway.log"
    extra = {"SYNTH_READ_MODEL_PATH": str(tmp_path / "g.db"), "SYNTH_HEARTBEAT_AFTER_S": "3600"}
    headers = {"Authorization": f"Bearer {key}"}

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers=headers,
            timeout=30,
            transport=httpx.AsyncHTTPTransport(retries=5),
        )

    async def submit(n: int) -> list[str]:
        async with client() as http:
            replies = [await http.post("/api/jobs", json={"config": "x"}) for _ in range(n)]
        assert {reply.status_code for reply in replies} == {201}
        return [reply.json()["id"] for reply in replies]

    async def listed() -> list[str]:
        async with client() as http:
            return sorted(job["id"] for job in (await http.get("/api/jobs", params={"limit": 100})).json()["data"])

    with running("gateway", own_bus.settings("gateway"), log, port=port, **extra):
        kept = await submit(3)
        own_bus.stop()
        shutil.copytree(tmp_path / "store", tmp_path / "saved")
        own_bus.start()
        await submit(5)
        assert len(await listed()) == 8
    own_bus.stop()
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "saved", tmp_path / "store")
    own_bus.start()
    # Behind: the log ends before the ledger does.
    with running("gateway", own_bus.settings("gateway"), log, port=port, probe="/livez", **extra):
        async with client() as http:
            refused = await http.post("/api/jobs", json={"config": "x"})
            read = await http.get("/api/jobs")
            health = (await http.get("/healthz")).json()["unhealthy"]["damage"]
        assert (refused.status_code, read.status_code, "5 events" in refused.text) == (503, 200, True)
        assert refused.headers["retry-after"]
        assert "5 events of the log (4-8)" in health
        assert "synthctl restore" in health
    ledger = tmp_path / "g.db.ledger"
    ledger.unlink()
    with running("gateway", own_bus.settings("gateway"), log, port=port, **extra):
        assert await listed() == sorted(kept)
        lost = await submit(2)
    # Ahead again, with other events where the model's last ones were: its sequences alone say nothing.
    own_bus.stop()
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "saved", tmp_path / "store")
    own_bus.start()
    with running(
        "gateway", own_bus.settings("gateway"), log, port=port, SYNTH_READ_MODEL_PATH=str(tmp_path / "other.db")
    ):
        new = await submit(4)
    ledger.unlink()
    with running("gateway", own_bus.settings("gateway"), log, port=port, **extra):
        assert await listed() == sorted(kept + new)
        assert not set(lost) & set(await listed())
    assert "another one" in log.read_text()


async def test_a_log_that_is_replaced_under_a_gateway_ends_it(own_bus, tmp_path):
    await provisioned(own_bus)
    log = tmp_path / "gateway.log"
    ended: list[int] = []

    async def replace(process: subprocess.Popen[bytes]) -> None:
        own_bus.stop()
        shutil.rmtree(tmp_path / "store")
        own_bus.start()
        await provisioned(own_bus)
        ended.append(await asyncio.to_thread(process.wait, 60))

    with running(
        "gateway", own_bus.settings("gateway"), log, ends="1", SYNTH_READ_MODEL_PATH=str(tmp_path / "g.db")
    ) as it:
        await replace(it)
    assert ended == [1]
    assert "must start anew" in log.read_text()
