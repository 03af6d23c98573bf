"""Fetch an image's file from the user's address: a data URI or a public HTTP(S) address. It is checked, not kept."""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass

import httpx
from pydantic import Field

from synth.images.data_uri import BadDataUri, DataUri, DataUriTooLarge, read_data_uri
from synth.images.format import ImageRefused
from synth.outbound.http_guard import AddressRefused, fetch, read_url
from synth.outbound.reply_body import ReplyTooLarge, ReplyUndecodable
from synth.runtime.off_loop import INLINE_BYTES
from synth.sandbox.settings import SandboxSettings

#: The name of an image that is stored: of an organisation, by the sha256 of its file.
BLOB = re.compile(r"blob://orgs/(?P<org>[^/]+)/images/(?P<digest>[0-9a-f]{64})")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class ImageSettings(SandboxSettings):
    """Settings of every service that reads images which users name."""

    max_image_bytes: int = Field(default=10 << 20, ge=1)
    """The largest image of a training file or of a chat."""

    max_image_pixels: int = Field(default=50_000_000, ge=1)
    """Its largest width times height. An image that is decoded takes 3 to 12 bytes of memory for each pixel."""

    image_fetches_at_once: int = Field(default=8, ge=1)
    """Images that are read at the same time: in the files service of one process, in chats of one organisation."""

    image_deadline_s: float = Field(default=20.0, gt=0)
    """Seconds within which an image is fetched, its redirects included; and CPU seconds that decoding it may take."""

    image_redirects: int = Field(default=3, ge=0)
    """The most redirects on the way to an image; each address is checked like the first one."""

    @property
    def image_limits(self) -> ImageLimits:
        """The bounds that these settings make."""
        return ImageLimits(
            size=self.max_image_bytes,
            pixels=self.max_image_pixels,
            seconds=self.image_deadline_s,
            redirects=self.image_redirects,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """The bounds of one image. size: bytes. pixels: width times height. seconds, redirects: of fetching it."""

    size: int = 10 << 20
    pixels: int = 50_000_000
    seconds: float = 20.0
    redirects: int = 3


class ImageUnavailable(ImageRefused):
    """The image's server did not answer, so another try may succeed. host: the server; reason: its error."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"cannot be fetched from {host}: {reason}")
        self.host = host
        self.reason = reason


async def read_image(address: str, client: httpx.AsyncClient, limits: ImageLimits) -> bytes:
    """Read the bytes at a data URI or an address, up to the limit of an image. They are not decoded.

    client: of `guarded_client`. Raises `ImageRefused`, and `ImageUnavailable` if another try may help.
    """
    if (uri := read_data_uri(address)) is not None:
        return await asyncio.to_thread(_decode, uri, limits.size)
    url = _url(address.strip())
    try:
        async with asyncio.timeout(limits.seconds):
            return await _follow(url, client, limits)
    except TimeoutError as error:
        raise ImageUnavailable(url.host, f"it did not arrive within {limits.seconds:g} s") from error


async def address_key(address: str) -> bytes:
    """Return the digest of an address, by which it is remembered; that of a large data URI is made in a thread."""
    return _key(address) if len(address) <= INLINE_BYTES else await asyncio.to_thread(_key, address)


def _key(address: str) -> bytes:
    return hashlib.blake2b(address.encode(), digest_size=16).digest()


async def _follow(url: httpx.URL, client: httpx.AsyncClient, limits: ImageLimits) -> bytes:
    first = url
    for _ in range(limits.redirects + 1):
        try:
            reply = await fetch(client, url, headers={"Accept": "image/*"}, limit=limits.size, deadline=limits.seconds)
        except AddressRefused as error:
            raise ImageRefused(f"{error}; put the image on an address of the public internet") from error
        except ReplyTooLarge as error:
            raise ImageRefused(too_large(limits.size)) from error
        except ReplyUndecodable as error:
            raise ImageRefused(f"cannot be read from {url.host}: {error}") from error
        except httpx.HTTPError as error:
            raise ImageUnavailable(first.host, str(error) or repr(error)) from error
        if reply.status in _REDIRECTS and reply.location:
            url = _url(reply.location, of=url)
        elif reply.status == 429 or reply.status >= 500:
            raise ImageUnavailable(first.host, f"HTTP {reply.status}")
        elif reply.status != 200:
            raise ImageRefused(f"cannot be fetched from {url.host}: HTTP {reply.status}")
        else:
            return reply.body
    raise ImageRefused(f"cannot be fetched: more than {limits.redirects} redirects")


def _url(address: str, *, of: httpx.URL | None = None) -> httpx.URL:
    """Parse the address of an image. of: the address that redirects to it."""
    shown = f"{'a redirect to ' if of else ''}{address[:80]!r}"
    try:
        url = read_url(str(of.join(address)) if of else address)
    except (httpx.InvalidURL, ValueError):
        url = None
    if url is None:
        raise ImageRefused(f"{shown} is no URL")
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ImageRefused(f"{shown} is no URL (its port is {url.port})")
    if url.scheme not in ("http", "https") or not url.host:
        raise ImageRefused(
            f"{shown}; expected an https:// address or a data:image/…;base64, URI; for an object store, sign a link"
        )
    return url


def _decode(uri: DataUri, limit: int) -> bytes:
    # The media type is not compared: the file's own bytes name its kind.
    if not uri.base64 and not uri.media.startswith("image/"):
        raise ImageRefused(f"a data URI of {uri.media[:60]!r} without base64; expected data:image/…;base64,…")
    try:
        return uri.decode(most=limit)
    except BadDataUri as error:
        raise ImageRefused(str(error)) from error
    except DataUriTooLarge as error:
        raise ImageRefused(too_large(limit)) from error


def too_large(limit: int) -> str:
    """Return why a file of more than `limit` bytes is refused."""
    return f"an image of more than {limit:,} bytes; make it smaller"
