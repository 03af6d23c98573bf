"""The images of running requests: their patches, made once, and the positions that they give to a row.

Nothing here is in the way of a text model: a request without images has none of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from synth.errors import Problem, UserError
from synth.images.format import NotAnImage
from synth.images.positions import mrope_positions
from synth.images.processor import ImageProcessor
from synth.images.prompt_image import PromptImage
from synth.images.qwen3_vl import ImagePatches
from synth.inference.engines.protocol import EngineImage

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """The images of one prompt. pixels: of each, float32 [its patches, values of a patch].

    positions: int64 [3, T], of the prompt's tokens. shift: what a later token's position is above its index.
    """

    images: tuple[PromptImage, ...]
    pixels: tuple[Float32, ...]
    positions: npt.NDArray[np.int64]
    shift: int

    @property
    def patches(self) -> int:
        return sum(image.height * image.width for image in self.images)

    @property
    def digests(self) -> bytes:
        """What tells it from another prompt of the same ids."""
        return b"".join(bytes.fromhex(image.sha256) for image in self.images)


class ImageReader:
    """Makes patches of the images of one model's prompts, in other threads than the engine's.

    cache_bytes: of patches that no request needs any more and that may come again with the next turn.
    """

    def __init__(self, processor: ImageProcessor, *, image_token: int, cache_bytes: int) -> None:
        self._processor = processor
        self.image_token = image_token
        self._cache_bytes = cache_bytes
        self._recent: OrderedDict[str, Float32] = OrderedDict()
        self._recent_bytes = 0
        self._used: WeakValueDictionary[str, Float32] = WeakValueDictionary()  # by requests, or recent
        self._reading: dict[str, asyncio.Task[Float32]] = {}

    async def read(self, prompt_ids: Sequence[int], images: Sequence[EngineImage]) -> ImagePrompt | None:
        """The images of a prompt; None for text. Raises `UserError` for images that its ids do not show."""
        if not images and self.image_token not in prompt_ids:
            return None
        shown = tuple(image.shown for image in images)
        try:
            positions, after = mrope_positions(
                np.asarray(prompt_ids), shown, image_token=self.image_token, merge_size=self._processor.merge_size
            )
        except ValueError as error:
            raise UserError(
                Problem(what=str(error), expected="as many image tokens as its images have", where="messages")
            ) from error
        pixels = [await self._pixels(image) for image in images]
        return ImagePrompt(shown, tuple(pixels), positions, after - len(prompt_ids))

    async def _pixels(self, image: EngineImage) -> Float32:
        digest = image.shown.sha256
        pixels = self._used.get(digest)
        if pixels is None:
            task = self._reading.get(digest)
            if task is None:
                task = self._reading[digest] = asyncio.create_task(self._compute(image), name="read an image")
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Others may wait for the same image.
            pixels = await asyncio.shield(task)
        self._keep(digest, pixels)
        return pixels

    async def _compute(self, image: EngineImage) -> Float32:
        try:
            return await asyncio.to_thread(self._processor.pixels, image.body, image.shown)
        except NotAnImage as error:
            raise UserError(Problem(what=str(error), expected="an image", where="messages")) from error
        finally:
            del self._reading[image.shown.sha256]

    def _keep(self, digest: str, pixels: Float32) -> None:
        self._used[digest] = pixels
        if digest not in self._recent:
            self._recent[digest] = pixels
            self._recent_bytes += pixels.nbytes
        self._recent.move_to_end(digest)
        while self._recent_bytes > self._cache_bytes:
            self._recent_bytes -= self._recent.popitem(last=False)[1].nbytes


def check_no_images(images: Sequence[EngineImage]) -> None:
    """Raises `UserError` for images that a text model is shown."""
    if images:
        raise UserError(
            Problem(what=f"{len(images)} images for a text model", expected="text", fix="choose a vision model")
        )


def row_positions(prompts: Sequence[ImagePrompt | None], length: int, device: torch.device) -> Tensor:
    """The positions of the first `length` tokens of rows that begin with these prompts, int64 [3, rows, length]."""
    positions = np.empty((3, len(prompts), length), np.int64)
    positions[:] = np.arange(length)
    for i, prompt in enumerate(prompts):
        if prompt is not None:
            shown = prompt.positions[:, :length]
            positions[:, i] += prompt.shift
            positions[:, i, : shown.shape[1]] = shown
    return torch.from_numpy(positions).to(device)


def row_patches(prompts: Sequence[ImagePrompt | None], device: torch.device) -> ImagePatches | None:
    """The patches of rows that begin with these prompts, in the order of their tokens."""
    seen = [prompt for prompt in prompts if prompt is not None]
    pixels = [pixels for prompt in seen for pixels in prompt.pixels]
    return ImagePatches.of(pixels, [image for prompt in seen for image in prompt.images], device)


def image_reader(model: Any, processor: ImageProcessor, *, cache_bytes: int) -> ImageReader:
    """The reader of a loaded vision model."""
    return ImageReader(processor, image_token=int(model.config.image_token_id), cache_bytes=cache_bytes)
