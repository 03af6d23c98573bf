"""The images of requests: their patches, read shortly before they are needed, and the positions that they give a row.

Patches take a hundred times the memory of an image's file. So a request holds only its files, however many requests
wait or run; a bounded store has the patches of the next requests and, in the remaining room, the latest used ones.
A request without images uses none of this, so a text model is not slowed down.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from synth.errors import SynthError, Transient, UserError
from synth.images.positions import mrope_positions
from synth.images.processor import ImageProcessor
from synth.images.qwen3_vl import ImagePatches
from synth.inference.engines.protocol import EngineImage

Float32 = npt.NDArray[np.float32]
#: Returns the pixels of an image, uint8 [rows, columns, 3]; waits for them. Raises a `SynthError`.
Decode = Callable[[EngineImage], npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """The images of one prompt.

    positions: int64 [3, T], of the prompt's tokens. shift: the difference of a later token's position and its index.
    """

    images: tuple[EngineImage, ...]
    positions: npt.NDArray[np.int64]
    shift: int

    @property
    def patches(self) -> int:
        return sum(image.shown.height * image.shown.width for image in self.images)

    @property
    def digests(self) -> bytes:
        """Return the bytes that distinguish it from another prompt with the same ids."""
        return b"".join(bytes.fromhex(image.shown.sha256) for image in self.images)


def read_prompt(
    prompt_ids: Sequence[int], images: Sequence[EngineImage], *, image_token: int, merge_size: int
) -> ImagePrompt | None:
    """Return the images of a prompt; None for text. Raises `UserError` for images that its ids do not show."""
    if not images and image_token not in prompt_ids:
        return None
    shown = tuple(image.shown for image in images)
    try:
        positions, after = mrope_positions(
            np.asarray(prompt_ids), shown, image_token=image_token, merge_size=merge_size
        )
    except ValueError as error:
        raise UserError(str(error), expected="as many image tokens as its images have", where="messages") from error
    return ImagePrompt(tuple(images), positions, after - len(prompt_ids))


def check_no_images(images: Sequence[EngineImage]) -> None:
    """Raise `UserError` for images that a text model is shown."""
    if images:
        raise UserError(f"{len(images)} images for a text model", expected="text", fix="choose a vision model")


class ImageReader:
    """Reads the images of one model's prompts as patches, float32 [its patches, values of a patch], in other threads.

    Every method except `prompt` runs in the engine's thread. max_bytes: of the patches in memory; the patches of one
    request, or of one forward, may be more, and stay until it is over. decode: returns an image's pixels. on_read:
    called when an image was read. Both run in a reading thread.
    """

    def __init__(
        self,
        processor: ImageProcessor,
        *,
        image_token: int,
        max_bytes: int,
        decode: Decode,
        on_read: Callable[[], None],
    ) -> None:
        self._processor = processor
        self._decode = decode
        self._image_token = image_token
        self._max_bytes = max_bytes
        self._on_read = on_read
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="image")
        # The patches by digest, the latest used one at the end.
        self._held: OrderedDict[str, tuple[Future[Float32], int]] = OrderedDict()
        self._next: set[str] = set()
        self.held_bytes = 0

    def prompt(self, prompt_ids: Sequence[int], images: Sequence[EngineImage]) -> ImagePrompt | None:
        """As `read_prompt`."""
        return read_prompt(prompt_ids, images, image_token=self._image_token, merge_size=self._processor.merge_size)

    def read_ahead(self, prompts: Iterable[ImagePrompt]) -> None:
        """Begin to read the first of these prompts, and those after it that there is room for beside it."""
        self._next = set()
        size = 0
        for prompt in prompts:
            new = {image.shown.sha256: image for image in prompt.images if image.shown.sha256 not in self._next}
            size += sum(map(self._size, new.values()))
            if self._next and size > self._max_bytes:
                break
            self._next |= new.keys()
            for image in prompt.images:
                self._begin(image)
        self._make_room()

    def is_read(self, prompt: ImagePrompt) -> bool:
        """Return whether `patches` would not wait."""
        entries = [self._held.get(image.shown.sha256) for image in prompt.images]
        return all(entry is not None and entry[0].done() for entry in entries)

    def fault(self, prompt: ImagePrompt) -> SynthError | None:
        """Return why an image of a prompt that is read cannot be shown; the next request with it has it read again."""
        for image in prompt.images:
            error = self._held[image.shown.sha256][0].exception()
            if error is None:
                continue
            self._let_go(image.shown.sha256)
            if isinstance(error, SynthError):
                return error
            return Transient(f"an image could not be read: {type(error).__name__}: {error}")
        return None

    def patches(self, prompts: Sequence[ImagePrompt | None], device: torch.device) -> ImagePatches | None:
        """Return the patches of rows with these prompts, in the order of their tokens; waits until they are read."""
        images = [image for prompt in prompts if prompt is not None for image in prompt.images]
        reading = [self._begin(image) for image in images]
        patches = ImagePatches.of([future.result() for future in reading], [image.shown for image in images], device)
        self._make_room()
        return patches

    def close(self) -> None:
        """End the threads; nothing is read any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, image: EngineImage) -> Future[Float32]:
        digest = image.shown.sha256
        if digest not in self._held:
            future = self._threads.submit(self._read, image)
            future.add_done_callback(lambda _: self._on_read())
            self._held[digest] = future, self._size(image)
            self.held_bytes += self._size(image)
        self._held.move_to_end(digest)
        return self._held[digest][0]

    def _read(self, image: EngineImage) -> Float32:
        return self._processor.patches(self._decode(image), image.shown)

    def _make_room(self) -> None:
        """Let go of patches that were not needed for the longest time, until the others are few enough."""
        for digest in [*self._held]:
            if self.held_bytes <= self._max_bytes:
                return
            if digest not in self._next:
                self._let_go(digest)

    def _let_go(self, digest: str) -> None:
        future, size = self._held.pop(digest)
        future.cancel()
        self.held_bytes -= size

    def _size(self, image: EngineImage) -> int:
        """Return the bytes of its patches."""
        return image.shown.height * image.shown.width * self._processor.patch_values * np.float32().nbytes


def row_positions(prompts: Sequence[ImagePrompt | None], length: int, device: torch.device) -> Tensor:
    """Return the positions of the first `length` tokens of rows with these prompts, int64 [3, rows, length]."""
    positions = np.empty((3, len(prompts), length), np.int64)
    positions[:] = np.arange(length)
    for i, prompt in enumerate(prompts):
        if prompt is not None:
            shown = prompt.positions[:, :length]
            positions[:, i] += prompt.shift
            positions[:, i, : shown.shape[1]] = shown
    return torch.from_numpy(positions).to(device)
