"""Clusters of a bus, its blobs and one key, to be backed up and archived."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx

from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.server.embedded import free_port
from synth.bus.server.topology import EVENTS
from synth.events import (
    BlobExpired,
    CheckpointSaved,
    Heartbeat,
    ModelRef,
)
from tests.keyrings import secrets_of
from tests.service.gateway import job_histories
from tests.service.own_bus import Bus, provisioned
from tests.service.process import environment, running


class Cluster:
    """A bus with its blobs, and a key of a user."""

    def __init__(self, home: Path, key: str) -> None:
        home.mkdir()
        self.home, self.key, self.port = home, key, free_port()
        self.bus = Bus(home)
        self.bus.start()
        self.blobs = BlobStore.open(f"file:{home / 'blobs'}")
        self.opened: list[Connection] = []

    async def as_(self, user: str) -> Connection:
        self.opened.append(await connect(self.bus.settings(user), user))
        return self.opened[-1]

    def service(self, name: str):
        quiet = {"SYNTH_HEARTBEAT_AFTER_S": "3600", "SYNTH_WAITING_AFTER_S": "3600"}
        extra = {"SYNTH_READ_MODEL_PATH": str(self.home / "g.db"), **quiet}
        port = self.port if name == "gateway" else 0
        return running(name, self.bus.settings(name), self.home / f"{name}.log", port=port, **extra)

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=30)

    def synthd(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`synthd bus …` as the operator runs it."""
        command = [sys.executable, "-m", "synth.synthd", "bus", *words]
        return subprocess.run(
            command, env=environment(self.bus.settings("bus")), capture_output=True, text=True, timeout=120, check=False
        )

    async def destroy(self) -> None:
        for connection in self.opened:
            await connection.close()
        self.bus.stop()
        shutil.rmtree(self.home)


async def with_history(cluster: Cluster) -> str:
    """Jobs in several states, a file, checkpoints of which one has expired, and gaps in the log; returns the org."""
    await provisioned(cluster.bus)
    gateway = await cluster.as_("gateway")
    org = (await SecretStore(gateway, secrets_of("gateway")).ensure_api_key(cluster.key)).org
    with cluster.service("gateway"), cluster.http() as http:
        ids = [http.post("/api/jobs", json={"config": f"# {n}"}).json()["id"] for n in range(4)]
        http.post("/api/files", files={"file": ("a.jsonl", b'{"messages": []}\n' * 50)}).raise_for_status()
    # An event that the log forgets leaves a gap.
    for n in range(3):
        event = Heartbeat(state="created")
        await Publisher(gateway).once(event, org=org, key=ids[0], id=f"hb{n}", ttl=1)
    trainer, fence = await job_histories.begin(cluster.as_, org, ids[0])
    for k in (1, 2):
        folder = cluster.home / "made"
        folder.mkdir()
        (folder / "weights").write_bytes(random.Random(k).randbytes(100_000))
        tree, _ = await cluster.blobs.put_tree(f"jobs/{ids[0]}/checkpoints/{k}", folder, move=True)
        ref = ModelRef(id=f"rl:tiny:{ids[0]}:step_{k}", tree=tree)
        saved = CheckpointSaved(step=k, version=k, attempt=1, tree=tree, size=100_000, model=ref)
        await Publisher(trainer).fenced(saved, fence=fence, id=str(k))
        await job_histories.step(trainer, fence, k, of=2)
        if k == 1:
            await Publisher(trainer).fenced(BlobExpired(uris=[tree.uri]), fence=fence, id="e")
            await cluster.blobs.delete([*await cluster.blobs.files_of_tree(tree.uri), tree.uri])
    await job_histories.succeed(trainer, fence, steps=2)
    await job_histories.verify(cluster.as_, org, ids[1])
    deadline = time.monotonic() + 30
    while (await gateway.js.stream_info(EVENTS)).state.num_deleted != 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    return org
