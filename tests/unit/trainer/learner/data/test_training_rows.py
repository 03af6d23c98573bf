"""Rows of every accepted shape are trained on, as the one form that the template takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.datasets.conversations import LineStats, read_line
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.sft_dataset import encode_rows, load_tokenizer
from tests.unit.trainer.sft_rows import training_rows

CALL = '<tool_call>\n{"name": "move", "arguments": {"to": 1}}\n</tool_call>'
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# Thoughts are in its template, so its family thinks.
THINKING = TEMPLATE + "{# </think> #}"
USER = {"role": "user", "content": "q"}


def row(**message: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", **message}]}


@pytest.mark.parametrize(
    ("reply", "trained"),
    [
        ({"content": [{"tool_name": "move", "arguments": {"to": 1}}]}, CALL),
        ({"content": [{"tool_name": "move", "arguments": '{"to": 1}'}]}, CALL),
        ({"content": None, "tool_calls": [{"name": "move", "arguments": {"to": 1}}]}, CALL),
        ({"content": "", "tool_calls": [{"function": {"name": "move", "arguments": '{"to": 1}'}}]}, CALL),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"content": ["a", "b"]}, "ab"),
        ({"content": {"answer": 4}}, '{"answer": 4}'),
        ({"reasoning": "so", "content": "a"}, "<think>\nso\n</think>\n\na"),
        ({"reasoning_content": "so", "content": "a"}, "<think>\nso\n</think>\n\na"),
        ({"reasoning_content": "so", "reasoning": "so", "content": "a"}, "<think>\nso\n</think>\n\na"),
        ({"raw_content": "<think>\nso\n</think>\n\na"}, "<think>\nso\n</think>\n\na"),
        ({"reasoning": "so", "content": "<think>\nso\n</think>\n\na"}, "<think>\nso\n</think>\n\na"),
    ],
)
def test_what_the_files_service_accepts_is_trained_on(model_dir: Path, reply: dict[str, Any], trained: str):
    given = row(**reply)
    assert isinstance(read_line(json.dumps(given).encode()), LineStats)
    tokenizer = load_tokenizer(model_dir)
    tokenizer.chat_template = THINKING
    sequences = encode_rows(training_rows([given]), tokenizer, sequence_length=512).sequences
    ids = [t for t, w in zip(sequences.tokens.tolist(), sequences.weights.tolist(), strict=True) if w]
    assert tokenizer.decode(ids) == trained + "<|im_end|>"


def test_a_model_that_does_not_think_is_trained_on_no_thoughts(model_dir: Path):
    tokenizer = load_tokenizer(model_dir)
    tokenizer.chat_template = TEMPLATE
    rows = training_rows([row(reasoning="so", content="a")])
    assert "so" not in tokenizer.decode(encode_rows(rows, tokenizer, sequence_length=512).sequences.tokens)


def test_a_row_that_the_template_refuses_is_named(model_dir: Path):
    tokenizer = load_tokenizer(model_dir)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}" + TEMPLATE
    with pytest.raises(TrainingFailed, match=r"row 1: .*cannot render these messages: roles must alternate"):
        encode_rows(training_rows([row(content="a")]), tokenizer, sequence_length=512)


def test_a_row_with_an_image_is_refused_and_named(model_dir: Path):
    shown = [{"type": "text", "text": "q"}, {"type": "image", "image": "blob://x"}]
    given = {"messages": [{"role": "user", "content": shown}, {"role": "assistant", "content": "a"}]}
    with pytest.raises(TrainingFailed, match="row 2 shows an image"):
        encode_rows(training_rows([row(content="a"), given]), load_tokenizer(model_dir), sequence_length=512)
