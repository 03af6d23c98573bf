"""The transformers engine beyond what every engine does: how it shares prompts, keeps its budget, and dies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.errors import Permanent, Transient
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from tests.unit.inference.engines.completions import complete, endless, prompt
from tests.unit.inference.tiny_model import plain_logprobs, plain_model

TOLERANCE = 1e-5


async def test_a_group_of_samples_of_one_prompt_is_prefilled_once(engine: TransformersEngine, reference: Any) -> None:
    prompts = [prompt(i, 18) for i in range(4)]
    results = await asyncio.gather(*(complete(engine, p, endless(10)) for p in prompts for _ in range(8)))

    stats = engine.stats()
    assert stats.prefills == 4
    assert stats.prompts_shared == 28
    assert len({tuple(r.token_ids) for r in results}) > 24  # samples of a group differ
    for i, r in enumerate(results):
        got = torch.tensor(r.logprobs) - plain_logprobs(reference, prompts[i // 8], r.token_ids)
        assert got.abs().max() <= TOLERANCE


async def test_a_late_sample_of_a_running_prompt_copies_its_keys_and_values(
    engine: TransformersEngine, reference: Any
) -> None:
    ids, running = prompt(3, 20), asyncio.Event()
    first = asyncio.create_task(complete(engine, ids, endless(300), stream=True, on_delta=lambda _: running.set()))
    await asyncio.wait_for(running.wait(), 20)
    late = await complete(engine, ids, endless(10))
    await first

    assert engine.stats().prefills == 1
    assert torch.tensor(late.logprobs).sub(plain_logprobs(reference, ids, late.token_ids)).abs().max() <= TOLERANCE


async def test_requests_beyond_the_kv_budget_wait_their_turn_and_all_finish(model_dir: Path) -> None:
    # 512 bytes a token in this model: room for 128 tokens, so for two of these requests at a time.
    settings = EngineSettings(device="cpu", kv_budget_bytes=128 * 512, seed=0)
    engine = await TransformersEngine.load(model_dir, settings=settings)
    order: list[int] = []

    async def one(i: int) -> None:
        result = await complete(engine, prompt(i, 20), endless(40))
        assert len(result.token_ids) == 40
        order.append(i)

    await asyncio.gather(*(one(i) for i in range(7)))
    assert order == sorted(order)
    assert engine.max_context == 128
    await engine.close()


async def test_organisations_take_turns_at_the_places_and_share_no_prompt(model_dir: Path) -> None:
    engine = await TransformersEngine.load(model_dir, settings=EngineSettings(device="cpu", seed=0, max_num_seqs=2))
    ended: list[str] = []

    async def ask(org: str, text: list[int]) -> None:
        await complete(engine, text, endless(8, org=org))
        ended.append(org)

    try:
        same = prompt(0, 20)
        async with asyncio.timeout(60):
            await asyncio.gather(*(ask("a", same) for _ in range(20)), ask("b", same), ask("b", same))
        # Whoever comes last does not wait for all that another organisation has queued before.
        assert max(i for i, org in enumerate(ended) if org == "b") < 8
        stats = engine.stats()
        assert stats.prefills - stats.prompts_shared >= 2
    finally:
        await engine.close()


async def test_when_the_engines_thread_dies_everyone_hears_of_it(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = engine._batcher  # pyright: ignore[reportPrivateUsage]
    real, steps = batcher.step, 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps > 5:
            raise RuntimeError("out of memory")
        real()

    monkeypatch.setattr(batcher, "step", step)
    results = await asyncio.gather(
        *(complete(engine, prompt(i, 4), endless(50)) for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(r, Transient) and "out of memory" in str(r) for r in results)
    assert not engine.healthy
    with pytest.raises(Transient, match="out of memory"):
        await complete(engine, prompt(1, 4), endless(5))


async def test_a_request_that_kills_the_engine_before_it_joins_hears_of_it_too(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(engine._batcher, "add", add)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Transient, match="the engine died: RuntimeError: broken"):
        await complete(engine, prompt(1, 4), endless(5))


async def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="no model can be loaded"):
        await TransformersEngine.load(tmp_path, settings=EngineSettings())


async def test_an_adapter_directory_is_served_over_its_base(model_dir: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    adapted = get_peft_model(plain_model(model_dir), config).eval()
    adapted.save_pretrained(str(tmp_path))
    engine = await TransformersEngine.load(model_dir, adapter=tmp_path, settings=EngineSettings(device="cpu"))
    result = await complete(engine, prompt(1, 9), endless(20))
    await engine.close()
    plain = plain_logprobs(adapted, prompt(1, 9), result.token_ids)
    assert (torch.tensor(result.logprobs) - plain).abs().max() <= TOLERANCE


async def test_models_that_are_loaded_at_once_are_all_whole(model_dir: Path, reference: Any) -> None:
    loading = [TransformersEngine.load(model_dir, settings=EngineSettings(device="cpu", seed=0)) for _ in range(4)]
    engines = await asyncio.gather(*loading)
    ids = prompt(1, 18)
    for engine in engines:
        result = await complete(engine, ids, endless(5))
        assert torch.tensor(result.logprobs).sub(plain_logprobs(reference, ids, result.token_ids)).abs().max() <= 1e-5
        await engine.close()
