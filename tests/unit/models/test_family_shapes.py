"""The sizes of every family of docs/models.md, against transformers' own model on the meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from synth.models.config_shape import read_shape
from synth.models.shape import ModelShape
from synth.weights.peft_compat import LoraConfig, get_peft_model
from tests.service.families.architectures import ARCHITECTURES, Architecture, save_config

#: What the config.json of the hub says of its size, and the parameters of the model's card, in billions. What a file
#: leaves out, such as Gemma's tied head and its windows, is left out here.
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "Qwen2.5-0.5B": (
        {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
        | {"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
        | {"sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 24},
        0.494,
    ),
    "Qwen2.5-7B": (
        {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
        | {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
        7.616,
    ),
    "Llama-3.1-8B": (
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "attention_bias": False},
        8.030,
    ),
    "Llama-3.2-1B": (
        {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True},
        1.236,
    ),
    "Mistral-7B-v0.1": (
        {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096},
        7.242,
    ),
    "gemma-3-1b-it": (
        {"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26}
        | {"num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144, "head_dim": 256}
        | {"sliding_window": 512, "sliding_window_pattern": 6},
        1.000,
    ),
    "phi-4": (
        {"model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40}
        | {"num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352, "sliding_window": None},
        14.66,
    ),
    "Olmo-3-7B": (
        {"model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100278, "sliding_window": 4096},
        7.298,
    ),
    "Olmo-2-1B": (
        {"model_type": "olmo2", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 100352},
        1.485,
    ),
    "gpt-oss-20b": (
        {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24}
        | {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088}
        | {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True},
        20.91,
    ),
    "Qwen3-30B-A3B": (
        {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48}
        | {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936}
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "tie_word_embeddings": False},
        30.53,
    ),
}


def on_meta(folder: Path) -> Any:
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def assert_same_sizes(shape: ModelShape | None, model: Any) -> None:
    assert shape is not None
    parameters = dict(model.named_parameters())
    assert shape.parameters == sum(p.numel() for p in parameters.values())
    assert sum(count for _, _, count in shape.tensors()) == len(parameters)
    # Each tensor's size, so that two errors do not cancel; gpt-oss has its experts' weights transposed.
    sizes = sorted(p.numel() for p in parameters.values())
    assert sizes == sorted(torch.Size(s).numel() for _, s, count in shape.tensors() for _ in range(count))
    head = model.get_output_embeddings()
    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
    assert shape.quantized_parameters == sum(m.weight.numel() for m in linear.values())
    first = {n: (m.in_features, m.out_features) for n, m in linear.items() if "layers.0." in n}
    assert {name: features for name, features, _ in shape.modules()} == first
    layers = getattr(model.config, "layer_types", None)
    if layers is not None:
        assert shape.windowed_layers == layers.count("sliding_attention")


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_a_tiny_model_of_each_family_has_the_tensors_of_its_architecture(
    tmp_path: Path, architecture: Architecture
) -> None:
    save_config(tmp_path, architecture)
    shape, model = read_shape(tmp_path), on_meta(tmp_path)
    assert_same_sizes(shape, model)
    assert shape is not None
    # As the trainer does: peft's own "all-linear" reaches the experts of some families.
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "layers." in n]
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=3, target_modules=linear))
    trained = [p for p in adapted.parameters() if p.requires_grad]
    assert shape.adapter_parameters(3) == sum(p.numel() for p in trained)
    assert sum(count for _, count in shape.adapter_tensors(3)) == len(trained)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_the_tensors_of_its_architecture_and_the_size_of_its_card(
    tmp_path: Path, name: str
) -> None:
    config, billions = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path)
    assert_same_sizes(shape, on_meta(tmp_path))
    assert shape is not None
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "windowed", "window"),
    [
        ("Mistral-7B-v0.1", 32, 4096),
        ("gemma-3-1b-it", 22, 512),
        ("Olmo-3-7B", 24, 4096),
        ("gpt-oss-20b", 12, 128),
        ("Qwen2.5-0.5B", 0, 0),
        ("phi-4", 0, 0),
    ],
)
def test_the_layers_with_a_window_are_those_of_the_family(
    tmp_path: Path, name: str, windowed: int, window: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name][0]))
    shape = read_shape(tmp_path)
    assert shape is not None
    assert (shape.windowed_layers, shape.window) == (windowed, window)


def test_biases_that_a_file_asks_for_are_counted(tmp_path: Path) -> None:
    config = PUBLISHED["Llama-3.2-1B"][0] | {"attention_bias": True, "mlp_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same_sizes(read_shape(tmp_path), on_meta(tmp_path))
