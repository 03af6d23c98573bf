"""The patches of the images that vLLM's requests show: computed once, and held within bounds.

vLLM's process holds the patches of a request until it ends, also while it waits, and they take a hundred times the
memory of an image's file. So a request whose patches have no room beside those of the open ones waits here, with its
files alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import torch
from torch import Tensor

from synth.errors import Problem, UserError
from synth.images.format import NotAnImage
from synth.images.processor import ImageProcessor
from synth.inference.engines.protocol import EngineImage


class PatchStore:
    """The patches of one host's images, [patches, values of a patch] of `dtype`.

    open_bytes: of open requests at once; one request alone may have more. cache_bytes: of images that were shown last,
    for the next turn of a conversation shows its images again.
    """

    def __init__(self, processor: ImageProcessor, *, dtype: torch.dtype, open_bytes: int, cache_bytes: int) -> None:
        self._processor = processor
        self._dtype = dtype
        self._most_open = open_bytes
        self._most_cached = cache_bytes
        self.open_bytes = 0
        self._freed = asyncio.Event()
        self._next = asyncio.Lock()
        self._cached: OrderedDict[str, Tensor] = OrderedDict()
        self._cached_bytes = 0
        self._reading: dict[str, asyncio.Task[Tensor]] = {}

    @property
    def merge_size(self) -> int:
        """Patches that become one token, on each axis."""
        return self._processor.merge_size

    @asynccontextmanager
    async def open(self, images: Sequence[EngineImage]) -> AsyncIterator[list[Tensor]]:
        """The patches of a request's images, as long as it is open; requests are let in in the order of their calls.

        Raises `UserError` for an image that cannot be decoded.
        """
        size = sum(self._size(image) for image in images)
        async with self._next:
            while self.open_bytes and self.open_bytes + size > self._most_open:
                self._freed.clear()
                await self._freed.wait()
            self.open_bytes += size
        try:
            yield [await self._patches(image) for image in images]
        finally:
            self.open_bytes -= size
            self._freed.set()

    def _size(self, image: EngineImage) -> int:
        return image.shown.height * image.shown.width * self._processor.patch_values * self._dtype.itemsize

    async def _patches(self, image: EngineImage) -> Tensor:
        digest = image.shown.sha256
        patches = self._cached.get(digest)
        if patches is None:
            task = self._reading.get(digest)
            if task is None:
                task = self._reading[digest] = asyncio.create_task(self._read(image), name="read an image")
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Others may wait for the same image.
            patches = await asyncio.shield(task)
        self._keep(digest, patches)
        return patches

    async def _read(self, image: EngineImage) -> Tensor:
        try:
            pixels = await asyncio.to_thread(self._processor.pixels, image.body, image.shown)
        except NotAnImage as error:
            raise UserError(Problem(what=str(error), expected="an image", where="messages")) from error
        finally:
            del self._reading[image.shown.sha256]
        return torch.from_numpy(pixels).to(self._dtype)

    def _keep(self, digest: str, patches: Tensor) -> None:
        if digest not in self._cached:
            self._cached[digest] = patches
            self._cached_bytes += patches.nbytes
        self._cached.move_to_end(digest)
        while self._cached_bytes > self._most_cached:
            self._cached_bytes -= self._cached.popitem(last=False)[1].nbytes
