"""A small tokenizer under the chat templates of two families, with the special tokens of Qwen3-VL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.unit.inference.tiny_model import save_tiny_model

MEDIA = ["<|vision_start|>", "<|image_pad|>"]
_TURNS = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{%- set ns = namespace(last=0) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{%- for m in messages %}<|im_start|>"
    "{{ m.role + (' ' + m.name if m.name and m.role != 'assistant' else '') + '\n' }}"
    "{%- set text = m.content %}BODY{{ text }}"
    "{%- for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{{ ' ' + m.tool_call_id if m.tool_call_id else '' }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\nOPENING{% endif %}"
)
#: As Qwen3 has it: the reasoning of earlier turns is stripped, and there is an empty block where thinking is off.
_THOUGHT = _TURNS.replace(
    "BODY",
    "{%- if m.role == 'assistant' %}{% set reasoning = '' %}{% if '</think>' in text %}"
    "{%- set reasoning = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{%- if loop.index0 > ns.last and (loop.last or reasoning) %}"
    "<think>\n{{ reasoning.strip('\n') }}\n</think>\n\n{% endif %}{% endif %}",
)
THINKING = _THOUGHT.replace(
    "OPENING", "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
#: As the Thinking variants have it: the same, and every reply begins inside its reasoning.
ALWAYS = _THOUGHT.replace("OPENING", "<think>\n")
#: As the model of the unit tests has it: thinking is opened by the prompt when it is asked for.
OPENING = _TURNS.replace(
    "BODY",
    "{%- if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}",
).replace("OPENING", "{% if enable_thinking %}<think>\n{% endif %}")
#: As Qwen2.5 has it: no thinking.
PLAIN = _TURNS.replace("BODY", "").replace("OPENING", "")
FAMILIES = {"thinking": THINKING, "always": ALWAYS, "opening": OPENING, "plain": PLAIN}


def save_tokenizer(folder: Path, template: str, *, special_marks: bool = False) -> Path:
    """special_marks: whether `<think>` and the like are special tokens of it, too."""
    save_tiny_model(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    marks = ["<think>", "</think>", "<tool_call>", "</tool_call>"] if special_marks else []
    tokenizer.add_special_tokens({"additional_special_tokens": [*MEDIA, *marks]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
