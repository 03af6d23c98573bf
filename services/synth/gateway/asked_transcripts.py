"""Transcripts of clients that wait for a judge, stored as blobs until their requests end.

A repeated request must use the same blob, so a transcript's address is made from its organisation and its digest, and
concurrent requests share it.
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
from synth.errors import SynthError
from synth.events import BlobRef
from synth.runtime import logs

log = logs.get("asked_transcripts")


@dataclass
class AskedTranscript:
    """A transcript that is being judged. goes_on: set if the judge still works on it after the client's response."""

    ref: BlobRef
    goes_on: bool = False


class AskedTranscripts:
    """The transcripts that clients of one gateway have judged."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._open: Counter[str] = Counter()
        self._written: dict[str, datetime | None] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, org: str, content: bytes, digest: str) -> AsyncGenerator[AskedTranscript]:
        """Keep a transcript until its last request ends, or until the judge's sweep if the judge still works on it."""
        key = f"judging/{org}/asked/{digest}.json"
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._open[key] += 1
        try:
            async with lock:
                requested = AskedTranscript(await self._blobs.put_bytes(key, content))
                self._written[key] = await self._blobs.written_at(requested.ref.uri)
            try:
                yield requested
            finally:
                if self._open[key] == 1 and not requested.goes_on:
                    async with lock:
                        await self._remove(key, requested.ref.uri)
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
                self._written.pop(key, None)

    async def _remove(self, key: str, uri: str) -> None:
        try:
            # Another gateway may have received the same request since, and written the blob again.
            if self._open[key] == 1 and await self._blobs.written_at(uri) == self._written[key]:
                await self._blobs.delete([uri])
        except (SynthError, OSError, BaseError) as error:
            # The client still gets its response, and the judge's sweep removes the blob later.
            log.warning("a transcript cannot be removed now", key=key, error=repr(error))
