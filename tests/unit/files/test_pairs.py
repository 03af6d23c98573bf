"""Preference pairs of a file: every shape becomes the one that is trained on, or names what is wrong and where."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.chat.messages import PreferenceRow
from synth.datasets.conversations import canonical_line, read_line
from synth.datasets.rows import Row
from synth.files.image_rows import draft_row
from tests.unit.files.test_conversations import CONTENT, MESSAGE


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "s"}
PAIR = {"messages": [user("q")], "chosen": [said("a")], "rejected": [said("b")]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("row", "shape", "trained"),
    [
        (PAIR, "", PAIR),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "chosen_rejected", PAIR),
        ({"instruction": "q", "input": "", "chosen": "a", "rejected": "b"}, "chosen_rejected", PAIR),
        ({"prompt": [user("q")], "chosen": [said("a")], "rejected": "b"}, "chosen_rejected", PAIR),
        (
            {"prompt": "q", "system": "s", "chosen": "a", "rejected": "b"},
            "chosen_rejected",
            {**PAIR, "messages": [SYSTEM, user("q")]},
        ),
        ({"chosen": [user("q"), said("a")], "rejected": [user("q"), said("b")]}, "chosen_rejected", PAIR),
        (
            # As UltraFeedback has them: the prompt as a text, and the chosen conversation twice.
            {
                "prompt": "q",
                "chosen": [user("q"), said("a")],
                "rejected": [user("q"), said("b")],
                "messages": [user("q"), said("a")],
            },
            "chosen_rejected",
            PAIR,
        ),
        (
            {"messages": [user("q"), said("a")], "chosen": [user("q"), said("a")], "rejected": [user("q"), said("b")]},
            "chosen_rejected",
            PAIR,
        ),
        (
            {
                "prompt": "q",
                "chosen": [SYSTEM, user("q"), said("x"), user("r"), said("a")],
                "rejected": [SYSTEM, user("q"), said("x"), user("r"), said("b")],
            },
            "chosen_rejected",
            {**PAIR, "messages": [SYSTEM, user("q"), said("x"), user("r")]},
        ),
        (
            {
                "input": {"messages": [user("q")], "tools": TOOLS, "parallel_tool_calls": True},
                "preferred_output": [said("a")],
                "non_preferred_output": [said("b")],
            },
            "openai_preference",
            {**PAIR, "tools": TOOLS},
        ),
    ],
)
def test_every_shape_becomes_the_one_that_is_trained_on(row: dict[str, Any], shape: str, trained: dict[str, Any]):
    line = json.dumps(row).encode()
    found = read_line(line)
    assert isinstance(found, Row), found
    assert (found.pair, found.shape) == (True, shape)
    written = json.loads(canonical_line(line))
    assert written == trained
    again = read_line(json.dumps(written).encode())
    assert isinstance(again, Row)
    assert again.shape == ""


@pytest.mark.parametrize(
    ("row", "path", "reason"),
    [
        ({"prompt": "q", "chosen": "a"}, "$", "missing required field `rejected`"),
        ({"preferred_output": [said("a")]}, "$", "missing required field `input`"),
        ({"chosen": "a", "rejected": "b"}, "$", "a pair without a prompt"),
        ({"prompt": "q", "chosen": 7, "rejected": "b"}, "$.chosen", "got `int`"),
        ({"prompt": "q", "chosen": [], "rejected": "b"}, "$.chosen", "nothing follows the prompt"),
        ({"prompt": "q", "chosen": "", "rejected": "b"}, "$.chosen", "neither content nor tool_calls"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "$.rejected", "the same as the chosen side"),
        ({"prompt": "q", "chosen": "a", "rejected": [said([{"type": "text", "text": "a"}])]}, "$.rejected", "the same"),
        ({"chosen": [user("q"), said("a")], "rejected": [user("q"), said("a")]}, "$.rejected", "the same"),
        ({"chosen": [user("q"), said("a")], "rejected": [user("p"), said("b")]}, "$.rejected[0]", "begin apart"),
        (
            {"chosen": [user("q"), user("a")], "rejected": [user("q"), said("b")]},
            "$.chosen[1].role",
            "expected an assistant",
        ),
        (
            {"prompt": "z", "chosen": [user("q"), said("a")], "rejected": [user("q"), said("b")]},
            "$.prompt",
            "begin with",
        ),
        ({**PAIR, "chosen": [said("a", weight=0)]}, "$.chosen", "weight above 0"),
        ({**PAIR, "chosen": [said("a", weight=2)]}, "$.chosen[0].weight", "<= 1"),
        ({**PAIR, "rejected": [{"role": "bot", "content": "x"}]}, "$.rejected[0].role", "expected one of system"),
        ({**PAIR, "tools": [{"description": "x"}]}, "$.tools[0]", "without a name"),
        (
            {"input": {"messages": [user("q")]}, "preferred_output": [user("a")], "non_preferred_output": [said("b")]},
            "$.preferred_output[0].role",
            "expected an assistant",
        ),
    ],
)
def test_what_is_wrong_with_a_pair_is_named_where_it_stands(row: dict[str, Any], path: str, reason: str):
    found = read_line(json.dumps(row).encode())
    assert isinstance(found, tuple), found
    assert found[0] == path
    assert reason in found[1]


_SIDE = st.text(max_size=3) | st.lists(MESSAGE, max_size=3) | CONTENT
_PAIR = st.fixed_dictionaries(
    {},
    optional={
        "prompt": _SIDE,
        "messages": _SIDE,
        "chosen": _SIDE,
        "rejected": _SIDE,
        "input": st.fixed_dictionaries({}, optional={"messages": _SIDE, "tools": CONTENT}),
        "preferred_output": _SIDE,
        "non_preferred_output": _SIDE,
        "images": CONTENT,
        "tools": CONTENT,
        "system": CONTENT,
    },
)


@given(_PAIR)
def test_any_pair_is_good_or_has_a_problem_and_a_good_one_is_a_row_of_the_trainer(row: dict[str, Any]):
    line = msgspec.json.encode(row)
    found = read_line(line)
    if isinstance(found, tuple):
        assert found[0].startswith("$")
        assert found[1]
        return
    if found.pair:
        written = canonical_line(line)
        msgspec.json.decode(written, type=PreferenceRow)
        assert (draft_row(written) is not None) == found.has_images


def test_the_images_of_a_pair_are_found_in_its_prompt_and_its_sides():
    shown = {"type": "image_url", "image_url": {"url": "https://a/1"}}
    tool = {"role": "tool", "content": [{"type": "image", "image": "https://a/3"}]}
    row = {**PAIR, "messages": [{"role": "user", "content": [shown]}], "chosen": [said("a"), tool, said("c")]}
    draft = draft_row(canonical_line(json.dumps({**row, "images": ["https://a/0"]}).encode()))
    assert draft is not None
    assert [(slot.path, slot.address) for slot in draft.slots] == [
        ("$.images[0]", "https://a/0"),
        ("$.messages[0].content[0]", "https://a/1"),
        ("$.chosen[1].content[0]", "https://a/3"),
    ]
