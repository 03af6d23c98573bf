"""The tiny Qwen3: a real model directory, the same for the same seed."""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from synth.errors import UserError
from synth.local.tiny_models.qwen3 import MadeModel, make_tiny_qwen3
from synth.models import Registry

torch.set_num_threads(1)
ASK = [{"role": "user", "content": "What is 58 + 67?"}]
ANSWER = "8+7+0=15; 5+6+1=12; answer 125"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeModel:
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny-qwen3", seed=0)


@pytest.fixture(scope="module")
def tokenizer(made: MadeModel) -> Any:
    return AutoTokenizer.from_pretrained(made.path)


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def test_it_has_119168_parameters_and_loads_as_any_model_does(made: MadeModel) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(made.path)
    assert made.parameters == sum(p.numel() for p in model.parameters()) == 119_168
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == made.vocab == 320
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.06, rel=0.05)


def test_the_registry_finds_it(made: MadeModel) -> None:
    assert Registry(made.path.parent).find("tiny-qwen3").path == str(made.path)


def test_a_sum_costs_the_tokens_that_the_recipe_counted(tokenizer: Any) -> None:
    prompt = render(tokenizer, ASK, add_generation_prompt=True)
    assert prompt == "<|im_start|>user\nWhat is 58 + 67?<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer.encode(prompt)) == 18
    assert len(tokenizer.encode(ANSWER)) == 24
    assert len(tokenizer.encode("at least 110")) == 6


def test_an_answer_ends_in_the_model_s_end_token(tokenizer: Any) -> None:
    rendered = render(tokenizer, [*ASK, {"role": "assistant", "content": ANSWER}])
    assert rendered.endswith(f"{ANSWER}<|im_end|>\n")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_text_survives_encoding(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_tools_their_calls_and_their_results_are_rendered(tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    text = render(
        tokenizer,
        [
            {"role": "system", "content": "Be exact."},
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "125", "tool_call_id": "1"},
        ],
        tools=[tool],
        add_generation_prompt=True,
    )
    assert text.startswith("<|im_start|>system\nBe exact.\n\n# Tools")
    assert '"name": "add"' in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\n125\n</tool_response><|im_end|>" in text


def test_thinking_is_asked_for_and_earlier_thoughts_are_stripped(tokenizer: Any) -> None:
    history = [*ASK, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n125"}, *ASK]
    text = render(tokenizer, history, add_generation_prompt=True, enable_thinking=True)
    assert "hm" not in text
    assert text.endswith("<|im_start|>assistant\n<think>\n")
    assert "<think>" not in render(tokenizer, ASK, add_generation_prompt=True, enable_thinking=False)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(made: MadeModel, tmp_path: Path) -> None:
    again = make_tiny_qwen3(tmp_path / "again", seed=0).path
    other = make_tiny_qwen3(tmp_path / "other", seed=1).path
    digests = {
        (d.name, f.name): hashlib.sha256(f.read_bytes()).hexdigest()
        for d in (made.path, again, other)
        for f in d.iterdir()
    }
    for file in ("model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"):
        assert digests["tiny-qwen3", file] == digests["again", file]
    assert digests["other", "tokenizer.json"] == digests["again", "tokenizer.json"]
    assert digests["other", "model.safetensors"] != digests["again", "model.safetensors"]


def test_a_bigger_one_can_be_asked_for(tmp_path: Path) -> None:
    made = make_tiny_qwen3(tmp_path / "big", hidden=128, layers=3, heads=8)
    assert made.parameters > 400_000


def test_a_directory_that_is_there_is_never_overwritten(made: MadeModel) -> None:
    with pytest.raises(UserError, match="exists already"):
        make_tiny_qwen3(made.path)


def test_sizes_that_do_not_fit_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        make_tiny_qwen3(tmp_path / "x", layers=0, heads=4, kv_heads=3, head_dim=15)
    assert [p.where for p in caught.value.problems] == ["--layers", "--kv-heads", "--head-dim"]
    assert not (tmp_path / "x").exists()
