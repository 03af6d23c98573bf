"""Images on vLLM: the contract that the transformers engine keeps too, and what only vLLM could get wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth.inference.engines.protocol import Delta, SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from synth.weights.peft_compat import LoraConfig, get_peft_model
from tests.unit.inference.engines.image_contract import *  # noqa: F403
from tests.unit.inference.engines.image_contract import TARGETS, TOLERANCE, Asked
from tests.unit.inference.tiny_model import randomize_adapter, write_adapter_policy
from tests.unit.inference.vision_model import VisionReference, picture
from tests.vllm.conftest import SETTINGS


@pytest.fixture(scope="module")
def vision_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-VL whose heads are as wide as vLLM wants them on a CPU."""
    return make_tiny_qwen3_vl(tmp_path_factory.mktemp("vl") / "tiny-qwen3-vl", head_dim=32).path


@pytest.fixture(scope="module")
def reference(vision_dir: Path) -> VisionReference:
    return VisionReference(vision_dir)


@pytest.fixture(scope="module")
async def full_host(vision_dir: Path) -> AsyncIterator[VllmHost]:
    host = await VllmHost.start(vision_dir, SETTINGS, max_lora_rank=None)
    yield host
    await host.close()


@pytest.fixture(scope="module")
async def lora_host(vision_dir: Path) -> AsyncIterator[VllmHost]:
    host = await VllmHost.start(vision_dir, SETTINGS, max_lora_rank=8)
    yield host
    await host.close()


@pytest.fixture
async def engine(full_host: VllmHost) -> AsyncIterator[VllmEngine]:
    loaded = await VllmEngine.load(full_host)
    yield loaded
    await loaded.close()


@pytest.fixture
async def lora_engine(lora_host: VllmHost) -> AsyncIterator[VllmEngine]:
    loaded = await VllmEngine.load(lora_host)
    yield loaded
    await loaded.close()


async def test_policies_with_other_projectors_see_one_image_side_by_side(
    lora_engine: VllmEngine, lora_host: VllmHost, reference: VisionReference, vision_dir: Path, tmp_path: Path
):
    """What the tower makes of an image is kept for each adapter, and rows without one get none."""
    policies: list[tuple[VllmEngine, Any]] = [(lora_engine, None)]
    for seed in (1, 2):
        lora = LoraConfig(r=2, lora_alpha=8, target_modules=TARGETS)
        adapted = get_peft_model(VisionReference(vision_dir).model, lora)
        randomize_adapter(adapted, seed=seed)
        (tmp_path / str(seed)).mkdir()
        engine = await VllmEngine.load(lora_host)
        await engine.update_weights(write_adapter_policy(tmp_path / str(seed), adapted, seed), seed)
        policies.append((engine, adapted))
    requests = [
        (Asked(reference, [i, -1, 6], picture(i)), engine, model) for i in (1, 2, 3) for engine, model in policies
    ]
    # The first round, one by one, leaves what the second must not take from another policy.
    one_by_one = [await asked.complete(engine, 9) for asked, engine, _ in requests]
    together = await asyncio.gather(*(asked.complete(engine, 40) for asked, engine, _ in requests))
    for (asked, _, model), *got in zip(requests, one_by_one, together, strict=True):
        assert max(asked.error(sampled, model=model) for sampled in got) <= TOLERANCE
    for engine, _ in policies[1:]:
        await engine.close()


async def test_requests_without_room_wait_are_counted_and_can_be_aborted(vision_dir: Path, reference: VisionReference):
    one = 16 * 1536 * 4
    host = await VllmHost.start(vision_dir, replace(SETTINGS, open_pixel_bytes=one), max_lora_rank=None)
    try:
        policy = await VllmEngine.load(host)
        asked = [Asked(reference, [5, -1, 6], picture(seed)) for seed in (1, 2, 3)]
        underway = asyncio.Event()
        first = asyncio.create_task(asked[0].complete(policy, 400, on_delta=lambda _: underway.set()))
        await asyncio.wait_for(underway.wait(), 60)
        params = SamplingParams(max_tokens=9, banned=asked[1].banned)
        deltas = policy.generate(asked[1].ids, params, request_id="w", time=SamplingTime(60), images=asked[1].images)
        waiting = asyncio.ensure_future(anext(aiter(deltas)))
        last = asyncio.create_task(asked[2].complete(policy, 9))
        async with asyncio.timeout(20):
            while policy.stats().waiting < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert policy.stats().running == 1
        policy.abort("w")
        assert (await waiting) == Delta([], [], [], finish_reason="abort")
        assert not first.done()
        assert max(asked[0].error(await first), asked[2].error(await last)) <= TOLERANCE
    finally:
        await host.close()
