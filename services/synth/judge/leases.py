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
#: While somebody waits for another replica's work, it says so this often.
_ASK_S = 10.0


class WorkLease(msgspec.Struct, frozen=True, kw_only=True):
    """A question that is worked at. replica: by whom. asked: when it was last waited for elsewhere, unix seconds."""

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
        self._wanted = asyncio.Event()

    async def announce(self) -> None:
        """Say that this process is at work while it holds leases, for ever."""
        while True:
            await self._wanted.wait()
            await self._say_alive()
            await asyncio.sleep(self._every_s)
            if not self._held:
                self._wanted.clear()

    @asynccontextmanager
    async def hold(self, digest: str) -> AsyncIterator[None]:
        """Be the only one that works at a question; waits for a replica that does."""
        key = f"work.{digest}"
        bucket = await self._bus.js.key_value(JUDGING)
        self._held += 1
        try:
            if not self._wanted.is_set():
                # Before the lease, which is worth nothing without it.
                await self._say_alive()
                self._wanted.set()
            await self._take(bucket, key)
            try:
                yield
            finally:
                with suppress(NatsError, JetStreamError, TimeoutError):
                    await bucket.delete(key)
        finally:
            self._held -= 1

    async def asked_at(self, digest: str) -> float:
        """When somebody last waited for a question at another replica, unix seconds; 0 for never."""
        bucket = await self._bus.js.key_value(JUDGING)
        try:
            entry = await bucket.get(f"work.{digest}")
        except KeyNotFoundError:
            return 0.0
        return msgspec.json.decode(entry.value or b"", type=WorkLease).asked

    async def _take(self, bucket: KeyValue, key: str) -> None:
        mine = msgspec.json.encode(WorkLease(replica=self._replica))
        told_at = 0.0
        while True:
            try:
                entry = await bucket.get(key)
            except KeyNotFoundError:
                with suppress(KeyWrongLastSequenceError):
                    await bucket.create(key, mine)
                    return
                continue
            lease = msgspec.json.decode(entry.value or b"", type=WorkLease)
            # Our own is of an earlier try, whose end could not be told to the bus: each question is worked once here.
            alive = lease.replica != self._replica and await self._is_alive(bucket, lease.replica)
            with suppress(KeyWrongLastSequenceError):
                if not alive:
                    log.info("a question is taken over", of=lease.replica)
                    await bucket.update(key, mine, last=entry.revision)
                    return
                if time.monotonic() - told_at > _ASK_S:
                    wanted = msgspec.structs.replace(lease, asked=time.time())
                    await bucket.update(key, msgspec.json.encode(wanted), last=entry.revision)
                    told_at = time.monotonic()
            await asyncio.sleep(_POLL_S)

    async def _say_alive(self) -> None:
        body = msgspec.json.encode(_Alive(at=time.time()))
        try:
            bucket = await self._bus.js.key_value(JUDGING)
            await bucket.put(f"alive.{self._replica}", body)
        except (NatsError, JetStreamError, TimeoutError) as error:
            log.warning("cannot say that this process is at work", error=repr(error))

    async def _is_alive(self, bucket: KeyValue, replica: str) -> bool:
        """Whether a replica has spoken lately, by our own clock: it is watched for as long as it may be silent."""
        try:
            entry = await bucket.get(f"alive.{replica}")
        except KeyNotFoundError:
            return False
        said, now = msgspec.json.decode(entry.value or b"", type=_Alive).at, time.monotonic()
        known = self._seen.get(replica)
        if known is None or known[0] != said:
            self._seen[replica] = (said, now)
            return True
        return now - known[1] < 3 * self._every_s
