"""Who of the replicas works at a question, in the KV bucket: one at a time, and another one when it is silent."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from synth.bus.connection import Connection
from synth.bus.server.topology import JUDGING
from synth.runtime import logs

log = logs.get("judge leases")

_POLL_S = 0.3
#: While a caller waits for another replica's work, the lease is updated this often.
_ASK_S = 10.0


class WorkLease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a question in work. replica: its owner. asked: the last request at another replica, Unix seconds."""

    replica: str
    asked: float = 0.0


class _Alive(msgspec.Struct, frozen=True, kw_only=True):
    at: float


class Leases:
    """The questions of this replica. replica: this process, never the same again after a restart."""

    def __init__(self, bus: Connection, *, replica: str, every_s: float) -> None:
        self._bus = bus
        self._replica = replica
        self._every_s = every_s
        self._held = 0
        self._seen: dict[str, tuple[float, float]] = {}
        self._at_work = asyncio.Event()

    async def announce(self) -> None:
        """Announce that this process is at work while it holds leases, for ever."""
        while True:
            await self._at_work.wait()
            await self._send_alive()
            await asyncio.sleep(self._every_s)
            if not self._held:
                self._at_work.clear()

    @asynccontextmanager
    async def hold(self, digest: str) -> AsyncIterator[None]:
        """Be the only one that works at a question; waits for a replica that does."""
        key = f"work.{digest}"
        bucket = await self._bus.js.key_value(JUDGING)
        self._held += 1
        try:
            if not self._at_work.is_set():
                # Before the lease, which is worth nothing without it.
                await self._send_alive()
                self._at_work.set()
            await self._take(bucket, key)
            try:
                yield
            finally:
                with suppress(NatsError, JetStreamError, TimeoutError):
                    await bucket.delete(key)
        finally:
            self._held -= 1

    async def requested_at(self, digest: str) -> float:
        """Return when a question was last waited for at another replica, in Unix seconds; 0 for never."""
        bucket = await self._bus.js.key_value(JUDGING)
        try:
            entry = await bucket.get(f"work.{digest}")
        except KeyNotFoundError:
            return 0.0
        return msgspec.json.decode(entry.value or b"", type=WorkLease).asked

    async def _take(self, bucket: KeyValue, key: str) -> None:
        mine = msgspec.json.encode(WorkLease(replica=self._replica))
        renewed_at = 0.0
        while True:
            try:
                entry = await bucket.get(key)
            except KeyNotFoundError:
                with suppress(KeyWrongLastSequenceError):
                    await bucket.create(key, mine)
                    return
                continue
            lease = msgspec.json.decode(entry.value or b"", type=WorkLease)
            # Our own lease is from an earlier try whose release did not reach the bus: a process works once on a
            # question.
            alive = lease.replica != self._replica and await self._is_alive(bucket, lease.replica)
            with suppress(KeyWrongLastSequenceError):
                if not alive:
                    log.info("a question is taken over", of=lease.replica)
                    await bucket.update(key, mine, last=entry.revision)
                    return
                if time.monotonic() - renewed_at > _ASK_S:
                    renewed = msgspec.structs.replace(lease, asked=time.time())
                    await bucket.update(key, msgspec.json.encode(renewed), last=entry.revision)
                    renewed_at = time.monotonic()
            await asyncio.sleep(_POLL_S)

    async def _send_alive(self) -> None:
        body = msgspec.json.encode(_Alive(at=time.time()))
        try:
            bucket = await self._bus.js.key_value(JUDGING)
            await bucket.put(f"alive.{self._replica}", body)
        except (NatsError, JetStreamError, TimeoutError) as error:
            log.warning("cannot announce that this process is at work", error=repr(error))

    async def _is_alive(self, bucket: KeyValue, replica: str) -> bool:
        """Return whether a replica has sent a sign of life lately, by our own clock, from when it was first seen."""
        try:
            entry = await bucket.get(f"alive.{replica}")
        except KeyNotFoundError:
            return False
        sent_at, now = msgspec.json.decode(entry.value or b"", type=_Alive).at, time.monotonic()
        known = self._seen.get(replica)
        if known is None or known[0] != sent_at:
            self._seen[replica] = (sent_at, now)
            return True
        return now - known[1] < 3 * self._every_s
