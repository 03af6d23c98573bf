"""Replies that look like tool calls without end: they are read in one pass, and nothing of them is lost."""

from __future__ import annotations

import pytest

from synth.chat.replies.harmony import HarmonyReader
from synth.chat.replies.json_calls import BareReader, ListReader, MarkedReader, NamedReader
from synth.chat.replies.reader import ReplyReader
from synth.chat.replies.xml_calls import XmlReader

_MANY = 5_000
_TOOLS = [{"function": {"name": "f"}}]
_HEADER = "<|channel|>commentary to=functions.f<|message|>"


def read(grammar: type[ReplyReader], reply: str, piece: int = 7) -> tuple[list[str], str]:
    """Return the names of the calls, and the content."""
    reader = grammar(_TOOLS)
    pieces = [part for at in range(0, len(reply), piece) for part in reader.feed(reply[at : at + piece])]
    pieces += reader.close()
    return [call.name for call in reader.calls], "".join(text for _, text in pieces)


@pytest.mark.parametrize(
    ("grammar", "reply"),
    [
        (MarkedReader, "<tool_call>{" * _MANY),
        (MarkedReader, "<tool_call>{" * _MANY + "x</tool_call>"),
        (MarkedReader, "<tool_call>{}" + " " * 10 * _MANY),
        (MarkedReader, '<tool_call>{"' + "</tool_call>" * _MANY),
        (ListReader, "[TOOL_CALLS][{" * _MANY),
        (NamedReader, "[TOOL_CALLS]f[ARGS]{" * _MANY),
        (NamedReader, "[TOOL_CALLS]" * _MANY),
        (BareReader, '{"name": ' * _MANY),
        (XmlReader, "<function=a>" * _MANY),
        (XmlReader, "<function=a>" + "<parameter=a>" * _MANY + "</function>"),
        (XmlReader, "<function=a><parameter=a>" + "</parameter> " * _MANY),
        (XmlReader, "<function=a>" + " " * 10 * _MANY + "x</function>"),
        (HarmonyReader, _HEADER + "{" * _MANY),
        (HarmonyReader, _HEADER * _MANY),
    ],
)
def test_calls_that_never_end_are_content(grammar: type[ReplyReader], reply: str):
    assert read(grammar, reply) == ([], reply)


def test_calls_before_such_text_are_read():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read(MarkedReader, call + "<tool_call>{" * _MANY)[0] == ["f"]
    assert read(XmlReader, "<function=f></function>" + "<function=a>" * _MANY)[0] == ["f"]
    assert read(NamedReader, "[TOOL_CALLS]f[ARGS]{}" + "[TOOL_CALLS]f[ARGS]{" * _MANY)[0] == ["f"]
