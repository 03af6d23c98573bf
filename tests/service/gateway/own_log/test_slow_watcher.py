"""A watcher that does not read: the gateway keeps little for it, and it misses nothing."""

from __future__ import annotations

import asyncio
import json
import socket

from synth.bus.publish import Publisher
from synth.events import TrainStep
from tests.service.gateway import job_histories


async def test_a_slow_watcher_goes_back_to_the_log_and_misses_nothing(bus_as, start_gateway, client_of):
    running = await start_gateway(stream_buffer=20)
    user = await client_of(running)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    host, port = "127.0.0.1", running.service.port
    # A client that does not read, on a connection that holds little.
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    writer.write(
        f"GET /api/jobs/{id}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {user.key}\r\n\r\n".encode()
    )
    # Until it watches: what comes from here on goes through its queue.
    await asyncio.wait_for(reader.readuntil(b"job.started"), 10)
    long = {f"value_{i:03}": float(i) for i in range(200)}
    publisher, steps = Publisher(trainer), 1500
    await asyncio.gather(
        *(
            publisher.fenced(TrainStep(step=k, of=steps, attempt=1, values=long), fence=fence, id=str(k))
            for k in range(1, steps + 1)
        )
    )
    await job_histories.succeed(trainer, fence, steps=steps)
    text = bytearray()
    async with asyncio.timeout(60):
        while b"event: end" not in text:
            text += await reader.read(1 << 20)
    writer.close()
    found = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b'data: {"seq"')]
    assert [e["data"]["step"] for e in found if e["type"] == "train.step"] == list(range(1, steps + 1))
    async with asyncio.timeout(10):
        metrics = (await user.http.get("/metrics")).text
    lagged = next(line for line in metrics.splitlines() if line.startswith("synth_gateway_streams_lagged_total"))
    assert float(lagged.split()[1]) >= 1
