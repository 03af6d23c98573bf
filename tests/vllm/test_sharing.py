"""Many policies on one host: adapters beside each other and beside the base, and what happens when there is no room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from synth.errors import Permanent
from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from tests.unit.inference.engines.completions import complete, endless, prompt
from tests.unit.inference.engines.expected import max_error
from tests.unit.inference.tiny_model import (
    lora_model,
    perturbed_model,
    plain_logprobs,
    plain_model,
    randomize_adapter,
    save_tiny_model,
    write_adapter_policy,
    write_full_policy,
)
from tests.vllm.conftest import SETTINGS


async def test_more_policies_than_slots_each_keep_their_own_weights(
    lora_host: VllmHost, model_dir: Path, reference: Any, tolerance: float, tmp_path: Path
) -> None:
    adapted = lora_model(model_dir)
    policies = [await VllmEngine.load(lora_host) for _ in range(SETTINGS.max_batch_adapters + 3)]
    for version, policy in enumerate(policies[1:], start=1):
        randomize_adapter(adapted, version)
        await policy.update_weights(write_adapter_policy(tmp_path, adapted, version), version)
    assert len(lora_host.engines) == len(policies)
    # One prompt for all, longer than a block: the prefix cache must tell the policies apart.
    ids = prompt(3, 70)
    results = await asyncio.gather(*(complete(policy, ids, endless(12)) for policy in policies for _ in range(2)))

    for i, result in enumerate(results):
        version = i // 2
        randomize_adapter(adapted, version)
        model = adapted if version else reference
        assert result.versions == [version] * 12
        assert max_error(result, plain_logprobs(model, ids, result.token_ids)) <= tolerance
    for policy in policies:
        await policy.close()
    await lora_host.adapters.wait_unloaded()
    assert len(lora_host.engines) == len(lora_host.adapters) == 0


async def test_an_adapter_folder_is_served_and_may_go_away(
    lora_host: VllmHost, model_dir: Path, tolerance: float, tmp_path: Path
) -> None:
    adapted = lora_model(model_dir)
    randomize_adapter(adapted, 7)
    adapted.save_pretrained(str(tmp_path / "served"))
    engine = await VllmEngine.load(lora_host, adapter=tmp_path / "served", version=4)
    (tmp_path / "served" / "adapter_model.safetensors").unlink()
    result = await complete(engine, prompt(1, 9), endless(20))
    await engine.close()
    assert result.versions == [4] * 20
    assert max_error(result, plain_logprobs(adapted, prompt(1, 9), result.token_ids)) <= tolerance


async def test_one_adapter_too_many_has_to_wait_until_an_old_one_has_no_requests(
    lora_host: VllmHost, model_dir: Path, tmp_path: Path
) -> None:
    engine, adapted, running = await VllmEngine.load(lora_host), lora_model(model_dir), list[asyncio.Task[Any]]()
    # Paused, so that no request ends before its time.
    await lora_host.llm.pause_generation(mode="keep")
    for version in range(1, SETTINGS.max_adapters + 1):
        await engine.update_weights(write_adapter_policy(tmp_path, adapted, version), version)
        running.append(asyncio.create_task(complete(engine, prompt(version, 8), endless(440))))
        await asyncio.sleep(0)  # it takes the version of its first moment
    swap = asyncio.create_task(engine.update_weights(write_adapter_policy(tmp_path, adapted, 99), 99))
    await asyncio.wait([swap], timeout=0.5)
    assert not swap.done()
    assert engine.version == 12
    engine.end_requests()
    await asyncio.gather(*running)
    await swap
    await lora_host.adapters.wait_unloaded()
    assert len(lora_host.adapters) == 1
    await lora_host.llm.resume_generation()

    assert (await complete(engine, prompt(1, 9), endless(3))).versions == [99] * 3
    await engine.close()


async def test_an_adapter_that_vllm_cannot_serve_is_refused_and_changes_nothing(
    lora: VllmEngine, model_dir: Path, reference: Any, tolerance: float, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    too_wide = get_peft_model(plain_model(model_dir), LoraConfig(r=16, target_modules=["q_proj"]))
    with pytest.raises(Permanent, match="rank"):
        await lora.update_weights(write_adapter_policy(tmp_path, too_wide, 1), 1)
    head = get_peft_model(plain_model(model_dir), LoraConfig(r=4, target_modules=["embed_tokens"]))
    with pytest.raises(Permanent, match="over 2 layers that the host serves without one"):
        await lora.update_weights(write_adapter_policy(tmp_path, head, 1), 1)
    with pytest.raises(Permanent, match="kind 'full', which this host cannot serve; expected an adapter"):
        await lora.update_weights(write_full_policy(tmp_path, reference, 1), 1)
    result = await complete(lora, prompt(1, 9), endless(5))
    assert result.versions == [0] * 5
    assert max_error(result, plain_logprobs(reference, prompt(1, 9), result.token_ids)) <= tolerance


async def test_a_host_of_full_weights_has_one_policy_and_starts_the_next_from_the_base(
    full_host: VllmHost, model_dir: Path, reference: Any, tolerance: float, tmp_path: Path
) -> None:
    first = await VllmEngine.load(full_host)
    with pytest.raises(Permanent, match="a second policy on a host of full weights"):
        await VllmEngine.load(full_host)
    with pytest.raises(Permanent, match="an adapter for a host of full weights"):
        await VllmEngine.load(full_host, adapter=tmp_path)
    await first.update_weights(write_full_policy(tmp_path, perturbed_model(model_dir, 1), 1), 1)
    await first.close()
    second = await VllmEngine.load(full_host, version=3)
    result = await complete(second, prompt(1, 9), endless(20))
    await second.close()
    assert result.versions == [3] * 20
    assert max_error(result, plain_logprobs(reference, prompt(1, 9), result.token_ids)) <= tolerance


async def test_each_host_shows_vllms_own_metrics_under_its_name(full: VllmEngine, lora: VllmEngine) -> None:
    before = engine_tokens()
    await asyncio.gather(complete(full, prompt(1, 9), endless(20)), complete(lora, prompt(1, 70), endless(10)))
    await complete(lora, prompt(1, 70), endless(10))
    after = engine_tokens()

    assert len(after) == 2
    assert sorted(after[name] - before[name] for name in after) == [20, 20]
    text = generate_latest().decode()
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    stats = lora.stats()
    assert (stats.sampled_tokens, stats.prefills, stats.prompts_shared) == (20, 2, 1)
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.kv_tokens_budget == (64 << 20) // (2 * 2 * 2 * 32 * 4)


async def test_organisations_share_no_cached_prompt(lora: VllmEngine) -> None:
    before = lora.stats().prompts_shared
    for org, shared in (("a", 0), ("b", 0), ("a", 1), ("b", 2)):
        await complete(lora, prompt(4, 70), endless(2, org=org))
        assert lora.stats().prompts_shared - before == shared


def engine_tokens() -> dict[str, float]:
    """Tokens that each host has generated, by its name."""
    lines = [
        line for line in generate_latest().decode().splitlines() if line.startswith("vllm:generation_tokens_total")
    ]
    return {line.split('model_name="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


async def test_a_model_that_vllm_cannot_serve_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="no model can be loaded"):
        await VllmHost.start(tmp_path, SETTINGS, max_lora_rank=8)
    save_tiny_model(tmp_path, head_dim=16)
    with pytest.raises(Permanent, match="are 16 wide; expected one of 32, 64"):
        await VllmHost.start(tmp_path, SETTINGS, max_lora_rank=8)
