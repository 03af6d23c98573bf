"""Lines of a training file: what the clients write is taken, and whatever else comes never breaks the check."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.datasets.check import FileCheck
from synth.datasets.conversations import LineFault, read_line
from synth.datasets.rows import Row
from synth.datasets.token_estimate import tokens_in
from synth.events import FileReady
from synth.files.image_rows import draft_row

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = ("type", "text", "image_url", "image", "url", "tool_name", "arguments", "name", "function", "role", "content")
CONTENT = JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON | st.sampled_from(KEYS), max_size=4), max_size=3)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "bot"])},
    optional={
        "content": CONTENT,
        "tool_calls": CONTENT,
        "weight": JSON,
        "reasoning": JSON,
        "reasoning_content": JSON,
        "raw_content": JSON,
    },
)
ROW = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=4)},
    optional={"tools": CONTENT, "images": CONTENT, "image_url": CONTENT, "metadata": JSON},
)


CALL = "$.messages[1].tool_calls[0]"


def chat(*, role: str = "assistant", also: dict[str, Any] | None = None, **message: Any) -> bytes:
    row = {"messages": [{"role": "user", "content": "q"}, {"role": role, **message}], **(also or {})}
    return json.dumps(row).encode()


@given(st.binary())
def test_any_bytes_are_a_row_or_a_problem(line: bytes):
    found = read_line(line)
    assert isinstance(found, Row) or all(found[:2])


@given(ROW)
def test_any_row_is_good_or_has_a_problem_and_a_good_one_can_be_written_anew(row: dict[str, Any]):
    line = msgspec.json.encode(row)
    found = read_line(line)
    if isinstance(found, tuple):
        assert found[0].startswith("$")
        assert found[1]
        return
    draft = draft_row(line)
    assert (draft is not None) == found.has_images
    if draft is not None:
        assert draft.slots
        assert all(isinstance(slot.address, str) for slot in draft.slots)
        json.loads(draft.line())


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_file_has_a_verdict(pieces: list[bytes]):
    check = FileCheck()
    for piece in pieces:
        check.feed(piece)
    check.finish()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (chat(content={"answer": 4}), '{"answer": 4}'),
        (chat(content=["a", {"type": "text", "text": "b"}]), "ab"),
        (chat(content={"type": "text", "text": "a"}), "a"),
        (chat(content=[{"tool_name": "move", "arguments": {"to": 1}}]), 'move{"to":1}'),
        (chat(tool_calls=[{"name": "move", "arguments": {"to": 1}}]), 'move{"to":1}'),
        (chat(tool_calls=[{"function": {"name": "move", "arguments": "{}"}}]), "move{}"),
        *((chat(tool_calls=[{"name": "move", "arguments": none}]), f"move{none}") for none in ("", " ", "null", "{}")),
        (chat(tool_calls=[{"name": "move", "arguments": None}]), "move{}"),
        (chat(reasoning="because"), "because"),
        (chat(reasoning_content="because"), "because"),
        (chat(reasoning_content="because", reasoning="because"), "because"),
        (chat(raw_content="<think>x</think>y"), "<think>x</think>y"),
        (chat(content="a", name="n", tool_call_id="c", also={"tool_choice": "auto", "metadata": {"k": 1}}), "a"),
        (chat(content="a", also={"tools": [{"name": "f", "description": "d", "parameters": {}}]}), "a"),
        (chat(content="a", also={"tools": [{"type": "function", "function": {"name": "f"}}]}), "a"),
        (chat(content="a", also={"tools": None, "images": None, "image_url": None}), "a"),
    ],
)
def test_every_shape_of_the_clients_is_taken(line: bytes, text: str):
    found = read_line(line)
    assert isinstance(found, Row), found
    assert "".join(found.texts[1:]) == text
    assert not found.has_images


@pytest.mark.parametrize(
    ("line", "path", "reason"),
    [
        (chat(content=[7]), "$.messages[1].content[0]", "got `int`"),
        (chat(content=[{"type": "text"}]), "$.messages[1].content[0]", "without `text`"),
        (
            chat(role="user", content=[{"type": "image_url"}]),
            "$.messages[1].content[0]",
            "without `image_url` or `image`",
        ),
        (chat(content=[{"type": "audio"}]), "$.messages[1].content[0].type", "expected one of text, image"),
        (chat(content=[{"a": 1}]), "$.messages[1].content[0]", "without a type"),
        (chat(role="user", content=[{"tool_name": "f"}]), "$.messages[1].content[0]", "without a type"),
        (chat(content={"type": "image", "image": 7}), "$.messages[1].content", "got `int`"),
        (chat(tool_calls=[{"arguments": {}}]), "$.messages[1].tool_calls[0]", "without `function` or `name`"),
        *(
            (chat(tool_calls=[{"function": {"name": "f", "arguments": bad}}]), f"{CALL}.function.arguments", reason)
            for bad, reason in (
                ('{"a": 1', "JSON object"),
                ("[1]", "a JSON list"),
                ("f(1)", "JSON object"),
                ('"{}"', "a JSON string"),
                ('{"a": NaN}', "NaN"),
                ("7", "a JSON number"),
                ('{"a": "\\ud83d"}', "surrogate"),
            )
        ),
        (chat(tool_calls=[{"name": "f", "arguments": "7"}]), f"{CALL}.arguments", "a JSON number"),
        (chat(content=[{"tool_name": "f", "arguments": [1]}]), "$.messages[1].content[0].arguments", "a JSON list"),
        (chat(role="user", tool_calls=[{"name": "f"}]), "$.messages[1].tool_calls", "only assistants call tools"),
        (chat(content="a", reasoning_content=7), "$.messages[1].reasoning_content", "got `int`"),
        (chat(content="a", also={"tools": [{}]}), "$.tools[0]", "a tool without a name"),
        (chat(content="a", also={"tools": [{"function": {"name": 7}}]}), "$.tools[0].function.name", "got `int`"),
        (chat(content="a", also={"tools": {"a": 1}}), "$.tools", "got `object`"),
        (chat(content="a", also={"images": [7]}), "$.images[0]", "got `int`"),
    ],
)
def test_what_is_wrong_has_its_place(line: bytes, path: str, reason: str):
    found = read_line(line)
    assert isinstance(found, tuple)
    assert found[0] == path
    assert reason in found[1]


def test_older_images_need_a_user_who_is_shown_them():
    line = {"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}], "images": ["u"]}
    assert read_line(json.dumps(line).encode()) == LineFault("$.images", "there is no user message to show them in")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog, and then it sleeps.", 15),
        ("今天天气很好我们去公园散步吧", 9),
        ("Съешь ещё этих мягких французских булок", 15),
        ("1234567890", 10),
        ("", 0),
    ],
)
def test_an_estimate_is_near_what_a_tokenizer_of_a_large_vocabulary_makes(text: str, tokens: int):
    assert abs(tokens_in(text) - tokens) <= 0.25 * tokens


def test_a_file_is_measured_the_same_however_its_bytes_arrive():
    rows = [chat(content="word " * n) for n in range(1, 300)]
    body = b"\n".join(rows)

    def measured(piece: int) -> FileReady:
        check = FileCheck()
        for start in range(0, len(body), piece):
            check.feed(body[start : start + piece])
        found = check.finish()
        assert isinstance(found, FileReady)
        return found

    whole = measured(len(body))
    assert whole == measured(97)
    assert sum(whole.lengths) == whole.rows == 299
    assert whole.characters == 299 + sum(5 * n for n in range(1, 300))
    assert 0.2 < whole.tokens / whole.characters < 0.35
