"""The patches of the images that vLLM's requests show: computed once, and held within bounds.

vLLM's process holds the patches of a request until it ends, also while it waits, and they take a hundred times the
memory of an image's file. So a request whose patches have no room beside the open requests' waits here, with only its
files. The policies of a host take turns, so that none of them keeps the others out.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.images.processor import ImageProcessor
from synth.inference.engines.protocol import EngineImage

#: So many smaller requests may be let in before a large one that waits longer.
_MOST_PASSES = 16


class GivenUp(Exception):
    """A request was aborted while it waited for room."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits. number: in the order of arrival. passes: how many were let in before it."""

    name: str
    size: int
    number: int
    let_in: asyncio.Future[None]
    passes: int = 0


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
        # The waiting requests by policy; the policy whose turn it is comes first.
        self._waiting: OrderedDict[object, deque[_Waiter]] = OrderedDict()
        self._numbers = itertools.count()
        self._cached: OrderedDict[str, Tensor] = OrderedDict()
        self._cached_bytes = 0
        self._reading: dict[str, asyncio.Task[Tensor]] = {}

    @property
    def merge_size(self) -> int:
        """Patches that become one token, on each axis."""
        return self._processor.merge_size

    def waiting(self, policy: object) -> int:
        """Return how many requests of a policy wait for room."""
        return len(self._waiting.get(policy, ()))

    def give_up(self, policy: object, name: str) -> bool:
        """End the wait of a request: its `open` raises `GivenUp`. False for one that does not wait."""
        for waiter in self._waiting.get(policy, ()):
            if waiter.name == name and not waiter.let_in.done():
                waiter.let_in.set_exception(GivenUp())
                return True
        return False

    @asynccontextmanager
    async def open(self, images: Sequence[EngineImage], *, policy: object, name: str) -> AsyncIterator[list[Tensor]]:
        """Yield the patches of a request's images, as long as it is open. Waits until there is room.

        The requests of one policy are let in in the order of their calls. Raises `UserError` for an image that cannot
        be decoded, and `GivenUp`.
        """
        size = sum(self._size(image) for image in images)
        await self._wait_for_room(_Waiter(name, size, next(self._numbers), asyncio.Future()), policy)
        try:
            yield [await self._patches(image) for image in images]
        finally:
            self.open_bytes -= size
            self._let_in()

    async def _wait_for_room(self, waiter: _Waiter, policy: object) -> None:
        self._waiting.setdefault(policy, deque()).append(waiter)
        self._let_in()
        try:
            await waiter.let_in
        except BaseException:
            if waiter.let_in.done() and not waiter.let_in.cancelled() and waiter.let_in.exception() is None:
                self.open_bytes -= waiter.size  # it was let in at the moment in which its caller was cancelled
            else:
                self._forget(waiter, policy)
            self._let_in()
            raise

    def _let_in(self) -> None:
        """Admit the requests that fit: in turn the first of each policy."""
        while self._waiting:
            first = min((queue[0] for queue in self._waiting.values()), key=lambda waiter: waiter.number)
            chosen = next((p for p, queue in self._waiting.items() if self._may_enter(queue[0], first)), None)
            if chosen is None:
                return
            waiter = self._waiting[chosen][0]
            first.passes += waiter is not first
            self.open_bytes += waiter.size
            self._forget(waiter, chosen)
            waiter.let_in.set_result(None)

    def _may_enter(self, waiter: _Waiter, first: _Waiter) -> bool:
        fits = not self.open_bytes or self.open_bytes + waiter.size <= self._most_open
        # One that was given up is still there until its caller has noticed.
        return fits and not waiter.let_in.done() and (waiter is first or first.passes < _MOST_PASSES)

    def _forget(self, waiter: _Waiter, policy: object) -> None:
        """Take a waiter out of its queue; the other policies come first then."""
        queue = self._waiting[policy]
        queue.remove(waiter)
        self._waiting.move_to_end(policy)
        if not queue:
            del self._waiting[policy]

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
            pixels = await image.pixels()
            patches = await asyncio.to_thread(self._processor.patches, pixels, image.shown)
            return torch.from_numpy(patches).to(self._dtype)
        finally:
            del self._reading[image.shown.sha256]

    def _keep(self, digest: str, patches: Tensor) -> None:
        if patches.nbytes > self._most_cached:
            return
        if digest not in self._cached:
            self._cached[digest] = patches
            self._cached_bytes += patches.nbytes
        self._cached.move_to_end(digest)
        while self._cached_bytes > self._most_cached:
            self._cached_bytes -= self._cached.popitem(last=False)[1].nbytes
