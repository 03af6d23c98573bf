"""The sizes of models: of those that are known by their id, and of folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from synth.models.shape import known_shape, read_shape
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
    assert known_shape("Qwen/Qwen3-30B-A3B") is None
    assert known_shape("Qwen/Qwen3-VL-4B-Instruct") is None
    assert known_shape("tiny-qwen3") is None


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
