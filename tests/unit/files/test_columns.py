"""Nothing in a row vanishes: a key is used, or refused with its place, or counted by its name as an annotation."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.chat.messages import PreferenceRow, TrainingRow
from synth.datasets.check import FileCheck
from synth.datasets.columns import ANNOTATIONS
from synth.datasets.conversations import canonical_line, read_line
from synth.datasets.rows import Row
from synth.datasets.sources import read_pieces, without_columns
from synth.events import FileReady, FileRejected

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://a/b"}}
USER: dict[str, Any] = {"role": "user", "content": "q"}
SAID: dict[str, Any] = {"role": "assistant", "content": "a"}
#: A valid row of each shape, with a turn, a tool, a call and a part in as many of them as may be.
ROWS: list[dict[str, Any]] = [
    {"messages": [USER, {**SAID, "tool_calls": [CALL]}, {"role": "tool", "content": "3"}, SAID], "tools": [TOOL]},
    {"messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "q"}]}, SAID], "id": 3},
    {"messages": [{"role": "system", "content": "s"}, USER], "answer": "a"},
    {"messages": [USER, {**SAID, "function_call": {"name": "f", "arguments": "{}"}}], "functions": [{"name": "f"}]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
    {"conversations": [{"from": "human", "value": "<image>q"}, {"from": "gpt", "value": "a"}], "images": ["https://a"]},
    {"conversation": [{"human": "q", "assistant": "a"}], "system": "s"},
    {"instruction": "q", "input": "x", "output": "a", "history": [["h", "i"]]},
    {"prompt": "q", "completion": "a", "tools": '[{"name": "f"}]'},
    {"prompt": [USER], "completion": [SAID]},
    {"query": "q", "response": "a"},
    {"messages": [USER], "chosen": [SAID], "rejected": [{**SAID, "content": "b"}], "tools": [TOOL]},
    {"prompt": "q", "chosen": "a", "rejected": "b"},
    {"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "a"}, "rejected": "b"},
    {"messages": [USER, SAID], "rejected_response": "b"},
    {"input": {"messages": [USER]}, "preferred_output": [SAID], "non_preferred_output": [{**SAID, "content": "b"}]},
]
#: Names of keys as they occur, and others.
NAMES = st.sampled_from(
    sorted(
        {
            "role",
            "content",
            "from",
            "value",
            "weight",
            "loss",
            "train",
            "name",
            "tool_calls",
            "tool_call_id",
            "thinking",
        }
        | {"reasoning", "reasoning_content", "raw_content", "function_call", "label", "kto_tag", "system", "tools"}
        | {"functions", "images", "image", "videos", "input", "history", "messages", "conversations", "Messages"}
        | {"arguments", "index", "type", "detail", "parameters", "strict", "source", "score", "chosen", "margin"}
        | {"system_prompt", "parallel_tool_calls", "prompt", "response", "rejected_response", "text", "url"}
    )
) | st.text(min_size=1, max_size=6)
VALUES = st.sampled_from(["zq", "https://zq", 7, 0.25, False, ["zq"], {"zq": 1}, [{"zq": 1}], "<image>zq"])


def objects(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the places of the objects in a row; a tool's parameters and a call's arguments are one value each."""
    if isinstance(value, dict):
        yield path
        for key, entry in value.items():
            if key not in ("parameters", "arguments"):
                yield from objects(entry, (*path, key))
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            yield from objects(entry, (*path, i))


def trained(row: dict[str, Any]) -> Any:
    """Return a row as the trainer reads it."""
    line = canonical_line(json.dumps(row).encode())
    kind = PreferenceRow if "chosen" in json.loads(line) else TrainingRow
    return msgspec.to_builtins(msgspec.json.decode(line, type=kind))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "+".join(row))
def test_each_row_is_a_good_one(row: dict[str, Any]):
    found = read_line(json.dumps(row).encode())
    assert isinstance(found, Row), found


@given(st.sampled_from(ROWS), NAMES, VALUES, st.data())
def test_a_key_that_is_added_anywhere_is_used_or_refused_or_counted(
    row: dict[str, Any], name: str, value: Any, data: st.DataObject
):
    more = copy.deepcopy(row)
    place = data.draw(st.sampled_from(list(objects(row))))
    target = more
    for step in place:
        target: Any = target[step]
    if target.get(name) == value:
        return
    target[name] = value
    found = read_line(json.dumps(more).encode())
    if not isinstance(found, Row):
        assert found.path.startswith("$")
        return
    if not place and name in found.columns:
        return
    if (*place, name) == ("input", "parallel_tool_calls"):
        return  # compared with the replies
    assert trained(more) != trained(row), f"{name!r} at {place} vanished"


@given(st.sampled_from(ROWS), st.data())
def test_a_key_that_is_moved_elsewhere_is_used_or_refused_or_counted(row: dict[str, Any], data: st.DataObject):
    moved = copy.deepcopy(row)
    places = list(objects(row))
    source, to = data.draw(st.sampled_from(places)), data.draw(st.sampled_from(places))
    origin: Any = moved
    for step in source:
        origin = origin[step]
    name = data.draw(st.sampled_from(sorted(origin)))
    target: Any = moved
    for step in to:
        target = target[step]
    if target is origin or name in target or to[: len(source) + 1] == (*source, name):
        return
    target[name] = origin.pop(name)
    found = read_line(json.dumps(moved).encode())
    if not isinstance(found, Row):
        return
    without = copy.deepcopy(moved)
    target = without
    for step in to:
        target = target[step]
    del target[name]
    if (not to and name in found.columns) or not isinstance(read_line(json.dumps(without).encode()), Row):
        return
    assert trained(moved) != trained(without), f"{name!r} at {to} vanished"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("refusal", "$.messages[1].refusal"),
        ("audio", "$.messages[1].audio"),
        ("Content", "$.messages[1].Content"),
        ("train_detail", "$.messages[1].train_detail"),
        ("cache_control", "$.messages[1].cache_control"),
        ("loss_scale", "$.messages[1].loss_scale"),
    ],
)
def test_a_key_of_a_message_that_is_not_read_is_named(key: str, path: str):
    found = read_line(json.dumps({"messages": [USER, {**SAID, key: {"a": 1}}]}).encode())
    assert not isinstance(found, Row)
    assert found.path == path
    assert f"`{key}`" in found.reason


def test_a_key_without_a_value_is_no_key():
    dumped = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    row = {"messages": [USER, {**SAID, **dumped}], "videos": [], "label": None, "Tools": ""}
    found = read_line(json.dumps(row).encode())
    assert isinstance(found, Row), found
    assert found.columns == []


def checked(rows: list[dict[str, Any]]) -> FileReady | FileRejected:
    check = FileCheck()
    check.feed(b"\n".join(json.dumps(row).encode() for row in rows))
    return check.finish()


def test_annotations_are_counted_by_name():
    row = {"messages": [USER, SAID]}
    found = checked([{**row, "id": 1, "source": "x"}, {**row, "id": 2, "score": 0.5}, row])
    assert isinstance(found, FileReady)
    assert found.annotations == {"id": 2, "source": 1, "score": 1}
    assert found.converted == {}


def test_the_fields_of_prompts_are_counted_for_a_grader():
    found = checked([{"messages": [USER], "label": False, "tests": ["x"], "id": 1}] * 2)
    assert isinstance(found, FileReady)
    assert found.annotations == {"id": 2, "label": 2, "tests": 2}


def test_one_check_names_all_columns_that_are_not_read():
    row = {"messages": [USER, SAID]}
    found = checked([row, {**row, "zeta": 1}, {**row, "zeta": 1, "videos": ["v"]}, {**row, "Tools": [TOOL]}])
    assert isinstance(found, FileRejected)
    assert (found.bad_lines, len(found.problems)) == (3, 1)
    problem = found.problems[0]
    assert (problem.line, problem.path) == (2, "$")
    assert "`zeta` in 2 rows" in problem.reason
    assert "`videos` (models here see text and images) in 1 row" in problem.reason
    assert "`Tools` (did you mean `tools`?)" in problem.reason
    assert "--drop 'Tools,videos,zeta'" in problem.reason


def test_hostile_names_take_a_bounded_record():
    rows = [{"messages": [USER], f"{k}{'x' * 5000}": 1} for k in range(1000)]
    found = checked(rows)
    assert isinstance(found, FileReady)
    assert sum(found.annotations.values()) == 1000
    assert len(found.annotations) <= 201
    refused = checked([{"messages": [USER, SAID], **row} for row in ({f"{k}{'x' * 5000}": 1} for k in range(1000))])
    assert isinstance(refused, FileRejected)
    assert len(msgspec.json.encode(refused)) < 8000


def test_columns_are_left_out_on_request(tmp_path: Path):
    path, dropped = tmp_path / "rows.jsonl", {"zeta": 0}
    row = {"messages": [USER, SAID], "id": 1}
    path.write_text("\n".join([json.dumps({**row, "zeta": {"deep": [1]}}), "no JSON", json.dumps(row)]))
    lines = b"".join(without_columns(read_pieces(path), dropped)).splitlines()
    assert [json.loads(lines[0]), lines[1], json.loads(lines[2])] == [row, b"no JSON", row]
    assert dropped == {"zeta": 1}


def test_the_docs_name_every_annotation():
    docs = Path("docs/datasets.md").read_text()
    assert {name for name in ANNOTATIONS if f"`{name}`" not in docs} == set()
