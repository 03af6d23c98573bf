"""The patches of vLLM's requests: computed once, and no more of them open than there is room for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from synth.errors import UserError
from synth.images.processor import ImageProcessor
from synth.inference.engines.protocol import EngineImage
from synth.inference.engines.vllm.image_patches import PatchStore
from tests.unit.inference.vision_model import VisionReference, picture

#: Of an image of 64 x 64 pixels: 16 patches of 1,536 values, in bfloat16.
ONE = 16 * 1536 * 2


@pytest.fixture(scope="module")
def reference(vision_dir: Path) -> VisionReference:
    return VisionReference(vision_dir)


def store(reference: VisionReference, *, room: int = 2, cached: int = 0) -> PatchStore:
    return PatchStore(reference.processor, dtype=torch.bfloat16, open_bytes=room * ONE, cache_bytes=cached * ONE)


async def test_requests_wait_for_room_and_are_let_in_in_order(reference: VisionReference):
    patches, let_in = store(reference), asyncio.Queue[str]()

    async def request(name: str, count: int, done: asyncio.Event) -> None:
        async with patches.open([reference.shown(picture(k)) for k in range(count)]) as read:
            assert [tuple(p.shape) for p in read] == [(16, 1536)] * count
            let_in.put_nowait(name)
            assert patches.open_bytes <= 2 * ONE or count > 2
            await done.wait()

    ends = {name: asyncio.Event() for name in "abcde"}
    sizes = {"a": 2, "b": 1, "c": 2, "d": 5, "e": 1}
    running = [asyncio.create_task(request(name, sizes[name], ends[name])) for name in "abcde"]
    for name in "abcde":
        assert await asyncio.wait_for(let_in.get(), 20) == name
        # Whoever came in before is out: two do not fit.
        assert let_in.empty()
        ends[name].set()
    await asyncio.gather(*running)
    assert patches.open_bytes == 0


async def test_who_gives_up_waiting_leaves_the_room_to_others(reference: VisionReference):
    patches = store(reference, room=1)
    [image] = [reference.shown(picture(1))]
    async with patches.open([image]):
        waiting = asyncio.create_task(patches.open([image, image]).__aenter__())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.05)
    async with asyncio.timeout(20), patches.open([image]):
        assert patches.open_bytes == ONE
    assert patches.open_bytes == 0


async def test_an_image_is_computed_once_while_it_is_open_or_was_shown_last(
    reference: VisionReference, monkeypatch: pytest.MonkeyPatch
):
    read, pixels = list[bytes](), ImageProcessor.pixels

    def count(processor: ImageProcessor, body: bytes, image: object) -> object:
        read.append(body)
        return pixels(processor, body, image)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageProcessor, "pixels", count)
    patches = store(reference, room=9, cached=1)
    one, two = (reference.shown(picture(seed)) for seed in (1, 2))

    async def show(*images: EngineImage) -> None:
        async with patches.open(images):
            pass

    await asyncio.gather(show(one), show(one))
    await show(one)
    assert len(read) == 1
    await show(two)
    await show(one)
    assert len(read) == 3


async def test_a_broken_image_ends_its_request_alone(reference: VisionReference):
    patches, good = store(reference), reference.shown(picture(1))
    with pytest.raises(UserError, match="cannot be decoded"):
        async with patches.open([EngineImage(good.shown, good.body[:-40])]):
            raise AssertionError("it is not let in")
    async with patches.open([good]) as [read]:
        assert torch.equal(read, torch.from_numpy(reference.processor.pixels(good.body, good.shown)).bfloat16())
    assert patches.open_bytes == 0
