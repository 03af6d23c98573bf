"""Rendering and encoding, whatever a message spells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import AutoTokenizer

from synth.chat.json_text import MAX_NESTING
from synth.chat.messages import Conversation, Message, TrainingRow
from synth.chat.template import ChatTemplate
from synth.datasets.conversations import LineFault, read_line
from synth.datasets.rows import Row
from synth.errors import UserError
from tests.unit.chat.templates import PLAIN, THINKING, save_tokenizer


def user(text: str) -> Conversation:
    return Conversation([Message(role="user", content=text)])


@pytest.fixture(scope="module", params=[False, True], ids=["plain marks", "special marks"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_tokenizer(tmp_path_factory.mktemp("chat"), PLAIN, special_marks=request.param)
    return AutoTokenizer.from_pretrained(folder)


def tokens_of(tokenizer: Any, text: str) -> list[str]:
    template = ChatTemplate(tokenizer)
    return tokenizer.convert_ids_to_tokens(template.encode(template.prompt(user(text))))


def test_text_without_literals_is_encoded_as_the_template_renders_it(tokenizer: Any):
    messages = [{"role": "user", "content": "<think>hi</think>"}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
    template = ChatTemplate(tokenizer)
    assert template.encode(template.prompt(user("<think>hi</think>"))) == expected
    assert template.encode_all(["<|im_start|>user", "a"]) == tokenizer(["<|im_start|>user", "a"])["input_ids"]


def test_a_mark_stays_a_mark_beside_a_literal(tokenizer: Any):
    tokens = tokens_of(tokenizer, "<think>a<|im_end|>b</think><|image_pad|>")
    assert tokens.count("<think>") == tokens.count("</think>") == 1
    assert (tokens.count("<|im_end|>"), tokens.count("<|im_start|>"), tokens.count("<|image_pad|>")) == (1, 2, 0)
    assert tokens[tokens.index("<think>") + 2] == "<"


@pytest.mark.parametrize(
    "text",
    ["\U000f0000", "\U000f0000\U000f0001", "\U000f0001<|im_end|>\U000f0000", "<|im_<|im_end|>end|>", "<|im_end|>"],
)
def test_what_is_encoded_is_the_text_that_was_written(tokenizer: Any, text: str):
    template = ChatTemplate(tokenizer)
    ids = template.encode(template.prompt(user(text)))
    assert tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False) == (
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_one_text_and_many_are_encoded_alike(tokenizer: Any):
    template = ChatTemplate(tokenizer)
    rendered = [template.prompt(user(text)) for text in ("a", "<|im_end|>", "", "\U000f0003 b")]
    assert template.encode_all(rendered) == [template.encode(text) for text in rendered]
    assert template.encode_all([]) == []


def test_a_prompt_is_never_cut_silently(tmp_path: Path):
    tokenizer: Any = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path, PLAIN))
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert len(tokens_of(tokenizer, "one two three four")) > 4


def test_the_prompt_before_a_turn_is_the_one_that_the_turn_continues(tmp_path: Path):
    template = ChatTemplate(AutoTokenizer.from_pretrained(save_tokenizer(tmp_path, THINKING)))
    for reasoning, opening in ((None, "<think>\n\n</think>\n\n"), ("so", "")):
        said = Message(role="assistant", content="a", reasoning=reasoning)
        prepared = template.prepare(Conversation([*user("q").messages, said]))
        prompt, whole = template.assistant_turn(prepared, 1)
        assert prompt.endswith(f"<|im_start|>assistant\n{opening}")
        assert whole.startswith(prompt)


def nested(levels: int) -> Any:
    value: Any = "a"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [250, 3000])
def test_what_is_nested_too_deeply_is_one_clear_error(tokenizer: Any, levels: int):
    template = ChatTemplate(tokenizer)
    deep = Conversation([Message(role="user", content="a")], [{"name": "f", "parameters": {"a": nested(levels)}}])
    with pytest.raises(UserError, match="nested too deeply") as caught:
        template.prompt(deep)
    assert caught.value.problems[0].where == "messages"


def test_what_files_accept_is_never_too_deep_to_be_rendered(tokenizer: Any):
    template = ChatTemplate(tokenizer)
    call = {"id": "1", "function": {"name": "f", "arguments": json.dumps({"a": nested(MAX_NESTING // 2 - 2)})}}
    row: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}],
        "tools": [{"name": "f", "parameters": {"a": nested(MAX_NESTING // 2 - 5)}}],
    }
    line = json.dumps(row).encode()
    assert isinstance(read_line(line), Row)
    template.encode(template.prompt(msgspec.json.decode(line, type=TrainingRow).conversation()))
    deep = {"a": nested(MAX_NESTING)}
    for message, tools in (
        ({"tool_calls": [{"name": "f", "arguments": deep}]}, None),
        ({"tool_calls": [{"name": "f", "id": deep}]}, None),
        ({"content": deep}, None),
        ({"content": [{"tool_name": "f", "arguments": deep}]}, None),
        ({"content": "b"}, [{"name": "f", "parameters": deep}]),
    ):
        refused = {"messages": [row["messages"][0], {"role": "assistant", **message}], "tools": tools}
        assert read_line(json.dumps(refused).encode()) == LineFault(
            "$", "nested too deeply; expected at most 100 levels"
        )


def test_a_control_token_that_is_not_marked_special_is_text_too(tmp_path: Path):
    tokenizer: Any = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path, PLAIN))
    tokenizer.add_tokens(["<｜User｜>", "<｜Assistant｜>"])
    opening = "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
    tokenizer.chat_template = "{% for m in messages %}<｜User｜>{{ m.content }}{% endfor %}" + opening
    tokens = tokens_of(tokenizer, "a<｜User｜>b<|im_end|>")
    assert (tokens.count("<｜User｜>"), tokens.count("<｜Assistant｜>"), tokens.count("<|im_end|>")) == (1, 1, 0)


def test_a_key_that_the_template_puts_into_brackets_makes_no_control_token(tmp_path: Path):
    tokenizer: Any = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path, PLAIN))
    tokenizer.chat_template = (
        "{% for t in tools %}{% for k in t.function.parameters %}<{{ k }}>{% endfor %}{% endfor %}<|im_start|>"
    )
    template = ChatTemplate(tokenizer)
    tool = {"name": "f", "parameters": {"|im_end|": "x", "|im_start|": "y"}}
    prompt = template.prompt(Conversation([Message(role="user", content="a")], [tool]))
    tokens = tokenizer.convert_ids_to_tokens(template.encode(prompt))
    assert (tokens.count("<|im_end|>"), tokens.count("<|im_start|>")) == (0, 1)
    decoded = tokenizer.backend_tokenizer.decode(template.encode(prompt), skip_special_tokens=False)
    assert decoded == "<|im_end|><|im_start|><|im_start|>"


def test_an_empty_bos_token_is_no_literal(tmp_path: Path):
    tokenizer: Any = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path, PLAIN))
    tokenizer.bos_token = ""
    assert tokens_of(tokenizer, "ab<|im_end|>").count("<|im_end|>") == 1
