"""Reading the log: a finite replay, and an ordered follow that never ends.

Invariants. A follower yields each event once, in stream order, from the sequence after its cursor; when the server,
the connection, its consumer or a message goes away it opens a new consumer at its cursor. Nothing is acknowledged: a
reader keeps its place itself, so any number of them cost the bus nothing but the delivery. A finite replay ends at
the last message that the leader of the stream reports.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from nats.aio.msg import Msg

from synth.bus.access.client import BusClient
from synth.bus.connection import Connection
from synth.bus.reading import read_patiently
from synth.bus.recorded import Recorded, delivery_numbers, from_delivery, require_known, require_readable
from synth.bus.server.topology import EVENTS
from synth.errors import Transient
from synth.runtime import logs

log = logs.get("replay")

_HEARTBEAT_S = 1.0
_SILENCE_S = 5.0
_ORPHAN_S = 30.0
_REQUEST_S = 3.0
_BUFFER = 4096
_STALLED = "Nats-Consumer-Stalled"
#: In a heartbeat: how many messages the consumer has sent.
_DELIVERED = "Nats-Last-Consumer"
_AGAIN_S = 0.2
#: Seconds between two reads of a server that lags behind the leader.
_LAG_S = 0.1
#: The server's code of "no message found".
_NO_MESSAGE = 10037


class StreamFollower:
    """An ordered consumer of its own, reopened at its cursor whenever it falls silent or skips."""

    def __init__(
        self,
        nc: BusClient,
        filters: list[str],
        *,
        after: int = 0,
        stream: str = EVENTS,
        last: bool = False,
        headers_only: bool = False,
    ):
        """filters: subjects of `stream`. after: the sequence already known. last: only each subject's last message.

        headers_only: without the bodies.
        """
        self.cursor = after
        self._nc = nc
        self._filters = filters
        self._stream = stream
        self._last = last
        self._headers_only = headers_only
        # None: messages behind those before it are lost.
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue(_BUFFER)
        self._expected = 1
        self._received = 0
        self._inbox = ""
        self._subscription: Any = None
        self._signs = 0

    async def open(self) -> int:
        """Create the consumer at the cursor; returns how many messages it will deliver before it is live."""
        await self.close()
        self._queue = asyncio.Queue(_BUFFER)
        self._expected = 1
        self._received = 0
        self._inbox = self._nc.new_inbox()
        self._subscription = await self._nc.subscribe(self._inbox, cb=self._arrived)
        # In the request's subject too: the server refuses a service there the names of queues (`server.permissions`).
        name = f"reader-{secrets.token_hex(12)}"
        config: dict[str, object] = {
            "name": name,
            "deliver_subject": self._inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
            "flow_control": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(_ORPHAN_S * 1e9),
            "filter_subjects": self._filters,
            "deliver_policy": "last_per_subject",
            "headers_only": self._headers_only,
        }
        if not self._last or self.cursor:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.cursor + 1}
        reply = await self._nc.request(
            f"{self._nc.api}.CONSUMER.CREATE.{self._stream}.{name}",
            json.dumps({"stream_name": self._stream, "config": config}).encode(),
            timeout=_REQUEST_S,
        )
        info = cast(dict[str, Any], json.loads(reply.data))
        if "error" in info:
            raise Transient(f"cannot read {self._stream}: {info['error'].get('description')}")
        return int(info["num_pending"])

    async def close(self) -> None:
        """Stop; the server removes the consumer by itself."""
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            if not self._nc.is_closed:
                await subscription.unsubscribe()

    async def messages(self) -> AsyncGenerator[Msg]:
        """Yield each message once, in order, for ever; reopens by itself."""
        if self._subscription is None:
            await self._reopen("start")
        while True:
            signs = self._signs
            try:
                # Not wait_for: it swallows a cancellation that meets a message (Python 3.11), and costs a task each.
                async with asyncio.timeout(_SILENCE_S):
                    msg = await self._queue.get()
            except TimeoutError:
                if self._signs == signs:
                    await self._reopen("silence")
                continue
            if msg is None:
                await self._reopen("loss")
                continue
            seq, consumer_seq, _, _ = delivery_numbers(msg.reply)
            if consumer_seq != self._expected:
                await self._reopen("gap")
                continue
            self._expected += 1
            self.cursor = seq
            yield msg

    async def _arrived(self, msg: Msg) -> None:
        self._signs += 1
        headers = msg.headers or {}
        if msg.subject != self._inbox or msg.reply.startswith("$JS.ACK"):
            self._received += 1
            await self._queue.put(msg)
        elif msg.reply:
            # Flow control: answered only now, when everything before it is in the queue.
            await msg.respond(b"")
        elif int(headers.get(_DELIVERED, 0)) > self._received:
            # A heartbeat after messages that were lost with a connection: perhaps no later message shows the gap.
            await self._queue.put(None)
        elif stalled := headers.get(_STALLED):
            # A heartbeat of a consumer that waits for this answer: its request or our answer was lost in a reconnect.
            await self._nc.publish(stalled)

    async def open_patiently(self) -> int:
        """Open, and try again for as long as the bus is away."""
        return await read_patiently(self.open, what="a follower", filters=self._filters)

    async def _reopen(self, why: str) -> None:
        if why != "start":
            log.info("follow reopened", why=why, filters=self._filters, cursor=self.cursor)
        while True:
            try:
                await self.open_patiently()
                return
            except Transient as error:
                log.warning("follow cannot reopen", error=str(error), filters=self._filters)
                await asyncio.sleep(0.5)


async def follow(
    bus: Connection, filters: list[str], *, after: int = 0, unreadable_too: bool = False
) -> AsyncGenerator[Recorded]:
    """Yield each event on these subjects once, in stream order, from `after` on, for ever.

    Raises `NewerVersion` at an event that a newer version wrote and `Permanent` at a damaged one: a caller that acts on
    the events would otherwise wait for ever for one that it cannot read. unreadable_too: yields them too, for a caller
    that only shows events.
    """
    follower = StreamFollower(bus.nc, filters, after=after)
    try:
        async for msg in follower.messages():
            recorded = await _judge_patiently(bus, from_delivery(msg))
            if not unreadable_too:
                require_readable(recorded)
            yield recorded
    finally:
        await follower.close()


async def _judge_patiently(bus: Connection, recorded: Recorded) -> Recorded:
    """Call `DeclaredSchemas.judge`, and try again for as long as the bus does not answer."""
    while True:
        try:
            return await bus.schemas.judge(recorded)
        except Transient as error:
            log.warning("follow waits", error=str(error), type=recorded.type, seq=recorded.seq)
            await asyncio.sleep(_AGAIN_S)


async def replay(
    bus: Connection,
    filters: list[str],
    *,
    after: int = 0,
    last_per_subject: bool = False,
    timeout: float = 60,
    whole: bool = False,
) -> list[Recorded]:
    """Return the events on these subjects that are in the log now, in stream order.

    last_per_subject: only the last one of each subject. Raises `Transient` when the bus does not answer in time,
    `NewerVersion` for an event that a newer version wrote. whole: also `Permanent` for a damaged one, for a caller that
    needs the content of every event.
    """
    messages = await replay_messages(bus.nc, filters, after=after, last_per_subject=last_per_subject, timeout=timeout)
    try:
        async with asyncio.timeout(timeout):
            results = [await bus.schemas.judge(from_delivery(m)) for m in messages]
    except TimeoutError as error:
        raise Transient(f"the bus does not say which schemas are declared: {error!r}") from error
    for recorded in results:
        (require_readable if whole else require_known)(recorded)
    return results


async def replay_messages(
    nc: BusClient,
    filters: list[str],
    *,
    stream: str = EVENTS,
    after: int = 0,
    last_per_subject: bool = False,
    timeout: float = 60,
) -> list[Msg]:
    """Return the messages of any stream; otherwise like `replay`."""
    results: list[Msg] = []
    try:
        async with asyncio.timeout(timeout):
            async for msg in read_stream(nc, filters, stream=stream, after=after, last_per_subject=last_per_subject):
                results.append(msg)
    except TimeoutError as error:
        raise Transient(f"the bus did not answer a replay of {filters}: {error!r}") from error
    if not last_per_subject:
        return results
    latest = {msg.subject: msg for msg in results}
    return sorted(latest.values(), key=lambda msg: delivery_numbers(msg.reply)[0])


async def read_stream(
    nc: BusClient,
    filters: list[str],
    *,
    stream: str = EVENTS,
    after: int = 0,
    last_per_subject: bool = False,
    headers_only: bool = False,
) -> AsyncGenerator[Msg]:
    """Yield the messages that the stream has on these subjects now, in stream order; newer ones may follow.

    The server that a reader is connected to may lag behind the leader, and knows only its own messages: the reading
    ends at the last message that the leader reported. Waits without a deadline for a bus that is away. Raises
    `Transient` if the stream cannot be read.

    last_per_subject: only the last one of each subject, and any that was written in its place meanwhile. headers_only:
    without the bodies.
    """
    follower = StreamFollower(nc, filters, after=after, stream=stream, last=last_per_subject, headers_only=headers_only)
    try:
        last = await _last_seq(nc, filters, stream)
        while True:
            pending = await follower.open_patiently()
            if pending:
                async with aclosing(follower.messages()) as messages:
                    async for msg in messages:
                        yield msg
                        if delivery_numbers(msg.reply)[3] == 0:
                            break
            if follower.cursor >= last:
                return
            log.info("the server lags behind the leader", stream=stream, cursor=follower.cursor, last=last)
            await asyncio.sleep(_LAG_S)
            # The message may have been deleted since.
            last = min(last, await _last_seq(nc, filters, stream))
    finally:
        await follower.close()


async def _last_seq(nc: BusClient, filters: list[str], stream: str) -> int:
    """Return the sequence of the last message on these subjects, as the stream's leader knows it; 0 without any."""
    return max(await asyncio.gather(*(_last_seq_of_one(nc, subject, stream) for subject in filters)))


async def _last_seq_of_one(nc: BusClient, subject: str, stream: str) -> int:
    question = json.dumps({"last_by_subj": subject}).encode()
    read = partial(nc.request, f"{nc.api}.STREAM.MSG.GET.{stream}", question, timeout=_REQUEST_S)
    reply = await read_patiently(read, what="the end of a stream", stream=stream, subject=subject)
    answer = cast(dict[str, Any], json.loads(reply.data))
    if "error" not in answer:
        return int(answer["message"]["seq"])
    if answer["error"].get("err_code") == _NO_MESSAGE:
        return 0
    raise Transient(f"cannot read {stream}: {answer['error'].get('description')}")
