"""Images in the transformers engine: the contract, and what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from tests.unit.inference.engines.image_contract import *  # noqa: F403
from tests.unit.inference.engines.image_contract import TOLERANCE, Asked
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


async def test_an_aborted_request_whose_image_is_not_read_reaches_no_batch(
    engine: TransformersEngine, reference: VisionReference
):
    asked = Asked(reference, [5, -1, 6], picture(1, 640, 640))
    params = SamplingParams(max_tokens=9, banned=asked.banned)
    deltas = engine.generate(asked.ids, params, request_id="a", timeout=60, images=asked.images)
    begun = asyncio.ensure_future(anext(aiter(deltas)))
    await asyncio.sleep(0)
    engine.abort("a")
    assert (await begun).token_ids == []
    assert engine.stats().prefills == 0
