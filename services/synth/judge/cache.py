"""The answers of judges by their prompt, in the blob store: all replicas share them, and they survive a restart.

The key of an answer contains the organisation and the digest of its prompt, so no organisation can read the answers of
another. No event has the digest of an answer, so each begins with its own. Every replica removes old answers and old
requests to `/judge/v1/score`.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec
from obstore.exceptions import BaseError

from synth.blobs import BlobStore
from synth.errors import SynthError
from synth.judging.contract import JudgeAnswer
from synth.runtime import logs

log = logs.get("judge cache")

#: The folder of all blobs of judging that no event names.
FOLDER = "judging"
_SWEEP_S = 3600.0
_BATCH = 500
#: Of the digest that an answer begins with.
_DIGEST_CHARACTERS = 64

_T = TypeVar("_T")


@dataclass(frozen=True)
class AnswerCache:
    """The answers of judges, delivered or not. keep_s: seconds for which they are kept."""

    blobs: BlobStore
    keep_s: float

    async def find(self, org: str, digest: str, kind: type[_T]) -> _T | None:
        """Return the answer to the prompt with this digest."""
        return await self._read(_answer_key(org, digest), kind)

    async def put(self, org: str, digest: str, answer: msgspec.Struct) -> None:
        """Keep an answer; replicas that have the same one at the same time write the same."""
        await self.blobs.put_bytes(_answer_key(org, digest), _sealed(answer))

    async def find_undelivered(self, org: str, digest: str) -> JudgeAnswer | None:
        """Return the answer to the question with this digest, if it was not delivered."""
        return await self._read(_undelivered_key(org, digest), JudgeAnswer)

    async def put_undelivered(self, org: str, digest: str, answer: JudgeAnswer) -> None:
        """Keep an answer until the question is sent again."""
        await self.blobs.put_bytes(_undelivered_key(org, digest), _sealed(answer))

    async def drop_undelivered(self, org: str, digest: str) -> None:
        """Drop an answer that was delivered, so that its cost is reported only once."""
        await self.blobs.delete([f"blob://{_undelivered_key(org, digest)}"])

    async def sweep(self) -> None:
        """Remove entries that are older than `keep_s`, now and every hour, for ever."""
        while True:
            try:
                await self._remove_old()
            except (SynthError, OSError, BaseError) as error:
                # It does not matter when it is done.
                log.warning("old answers cannot be removed now", error=repr(error))
            await asyncio.sleep(_SWEEP_S)

    async def _remove_old(self) -> None:
        old = await self.blobs.uris_older(FOLDER, datetime.now(UTC) - timedelta(seconds=self.keep_s))
        for start in range(0, len(old), _BATCH):
            await self.blobs.delete(old[start : start + _BATCH])
        if old:
            log.info("old answers removed", count=len(old))

    async def _read(self, key: str, kind: type[_T]) -> _T | None:
        body = await self.blobs.find_bytes(key)
        if body is None:
            return None
        digest, text = body[:_DIGEST_CHARACTERS], body[_DIGEST_CHARACTERS:]
        try:
            if digest != _digest(text):
                raise msgspec.DecodeError("it is not what was written (sha256 differs)")
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            # It is damaged, or another version wrote it: the judge is called again.
            log.warning("a kept answer cannot be read", key=key, error=str(error))
            return None


def _sealed(answer: msgspec.Struct) -> bytes:
    text = msgspec.json.encode(answer)
    return _digest(text) + text


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def _answer_key(org: str, digest: str) -> str:
    return f"{FOLDER}/{org}/answers/{digest[:2]}/{digest}.json"


def _undelivered_key(org: str, digest: str) -> str:
    return f"{FOLDER}/{org}/unheard/{digest}.json"
