"""A watcher that does not read: the gateway keeps little for it, and it misses nothing."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import suppress

from synth.bus.publish import Publisher
from synth.events import TrainStep
from tests.service.gateway import job_histories


async def unread_stream(running, user, id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An event stream on a connection that holds little."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", running.service.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    writer.write(
        f"GET /api/jobs/{id}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {user.key}\r\n\r\n".encode()
    )
    return reader, writer


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """The rest of a stream, until its last event or a reset."""
    text = bytearray()
    with suppress(ConnectionResetError):
        async with asyncio.timeout(60):
            while b"event: end" not in text and (piece := await reader.read(1 << 20)):
                text += piece
    return bytes(text)


async def test_a_slow_watcher_goes_back_to_the_log_and_misses_nothing(bus_as, start_gateway, client_of):
    running = await start_gateway(stream_buffer_bytes=100_000)
    user = await client_of(running)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    reader, writer = await unread_stream(running, user, id)
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
    text = await read_to_end(reader)
    writer.close()
    found = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b'data: {"seq"')]
    assert [e["data"]["step"] for e in found if e["type"] == "train.step"] == list(range(1, steps + 1))
    async with asyncio.timeout(10):
        metrics = (await user.http.get("/metrics")).text
    lagged = next(line for line in metrics.splitlines() if line.startswith("synth_gateway_streams_lagged_total"))
    assert float(lagged.split()[1]) >= 1
    await assert_ended_for_not_reading(await start_gateway(http_unread_s=0.5), user, id)


async def assert_ended_for_not_reading(running, user, id: str) -> None:
    """A client that reads none of a long past is held at 256 KiB and disconnected, and goes on from its last event."""
    reader, writer = await unread_stream(running, user, id)
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    [connection] = [c for c in running.server.server_state.connections if c.cycle and not c.cycle.response_complete]
    async with asyncio.timeout(30):
        while not connection.transport.is_closing():
            assert connection.transport.get_write_buffer_size() <= 256 << 10
            await asyncio.sleep(0.01)
    text = await read_to_end(reader)
    writer.close()
    assert b"event: end" not in text
    seen = [int(seq) for seq in re.findall(rb"^id: (\d+)$", text.rpartition(b"\n\n")[0], re.MULTILINE)]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(seen[-1])}
    rest = (await user.http.get(f"/api/jobs/{id}/events", headers=headers)).content
    seen += [int(seq) for seq in re.findall(rb"^id: (\d+)$", rest, re.MULTILINE)]
    page = (await user.http.get(f"/api/jobs/{id}/events", params={"limit": 2000})).json()
    assert seen == [event["seq"] for event in page["events"]]
