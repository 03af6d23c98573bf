"""Replies that look like tool calls without end: they are read in one pass."""

from __future__ import annotations

import pytest

from synth.chat.families import read_json_calls, read_xml_calls

_MANY = 20_000


@pytest.mark.parametrize(
    "reply",
    [
        "<tool_call>{" * _MANY,
        "<tool_call>{" * _MANY + "x</tool_call>",
        "<tool_call>{}" + " " * 10 * _MANY,
    ],
    ids=["begun", "ended wrongly", "spaces"],
)
def test_json_calls_that_never_end_are_none(reply: str):
    assert read_json_calls(reply, []) == []


@pytest.mark.parametrize(
    "reply",
    [
        "<function=a>" * _MANY,
        "<function=a>" + "<parameter=a>" * _MANY + "</function>",
        "<function=a>" + " " * 10 * _MANY + "x</function>",
    ],
    ids=["begun", "parameters begun", "spaces"],
)
def test_xml_calls_that_never_end_are_none(reply: str):
    assert read_xml_calls(reply, []) == []


def test_calls_before_such_text_are_read():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert [c.name for c in read_json_calls(call + "<tool_call>{" * _MANY, [])] == ["f"]
    assert [c.name for c in read_xml_calls("<function=f></function>" + "<function=a>" * _MANY, [])] == ["f"]
