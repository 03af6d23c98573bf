"""A thousand watchers that connect in one moment to a job with a past: how soon each is answered, and what it costs.

.venv/bin/python -m benchmarks.watcher_burst [--watchers 1000] [--steps 300] [--live 20] [--rest 60] [--bursts 2]

A gateway that is a process of its own, on a bus of its own; another process opens all streams at once. Exit code 1: a
stream ended or missed an event, the first byte took longer than 3 s at the 99th percentile, or memory was kept: more
than half of the first burst's, or any of a later one's. An allocator keeps pages with a few live objects, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import httpx
import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.watchers import Gateway, gateway
from synth.bus.publish import Fence

_LIMIT_S = 3.0
#: The share of its memory that the gateway may keep after the first burst, and after a later one.
_KEPT = 0.5
_KEPT_LATER = 0.1
_WITHIN_S = 120.0
_POLL_S = 0.05
_ANSWER_BYTES = 1 << 24
#: A step's event has about a kilobyte.
_VALUES = {f"value_{i:02}": i / 7 for i in range(36)}
_IDS = re.compile(rb"^id: \d+$", re.MULTILINE)


class _Watcher(asyncio.Protocol):
    """One stream: when it began, had its first byte, its first event and its whole past; how many events it has."""

    def __init__(self, request: bytes, past: int, caught_up: asyncio.Semaphore) -> None:
        self.begun = time.perf_counter()
        self.first_byte: float | None = None
        self.first_event: float | None = None
        self.whole: float | None = None
        self.events = 0
        self.status = b""
        self.ended = False
        self._request = request
        self._past = past
        self._caught_up = caught_up
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.first_byte is None:
            self.first_byte, self.status = now - self.begun, data[:12]
        text, end, tail = (self._tail + data).rpartition(b"\n\n")
        self._tail = tail
        self.events += len(_IDS.findall(text + end))
        if self.events and self.first_event is None:
            self.first_event = now - self.begun
        if self.events >= self._past and self.whole is None:
            self.whole = now - self.begun
            self._caught_up.release()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if self.whole is None:
            self._caught_up.release()


async def open_all(port: int, key: str, job: str, *, watchers: int, past: int) -> list[_Watcher]:
    """Open every stream in one moment, print a line once all have the past, and close them at a line from stdin."""
    request = (
        f"GET /api/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {key}\r\n\r\n"
    ).encode()
    loop, caught_up = asyncio.get_running_loop(), asyncio.Semaphore(0)
    opened = [
        loop.create_connection(lambda: _Watcher(request, past, caught_up), "127.0.0.1", port) for _ in range(watchers)
    ]
    protocols = [protocol for _, protocol in await asyncio.gather(*opened)]
    async with asyncio.timeout(_WITHIN_S):
        for _ in protocols:
            await caught_up.acquire()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return protocols


async def _client(port: int, key: str, job: str, *, watchers: int, past: int) -> None:
    protocols = await open_all(port, key, job, watchers=watchers, past=past)
    print(
        json.dumps(
            {
                "ended": sum(watcher.ended for watcher in protocols),
                "refused": sum(b" 200" not in watcher.status for watcher in protocols),
                "events": [watcher.events for watcher in protocols],
                "first byte": [watcher.first_byte for watcher in protocols if watcher.first_byte is not None],
                "first event": [watcher.first_event for watcher in protocols if watcher.first_event is not None],
                "whole past": [watcher.whole for watcher in protocols if watcher.whole is not None],
            }
        ),
        flush=True,
    )
    for watcher in protocols:
        watcher.transport.abort()


async def run(folder: Path, *, watchers: int, steps: int, live: int, rest: float, bursts: int) -> bool:
    """Measure, and print; returns whether all is within the limits."""
    async with gateway(folder) as under_test:
        process = _process_at(under_test.port)
        job, fence = await under_test.submit()
        last = 0
        for k in range(1, steps + 1):
            last = await under_test.step(fence, k, _VALUES)
        await _shown(under_test, job, last)
        # What the first request of a process loads is no cost of the burst.
        await _events_of(under_test, job)
        good, step = True, steps
        for burst in range(bursts):
            new = range(step + 1, step + live + 1)
            step += live
            kept = _KEPT_LATER if burst else _KEPT
            good &= await _burst(under_test, process, job, fence, new, watchers=watchers, rest=rest, kept=kept)
    return good


async def _burst(
    under_test: Gateway,
    process: psutil.Process,
    job: str,
    fence: Fence,
    new: range,
    *,
    watchers: int,
    rest: float,
    kept: float,
) -> bool:
    """Open all watchers, announce the new steps, close the watchers. kept: the share of memory that may stay."""
    before, cpu = process.memory_info().rss, _cpu(process)
    past, last, live = await _events_of(under_test, job), 0, len(new)
    command = [sys.executable, "-m", "benchmarks.watcher_burst", "--client", str(under_test.port)]
    command += [under_test.key, job, str(past), "--watchers", str(watchers)]
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_ANSWER_BYTES)
    try:
        assert client.stdin is not None
        assert client.stdout is not None
        opening = asyncio.create_task(client.stdout.readline())
        peak = before
        while not opening.done():
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(_POLL_S)
        opened_cpu = _cpu(process) - cpu
        for k in new:
            last = await under_test.step(fence, k, _VALUES)
            peak = max(peak, process.memory_info().rss)
        await _shown(under_test, job, last)
        await asyncio.sleep(1)
        open_rss, cpu = process.memory_info().rss, _cpu(process) - cpu
        client.stdin.write(b"\n")
        result = json.loads(await client.stdout.readline())
        await client.wait()
    finally:
        if client.returncode is None:
            client.kill()
    await asyncio.sleep(rest)
    after = process.memory_info().rss
    missed = sum(count != past + live for count in result["events"])
    table = Table("", "p50 s", "p99 s", "slowest s", title=f"{watchers:,} watchers of {past} events")
    for what in ("first byte", "first event", "whole past"):
        table.add_row(what, *(f"{_percentile(result[what], share):.2f}" for share in (0.5, 0.99, 1)))
    console = Console(width=140)
    console.print(table)
    console.print(f"streams ended: {result['ended']}; refused: {result['refused']}; with events missing: {missed}")
    console.print(f"gateway: {opened_cpu:.1f} CPU s until all had the past, {cpu:.1f} with {live} more events")
    mib = [f"{size / (1 << 20):.0f}" for size in (before, peak, open_rss, after)]
    console.print(f"RSS MiB: {mib[0]} before, {mib[1]} at most, {mib[2]} as they leave, {mib[3]} after {rest:.0f} s")
    first = _percentile(result["first byte"], 0.99)
    within = after - before <= kept * max(1, peak - before)
    return not (result["ended"] or result["refused"] or missed) and first <= _LIMIT_S and within


def _process_at(port: int) -> psutil.Process:
    for child in psutil.Process().children():
        if any(c.laddr.port == port and c.status == psutil.CONN_LISTEN for c in child.net_connections("tcp")):
            return child
    raise LookupError(f"no child listens on {port}")


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _http(gateway: Gateway) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {gateway.key}"}
    return httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=60, trust_env=False)


async def _shown(gateway: Gateway, job: str, seq: int) -> None:
    """Wait until the gateway has projected the event of this sequence."""
    async with asyncio.timeout(_WITHIN_S), _http(gateway) as http:
        while int((await http.get(f"/api/jobs/{job}")).raise_for_status().json()["last_seq"]) < seq:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def _events_of(gateway: Gateway, job: str) -> int:
    count, after, more = 0, 0, True
    async with _http(gateway) as http:
        while more:
            reply = (
                await http.get(f"/api/jobs/{job}/events", params={"after": after, "limit": 1000})
            ).raise_for_status()
            page = reply.json()
            count, after, more = count + len(page["events"]), page["last_seq"], page["more"]
    return count


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def main() -> int:
    """Run; exit code 1 where a limit is passed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watchers", type=int, default=1000)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--live", type=int, default=20)
    options.add_argument("--rest", type=float, default=60.0)
    options.add_argument("--bursts", type=int, default=2)
    options.add_argument("--client", nargs=4, metavar=("PORT", "KEY", "JOB", "PAST"), help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.client:
        port, key, job, past = arguments.client
        uvloop.run(_client(int(port), key, job, watchers=arguments.watchers, past=int(past)))
        return 0
    with tempfile.TemporaryDirectory(prefix="burst") as folder:
        sizes = {name: getattr(arguments, name) for name in ("watchers", "steps", "live", "rest", "bursts")}
        good = asyncio.run(run(Path(folder), **sizes))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
