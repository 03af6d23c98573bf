"""Decodes the images of users in processes that hold no key: a service itself never decodes their files."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from dataclasses import dataclass
from typing import NamedTuple

from synth.images.format import ImageFormat, ImageRefused, NotAnImage, read_image_format
from synth.images.source import ImageLimits, ImageSettings, too_large
from synth.sandbox.decoders import DecoderEnded, Decoders

#: Address space of a process that decodes: the interpreter and its libraries, and beside it for each pixel.
_DECODER_BYTES, _BYTES_OF_A_PIXEL = 1 << 30, 16
#: Seconds for such a process to start on a busy machine.
_START_S = 120.0


class Pixels(NamedTuple):
    """A decoded image. body: `rows` × `columns` × 3 bytes, red, green and blue of each pixel."""

    rows: int
    columns: int
    body: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ImageDecoder:
    """Decodes images, a few concurrently. limits: of each image. processes: of `synth.images.decode_process`."""

    limits: ImageLimits
    processes: Decoders

    @classmethod
    def start(cls, settings: ImageSettings) -> ImageDecoder:
        """Return the decoder of a service. Its processes start with the first image."""
        at_once = min(settings.image_fetches_at_once, os.cpu_count() or 1)
        function = "synth.images.decode_process:decode_image"
        return cls(settings.image_limits, Decoders(function, at_once=at_once, sandbox=settings.sandbox))

    async def check(self, body: bytes) -> str:
        """Return the sha256 of an image's file, which was decoded once.

        Raises `ImageRefused` if it is too large or cannot be shown, and `Transient` if the machine is too busy.
        """
        self._read_header(body)
        await self._call(b"c", body)
        return await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())

    async def pixels(self, body: bytes) -> Pixels:
        """Decode an image's file. Raises as `check`."""
        header = self._read_header(body)
        pixels = await self._call(b"p", body)
        if len(pixels) != header.width * header.height * 3:
            raise ImageRefused(f"an image of {len(pixels)} bytes of pixels, whose header has another size")
        return Pixels(header.height, header.width, pixels)

    async def close(self) -> None:
        """End the processes. The decoder cannot be used any more."""
        await self.processes.close()

    def _read_header(self, body: bytes) -> ImageFormat:
        """Compare the file's size and its header's with the limits, before a pixel is decoded."""
        if len(body) > self.limits.size:
            raise ImageRefused(too_large(self.limits.size))
        try:
            image = read_image_format(body)
        except NotAnImage as error:
            raise ImageRefused(str(error)) from error
        if image.width * image.height > self.limits.pixels:
            size = f"{image.width}×{image.height}"
            raise ImageRefused(f"an image of {size} pixels; expected at most {self.limits.pixels:,}; make it smaller")
        return image

    async def _call(self, result: bytes, body: bytes) -> memoryview:
        memory = _DECODER_BYTES + _BYTES_OF_A_PIXEL * self.limits.pixels
        cpu_s = math.ceil(self.limits.seconds)
        seconds = self.limits.seconds + _START_S
        try:
            answer = await self.processes.call(result + body, seconds=seconds, cpu_s=cpu_s, map_bytes=memory)
        except DecoderEnded as error:
            what = f"it takes more than {memory:,} bytes or {cpu_s} s, or breaks the decoder"
            raise ImageRefused(f"an image that cannot be decoded: {what}") from error
        if bytes(answer[:1]) != result:
            raise ImageRefused(str(answer[1:], errors="replace"))
        return answer[1:]
