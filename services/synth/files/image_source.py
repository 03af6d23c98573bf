"""One file's images: each is fetched once, checked, and stored as a blob named by its content.

A request to an image server that is away is repeated, within the budget of the file.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx

from synth.blobs import BlobMissing, BlobStore
from synth.events import BlobRef
from synth.files.settings import FilesSettings
from synth.images.decoder import ImageDecoder
from synth.images.format import ImageRefused
from synth.images.source import BLOB, ImageUnavailable, address_key, read_image

_BACKOFF_S = 0.25
#: URLs of a file that are remembered, so that an image that many rows show is fetched once.
_REMEMBERED = 100_000


@dataclass(frozen=True)
class ImageSource:
    """Fetches and stores the images of all files. slots: bounds how many images the process holds at one time."""

    client: httpx.AsyncClient
    blobs: BlobStore
    settings: FilesSettings
    decoder: ImageDecoder
    slots: asyncio.Semaphore


@dataclass
class FileImages:
    """The images of one file of an organisation."""

    source: ImageSource
    org: str
    _known: dict[bytes, str] = field(default_factory=dict[bytes, str])
    _retries: int = 0

    async def store(self, address: str) -> str:
        """Fetch, check and store the image; the URI of its blob. Raises `ImageRefused`."""
        key = await address_key(address)
        if (known := self._known.get(key)) is not None:
            return known
        # An image inside its row takes a slot too: the slots limit the bytes that are in memory.
        async with self.source.slots:
            body = await self._read(address)
            digest = await self.source.decoder.check(body)
            ref = await self.source.blobs.put_bytes(f"orgs/{self.org}/images/{digest}", body)
        if len(self._known) >= _REMEMBERED:
            self._known.pop(next(iter(self._known)))
        self._known[key] = ref.uri
        return ref.uri

    async def _read(self, address: str) -> bytes:
        settings = self.source.settings
        stored = BLOB.fullmatch(address)
        if stored is not None and stored["org"] == self.org:
            ref = BlobRef(uri=address, size=0, sha256=stored["digest"])
            try:
                return await self.source.blobs.get_bytes(ref)
            except BlobMissing as error:
                raise ImageRefused(f"{address} is not stored here") from error
        for tried in range(1, settings.image_tries + 1):
            try:
                return await read_image(address, self.source.client, settings.image_limits)
            except ImageUnavailable as error:
                if tried == settings.image_tries or self._retries >= settings.image_retries_per_file:
                    raise ImageRefused(f"{error} (tried {tried}×)") from error
                self._retries += 1
                await asyncio.sleep(_BACKOFF_S * 2**tried)
        raise AssertionError("unreachable")
