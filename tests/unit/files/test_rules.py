"""The keys that have one rule in every shape, and lines that are broken: one clear error, at its place."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from synth.datasets.check import FileCheck
from synth.datasets.conversations import LineFault, canonical_line, read_line
from synth.datasets.rows import Row
from synth.events import FileReady, FileRejected

USER, SAID = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
OTHER = {"role": "assistant", "content": "b"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SHAPES: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, SAID]},
    "sharegpt": {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    "sharegpt by role": {"conversations": [USER, SAID]},
    "swift": {"conversation": [{"human": "q", "assistant": "a"}]},
    "alpaca": {"instruction": "q", "output": "a"},
    "prompt and completion": {"prompt": "q", "completion": "a"},
    "query and response": {"query": "q", "response": "a"},
    "question and answer": {"question": "q", "answer": "a"},
    "pair": {"messages": [USER], "chosen": [SAID], "rejected": [OTHER]},
    "pair of texts": {"prompt": "q", "chosen": "a", "rejected": "b"},
    "pair of turns": {
        "conversations": [{"from": "human", "value": "q"}],
        "chosen": {"from": "gpt", "value": "a"},
        "rejected": {"from": "gpt", "value": "b"},
    },
    "whole conversations": {"chosen": [USER, SAID], "rejected": [USER, OTHER]},
    "rejected response": {"messages": [USER, SAID], "rejected_response": "b"},
    "openai": {"input": {"messages": [USER]}, "preferred_output": [SAID], "non_preferred_output": [OTHER]},
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def read(row: Any) -> Row | LineFault:
    return read_line(json.dumps(row).encode())


def trained(row: Any) -> dict[str, Any]:
    found = read(row)
    assert isinstance(found, Row), found
    return json.loads(canonical_line(json.dumps(row).encode()))


@EVERY_SHAPE
@pytest.mark.parametrize(("name", "value"), [("label", False), ("label", True), ("label", 0), ("kto_tag", False)])
def test_a_verdict_on_a_reply_is_refused(shape: dict[str, Any], name: str, value: Any):
    found = read({**shape, name: value})
    assert isinstance(found, LineFault)
    assert found.path == f"$.{name}"
    assert "an unpaired preference" in found.reason
    assert f"--drop {name}" in found.reason


@EVERY_SHAPE
@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_a_system_text_goes_in_front(shape: dict[str, Any], name: str):
    system = {"role": "system", "content": "s"}
    assert trained({**shape, name: "s"})["messages"][:2] == [system, USER]
    assert read({**shape, name: ["s"]}) == LineFault(f"$.{name}", "Expected `str`, got `array`")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_second_system_text_is_refused_unless_it_is_the_same(role: str):
    row = {"messages": [{"role": role, "content": "s"}, USER, SAID]}
    assert trained({**row, "system": "s"})["messages"] == row["messages"]
    found = read({**row, "system": "t"})
    assert isinstance(found, LineFault)
    assert found.path == "$.system"


@EVERY_SHAPE
@pytest.mark.parametrize(
    "given",
    [
        {"tools": [FUNCTION]},
        {"tools": json.dumps([FUNCTION])},
        {"tools": [json.dumps(FUNCTION)]},
        {"functions": [FUNCTION]},
        {"functions": json.dumps([FUNCTION])},
        {"tools": [{"type": "function", "function": FUNCTION}], "functions": [FUNCTION]},
    ],
)
def test_tools_are_a_list_or_its_text(shape: dict[str, Any], given: dict[str, Any]):
    tools = trained({**shape, **given})["tools"]
    assert [tool.get("function", tool) for tool in tools] == [FUNCTION]


@EVERY_SHAPE
@pytest.mark.parametrize(
    ("given", "path", "reason"),
    [
        ({"tools": "f"}, "$.tools", "not a JSON list"),
        ({"tools": '{"a": 1}'}, "$.tools", "got `object`"),
        ({"tools": '[{"name": "f", "name": "g"}]'}, "$.tools", "'name' is given twice"),
        ({"tools": [7]}, "$.tools[0]", "got `int`"),
        ({"tools": [{"description": "d"}]}, "$.tools[0]", "without a name"),
        ({"tools": [FUNCTION], "functions": [{"name": "g"}]}, "$.functions", "differs from $.tools"),
        ({"tools": [FUNCTION], "tool_choice": "none"}, "$.tool_choice", "remove the tools"),
    ],
)
def test_tools_that_are_none_are_refused(shape: dict[str, Any], given: dict[str, Any], path: str, reason: str):
    found = read({**shape, **given})
    assert isinstance(found, LineFault)
    assert found.path == path
    assert reason in found.reason


@EVERY_SHAPE
@pytest.mark.parametrize("given", [{"images": ["https://a"]}, {"image": "https://a"}, {"images": "https://a"}])
def test_images_without_marks_stand_beside_the_conversation(shape: dict[str, Any], given: dict[str, Any]):
    found = read({**shape, **given})
    assert isinstance(found, Row), found
    assert found.has_images
    assert trained({**shape, **given})["images"] in (["https://a"], "https://a")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<image>q", [1, "q"]),
        ("a <image> b", ["a ", 1, " b"]),
        ("q<image>", ["q", 1]),
        ([{"type": "image"}, {"type": "text", "text": "q"}], [1, "q"]),
        ([{"type": "text", "text": "<image>q"}], [1, "q"]),
    ],
)
@pytest.mark.parametrize("shape", ["messages", "sharegpt by role", "prompt and completion", "pair", "openai"])
def test_a_mark_is_an_image_where_it_stands(shape: str, text: Any, parts: list[Any]):
    turn = {"role": "user", "content": text}
    rows: dict[str, dict[str, Any]] = {
        "messages": {"messages": [turn, SAID]},
        "sharegpt by role": {"conversations": [turn, SAID]},
        "prompt and completion": {"prompt": [turn], "completion": "a"},
        "pair": {"messages": [turn], "chosen": "a", "rejected": "b"},
        "openai": {"input": {"messages": [turn]}, "preferred_output": [SAID], "non_preferred_output": [OTHER]},
    }
    content = trained({**rows[shape], "images": ["https://a"]})["messages"][0]["content"]
    shown = {"type": "image", "image": "https://a"}
    assert content == [shown if part == 1 else {"type": "text", "text": part} for part in parts]


def test_a_mark_without_images_is_text():
    assert trained({"messages": [{"role": "user", "content": "what is <image>?"}, SAID]})["messages"][0] == {
        "role": "user",
        "content": "what is <image>?",
    }


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ({"function_call": {"name": "f", "arguments": '{"x": 1}'}}, {"name": "f", "arguments": '{"x": 1}'}),
        ({"content": "now", "function_call": {"name": "f"}}, {"name": "f"}),
        ({"content": None, "function_call": {"name": "f", "arguments": ""}}, {"name": "f", "arguments": ""}),
        ({"role": "function_call", "content": '{"name": "f", "arguments": {}}'}, {"name": "f", "arguments": {}}),
        ({"role": "tool_call", "content": '[{"name": "f"}]'}, {"name": "f"}),
    ],
)
@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_calls_of_every_spelling_are_tool_calls(message: dict[str, Any], written: dict[str, Any], key: str):
    found = trained({key: [USER, {"role": "assistant", **message}]})["messages"][1]
    assert found["role"] == "assistant"
    assert found["tool_calls"] == [written]
    assert found.get("content") == (message.get("content") if "role" not in message else None)


@pytest.mark.parametrize(
    ("message", "path", "reason"),
    [
        ({"function_call": {"name": "f"}, "tool_calls": [CALL]}, "tool_calls", "the same field"),
        ({"function_call": {"arguments": "{}"}}, "function_call[0]", "without `function` or `name`"),
        ({"function_call": "f"}, "function_call", "got `str`"),
        ({"tool_calls": [{**CALL, "name": "g"}]}, "tool_calls[0].name", "beside `function`"),
        ({"tool_calls": [{**CALL, "type": "custom"}]}, "tool_calls[0].type", "expected function"),
        ({"tool_calls": [{**CALL, "index": 3}]}, "tool_calls[0].index", "expected 0"),
        ({"tool_calls": [{"name": "f", "arguments": '{"a": 1, "a": 2}'}]}, "tool_calls[0].arguments", "given twice"),
        ({"content": "a", "from": "human"}, "from", "differs from `role`"),
        ({"content": "a", "value": "b"}, "value", "differs from `content`"),
    ],
)
def test_two_spellings_that_differ_are_refused(message: dict[str, Any], path: str, reason: str):
    found = read({"messages": [USER, {"role": "assistant", **message}]})
    assert isinstance(found, LineFault)
    assert (found.path, reason in found.reason) == (f"$.messages[1].{path}", True), found


def test_several_calls_are_refused_where_a_request_allowed_one():
    row = {"messages": [USER, {"role": "assistant", "tool_calls": [CALL, CALL]}]}
    assert isinstance(read({**row, "parallel_tool_calls": True}), Row)
    found = read({**row, "parallel_tool_calls": False})
    assert isinstance(found, LineFault)
    assert found.path == "$.messages[1].tool_calls"


GOOD = json.dumps({"messages": [USER, SAID], "score": 1}).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xef\xbb\xbf" + GOOD, "byte order mark"),
        (GOOD.decode().encode("utf-16"), "UTF-16"),
        (GOOD.replace(b'"a"', b'"\xe4"'), "not UTF-8: byte 0xe4 at column"),
        (GOOD.replace(b": 1}", b": NaN}"), "NaN at byte"),
        (GOOD.replace(b": 1}", b": -Infinity}"), "Infinity at byte"),
        (GOOD.replace(b'"a"', b'"\\ud800"'), "not JSON"),
        (GOOD.replace(b'"a"', b'"\\ud800x"'), "one half of a surrogate pair"),
        (GOOD.replace(b"}]", b', "content": "b"}]'), "the key 'content' is given twice"),
        (GOOD.replace(b": 1}", b': 1, "messages": []}'), "the key 'messages' is given twice"),
        (GOOD.replace(b": 1}", b': {"\\u0061": 1, "a" : 2}}'), "the key 'a' is given twice"),
        (GOOD.replace(b'"score"', b'"Messages"'), "`Messages` (did you mean `messages`?)"),
        (GOOD.replace(b'"content": "a"', b'"Content": "a"'), "`Content` (did you mean `content`?)"),
        (GOOD[:-4], "ends too early"),
        (GOOD + GOOD, "trailing characters"),
        (b"7", "Expected `object`"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_line_has_one_clear_error(line: bytes, reason: str):
    found = read_line(line)
    assert isinstance(found, LineFault)
    assert reason in found.reason


def test_quotes_before_colons_are_no_keys():
    text = '": "a": {"a": 1, "a": 2}'
    found = read({"messages": [{"role": "user", "content": text}, {**SAID, "content": {":": text}}]})
    assert isinstance(found, Row), found


def test_ten_thousand_tools_are_a_row():
    tools = [{"type": "function", "function": {**FUNCTION, "name": f"f{k}"}} for k in range(10_000)]
    assert isinstance(read({"messages": [USER, SAID], "tools": tools}), Row)
    assert isinstance(found := read({"messages": [USER, SAID], "tools": [*tools, {}]}), LineFault)
    assert found.path == "$.tools[10000]"


def test_five_megabytes_of_base64_with_line_breaks_are_one_image():
    body = "\n".join(["iVBORw0KGgoAAAANSUhEUgAA" * 3] * 70_000)
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{body}"}}
    found = read({"messages": [{"role": "user", "content": [part]}, SAID]})
    assert isinstance(found, Row)
    assert (found.has_images, sum(map(len, found.texts))) == (True, 1)


def test_a_gigabyte_on_one_line_takes_no_more_memory_than_a_line_may():
    check, piece = FileCheck(max_line_bytes=4 << 20), b"x" * (1 << 20)
    check.feed(GOOD + b"\n")
    tracemalloc.start()
    for _ in range(1024):
        check.feed(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check.feed(b"\n" + GOOD)
    found = check.finish()
    assert isinstance(found, FileRejected)
    assert [(p.line, "longer than" in p.reason) for p in found.problems] == [(2, True)]
    assert peak < 16 << 20


def test_lines_may_end_in_crlf_and_hold_other_separators():
    check = FileCheck()
    text = "a\u2028b\u0085c"
    check.feed(
        b"\r\n".join([GOOD, json.dumps({"messages": [USER, {**SAID, "content": text}]}, ensure_ascii=False).encode()])
    )
    found = check.finish()
    assert isinstance(found, FileReady)
    assert found.rows == 2
