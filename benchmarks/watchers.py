"""A thousand watchers of one job: what ten that read nothing cost the others; and one that is dropped a thousand times.

.venv/bin/python -m benchmarks.watchers [--watchers 1000] [--stalled 10] [--steps 200] [--drops 1000]

A gateway that is a process of its own, on a bus of its own; the job's facts are published as its trainer does it. Exit
code 1: the others wait more than twice as long at the 99th percentile, or a watcher missed or repeated an event.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from synth.bus.connection import Connection, connect
from synth.bus.history.job_log import append_as_owner, append_decided, start_attempt
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Fence, Publisher
from synth.bus.server.embedded import free_port
from synth.events import JobSucceeded, JobValidated, JobVerified, ModelRef, TrainStep
from synth.events.catalogue import Event
from synth.keys import new_api_key
from tests.service.own_bus import Bus, provisioned
from tests.service.process import running

_LIMIT = 2.0
_OPEN_S = 240.0
_END_S = 300.0
#: Opened at a time, so that none waits for the server's backlog.
_OPENED_AT_ONCE = 50
#: Between two events: a gateway that is always busy would say nothing of the stalled ones.
_PAUSE_S = 0.3
_DROPPED_PAUSE_S = 0.005
#: Bytes of a stalled watcher's own buffer, beside the server's.
_STALLED_BYTES = 4096
_VALUES = {f"value_{i:03}": float(i) for i in range(100)}
#: The first data of the stalled watchers, 7 MB, which fills the connection's buffers before the measurement.
_BULK_STEPS = 8
_BULK_VALUES = {f"value_{i:05}": float(i) for i in range(40_000)}
_EVENT = re.compile(rb'^data: \{.*?"time":"([^"]+)".*$', re.MULTILINE)
_STEP = re.compile(rb'"data":\{"step":(\d+),')
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)

console = Console(width=140)


@dataclass(frozen=True)
class Gateway:
    """A gateway with one organisation, and the job's publishers."""

    url: str
    port: int
    key: str
    org: str
    buses: dict[str, Connection]

    async def submit(self) -> tuple[str, Fence]:
        """Submit a job, and start it in the trainer's place."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, trust_env=False) as http:
            reply = await http.post("/api/jobs", json={"config": "[job]"})
            reply.raise_for_status()
        job = str(reply.json()["id"])
        facts: tuple[tuple[str, Event], ...] = (
            ("validator", JobValidated(job={"kind": "sft"}, origins={}, warnings=[])),
            ("verifier", JobVerified(source=ModelRef(id="tiny"))),
        )
        for service, fact in facts:
            await append_decided(self.buses[service], self.org, job, lambda _, fact=fact: fact)
        _, fence = await start_attempt(self.buses["trainer"], self.org, job, worker="watchers")
        assert fence is not None
        return job, fence

    async def step(self, fence: Fence, k: int, values: dict[str, float]) -> int:
        """Publish a step; returns its place in the log."""
        event = TrainStep(step=k, of=k, attempt=fence.attempt, values=values)
        return await Publisher(self.buses["trainer"]).fenced(event, fence=fence, id=str(k))

    async def succeed(self, fence: Fence, steps: int) -> None:
        """Publish the job's end."""
        await append_as_owner(self.buses["trainer"], fence, lambda _: JobSucceeded(steps=steps))

    async def lagged(self) -> float:
        """Return how often a watcher was too slow, and was sent back to the log."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False) as http:
            text = (await http.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("synth_gateway_streams_lagged_total")]
        return float(lines[0].split()[-1]) if lines else 0.0


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Gateway]:
    """The gateway, alone on its bus. A watcher that is more than 100 kB behind has lagged."""
    bus = Bus(folder)
    bus.start()
    buses: dict[str, Connection] = {}
    try:
        await provisioned(bus)
        port, key = free_port(), new_api_key()
        for service in ("gateway", "validator", "verifier", "trainer"):
            buses[service] = await connect(bus.settings(service), service)
        settings = bus.settings("gateway")
        secrets = SecretStore(buses["gateway"], settings.secrets_of("gateway"))
        org = (await secrets.ensure_api_key(key)).org
        own = {"SYNTH_READ_MODEL_PATH": str(folder / "gateway.db"), "SYNTH_STREAM_BUFFER_BYTES": "100000"}
        # A heartbeat is no step; without it the streams hold what is measured, and nothing else.
        own["SYNTH_HEARTBEAT_AFTER_S"] = "3600"
        # The stalled ones stay until all else is over.
        own["SYNTH_HTTP_UNREAD_S"] = "3600"
        with running("gateway", settings, folder / "gateway.log", port=port, **own):
            yield Gateway(f"http://127.0.0.1:{port}", port, key, org, buses)
    finally:
        for each in buses.values():
            await each.close()
        bus.stop()


@dataclass
class Watcher:
    """One stream. late_ms: from each event's own time to its arrival. steps: the ones that it saw, in order.

    connected: it is answered. opened: it has its first step. reads: one that stalls goes on.
    """

    late_ms: list[float] = field(default_factory=list[float])
    steps: list[int] = field(default_factory=list[int])
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    async def watch(self, gateway: Gateway, job: str, *, after: int, stalled: bool) -> None:
        """Read the job's events behind `after` to their end. stalled: read nothing until `reads`."""
        reader, writer = await _open(gateway, job, after=after, room=_STALLED_BYTES if stalled else None)
        self.connected.set()
        left = b""
        try:
            while not self.ended:
                if stalled:
                    await self.reads.wait()
                piece = await reader.read(1 << 18)
                if not piece:
                    raise ConnectionError("the stream ended before the job")
                left = self._note(left + piece)
        finally:
            writer.close()

    def _note(self, text: bytes) -> bytes:
        """Take the complete events from the front; returns the rest."""
        now = time.time()
        whole, end, rest = text.rpartition(b"\n\n")
        for found in _EVENT.finditer(whole):
            step = _STEP.search(found[0])
            if step is None:
                continue
            self.opened.set()
            self.steps.append(int(step[1]))
            self.late_ms.append((now - datetime.fromisoformat(found[1].decode()).timestamp()) * 1e3)
        self.ended = b"event: end\n" in whole + end
        return rest


async def _open(
    gateway: Gateway, job: str, *, after: int, room: int | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    raw = socket.socket()
    if room is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", gateway.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=room or 1 << 18)
    lines = (
        f"GET /api/jobs/{job}/events HTTP/1.1",
        "Host: localhost",
        "Accept: text/event-stream",
        f"Authorization: Bearer {gateway.key}",
        f"Last-Event-ID: {after}",
    )
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        writer.close()
        raise ConnectionError(head.splitlines()[0].decode())
    return reader, writer


async def _projected(gateway: Gateway, job: str, *, after: int) -> None:
    """Wait until the gateway shows the step behind `after`: it answers nobody before it has read what there is."""
    async with asyncio.timeout(_OPEN_S):
        while True:
            probe = Watcher()
            watching = asyncio.create_task(probe.watch(gateway, job, after=after, stalled=False))
            seen = asyncio.create_task(probe.opened.wait())
            try:
                await asyncio.wait([watching, seen], return_when=asyncio.FIRST_COMPLETED)
                if seen.done():
                    return
            finally:
                for task in (watching, seen):
                    task.cancel()
                await asyncio.gather(watching, seen, return_exceptions=True)
            await asyncio.sleep(1)


async def crowd(gateway: Gateway, *, watchers: int, stalled: int, steps: int) -> list[Watcher]:
    """Have a job watched; `stalled` of the watchers read nothing until all else is over."""
    job, fence = await gateway.submit()
    bulk = [await gateway.step(fence, k, _BULK_VALUES) for k in range(1, _BULK_STEPS + 1)]
    # The first step that all of them see, from the log, is not measured.
    await gateway.step(fence, _BULK_STEPS + 1, _VALUES)
    await _projected(gateway, job, after=bulk[-1])
    all_of_them = [Watcher() for _ in range(watchers)]
    opening = asyncio.Semaphore(_OPENED_AT_ONCE)
    watching: list[asyncio.Task[None]] = []

    async def begin(watcher: Watcher, stalls: bool) -> None:
        async with opening, asyncio.timeout(_OPEN_S):
            after = 0 if stalls else bulk[-1]
            task = asyncio.create_task(watcher.watch(gateway, job, after=after, stalled=stalls))
            watching.append(task)
            begun = asyncio.create_task((watcher.connected if stalls else watcher.opened).wait())
            await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if task.done():
                task.result()

    await asyncio.gather(*(begin(watcher, n < stalled) for n, watcher in enumerate(all_of_them)))
    for watcher in all_of_them:
        watcher.late_ms.clear()
    last = _BULK_STEPS + 1 + steps
    for k in range(_BULK_STEPS + 2, last + 1):
        await gateway.step(fence, k, _VALUES)
        await asyncio.sleep(_PAUSE_S)
    await gateway.succeed(fence, last)
    for watcher in all_of_them[:stalled]:
        watcher.reads.set()
    async with asyncio.timeout(_END_S):
        await asyncio.gather(*watching)
    return all_of_them


async def dropped(gateway: Gateway, *, times: int, seed: int = 0) -> tuple[list[int], int]:
    """Return the steps seen by a watcher that loses its connection `times` times, and the number of the last step."""
    job, fence = await gateway.submit()
    rng, over = random.Random(seed), asyncio.Event()

    async def live() -> int:
        k = 0
        while not over.is_set():
            k += 1
            await gateway.step(fence, k, {"loss": 1.0})
            await asyncio.sleep(_DROPPED_PAUSE_S)
        await gateway.succeed(fence, k)
        return k

    living = asyncio.create_task(live())
    seen: list[int] = []
    after = 0
    for drop in range(times + 1):
        if drop == times:
            over.set()
        reader, writer = await _open(gateway, job, after=after, room=None)
        text, most = b"", rng.randint(1, 4000)
        async with asyncio.timeout(_END_S):
            # Cut in the middle of an event, mostly: what came of it is no event, as for any client.
            while (len(text) < most or drop == times) and (piece := await reader.read(min(most, 1 << 16))):
                text += piece
                if b"event: end\n" in text:
                    break
        writer.transport.abort()
        whole = text.rpartition(b"\n\n")[0] + b"\n"
        seen += [int(step) for step in _STEP.findall(whole)]
        after = max([after, *(int(id) for id in _ID.findall(whole))])
    return seen, await living


def _faults(seen: list[int], first: int, last: int) -> tuple[int, int]:
    """Count the missing steps, and the steps that came twice or late."""
    return len(set(range(first, last + 1)) - set(seen)), sum(1 for a, b in pairwise(seen) if b <= a)


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


async def run(folder: Path, *, watchers: int, stalled: int, steps: int, drops: int) -> bool:
    """Measure, and print; whether all is as it should be."""
    table = Table("watchers", "stalled", "events", "median ms", "p99 ms", "missing", "repeated", "sent back")
    p99: dict[int, list[float]] = {0: [], stalled: []}
    faults = 0
    async with gateway(folder) as under_test:
        # The machine drifts: without them before and after.
        for stalls in (0, stalled, 0):
            lagged = await under_test.lagged()
            watched = await crowd(under_test, watchers=watchers, stalled=stalls, steps=steps)
            late = [ms for watcher in watched[stalls:] for ms in watcher.late_ms]
            p99[stalls].append(_percentile(late, 0.99))
            last = _BULK_STEPS + 1 + steps
            each = [_faults(w.steps, 1 if n < stalls else _BULK_STEPS + 1, last) for n, w in enumerate(watched)]
            missing, repeated = (sum(n) for n in zip(*each, strict=True))
            faults += missing + repeated
            figures = (watchers, stalls, steps, f"{statistics.median(late):.0f}", f"{p99[stalls][-1]:.0f}")
            table.add_row(*map(str, figures), str(missing), str(repeated), f"{await under_test.lagged() - lagged:.0f}")
        seen, published = await dropped(under_test, times=drops)
        missing, repeated = _faults(seen, 1, published)
    console.print(table)
    ratio = p99[stalled][0] / statistics.mean(p99[0])
    console.print(f"p99 with {stalled} stalled: {ratio:.2f} of that without (limit {_LIMIT:g})")
    console.print(f"dropped {drops} times in {published} events: {missing} events missing, {repeated} repeated")
    return ratio <= _LIMIT and not faults and not missing and not repeated


def main() -> int:
    """Run; exit code 1 if a limit is passed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watchers", type=int, default=1000)
    options.add_argument("--stalled", type=int, default=10)
    # Of fewer events the 99th percentile is the slowest one alone.
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--drops", type=int, default=1000)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="watchers") as folder:
        good = asyncio.run(run(Path(folder), **vars(chosen)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
