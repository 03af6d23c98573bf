"""New weights in a live engine: before and after agree with the old and the new model, and say which was which."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.errors import Permanent
from synth.inference.engines.protocol import Delta, SamplingParams
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.weights import write_policy
from tests.unit.inference.drive import complete, endless, prompt
from tests.unit.inference.tiny import plain_logprobs, plain_model

TOLERANCE = 1e-5


def moved(model_dir: Path, seed: int) -> Any:
    """The model after a big step of training, so that stale keys and values would show."""
    model = plain_model(model_dir)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=noise))
    return model


def publish(path: Path, model: Any, version: int) -> Path:
    tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    file = path / f"v{version}.safetensors"
    write_policy(file, tensors, kind="full", version=version)
    return file


async def start(
    engine: TransformersEngine, prompts: list[list[int]], n: int
) -> tuple[list[asyncio.Task[Delta]], asyncio.Event]:
    """Begin completions, and an event that is set when the first of them has eight tokens."""
    underway, seen = asyncio.Event(), 0

    def count(_: Delta) -> None:
        nonlocal seen
        seen += 1
        if seen == 8:
            underway.set()

    tasks = [
        asyncio.create_task(complete(engine, p, endless(n), stream=i == 0, on_delta=count if i == 0 else None))
        for i, p in enumerate(prompts)
    ]
    await asyncio.wait_for(underway.wait(), 20)
    return tasks, underway


async def test_a_swap_mid_generation_is_exact_on_both_sides_and_stamped(
    engine: TransformersEngine, model_dir: Path, reference: Any, tmp_path: Path
) -> None:
    new = moved(model_dir, 1)
    prompts = [prompt(i, 5 + 7 * i) for i in range(5)]
    tasks, _ = await start(engine, prompts, 250)

    proof = await engine.update_weights(publish(tmp_path, new, 1), 1)
    results = await asyncio.gather(*tasks)

    assert (proof.version, proof.matched) == (1, proof.tensors)
    assert engine.version == 1
    for p, r in zip(prompts, results, strict=True):
        assert set(r.versions) == {0, 1}
        cut = r.versions.index(1)
        assert r.versions == [0] * cut + [1] * (250 - cut)
        old, fresh = (plain_logprobs(m, p, r.token_ids) for m in (reference, new))
        got = torch.tensor(r.logprobs)
        assert (got - old)[:cut].abs().max() <= TOLERANCE
        # Exact under the new weights alone: the keys and values of the old ones are gone (decision 30).
        assert (got - fresh)[cut:].abs().max() <= TOLERANCE


async def test_a_prompt_that_ran_before_the_swap_is_prefilled_again_after_it(
    engine: TransformersEngine, model_dir: Path, tmp_path: Path
) -> None:
    new, ids = moved(model_dir, 2), prompt(1, 30)
    tasks, _ = await start(engine, [ids], 300)
    await engine.update_weights(publish(tmp_path, new, 1), 1)
    late = await complete(engine, ids, endless(10))
    await asyncio.gather(*tasks)
    assert (torch.tensor(late.logprobs) - plain_logprobs(new, ids, late.token_ids)).abs().max() <= TOLERANCE


async def test_a_file_that_does_not_fit_changes_nothing(
    engine: TransformersEngine, model_dir: Path, reference: Any, tmp_path: Path
) -> None:
    new = moved(model_dir, 3)
    tensors = {k: v for k, v in new.state_dict().items() if k != "lm_head.weight"}
    tensors["model.norm.weight"] = torch.ones(63)
    file = tmp_path / "odd.safetensors"
    write_policy(file, tensors, kind="full", version=1)

    with pytest.raises(Permanent, match=r"1 have another shape, first 'model\.norm\.weight'"):
        await engine.update_weights(file, 1)
    result = await complete(engine, prompt(1, 9), endless(12))

    assert set(result.versions) == {0}
    assert (
        torch.tensor(result.logprobs) - plain_logprobs(reference, prompt(1, 9), result.token_ids)
    ).abs().max() < 1e-5


async def test_a_flipped_byte_or_another_version_is_refused(
    engine: TransformersEngine, model_dir: Path, tmp_path: Path
) -> None:
    file = publish(tmp_path, moved(model_dir, 4), 1)
    with pytest.raises(Permanent, match="holds policy version 1, expected 2"):
        await engine.update_weights(file, 2)
    body = bytearray(file.read_bytes())
    body[-5] ^= 1
    file.write_bytes(body)
    with pytest.raises(Permanent, match="1 of 24 tensors differ from their digest"):
        await engine.update_weights(file, 1)
    assert engine.version == 0


async def test_weights_that_are_not_finite_fail_the_request_not_the_engine(
    engine: TransformersEngine, model_dir: Path, tmp_path: Path
) -> None:
    broken = plain_model(model_dir)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    await engine.update_weights(publish(tmp_path, broken, 1), 1)
    with pytest.raises(Exception, match="policy version 1 gives logits that are not finite"):
        await complete(engine, prompt(1, 9), SamplingParams(max_tokens=5))
    await engine.update_weights(publish(tmp_path, plain_model(model_dir), 2), 2)
    assert (await complete(engine, prompt(1, 9), endless(5))).versions == [2] * 5


async def test_a_lora_is_swapped_in_place_and_equals_the_merged_model(
    engine: TransformersEngine, model_dir: Path, reference: Any, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(plain_model(model_dir), config).eval()
    ids = prompt(3, 15)
    tasks, _ = await start(engine, [ids], 300)
    noise = torch.Generator().manual_seed(0)
    for version in (1, 2):
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=noise))
        lora = {k: v for k, v in config.to_dict().items() if not isinstance(v, set)}
        lora["target_modules"] = sorted(config.target_modules)  # type: ignore[arg-type]
        file = tmp_path / f"lora{version}.safetensors"
        write_policy(file, get_peft_model_state_dict(adapted), kind="lora", version=version, lora=lora)

        proof = await engine.update_weights(file, version)
        result = await complete(engine, ids, endless(20))

        assert proof.matched == proof.tensors == 28
        assert result.versions == [version] * 20
        assert (torch.tensor(result.logprobs) - plain_logprobs(adapted, ids, result.token_ids)).abs().max() <= TOLERANCE
        assert (torch.tensor(result.logprobs) - plain_logprobs(reference, ids, result.token_ids)).abs().max() > 0.05
    (whole,) = await asyncio.gather(*tasks)
    assert whole.versions[0] == 0
    tail = whole.versions.index(2)
    assert (torch.tensor(whole.logprobs) - plain_logprobs(adapted, ids, whole.token_ids))[
        tail:
    ].abs().max() <= TOLERANCE


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
