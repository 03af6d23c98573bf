"""What an engine must do with images, as tests: collected where an engine is at hand (`test_images` here, tests/vllm).

Every logprob is that of transformers' own forward of the same pixels. Whoever collects them has fixtures `vision_dir`,
`reference` (of it), `engine` (a policy whose full weights can be swapped, version 0) and `lora_engine` (a policy that
adapters can be given to, version 0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.errors import UserError
from synth.inference.engines.protocol import Delta, Engine, EngineImage, SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.weights.peft_compat import LoraConfig, get_peft_model
from tests.unit.inference.engines.completions import complete as complete_text
from tests.unit.inference.tiny_model import randomize_adapter, write_adapter_policy, write_full_policy
from tests.unit.inference.vision_model import VisionReference, picture

TOLERANCE = 1e-4
# Layers of the language model, of the projector and of the vision tower.
TARGETS = r".*(visual\..*(qkv|linear_fc[12])|language_model.*(q|v|o|up|down)_proj)"


class Asked:
    """A request with images, and what it must get."""

    def __init__(self, reference: VisionReference, text: Sequence[int], *bodies: bytes) -> None:
        self.reference = reference
        self.images: list[EngineImage] = [reference.shown(body) for body in bodies]
        self.ids = reference.prompt(text, self.images)
        self.banned = (reference.model.generation_config.eos_token_id, *reference.media)

    async def complete(self, engine: Engine, n: int, *, on_delta: Callable[[Delta], None] | None = None) -> Delta:
        params = SamplingParams(max_tokens=n, banned=self.banned)
        return await complete_text(
            engine, self.ids, params, stream=on_delta is not None, on_delta=on_delta, images=self.images
        )

    def error(self, sampled: Delta, *, since: int = 0, model: Any = None) -> float:
        """The largest difference of a logprob from that of transformers, of the tokens from the `since`-th on."""
        expected = self.reference.logprobs(self.ids, sampled.token_ids, self.images, banned=self.banned, model=model)
        return float((torch.tensor(sampled.logprobs) - expected)[since:].abs().max())


async def test_an_image_is_seen_as_transformers_sees_it(engine: Engine, reference: VisionReference):
    asked = Asked(reference, [5, 6, -1, 7, 8], picture(1))
    # So many tokens that a wrong position after the image would show.
    sampled = await asked.complete(engine, 200)
    assert asked.error(sampled) <= TOLERANCE
    without = reference.logprobs(asked.ids, sampled.token_ids, banned=asked.banned)
    assert (torch.tensor(sampled.logprobs) - without).abs().max() > 0.1


async def test_images_of_other_sizes_and_texts_share_a_batch(engine: Engine, reference: VisionReference):
    all_asked = [
        Asked(reference, [5, -1, 6, 7, -1, 8], picture(1, 64, 96), picture(2, 128, 32)),
        Asked(reference, [9, 10, 11]),
        Asked(reference, [5, 6, -1, 7], picture(3, 40, 120)),
        Asked(reference, list(range(20, 60))),
        Asked(reference, [-1, 6, -1, 7], picture(4), picture(5)),
    ]
    sampled = await asyncio.gather(*(asked.complete(engine, 20 + 7 * i) for i, asked in enumerate(all_asked)))
    assert engine.stats().prefills == 5
    for asked, got in zip(all_asked, sampled, strict=True):
        assert asked.error(got) <= TOLERANCE


async def test_prompts_of_the_same_ids_share_keys_only_where_the_images_are_the_same(
    engine: Engine, reference: VisionReference
):
    # Longer than a block of vLLM's prefix cache.
    ours, others = (Asked(reference, [5, -1, *range(6, 46)], picture(seed)) for seed in (1, 2))
    assert ours.ids == others.ids
    running = asyncio.Event()
    first = asyncio.create_task(ours.complete(engine, 120, on_delta=lambda _: running.set()))
    await asyncio.wait_for(running.wait(), 20)
    late = await asyncio.gather(*(asked.complete(engine, 12) for asked in (ours, others, ours, others)))
    for asked, got in zip((ours, ours, others, ours, others), [await first, *late], strict=True):
        assert asked.error(got) <= TOLERANCE
    assert engine.stats().prompts_shared == 3


async def test_new_weights_in_the_middle_look_at_the_images_again(
    engine: Engine, reference: VisionReference, vision_dir: Path, tmp_path: Path
):
    other = VisionReference(vision_dir).model
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=noise))
    file = write_full_policy(tmp_path, other, 1)
    short, long = (
        Asked(reference, [8, -1, 9, -1], picture(2), picture(3)),
        Asked(reference, [*range(5, 200), -1, 7], picture(1, 96, 64)),
    )
    # What was there before leaves its tokens, those of its images too, in the history of the first row.
    await Asked(reference, [-1] * 40, *(picture(seed % 3) for seed in range(40))).complete(engine, 3)
    underway = asyncio.Event()
    running = [
        asyncio.create_task(short.complete(engine, 300)),
        asyncio.create_task(long.complete(engine, 280, on_delta=lambda _: underway.set())),
    ]
    await asyncio.wait_for(underway.wait(), 20)
    proof = await engine.update_weights(file, 1)
    assert proof.matched == proof.tensors
    for asked, got in zip((short, long), await asyncio.gather(*running), strict=True):
        swapped = got.versions.index(1)
        assert 0 < swapped < len(got.versions) - 50
        assert asked.error(got, since=swapped, model=other) <= TOLERANCE


async def test_an_adapter_of_the_language_model_and_of_the_projector_is_served(
    lora_engine: Engine, reference: VisionReference, vision_dir: Path, tmp_path: Path
):
    adapted = get_peft_model(VisionReference(vision_dir).model, LoraConfig(r=2, lora_alpha=4, target_modules=TARGETS))
    randomize_adapter(adapted, seed=1)
    asked = Asked(reference, [5, -1, 6], picture(1))
    proof = await lora_engine.update_weights(write_adapter_policy(tmp_path, adapted, 1), 1)
    assert proof.matched == proof.tensors > 10
    assert asked.error(sampled := await asked.complete(lora_engine, 20), model=adapted) <= TOLERANCE
    assert asked.error(sampled) > 0.1


async def test_a_prompt_whose_tokens_are_not_those_of_its_images_is_refused(engine: Engine, reference: VisionReference):
    asked = Asked(reference, [5, -1, 6], picture(1))
    asked.ids.remove(reference.pad)
    with pytest.raises(UserError, match="image tokens"):
        await asked.complete(engine, 3)
    asked.images.clear()
    with pytest.raises(UserError, match="image tokens"):
        await asked.complete(engine, 3)
    assert engine.healthy


async def test_an_abort_that_comes_before_the_image_is_read_ends_the_request(
    engine: Engine, reference: VisionReference
):
    asked = Asked(reference, [5, -1, 6], picture(1, 640, 640))
    deltas = engine.generate(
        asked.ids,
        SamplingParams(max_tokens=3000, banned=asked.banned),
        request_id="a",
        time=SamplingTime(60),
        images=asked.images,
    )
    begun = asyncio.ensure_future(anext(aiter(deltas)))
    await asyncio.sleep(0)
    engine.abort("a")
    ended = await begun
    assert ended.finish_reason == "abort"
    assert len(ended.token_ids) < 100
