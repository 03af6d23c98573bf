"""Read, check and name by their content the images of a chat request, before anything is rendered.

Each part that shows an image becomes `{"type": "image", "image": "blob://orgs/<org>/images/<sha256>"}`: records,
transcripts and logs hold digests and never payloads. The images of a rollout are stored under that name before the
first token is sampled, because the trainer reads them there. Images of other calls are not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import httpx
import msgspec
from prometheus_client import Counter

from synth.blobs import BlobMissing, BlobStore
from synth.chat.messages import (
    IMAGE_TYPES,
    ContentPart,
    Message,
    image_address,
    image_parts,
    keep_first_images,
    keep_last_images,
    template_messages,
)
from synth.errors import Problem, Transient, UserError
from synth.events import BlobRef
from synth.images.decoder import ImageDecoder
from synth.images.format import ImageRefused, NotAnImage
from synth.images.processor import ImageProcessor
from synth.images.source import BLOB, address_key, read_image
from synth.inference.chat.prompts import TokenHistory
from synth.inference.engines.limits import ContextOverflow
from synth.inference.engines.protocol import EngineImage
from synth.runtime import logs

log = logs.get("inference")

LEFT_OUT = Counter("synth_chat_images_left_out", "Images that were left out because a message has too many")


@dataclass(frozen=True, slots=True)
class ShownImages:
    """The messages of a request with every image named by its blob, and the images by that name. warnings: about the
    images that were dropped. dropped: how many images."""

    messages: list[Message]
    images: Mapping[str, EngineImage] = field(default_factory=dict[str, EngineImage])
    warnings: tuple[str, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ChatImages:
    """Reads the images of all requests.

    at_once: how many of one organisation are read at one time, so that none waits for another's slow servers.
    request_bytes: of all images of one request. per_message: the most that a message of a call outside a rollout shows;
    None: any number.
    """

    client: httpx.AsyncClient
    blobs: BlobStore
    decoder: ImageDecoder
    at_once: int = 8
    request_bytes: int = 256 << 20
    per_message: int | None = None
    _slots: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary[str, asyncio.Semaphore], repr=False
    )

    async def show(
        self,
        messages: list[Message],
        processor: ImageProcessor,
        *,
        org: str,
        most: int | None,
        in_prompt: int | None = None,
        context: int,
        seconds: float,
        history: TokenHistory | None,
    ) -> ShownImages:
        """Read the images of these messages.

        most: a message keeps its first ones. in_prompt: all of them keep so many, the latest. context: tokens of the
        model's context. seconds: for all of them.
        history: of a rollout, whose images are stored, and in which an address stands for one image. Raises `UserError`
        with every unreadable image, each by its place, and for more images than a request or the context holds;
        `Transient` when the time is over.
        """
        messages, warnings, dropped = _leave_out(messages, most, in_prompt)
        # An image in a place without images is refused before any is fetched.
        template_messages(messages, thinks=False, sees=True)
        places: dict[str, str] = {}
        for i, message in enumerate(messages):
            for place, address in _addresses(message, f"messages[{i}].content"):
                places.setdefault(address, place)
        reader = _Reader(self, processor, org, history)
        try:
            async with asyncio.timeout(seconds):
                by_address = await self._read_all(reader, places, context=context)
        except TimeoutError:
            raise Transient(f"the images of the request were not read in the {seconds:.1f} s that it had") from None
        named = [_with_uris(message, by_address) for message in messages]
        return ShownImages(named, {one.shown.uri: one for one in by_address.values()}, warnings, dropped)

    async def _read_all(self, reader: _Reader, places: dict[str, str], *, context: int) -> dict[str, EngineImage]:
        """Return the images at these addresses, some at a time; no more are read once they cannot all be shown."""
        images: dict[str, EngineImage] = {}
        problems: list[Problem] = []
        tokens = size = 0
        slots = self._slots.setdefault(reader.org, asyncio.Semaphore(self.at_once))
        waiting = iter(places.items())

        async def read() -> None:
            nonlocal tokens, size
            for address, place in waiting:
                if tokens >= context or size > self.request_bytes:
                    return
                async with slots:
                    one = await reader.read(address, place)
                if isinstance(one, Problem):
                    problems.append(one)
                    continue
                images[address] = one
                tokens += one.shown.tokens
                size += len(one.body)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.at_once, len(places))):
                    group.create_task(read())
        except ExceptionGroup as failed:
            # The first error cancels the others; the caller gets it as its own type.
            raise failed.exceptions[0] from failed
        if not problems and size > self.request_bytes:
            what = f"the images of the request have more than {self.request_bytes:,} bytes"
            expected = "fewer or smaller ones (SYNTH_MAX_REQUEST_IMAGE_BYTES)"
            problems.append(Problem(what=what, expected=expected, where="messages"))
        if not problems and tokens >= context:
            raise ContextOverflow(prompt=tokens, completion=1, context=context, image_tokens=tokens)
        if problems:
            order = {place: n for n, place in enumerate(places.values())}
            raise UserError(sorted(problems, key=lambda problem: order.get(problem.where, 0)))
        return images


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the images of one request."""

    source: ChatImages
    processor: ImageProcessor
    org: str
    history: TokenHistory | None

    async def read(self, address: str, place: str) -> EngineImage | Problem:
        try:
            return await self._read(address)
        except (ImageRefused, NotAnImage) as error:
            return Problem(
                what=str(error),
                expected="a PNG, JPEG, WebP or GIF image, by an https:// address or a data:image/…;base64, URI",
                where=place,
            )

    async def _read(self, address: str) -> EngineImage:
        if not address:
            raise ImageRefused("an image part without an address")
        if self.history is None:
            return (await self._look(await self._body(address)))[0]
        key = await address_key(address)
        known = self.history.images.get(key)
        if known is not None:
            return EngineImage(known, await self._stored(known.uri, known.sha256), self.source.decoder)
        image, name = await self._look(await self._body(address))
        if address != image.shown.uri:
            await self.source.blobs.put_bytes(name, image.body)
        self.history.images[key] = image.shown
        return image

    async def _body(self, address: str) -> bytes:
        blob = BLOB.fullmatch(address)
        if blob is not None and blob["org"] == self.org:
            return await self._stored(address, blob["digest"])
        if address[:5].lower() == "blob:":
            raise ImageRefused(f"{address[:120]!r} is no image of this organisation")
        return await read_image(address, self.source.client, self.source.decoder.limits)

    async def _stored(self, uri: str, digest: str) -> bytes:
        try:
            # The size is not checked: the digest proves that the bytes are whole.
            return await self.source.blobs.get_bytes(BlobRef(uri=uri, size=0, sha256=digest))
        except BlobMissing as error:
            raise ImageRefused(f"{uri} is not stored here") from error

    async def _look(self, body: bytes) -> tuple[EngineImage, str]:
        """Return the image of a file that can be decoded, and the name of its blob."""

        digest = await self.source.decoder.check(body)
        name = f"orgs/{self.org}/images/{digest}"
        shown = self.processor.describe(body, sha256=digest, uri=f"blob://{name}")
        return EngineImage(shown, body, self.source.decoder), name


def _leave_out(
    messages: list[Message], most: int | None, in_prompt: int | None
) -> tuple[list[Message], tuple[str, ...], int]:
    """Return the messages with at most `most` images each, their first ones, and the latest `in_prompt` of all of them;
    a sentence for each message that had more; and how many images were dropped."""
    kept: list[Message] = []
    dropped = 0
    warnings: list[str] = []
    left = in_prompt
    for i, message in reversed(list(enumerate(messages))):
        shown = len(image_parts(message))
        extra = beyond = 0
        if most is not None:
            message, extra = keep_first_images(message, most)
        if left is not None:
            message, beyond = keep_last_images(message, left)
            left -= shown - extra - beyond
        if extra + beyond:
            LEFT_OUT.inc(extra + beyond)
            dropped += extra + beyond
            log.debug("images left out", message=i, images=shown, beyond_message=extra, beyond_prompt=beyond)
            limits = [f"a message may show {most}"] * (extra > 0) + [f"a prompt the latest {in_prompt}"] * (beyond > 0)
            warnings.append(f"messages[{i}] shows {shown} images, and {', '.join(limits)}: the others are left out")
        kept.append(message)
    return kept[::-1], tuple(reversed(warnings)), dropped


def _addresses(message: Message, place: str) -> list[tuple[str, str]]:
    """Return the place and the address of each image of a message."""
    if isinstance(message.content, list):
        return [
            (f"{place}[{j}]", image_address(part))
            for j, part in enumerate(message.content)
            if isinstance(part, ContentPart) and part.type in IMAGE_TYPES
        ]
    return [(place, image_address(part)) for part in image_parts(message)]


def _with_uris(message: Message, images: Mapping[str, EngineImage]) -> Message:
    """Return the message with each image named by its blob."""
    shown = image_parts(message)
    if not shown:
        return message
    parts: Sequence[ContentPart | str] = message.content if isinstance(message.content, list) else shown
    named = [
        ContentPart(type="image", image=images[image_address(part)].shown.uri)
        if isinstance(part, ContentPart) and part.type in IMAGE_TYPES
        else part
        for part in parts
    ]
    return msgspec.structs.replace(message, content=named)
