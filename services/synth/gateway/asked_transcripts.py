"""The transcripts that clients have judged while they wait: in the blob store for as long as their questions are open.

Who asks again must ask by the same address, so a transcript has one of its organisation and its digest, however many
requests ask about it at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from weakref import WeakValueDictionary

from obstore.exceptions import BaseError

from synth.blobs import BlobStore
from synth.events import BlobRef
from synth.runtime import logs

log = logs.get("asked_transcripts")


@dataclass
class AskedTranscript:
    """A transcript that is being judged. goes_on: set where the judge is still at it when the client is answered."""

    ref: BlobRef
    goes_on: bool = False


class AskedTranscripts:
    """Those of one gateway."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._open: Counter[str] = Counter()
        self._written: dict[str, datetime | None] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, org: str, content: bytes, digest: str) -> AsyncGenerator[AskedTranscript]:
        """Keep a transcript until the last request about it is over; one that goes on, until the judge's sweep."""
        key = f"judging/{org}/asked/{digest}.json"
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._open[key] += 1
        try:
            async with lock:
                asked = AskedTranscript(await self._blobs.put_bytes(key, content))
                self._written[key] = await self._blobs.written_at(asked.ref.uri)
            try:
                yield asked
            finally:
                if self._open[key] == 1 and not asked.goes_on:
                    async with lock:
                        await self._remove(key, asked.ref.uri)
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
                self._written.pop(key, None)

    async def _remove(self, key: str, uri: str) -> None:
        try:
            # Another gateway may have been asked the same meanwhile, and written it again.
            if self._open[key] == 1 and await self._blobs.written_at(uri) == self._written[key]:
                await self._blobs.delete([uri])
        except (OSError, BaseError) as error:
            # The client has its answer all the same, and the judge's sweep removes what is left.
            log.warning("a transcript cannot be removed now", key=key, error=repr(error))
