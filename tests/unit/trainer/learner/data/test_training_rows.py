"""Rows of every accepted shape are trained on, as the one form that the template takes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from synth.datasets.conversations import read_line
from synth.datasets.rows import Row
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
    assert isinstance(read_line(json.dumps(given).encode()), Row)
    tokenizer = load_tokenizer(model_dir)
    tokenizer.chat_template = THINKING
    sequences = encode_rows(training_rows([given]), tokenizer, sequence_length=512).sequences
    ids = [t for t, w in zip(sequences.tokens.tolist(), sequences.weights.tolist(), strict=True) if w]
    assert tokenizer.decode(ids) == trained + "<|im_end|>"


PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALLS: list[dict[str, Any]] = [{"function": {"name": name, "arguments": {}}} for name in ("look", "move")]
ONE_CALL = PLAIN.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}")
APART = PLAIN.replace("{{ m.content }}", "{{ m.thinking }}|{{ m.content }}")
ANSWER_ONLY = PLAIN.replace("m.content", "m.content.split('</think>')[-1]")


@pytest.mark.parametrize(
    ("template", "message", "left_out"),
    [
        (PLAIN, {"reasoning": "so", "content": "a"}, "reasoning_content: .* leaves out reasoning"),
        (PLAIN, {"reasoning": "so", "content": "a", "weight": 0}, ""),
        (PLAIN, {"tool_calls": CALLS[:1]}, "tool_calls: .* leaves out tool calls"),
        (ONE_CALL, {"tool_calls": CALLS[:1]}, ""),
        (ONE_CALL, {"tool_calls": CALLS}, "tool_calls: .* leaves out tool calls"),
        (ONE_CALL, {"tool_calls": [CALLS[0]] * 2}, "tool_calls: .* leaves out tool calls"),
        (APART, {"reasoning": " <|im_end|>\n", "content": "a"}, ""),
        (PLAIN.replace("m.content", "m.content | trim"), {"content": " a \n"}, ""),
        (ANSWER_ONLY, {"reasoning": "why", "content": "a"}, "content: .* leaves out text"),
        (PLAIN.replace("m.content", "m.content[:1]"), {"content": "ab"}, "content: .* leaves out text"),
    ],
)
def test_a_turn_of_which_the_template_leaves_something_out_is_not_learnt(
    model_dir: Path, template: str, message: dict[str, Any], left_out: str
):
    tokenizer = load_tokenizer(model_dir)
    tokenizer.chat_template = template
    rows = training_rows([row(**message), row(content="b")])
    with pytest.raises(TrainingFailed, match=rf"row 1: messages\[1\].{left_out}") if left_out else nullcontext():
        encode_rows(rows, tokenizer, sequence_length=512)


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
