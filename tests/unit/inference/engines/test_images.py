"""Images in the transformers engine: the contract, and what is its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth.errors import UserError
from synth.images.processor import ImageProcessor
from synth.images.prompt_image import PromptImage
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from tests.unit.inference.engines.image_contract import *  # noqa: F403
from tests.unit.inference.engines.image_contract import TOLERANCE, Asked
from tests.unit.inference.tiny_model import write_full_policy
from tests.unit.inference.vision_model import VisionReference, picture


@pytest.fixture(scope="module")
def reference(vision_dir: Path) -> VisionReference:
    return VisionReference(vision_dir)


@pytest.fixture
async def engine(vision_dir: Path) -> AsyncIterator[TransformersEngine]:
    loaded = await TransformersEngine.load(vision_dir, settings=EngineSettings(device="cpu", seed=0))
    yield loaded
    await loaded.close()


@pytest.fixture
def lora_engine(engine: TransformersEngine) -> TransformersEngine:
    return engine


async def test_sleep_and_wake_keep_a_request_with_images(engine: TransformersEngine, reference: VisionReference):
    asked, underway = Asked(reference, [5, -1, 6], picture(1)), asyncio.Event()
    running = asyncio.create_task(asked.complete(engine, 200, on_delta=lambda _: underway.set()))
    await asyncio.wait_for(underway.wait(), 20)
    await engine.sleep()
    await engine.wake()
    assert asked.error(await running) <= TOLERANCE


async def test_many_patches_are_prefilled_in_parts(
    engine: TransformersEngine, reference: VisionReference, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("synth.inference.engines.batcher._PREFILL_TOKENS", 40)  # 16 patches an image
    all_asked = [Asked(reference, [5, -1, 6], picture(seed)) for seed in range(5)]
    sampled = await asyncio.gather(*(asked.complete(engine, 10) for asked in all_asked))
    assert max(asked.error(got) for asked, got in zip(all_asked, sampled, strict=True)) <= TOLERANCE


class HeldPatches:
    """How many bytes of patches there are, by the arrays themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = self.most = self.read = 0
        self._lock = threading.Lock()
        read = ImageProcessor.patches

        def count(processor: ImageProcessor, pixels: Any, image: PromptImage) -> Any:
            patches = read(processor, pixels, image)
            self._add(patches.nbytes)
            weakref.finalize(patches, self._add, -patches.nbytes)
            return patches

        monkeypatch.setattr(ImageProcessor, "patches", count)

    def _add(self, size: int) -> None:
        with self._lock:
            self.bytes += size
            self.most = max(self.most, self.bytes)
            self.read += size > 0


async def test_patches_of_waiting_and_running_requests_are_bounded(
    vision_dir: Path, reference: VisionReference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Forty requests of six images: 23.6 MB of patches, a store of 1 MB, and 1.8 MB for a forward."""
    patch, bound, forward = 1536 * 4, 1 << 20, 300
    monkeypatch.setattr("synth.inference.engines.batcher._PREFILL_TOKENS", forward)
    held = HeldPatches(monkeypatch)
    settings = EngineSettings(device="cpu", seed=0, max_num_seqs=24, pixel_cache_bytes=bound)
    engine = await TransformersEngine.load(vision_dir, settings=settings)
    try:
        asked = [Asked(reference, [5, *[-1, 7] * 6], *(picture(6 * i + k) for k in range(6))) for i in range(40)]
        underway = asyncio.Event()
        running = [
            asyncio.create_task(one.complete(engine, 80, on_delta=(lambda _: underway.set()) if i == 20 else None))
            for i, one in enumerate(asked)
        ]
        await asyncio.wait_for(underway.wait(), 60)
        # What runs is computed again, from images that are read again.
        proof = await engine.update_weights(write_full_policy(tmp_path, reference.model, 1), 1)
        assert proof.matched == proof.tensors
        sampled = await asyncio.gather(*running)
        assert max(one.error(got) for one, got in zip(asked[::7], sampled[::7], strict=True)) <= TOLERANCE
        assert held.read > 40 * 6
        # Beside the store: the images of a forward, and what the threads have just read.
        assert held.most <= bound + (forward + (os.cpu_count() or 1) * 16) * patch
    finally:
        await engine.close()


async def test_the_next_turn_finds_its_images_read(
    vision_dir: Path, reference: VisionReference, monkeypatch: pytest.MonkeyPatch
):
    held = HeldPatches(monkeypatch)
    engine = await TransformersEngine.load(vision_dir, settings=EngineSettings(device="cpu", seed=0))
    try:
        for text in ([5, -1, 6], [5, -1, 6, 7, -1, 8], [9, -1]):
            await Asked(reference, text, *([picture(1)] if text.count(-1) == 1 else [picture(1), picture(2)])).complete(
                engine, 2
            )
        assert held.read == 2
    finally:
        await engine.close()


async def test_who_would_have_shared_a_prompt_that_has_gone_is_served(vision_dir: Path, reference: VisionReference):
    """One request at a time, and nothing is held: the image is read anew for the second."""
    settings = EngineSettings(device="cpu", seed=0, max_num_seqs=1, pixel_cache_bytes=0)
    engine = await TransformersEngine.load(vision_dir, settings=settings)
    try:
        asked = Asked(reference, [5, -1, 6], picture(1))
        async with asyncio.timeout(60):
            for got in await asyncio.gather(asked.complete(engine, 30), asked.complete(engine, 30)):
                assert asked.error(got) <= TOLERANCE
        assert engine.stats().prefills == 2
    finally:
        await engine.close()


async def test_a_service_decodes_no_image_in_its_own_process(
    engine: TransformersEngine, reference: VisionReference, monkeypatch: pytest.MonkeyPatch
):
    def decode(body: bytes) -> None:
        raise AssertionError("an image was decoded in the process that holds the keys")

    asked = Asked(reference, [5, -1, 6], picture(1))
    monkeypatch.setattr("synth.images.processor.open_image", decode)
    await asked.complete(engine, 2)


async def test_an_image_that_cannot_be_read_ends_its_request_alone(
    engine: TransformersEngine, reference: VisionReference
):
    bad, good = (Asked(reference, [5, -1, 6], picture(seed)) for seed in (1, 2))
    [image] = bad.images
    bad.images = [replace(image, body=image.body[:-40])]
    failed, served = await asyncio.gather(bad.complete(engine, 4), good.complete(engine, 4), return_exceptions=True)
    assert isinstance(failed, UserError)
    assert "cannot be decoded" in str(failed)
    assert not isinstance(served, BaseException)
    assert good.error(served) <= TOLERANCE
    # The same image, whole, is read again.
    bad.images = [image]
    assert bad.error(await bad.complete(engine, 4)) <= TOLERANCE


@pytest.mark.parametrize("room", [0, 256 << 20])
async def test_requests_behind_a_broken_image_go_on(vision_dir: Path, reference: VisionReference, room: int):
    """Several that show it each fail, and whoever shows another is served, also where no patches are kept."""
    engine = await TransformersEngine.load(
        vision_dir, settings=EngineSettings(device="cpu", seed=0, pixel_cache_bytes=room)
    )
    try:
        bad, good = (Asked(reference, [5, -1, 6], picture(seed)) for seed in (1, 2))
        [image] = bad.images
        bad.images = [replace(image, body=image.body[:-40])]
        async with asyncio.timeout(30):
            *failed, served = await asyncio.gather(
                *(bad.complete(engine, 4) for _ in range(3)), good.complete(engine, 4), return_exceptions=True
            )
        assert [type(error) for error in failed] == [UserError] * 3
        assert not isinstance(served, BaseException)
        assert good.error(served) <= TOLERANCE
    finally:
        await engine.close()


async def test_an_aborted_request_whose_image_is_not_read_reaches_no_batch(
    engine: TransformersEngine, reference: VisionReference
):
    asked = Asked(reference, [5, -1, 6], picture(1, 640, 640))
    params = SamplingParams(max_tokens=9, banned=asked.banned)
    deltas = engine.generate(asked.ids, params, request_id="a", time=SamplingTime(60), images=asked.images)
    begun = asyncio.ensure_future(anext(aiter(deltas)))
    await asyncio.sleep(0)
    engine.abort("a")
    assert (await begun).token_ids == []
    assert engine.stats().prefills == 0
