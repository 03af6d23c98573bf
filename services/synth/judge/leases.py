"""The lease of a question in work, in the KV bucket: one replica works at it, and another one when that is silent.

The owner of a lease renews it; a record that does not change for a while is taken over. Nobody's clock is compared with
another's.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from synth.bus.connection import Connection
from synth.bus.server.topology import JUDGING
from synth.runtime import logs

log = logs.get("judge leases")

_POLL_S = 0.3
#: A caller that waits for another replica's work records its request this often.
_ASK_S = 10.0


@dataclass(frozen=True)
class Leases:
    """The leases of questions. every_s: how often a lease is renewed; after three times that in silence it is over."""

    bus: Connection
    every_s: float

    @asynccontextmanager
    async def hold(self, digest: str) -> AsyncIterator[None]:
        """Be the only one that works at a question; waits for a replica that does."""
        bucket, owner = await self.bus.js.key_value(JUDGING), secrets.token_bytes(8)
        await self._take(bucket, digest, owner)
        renewing = asyncio.create_task(self._renew(bucket, digest, owner))
        try:
            yield
        finally:
            renewing.cancel()
            with suppress(NatsError, TimeoutError):
                entry = await bucket.get(_lease(digest))
                # After a long silence of this process the lease may be another replica's.
                if entry.value == owner:
                    await bucket.delete(_lease(digest), last=entry.revision)

    async def requested_at(self, digest: str) -> float:
        """Return when a question was last waited for at another replica, in Unix seconds; 0 for never."""
        bucket = await self.bus.js.key_value(JUDGING)
        try:
            return float((await bucket.get(_request(digest))).value or b"0")
        except KeyNotFoundError:
            return 0.0

    async def _take(self, bucket: KeyValue, digest: str, owner: bytes) -> None:
        seen, since, recorded_at = None, 0.0, 0.0
        while True:
            with suppress(KeyWrongLastSequenceError):
                try:
                    revision = (await bucket.get(_lease(digest))).revision
                except KeyNotFoundError:
                    await bucket.create(_lease(digest), owner)
                    return
                now = time.monotonic()
                if revision != seen:
                    seen, since = revision, now
                elif now - since > 3 * self.every_s:
                    await bucket.update(_lease(digest), owner, last=revision)
                    log.info("a question is taken over", question=digest)
                    return
                if now - recorded_at > _ASK_S:
                    await bucket.put(_request(digest), str(time.time()).encode())
                    recorded_at = now
            await asyncio.sleep(_POLL_S)

    async def _renew(self, bucket: KeyValue, digest: str, owner: bytes) -> None:
        """Renew the lease until another one has taken it over, as after a long silence of this process."""
        while True:
            await asyncio.sleep(self.every_s)
            try:
                entry = await bucket.get(_lease(digest))
                if entry.value != owner:
                    log.warning("another replica has taken over a question", question=digest)
                    return
                await bucket.update(_lease(digest), owner, last=entry.revision)
            except (NatsError, TimeoutError) as error:
                log.warning("cannot renew the lease of a question", question=digest, error=repr(error))


def _lease(digest: str) -> str:
    return f"work.{digest}"


def _request(digest: str) -> str:
    return f"requested.{digest}"
