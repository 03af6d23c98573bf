"""vLLM serves the families of docs/models.md as the trainer trains them: full weights, and an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from tests.service.families.architectures import ARCHITECTURES, Architecture, save_architecture
from tests.service.families.test_families import by_policy, largest_difference, sampled
from tests.unit.trainer.batches import random_batch, scored_by
from tests.unit.trainer.jobs import OPEN_GATES, rl_job
from tests.vllm.conftest import SETTINGS

#: vLLM wants heads of 32 on a CPU.
_WIDE = {"hidden_size": 128, "head_dim": 32}


#: Those whose weights vLLM packs in ways of its own, by mode: CI runs them, and `make soak` the others.
_REPRESENTATIVE = {
    "full": ("Qwen3-MoE", "gpt-oss", "Gemma 3 (text)", "Phi-4 (phi3)"),
    "lora": ("Qwen3-MoE", "gpt-oss"),
}
_CASES = [
    pytest.param(
        family,
        mode,
        id=f"{family.name}-{mode}",
        marks=() if family.name in names else pytest.mark.soak,
    )
    for mode, names in _REPRESENTATIVE.items()
    for family in ARCHITECTURES
]


@pytest.mark.parametrize(("family", "mode"), _CASES)
async def test_a_family_is_served_as_it_is_trained(
    family: Architecture, mode: str, tmp_path: Path, tolerance: float
) -> None:
    save_architecture(tmp_path / "model", family, **_WIDE)
    job = rl_job(lr=3e-3, mode=mode, **OPEN_GATES)
    torch.manual_seed(job.seed)
    trainer = RlTrainer(load_policy(tmp_path / "model", job, dropout=False), job)
    host = await VllmHost.start(tmp_path / "model", SETTINGS, max_lora_rank=None if job.lora is None else job.lora.r)
    try:
        engine = await VllmEngine.load(host)
        assert largest_difference(await sampled(engine), by_policy(trainer.policy)) <= tolerance
        for version in (1, 2):
            trainer.step(scored_by(trainer.policy, random_batch(version)))
            file = tmp_path / f"v{version}.safetensors"
            trainer.policy.write_serving_weights(file, version=version)
            proof = await engine.update_weights(file, version)
            assert proof.matched == proof.tensors
            assert largest_difference(await sampled(engine), by_policy(trainer.policy)) <= tolerance
        await engine.close()
    finally:
        await host.close()
