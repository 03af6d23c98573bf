"""One file's images: each is fetched once, checked, and stored as a blob named by its content.

An image comes from a data URI or from a public HTTP(S) address. A server that is away is asked again, within the
budget of the file.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field

import httpx

from synth.blobs import BlobStore
from synth.errors import SynthError
from synth.files.settings import FilesSettings
from synth.http_guard import AddressRefused, ReplyTooLarge, fetch
from synth.images.format import NotAnImage, read_image_format

_DATA = re.compile(r"data:image/(png|jpe?g|webp|gif)(?:;[a-z]+=[^;,]*)*;base64,", re.IGNORECASE)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BACKOFF_S = 0.25
#: URLs of a file that are remembered, so that an image that many rows show is fetched once.
_REMEMBERED = 100_000


class ImageRefused(SynthError):
    """The image cannot be fetched, or the bytes are no image: the reason, as a user reads it."""


class _ServerUnavailable(SynthError):
    """The image's server did not answer: worth another try."""


@dataclass(frozen=True)
class ImageSource:
    """Fetches and stores the images of all files. slots: bounds how many images the process holds at one time."""

    client: httpx.AsyncClient
    blobs: BlobStore
    settings: FilesSettings
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
        key = hashlib.blake2b(address.encode(), digest_size=16).digest()
        if (known := self._known.get(key)) is not None:
            return known
        # An image that came inside its row takes a slot too: the slots bound what is held in memory.
        async with self.source.slots:
            if address[:5].lower() == "data:":
                body = await asyncio.to_thread(_decode_data_uri, address, self.source.settings.max_image_bytes)
            else:
                body = await self._fetch(address)
            digest = await asyncio.to_thread(self._image_digest, body)
            ref = await self.source.blobs.put_bytes(f"orgs/{self.org}/images/{digest}", body)
        if len(self._known) >= _REMEMBERED:
            self._known.pop(next(iter(self._known)))
        self._known[key] = ref.uri
        return ref.uri

    def _image_digest(self, body: bytes) -> str:
        limit = self.source.settings.max_image_pixels
        try:
            image = read_image_format(body)
        except NotAnImage as error:
            raise ImageRefused(str(error)) from error
        if image.width * image.height > limit:
            size = f"{image.width}×{image.height}"
            raise ImageRefused(f"an image of {size} pixels; expected at most {limit:,}; make it smaller")
        return hashlib.sha256(body).hexdigest()

    async def _fetch(self, address: str) -> bytes:
        url = _url(address)
        settings = self.source.settings
        for tried in range(1, settings.image_tries + 1):
            try:
                async with asyncio.timeout(settings.image_deadline_s):
                    return await self._follow(url)
            except (_ServerUnavailable, TimeoutError) as error:
                reason = str(error) or f"it did not arrive within {settings.image_deadline_s:g} s"
                if tried == settings.image_tries or self._retries >= settings.image_retries_per_file:
                    raise ImageRefused(f"cannot be fetched from {url.host}: {reason} (tried {tried}×)") from error
                self._retries += 1
                await asyncio.sleep(_BACKOFF_S * 2**tried)
        raise AssertionError("unreachable")

    async def _follow(self, url: httpx.URL) -> bytes:
        settings = self.source.settings
        for _ in range(settings.image_redirects + 1):
            try:
                reply = await fetch(
                    self.source.client,
                    url,
                    headers={"Accept": "image/*"},
                    limit=settings.max_image_bytes,
                    deadline=settings.image_deadline_s,
                )
            except AddressRefused as error:
                raise ImageRefused(f"{error}; put the image where the public internet reaches it") from error
            except ReplyTooLarge as error:
                raise ImageRefused(_too_large(settings.max_image_bytes)) from error
            except httpx.HTTPError as error:
                raise _ServerUnavailable(str(error) or repr(error)) from error
            if reply.status in _REDIRECTS and reply.location:
                url = _url(reply.location, of=url)
            elif reply.status == 429 or reply.status >= 500:
                raise _ServerUnavailable(f"HTTP {reply.status}")
            elif reply.status != 200:
                raise ImageRefused(f"cannot be fetched from {url.host}: HTTP {reply.status}")
            else:
                return reply.body
        raise ImageRefused(f"cannot be fetched: more than {settings.image_redirects} redirects")


def _url(address: str, *, of: httpx.URL | None = None) -> httpx.URL:
    """The address of an image; of: the one that redirects to it."""
    shown = f"{'a redirect to ' if of else ''}{address[:80]!r}"
    try:
        url = of.join(address) if of else httpx.URL(address)
    except (httpx.InvalidURL, ValueError) as error:
        raise ImageRefused(f"{shown} is no URL ({error})") from error
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ImageRefused(f"{shown} is no URL (its port is {url.port})")
    if url.scheme not in ("http", "https") or not url.host:
        raise ImageRefused(
            f"{shown}; expected an https:// address or a data:image/…;base64, URI; for an object store, sign a link"
        )
    return url


def _decode_data_uri(address: str, limit: int) -> bytes:
    head = _DATA.match(address)
    if head is None:
        begins = address[:60]
        raise ImageRefused(f"{begins!r} is not data:image/png, jpeg, webp or gif in base64")
    if (len(address) - head.end()) * 3 // 4 > limit + 2:
        raise ImageRefused(_too_large(limit))
    try:
        return base64.b64decode(address[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageRefused(f"the data URI is not base64 ({error})") from error


def _too_large(limit: int) -> str:
    return f"an image of more than {limit:,} bytes; make it smaller"
