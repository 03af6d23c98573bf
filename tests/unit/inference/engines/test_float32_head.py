"""Both engines compute logits in float32, whatever the model's dtype, as the trainer does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from synth.inference.engines.loading import float32_head
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.vllm.base_model import BaseModelInfo
from synth.inference.engines.vllm.launch import engine_arguments
from synth.trainer.learner.model.logprobs import token_logprobs

MODEL = BaseModelInfo(files=[], shapes={}, tied=True, vocabulary=300, stop_ids=[2])
SETTINGS = EngineSettings(kv_budget_bytes=1 << 20)


@pytest.mark.parametrize("dtype", [None, "bf16", "fp32"])
@pytest.mark.parametrize("rank", [None, 8])
@pytest.mark.parametrize("cpu", [True, False])
def test_vllm_is_asked_for_a_head_in_float32(dtype: str | None, rank: int | None, cpu: bool) -> None:
    settings = replace(SETTINGS, dtype=dtype)
    found = engine_arguments(Path("models/tiny"), MODEL, settings, rank, cpu=cpu)
    assert found["hf_overrides"] == {"head_dtype": "float32"}
    assert found["dtype"] == {"bf16": "bfloat16", "fp32": "float32", None: "float32" if cpu else "auto"}[dtype]
    assert ("enable_lora" in found, "weight_transfer_config" in found) == (rank is not None, rank is None)


def test_vllm_is_told_of_a_model_that_sees_what_transformers_reads_elsewhere_too() -> None:
    found = engine_arguments(Path("models/tiny"), replace(MODEL, image_token=7), SETTINGS, None, cpu=True)
    assert found["hf_overrides"] == {"head_dtype": "float32", "text_config": {"tie_word_embeddings": True}}
    assert found["limit_mm_per_prompt"] == {"image": 999, "video": 0}


@pytest.mark.parametrize("bias", [False, True])
def test_the_embedded_engines_logits_are_not_rounded_to_the_models_dtype(bias: bool) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 300, bias=bias, dtype=torch.bfloat16)
    hidden = 4 * torch.randn(5, 64).bfloat16()
    exact = torch.nn.functional.linear(
        hidden.double(), head.weight.double(), None if head.bias is None else head.bias.double()
    )
    logits = float32_head(head)(hidden)
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 1e-5
    assert (head(hidden) - exact).abs().max() > 1e-3


def test_the_embedded_engine_and_the_trainer_give_one_token_the_same_probability_in_bfloat16() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 300, bias=False, dtype=torch.bfloat16)
    hidden, target = 4 * torch.randn(5, 64).bfloat16(), torch.arange(5)
    sampled = float32_head(head)(hidden).log_softmax(-1)[torch.arange(5), target]
    trained, _ = token_logprobs(hidden, head.weight, target)
    torch.testing.assert_close(sampled, trained, atol=1e-6, rtol=0)


def test_the_embedded_head_has_the_weights_of_now() -> None:
    head = torch.nn.Linear(4, 3, bias=False, dtype=torch.bfloat16)
    logits = float32_head(head)
    hidden = torch.ones(1, 4, dtype=torch.bfloat16)
    logits(hidden)
    with torch.no_grad():
        head.weight.fill_(0.5)
    assert logits(hidden).tolist() == [[2.0, 2.0, 2.0]]
