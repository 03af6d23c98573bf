"""The eraser goes on where it stopped, and says once that the bus is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from structlog.testing import capture_logs

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.erasure import sweep
from synth.erasure.position import read_swept_patiently
from synth.erasure.sweep import Sweeper
from synth.events import Heartbeat, JobDeleted
from tests.service.own_bus import Bus

BusAs = Callable[[str], Awaitable[Connection]]
ORG = "org_1"


@asynccontextmanager
async def sweeping(admin: Connection, folder: Path, *, late_s: float = 0.0) -> AsyncIterator[Sweeper]:
    sweeper = Sweeper(admin, BlobStore.open(f"file:{folder / 'blobs'}"), late_s=late_s)
    running = asyncio.create_task(sweeper.run())
    yield sweeper
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while True:
            if await check():
                return
            await asyncio.sleep(0.05)


async def delete(gateway: Connection, job: str) -> int:
    publisher = Publisher(gateway)
    await publisher.once(Heartbeat(state="running"), org=ORG, key=job, id=job)
    return await publisher.once(JobDeleted(requested_by="k"), org=ORG, key=job, id=job)


async def types_of(bus: Connection, job: str) -> list[str]:
    return [event.type for event in await replay(bus, [f"*.*.{ORG}.{job}"])]


async def test_a_start_looks_only_at_deletions_that_are_not_erased(bus_as: BusAs, tmp_path: Path, monkeypatch):
    gateway, admin = await bus_as("gateway"), await bus_as("bus")
    last = max([await delete(gateway, f"job_{number}") for number in range(5)])
    async with sweeping(admin, tmp_path):

        async def all_erased() -> bool:
            return (await read_swept_patiently(admin)).seq == last

        await eventually(all_erased)
    for number in range(5):
        assert await types_of(gateway, f"job_{number}") == ["job.deleted"]
    looked: list[str] = []
    erase_job = Sweeper._erase_job

    async def look(self: Sweeper, org: str, job: str) -> bool:
        looked.append(job)
        return await erase_job(self, org, job)

    monkeypatch.setattr(Sweeper, "_erase_job", look)
    async with sweeping(admin, tmp_path):
        await delete(gateway, "job_new")

        async def new_erased() -> bool:
            return await types_of(gateway, "job_new") == ["job.deleted"]

        await eventually(new_erased)
    assert set(looked) == {"job_new"}


async def test_an_event_that_comes_after_the_erasure_is_erased_too(bus_as: BusAs, tmp_path: Path):
    gateway, admin = await bus_as("gateway"), await bus_as("bus")
    async with sweeping(admin, tmp_path, late_s=1.0):
        await delete(gateway, "job_1")

        async def erased() -> bool:
            return await types_of(gateway, "job_1") == ["job.deleted"]

        await eventually(erased)
        await Publisher(gateway).once(Heartbeat(state="running"), org=ORG, key="job_1", id="late")
        assert await types_of(gateway, "job_1") == ["job.deleted", "watch.heartbeat"]
        await eventually(erased)


async def test_a_bus_that_is_away_is_logged_once(own_bus: Bus, bus_as: BusAs, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("synth.bus.replay._REQUEST_S", 0.2)
    monkeypatch.setattr(sweep, "_LAST_DELAY_S", 0.2)
    gateway, admin = await bus_as("gateway"), await bus_as("bus")
    store = BlobStore.open(f"file:{tmp_path / 'blobs'}")
    await store.put_bytes("jobs/job_1/a", b"x")
    await delete(gateway, "job_1")
    with capture_logs() as lines:
        async with sweeping(admin, tmp_path) as sweeper:

            async def follows() -> bool:
                return sweeper._followed > 0

            await eventually(follows)
            own_bus.stop()
            await asyncio.sleep(3.0)
            own_bus.start()
            await store.delete(["blob://jobs/job_1/a"])

            async def erased() -> bool:
                return await types_of(gateway, "job_1") == ["job.deleted"]

            await eventually(erased)
    warnings = Counter(line["event"] for line in lines if line["log_level"] == "warning")
    # Each of two connections, and of three reads.
    assert warnings["bus disconnected"] <= 2
    assert warnings["follow cannot open"] <= 3
    assert warnings["the leader does not say what is last"] <= 1
    assert warnings["what was deleted cannot be erased now"] <= 1
    assert sum(warnings.values()) > 2, warnings
