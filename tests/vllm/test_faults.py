"""Each known fault of vLLM, with its workaround switched off: the engine refuses to serve, and says the numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from synth.errors import Permanent, Transient
from synth.inference.engines.settings import WORKAROUNDS, EngineSettings
from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from tests.service.families.architectures import ARCHITECTURES, save_architecture
from tests.unit.inference.engines.completions import complete, endless, prompt, start_completions
from tests.unit.inference.tiny_model import perturbed_model, write_full_policy
from tests.vllm.conftest import SETTINGS

NUMBER = r"-?\d+\.\d{4}"
#: vLLM wants heads of 32 on a CPU.
WIDE = {"hidden_size": 128, "head_dim": 32}


def without(name: str) -> EngineSettings:
    return replace(SETTINGS, workarounds=WORKAROUNDS - {name})


async def test_a_stale_tied_head_is_found_at_start(model_dir: Path) -> None:
    with pytest.raises(Permanent, match="LM head does not follow a reload") as refused:
        await VllmHost.start(model_dir, without("tied_head"), max_lora_rank=None)
    got_i, got_j, expected_i, expected_j = map(float, re.findall(NUMBER, str(refused.value)))
    # The old head: nothing changed places.
    assert abs(got_i - expected_j) < 1e-3
    assert abs(got_j - expected_i) < 1e-3
    assert abs(got_i - expected_i) > 0.1


async def test_experts_that_a_reload_leaves_unpacked_are_found_at_start(tmp_path: Path) -> None:
    save_architecture(tmp_path / "model", next(a for a in ARCHITECTURES if a.name == "Qwen3-MoE"), **WIDE)
    with pytest.raises(Permanent, match="experts do not survive a reload of the weights that they have") as refused:
        await VllmHost.start(tmp_path / "model", without("packed_experts"), max_lora_rank=None)
    numbers = [float(number) for number in re.findall(NUMBER, str(refused.value))]
    assert len(numbers) == 14
    assert max(abs(a - b) for a, b in zip(numbers[:7], numbers[7:], strict=True)) > 0.1


async def test_a_row_that_takes_its_neighbours_adapter_is_found_at_start(model_dir: Path) -> None:
    with pytest.raises(Permanent, match="gives rows without an adapter another row's") as refused:
        await VllmHost.start(model_dir, without("lora_mask"), max_lora_rank=8)
    assert len(re.findall(NUMBER, str(refused.value))) == 16


async def test_a_prefix_cache_that_outlives_a_swap_stops_the_engine(model_dir: Path, tmp_path: Path) -> None:
    host = await VllmHost.start(model_dir, without("clear_cache"), max_lora_rank=None)
    process = psutil.Process(host.pid)
    engine = await VllmEngine.load(host)
    (running,) = await start_completions(engine, [prompt(1, 20)], 480)

    with pytest.raises(Permanent, match="prefix cache still holds the weights before it") as refused:
        await engine.update_weights(write_full_policy(tmp_path, perturbed_model(model_dir, 1), 1), 1)

    cached, fresh = map(float, re.findall(NUMBER, str(refused.value)))
    assert abs(cached - fresh) > 0.01
    with pytest.raises(Transient, match="the engine stopped: policy version 1"):
        await running
    assert not engine.healthy
    with pytest.raises(Transient, match="the engine stopped"):
        await complete(engine, prompt(1, 5), endless(5))
    await host.close()
    process.wait(20)


async def test_a_workaround_that_does_not_exist_is_refused_by_name(model_dir: Path) -> None:
    settings = replace(SETTINGS, workarounds=frozenset({"tied_head", "luck"}))
    with pytest.raises(
        Permanent, match=r"\['luck'\]; expected some of \['clear_cache', 'lora_mask', 'packed_experts', 'tied_head'\]"
    ):
        await VllmHost.start(model_dir, settings, max_lora_rank=8)
