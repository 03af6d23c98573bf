"""The sizes of models: of those that are known by their id, and of folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from synth.models.config_shape import read_shape
from synth.models.hosted_shapes import known_shape
from synth.models.table import QWEN3
from synth.weights.peft_compat import LoraConfig, get_peft_model
from tests.unit.inference.tiny_model import save_tiny_model


@pytest.mark.parametrize(
    ("name", "billions"), [("0.6B", 0.60), ("1.7B", 1.72), ("4B", 4.02), ("8B", 8.19), ("14B", 14.77), ("32B", 32.76)]
)
def test_a_known_base_has_the_parameters_of_its_model_card(name: str, billions: float) -> None:
    shape = known_shape(f"Qwen/Qwen3-{name}")
    assert shape is not None
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.006)


def test_variants_of_a_base_have_its_shape_and_others_have_none() -> None:
    assert known_shape("Qwen/Qwen3-4B-Instruct-2507") == known_shape("Qwen/Qwen3-4B")
    assert known_shape("Qwen/Qwen3-4B-Thinking-2507-FP8") == known_shape("Qwen/Qwen3-4B")
    assert known_shape("Qwen/Qwen3-VL-4B-Thinking") == known_shape("Qwen/Qwen3-VL-4B-Instruct")
    assert known_shape("Qwen/Qwen3-VL-0.6B-Instruct") is None
    assert known_shape("tiny-qwen3") is None


@pytest.mark.parametrize("model_id", QWEN3)
def test_every_hosted_base_has_a_shape_of_about_the_size_in_its_id(model_id: str) -> None:
    shape, spec = known_shape(model_id), QWEN3[model_id]
    assert shape is not None
    assert (shape.vision is not None) == (spec.vision is not None)
    assert bool(shape.experts) == (spec.active_parameters != spec.parameters)
    assert spec.parameters is not None
    assert shape.parameters / 1e9 == pytest.approx(spec.parameters, rel=0.26)


#: As their config.json on the hub has them.
_TEXT: dict[str, dict[str, Any]] = {
    "2B": {"hidden_size": 2048, "num_hidden_layers": 28, "intermediate_size": 6144, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "num_hidden_layers": 36, "intermediate_size": 9728, "num_attention_heads": 32},
    "8B": {"hidden_size": 4096, "num_hidden_layers": 36, "intermediate_size": 12288, "num_attention_heads": 32},
    "32B": {"hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 25600, "num_attention_heads": 64},
    "30B-A3B": {"hidden_size": 2048, "num_hidden_layers": 48, "moe_intermediate_size": 768, "num_attention_heads": 32},
    "235B-A22B": {
        "hidden_size": 4096,
        "num_hidden_layers": 94,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 64,
    },
}


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("2B", 2_127_532_032),
        ("4B", 4_437_815_808),
        ("8B", 8_767_123_696),
        ("32B", 33_357_390_064),
        ("30B-A3B", 31_070_754_032),
        ("235B-A22B", 235_670_022_896),
    ],
)
def test_a_hosted_vision_base_has_the_parameters_of_the_architecture(size: str, parameters: int) -> None:
    small, moe = size in ("2B", "4B"), "-A" in size
    text = _TEXT[size] | {"vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 4 if moe else 8}
    text |= {"num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False} if moe else {}
    vision = {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "deepstack_visual_indexes": [5, 11, 17],
        **({} if small else {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}),
        **({} if small else {"deepstack_visual_indexes": [8, 16, 24]}),
        "num_heads": 16,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "in_channels": 3,
    }
    config: Any = Qwen3VLMoeConfig if moe else Qwen3VLConfig
    kind: Any = Qwen3VLMoeForConditionalGeneration if moe else Qwen3VLForConditionalGeneration
    with torch.device("meta"):
        model = kind(config(text_config=text, vision_config=vision, tie_word_embeddings=small))
    shape = known_shape(f"Qwen/Qwen3-VL-{size}-Instruct")
    assert shape is not None
    assert shape.vision is not None
    assert shape.parameters == parameters == sum(p.numel() for p in model.parameters())
    assert shape.vision.parameters == sum(p.numel() for p in model.model.visual.parameters())
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not model.lm_head]
    assert shape.quantized_parameters == sum(m.weight.numel() for m in linear)
    assert shape.expert_parameters == sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)


def test_a_folders_shape_counts_every_weight_of_the_model_in_it(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    shape = read_shape(tmp_path)
    assert shape is not None
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert shape.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"], r".*\.(gate|up|down)_proj"])
def test_an_adapters_weights_are_those_that_peft_makes(tmp_path: Path, targets: str | list[str]) -> None:
    save_tiny_model(tmp_path)
    shape = read_shape(tmp_path)
    assert shape is not None
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=3, target_modules=targets))
    assert shape.adapter_parameters(3, targets) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


@pytest.mark.parametrize("text", ['{"model_type": "qwen3"}', '{"model_type": "llama"}', "[]", "no JSON", "\xff"])
def test_a_folder_that_does_not_say_its_size_has_no_shape(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert read_shape(tmp_path) is None
    assert read_shape(tmp_path / "nowhere") is None
