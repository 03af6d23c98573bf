"""Rows of other tools' shapes: each becomes the conversation that it is, or names what is wrong in its own words."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.chat.messages import TrainingRow
from synth.datasets.check import FileCheck
from synth.datasets.conversations import canonical_line, read_line
from synth.datasets.rows import Row
from synth.events import FileReady
from synth.files.image_rows import draft_row
from tests.unit.files.test_conversations import CONTENT, JSON, MESSAGE

USER, SAID = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "s"}
TURNS = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
CALL = {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'}


@pytest.mark.parametrize(
    ("row", "shape", "trained"),
    [
        ({"conversations": TURNS}, "sharegpt", {"messages": [USER, SAID]}),
        ({"conversations": TURNS, "system": "s", "id": 3}, "sharegpt", {"messages": [SYSTEM, USER, SAID]}),
        ({"conversations": [USER, SAID]}, "sharegpt", {"messages": [USER, SAID]}),
        (
            {"conversations": [*TURNS, TURNS[0], {**TURNS[1], "weight": 0}]},
            "sharegpt",
            {"messages": [USER, SAID, USER, {**SAID, "weight": 0.0}]},
        ),
        (
            {
                "conversations": [TURNS[0], CALL, {"from": "observation", "value": "3"}, TURNS[1]],
                "tools": '[{"name": "f"}]',
            },
            "sharegpt",
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
                    {"role": "tool", "content": "3"},
                    SAID,
                ],
                "tools": [{"name": "f"}],
            },
        ),
        (
            {"conversations": [{"from": "human", "value": "<image>\nq"}, TURNS[1]], "image": "https://a/b"},
            "sharegpt",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "image": "https://a/b"}, {"type": "text", "text": "\nq"}],
                    },
                    SAID,
                ]
            },
        ),
        ({"instruction": "q", "input": "", "output": "a"}, "alpaca", {"messages": [USER, SAID]}),
        (
            {"instruction": "q", "input": "more", "output": "a", "system": "s", "history": [["q", "a"]]},
            "alpaca",
            {"messages": [SYSTEM, USER, SAID, {"role": "user", "content": "q\n\nmore"}, SAID]},
        ),
        ({"prompt": "q", "completion": "a"}, "prompt_completion", {"messages": [USER, SAID]}),
        (
            {"prompt": [USER, SAID, USER], "completion": [SAID], "tools": [{"name": "f"}]},
            "prompt_completion",
            {"messages": [USER, {**SAID, "weight": 0}, USER, SAID], "tools": [{"name": "f"}]},
        ),
    ],
)
def test_a_row_becomes_the_conversation_that_it_is(row: dict[str, Any], shape: str, trained: dict[str, Any]):
    line = json.dumps(row).encode()
    found = read_line(line)
    assert isinstance(found, Row), found
    assert (found.shape, found.pair, found.messages) == (shape, False, len(trained["messages"]))
    written = canonical_line(line)
    assert json.loads(written) == trained
    again = read_line(written)
    assert isinstance(again, Row)
    assert again.shape == ""
    assert again.texts == [text.removeprefix("<image>") for text in found.texts]


@pytest.mark.parametrize(
    ("row", "path", "reason"),
    [
        ({"conversations": TURNS[:1]}, "$.conversations", "fewer than two messages"),
        ({"conversations": [TURNS[0]] * 2}, "$.conversations", "no assistant message"),
        ({"conversations": [TURNS[0], {"from": "alien", "value": "a"}]}, "$.conversations[1].from", "expected one of"),
        (
            {"conversations": [TURNS[0], {"from": "gpt", "value": ""}]},
            "$.conversations[1].value",
            "neither content nor",
        ),
        ({"conversations": [TURNS[0], {"from": "gpt"}]}, "$.conversations[1].content", "neither content nor"),
        ({"conversations": [TURNS[0], {"from": "gpt", "value": 7}]}, "$.conversations[1].value", "got `int`"),
        ({"conversations": [{**TURNS[0], "weight": 1}, TURNS[1]]}, "$.conversations[0].weight", "only assistants"),
        ({"conversations": [TURNS[0], {**CALL, "value": "f(1)"}]}, "$.conversations[1].value", "not JSON"),
        ({"conversations": TURNS, "tools": "f"}, "$.tools", "not a JSON list"),
        ({"conversations": TURNS, "kto_tag": False}, "$.kto_tag", "an unpaired preference"),
        ({"prompt": "q", "completion": "a", "label": True}, "$.label", "an unpaired preference"),
        (
            {"conversations": [TURNS[0], {"from": "gpt", "value": "see <image>"}], "images": ["https://a/b"]},
            "$.conversations[1].value",
            "expected marks in messages of user or tool",
        ),
        (
            {"conversations": [{"from": "human", "value": "<image> q"}, TURNS[1]], "images": ["https://a/b"] * 2},
            "$.images",
            "2 images, and 1 marks",
        ),
        ({"instruction": "q"}, "$", "missing required field `output`"),
        ({"instruction": "q", "output": ""}, "$.output", "neither content nor"),
        ({"instruction": "q", "output": "[no response recorded]"}, "$.output", "`synthctl filter` reads it"),
        (
            {"messages": [USER, {"role": "assistant", "content": "[no response recorded]"}]},
            "$.messages[1].content",
            "`synthctl filter` reads it",
        ),
        ({"completion": "a"}, "$", "missing required field `prompt`"),
        ({"prompt": "q", "completion": [USER]}, "$.prompt", "no assistant message"),
        ({"body": "q"}, "$", "instruction and output (Alpaca)"),
        ([{"instruction": "q", "output": "a"}], "$", "a JSON list"),
    ],
)
def test_what_is_wrong_is_named_in_the_rows_own_words(row: Any, path: str, reason: str):
    found = read_line(json.dumps(row).encode())
    assert isinstance(found, tuple), found
    assert found[0] == path
    assert reason in found[1]


def test_a_list_over_several_lines_is_named_as_one():
    found = read_line(b'[{"instruction": "q",')
    assert isinstance(found, tuple)
    assert "jq -c" in found[1]


_TURN = st.dictionaries(st.sampled_from(["from", "value", "role", "content", "weight"]), JSON, max_size=4)
_ROW = st.fixed_dictionaries(
    {},
    optional={
        "conversations": st.lists(_TURN | st.sampled_from([*TURNS, CALL]), max_size=4) | JSON,
        "instruction": st.text(max_size=3) | JSON,
        "output": st.text(max_size=3) | JSON,
        "input": st.text(max_size=3) | JSON,
        "history": JSON,
        "prompt": st.text(max_size=3) | st.lists(MESSAGE, max_size=2),
        "completion": st.text(max_size=3) | st.lists(MESSAGE, max_size=2),
        "tools": CONTENT,
        "images": CONTENT,
        "system": st.text(max_size=3) | JSON,
    },
)


@given(_ROW)
def test_any_row_is_good_or_has_a_problem_and_a_good_one_is_a_row_of_the_trainer(row: dict[str, Any]):
    line = msgspec.json.encode(row)
    found = read_line(line)
    if isinstance(found, tuple):
        assert found[0].startswith("$")
        assert found[1]
        return
    written = canonical_line(line)
    msgspec.json.decode(written, type=TrainingRow)
    assert (draft_row(written) is not None) == found.has_images


def test_a_file_of_several_shapes_is_counted_by_them():
    check = FileCheck()
    rows = [{"messages": [USER, SAID]}, {"conversations": TURNS}, {"prompt": "q", "completion": "a"}]
    check.feed(b"\n".join(json.dumps(row).encode() for row in [*rows, rows[1]]))
    found = check.finish()
    assert isinstance(found, FileReady)
    assert (found.rows, found.converted) == (4, {"sharegpt": 2, "prompt_completion": 1})


def test_a_number_that_no_float_holds_is_refused():
    line = b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "score": 1e400}'
    found = read_line(line)
    assert isinstance(found, tuple)
    assert "too large" in found[1]
