"""Types of models that compute something in a way of their own. Training computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.weights.lora_merge import write_merged_model
from tests.service.families.model_types import save_type
from tests.unit.trainer.batches import random_batch, scored_by
from tests.unit.trainer.jobs import OPEN_GATES, rl_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def folder(model_type: str, **changes: Any) -> Path:
        path = tmp_path_factory.mktemp("types") / model_type
        save_type(path, model_type, **changes)
        return path

    return folder


def policy_of(folder: Path, **changes: Any) -> Policy:
    torch.manual_seed(0)
    return load_policy(folder, rl_job(lr=3e-3, **OPEN_GATES, **changes), dropout=False)


def trained(policy: Policy) -> Policy:
    """The policy after one step."""
    values = RlTrainer(policy, policy.job).step(scored_by(policy, random_batch(1))).values  # type: ignore[arg-type]
    assert values["optimizer_moves"] > 0
    return policy


def logprobs(policy: Policy, indices: list[int], layout: Any) -> Tensor:
    batch = random_batch(1, sequences=2)
    sequences = Sequences(batch.tokens, batch.loss_mask.astype("float32"), batch.cu_seqlens)
    with torch.no_grad():
        return policy.logprobs(collate(sequences, indices, packing=layout))[0]


def by_library(folder: Path, ids: Tensor) -> Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(ids).logits


@pytest.mark.parametrize("model_type", ["nemotron", "stablelm", "qwen3_5_text", "falcon_h1", "lfm2", "nemotron_h"])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_rows_are_padded_if_the_model_mixes_the_sequences_of_a_packed_row(
    model_type: str, mode: str, folder: Callable[[str], Path], caplog: pytest.LogCaptureFixture
):
    """Layers that drop the ends of sequences, or that have a state: a delta rule, Mamba-2, a short convolution."""
    policy = policy_of(folder(model_type), mode=mode)
    assert (policy.job.packing, policy.layout) == ("packed", "padded")
    assert f"{model_type}, a {model_type}, mixes the sequences of a packed row" in caplog.text
    trained(policy)
    alone = torch.cat([logprobs(policy, [i], "padded") for i in (0, 1)])
    torch.testing.assert_close(logprobs(policy, [0, 1], policy.layout), alone, rtol=0, atol=1e-5)
    assert (logprobs(policy, [0, 1], "packed") - alone).abs().max() > 1e-4


@pytest.mark.parametrize("model_type", ["afmoe", "jetmoe", "deepseek_v3"])
def test_a_packed_row_is_trained_as_its_sequences_alone(model_type: str, folder: Callable[[str], Path]):
    policy = trained(policy_of(folder(model_type)))
    assert policy.layout == "packed"
    alone = torch.cat([logprobs(policy, [i], "padded") for i in (0, 1)])
    torch.testing.assert_close(logprobs(policy, [0, 1], "packed"), alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("seed_oss", {}),
        ("starcoder2", {"residual_dropout": 0.2, "embedding_dropout": 0.2}),
        ("minimax_m2", {"router_jitter_noise": 0.1}),
        ("phimoe", {}),
    ],
)
def test_rl_has_no_dropout_and_no_noise_of_any_kind(
    model_type: str, changes: dict[str, Any], folder: Callable[..., Path]
):
    path = folder(model_type, **changes)
    policy = policy_of(path)
    assert policy.model.training
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        torch.testing.assert_close(policy.model(ids).logits, by_library(path, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "reached", "left_out"),
    [
        ("glm4_moe", {"layers.0.mlp.gate_proj", "layers.1.mlp.shared_experts.down_proj"}, set[str]()),
        ("hunyuan_v1_moe", {"layers.0.mlp.shared_mlp.up_proj"}, {"layers.0.mlp.gate.wg"}),
        ("qwen2_moe", {"layers.0.mlp.shared_expert.up_proj"}, {"layers.0.mlp.shared_expert_gate"}),
        ("afmoe", {"layers.0.mlp.up_proj", "layers.1.self_attn.gate_proj"}, {"layers.1.mlp.router.gate"}),
        ("phimoe", {"layers.0.self_attn.q_proj"}, {"layers.0.mlp.router"}),
        ("hy_v3", {"layers.1.mlp.shared_experts.up_proj"}, {"layers.1.mlp.gate"}),
    ],
)
def test_an_adapter_of_a_model_with_experts_has_the_layers_that_it_names(
    model_type: str, reached: set[str], left_out: set[str], folder: Callable[[str], Path], tmp_path: Path
):
    base = folder(model_type)
    policy = trained(policy_of(base, mode="lora"))
    modules = {n.removeprefix("base_model.model.model.").partition(".lora_")[0] for n in policy.trainable_names()}
    assert reached <= modules
    assert not left_out & modules
    assert not any("experts" in name.split(".") for name in modules)
    policy.write_model(tmp_path / "adapter")
    continued = load_policy(base, policy.job, adapter_dir=tmp_path / "adapter", dropout=False)
    torch.testing.assert_close(logprobs(continued, [0, 1], "packed"), logprobs(policy, [0, 1], "packed"))
    write_merged_model(base, tmp_path / "adapter", tmp_path / "merged")
    ids = torch.arange(5, 45)[None]
    policy.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(by_library(tmp_path / "merged", ids), policy.model(ids).logits, rtol=0, atol=1e-4)


def test_a_type_with_attention_functions_of_its_own_is_refused(folder: Callable[[str], Path]):
    with pytest.raises(TrainingFailed, match="falcon cannot be loaded as a causal LM") as caught:
        policy_of(folder("falcon"))
    assert caught.value.code == "bad_model"
