"""What a template writes of a call is read back as that call, in every family, in whatever pieces the text arrives."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from synth.chat.families import FAMILIES, family_of
from synth.chat.messages import FunctionCall, Message, MessageToolCall, template_messages
from synth.chat.replies.reader import ReadCall

_TYPES = {"text": "string", "n": "integer", "x": "number", "on": "boolean", "deep": "object", "list": "array"}
TOOLS: list[dict[str, Any]] = [
    {"function": {"name": name, "parameters": {"properties": {key: {"type": kind} for key, kind in _TYPES.items()}}}}
    for name in ("write", "read.all")
]
_JSON = "'{\"name\": \"' + c.function.name + '\", \"KEY\": ' + (c.function.arguments | tojson) + '}'"
_CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
_END = "{% endfor %}{% endfor %}"
#: The assistant's turn as a template of each family writes it, and the family's name.
TEMPLATES = {
    "qwen2.5": _CALLS + "{{ '\n<tool_call>\n' + " + _JSON.replace("KEY", "arguments") + " + '\n</tool_call>' }}" + _END,
    "qwen3-coder": _CALLS
    + "{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}{% for key, value in c.function.arguments.items() %}"
    "{{ '<parameter=' + key + '>\n' }}{{ value | tojson if value is mapping or (value is sequence and value is not "
    "string) else value | string }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}" + _END,
    "mistral-v3": "{% for m in messages %}{{ m.content + '[TOOL_CALLS][' }}{% for c in m.tool_calls %}"
    "{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' }}{{ ', ' if not loop.last }}{% endfor %}]"
    "{% endfor %}",
    "mistral": _CALLS + "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + (c.function.arguments | tojson) }}" + _END,
    "llama3": _CALLS
    + "{{ "
    + _JSON.replace("KEY", "parameters")
    + " }}{{ '; ' if not loop.last }}"
    + _END
    # What makes it Llama's: "<|start_header_id|>", '"parameters": '.
    + '{# <|start_header_id|> "parameters": #}',
    "gpt-oss": _CALLS + "{{ ' to=functions.' + c.function.name + '<|channel|>commentary json<|message|>'"
    " + (c.function.arguments | tojson) }}" + _END,
}
#: A call ends its turn in one, and in one it stands in place of content.
_ONE, _BARE = ("gpt-oss",), ("gpt-oss", "llama3")

_TEXT = st.lists(
    st.text(max_size=6, alphabet=st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(
        [
            *('"', "\\", "{", "}", "}</tool_call>", "<tool_call>", "</function>", "</parameter>", "\n", "]", "[ARGS]"),
            *("<|end|>", "<|message|>", "[TOOL_CALLS]", "</think>", "\\u0041", "null", "1", " ", "<|call|>"),
        ]
    ),
    max_size=6,
).map("".join)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=4,
)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": _TEXT,
        "n": st.integers(),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "on": st.booleans(),
        "deep": st.dictionaries(_TEXT, _VALUES, max_size=3),
        "list": st.lists(_VALUES, max_size=3),
    },
)
_CALL = st.tuples(st.sampled_from(["write", "read.all"]), _ARGUMENTS)


@functools.cache
def compiled(template: str) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template)


def rendered(name: str, content: str, calls: Sequence[tuple[str, Any]]) -> str:
    turn = Message(
        role="assistant",
        content=content,
        tool_calls=[
            MessageToolCall(id=f"abcdefgh{i}", function=FunctionCall(called, json.dumps(arguments)))
            for i, (called, arguments) in enumerate(calls)
        ],
    )
    return compiled(TEMPLATES[name]).render(messages=template_messages([turn], thinks=False))


def read(name: str, text: str, cuts: Sequence[int] = ()) -> tuple[str, str, list[ReadCall], bool]:
    """Return the reasoning, the content, the calls, and whether one of them is malformed."""
    family = family_of(TEMPLATES[name])
    assert family.name == name
    reader = family.reader(TOOLS)
    bounds = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    pieces = [piece for a, b in itertools.pairwise(bounds) for piece in reader.feed(text[a:b])]
    # Half a call is never content while the rest of it may come.
    given_out = "".join(part for kind, part in pieces if kind == "content")
    pieces += reader.close()
    said = {kind: "".join(part for k, part in pieces if k == kind) for kind in ("reasoning", "content")}
    if not reader.malformed:
        assert said["content"].startswith(given_out)
    return said["reasoning"], said["content"], reader.calls, reader.malformed


def ambiguous(arguments: dict[str, Any]) -> bool:
    """XML has no escapes: a value that holds the end of its own parameter cannot be written in it."""
    values = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in arguments.values()
    ]
    return any("</parameter>" in value or "\r" in value for value in values)


@pytest.mark.parametrize("name", TEMPLATES)
@given(calls=st.lists(_CALL, min_size=1, max_size=3), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_calls_survive_their_template(name: str, calls: list[tuple[str, Any]], cuts: list[int]):
    if name == "qwen3-coder":
        calls = [call for call in calls if not ambiguous(call[1])]
    calls = calls[:1] if name in _ONE else calls
    content = "" if name in _BARE else "I write."
    text = rendered(name, content, calls)
    whole = read(name, text)
    assert [(call.name, json.loads(call.arguments)) for call in whole[2]] == calls
    assert (whole[0], whole[1], whole[3]) == ("", content if calls else text, False)
    assert read(name, text, cuts) == whole
    # Cut off, no half call is a call.
    for end in cuts:
        part = read(name, text[: end % (len(text) + 1)])
        assert [(call.name, json.loads(call.arguments)) for call in part[2]] == calls[: len(part[2])]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_mark_that_ends_a_call_may_stand_in_a_string(name: str):
    calls = [("write", {"text": 'a call ends with {"x": 1}</tool_call>]<|end|> and that is all'})]
    assert [json.loads(call.arguments) for call in read(name, rendered(name, "", calls), range(400))[2]] == [
        calls[0][1]
    ]


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content", "called"),
    [
        ("mistral", '[TOOL_CALLS]write[CALL_ID]123456789[ARGS]{"n": 1}', "", "", [("write", '{"n": 1}', "123456789")]),
        ("mistral", '[TOOL_CALLS] [{"name": "write", "arguments": {}}]', "", "", [("write", "{}", None)]),
        ("mistral-v3", 'so[TOOL_CALLS]write{"n": 1}', "", "so", [("write", '{"n": 1}', None)]),
        ("mistral-v3", "[TOOL_CALLS][]", "", "[TOOL_CALLS][]", []),
        ("llama3", '<|python_tag|>{"name": "write", "parameters": {}}', "", "", [("write", "{}", None)]),
        ("llama3", '{"name": "other", "parameters": {}}', "", '{"name": "other", "parameters": {}}', []),
        ("llama3", '{"answer": 46}', "", '{"answer": 46}', []),
        ("llama3", 'say {"name": "write", "parameters": {}}', "", 'say {"name": "write", "parameters": {}}', []),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>4",
            "why",
            "4",
            [],
        ),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.write <|constrain|>json<|message|>{}",
            "a\nb",
            "",
            [("write", "{}", None)],
        ),
        ("gpt-oss", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant", "", "I look.", []),
        ("gpt-oss", "<|channel|>final<|message|>4<|channel|>", "", "4<|channel|>", []),
        ("gpt-oss", "<|channel|>anal", "", "", []),
        ("gpt-oss", "4", "", "4", []),
    ],
)
def test_what_families_write(name: str, text: str, reasoning: str, content: str, called: list[Any]):
    for cuts in ((), range(300)):
        result = read(name, text, cuts)
        assert result[:2] == (reasoning, content)
        assert [tuple(call) for call in result[2]] == called


@pytest.mark.parametrize(
    ("name", "text", "content", "called"),
    [
        ("qwen2.5", '<tool_call>{"name": "write"</tool_call>', '<tool_call>{"name": "write"</tool_call>', 0),
        (
            "qwen2.5",
            '<tool_call>{"name": "write", "arguments": {"n": 1}</tool_call><tool_call>{"name": "write"}</tool_call>',
            '<tool_call>{"name": "write", "arguments": {"n": 1}</tool_call>',
            1,
        ),
        ("mistral", '[TOOL_CALLS]write[ARGS]{"n": 1', '[TOOL_CALLS]write[ARGS]{"n": 1', 0),
        ("mistral-v3", '[TOOL_CALLS][{"name": "write"}, {"nam', ', {"nam', 1),
        ("llama3", '{"name": "write", "parameters": {"n"', '{"name": "write", "parameters": {"n"', 0),
        ("gpt-oss", " to=functions.write<|message|>{1}<|end|>", " to=functions.write<|message|>{1}", 0),
    ],
)
def test_a_malformed_call_is_content_and_what_follows_is_read(name: str, text: str, content: str, called: int):
    for cuts in ((), range(300)):
        result = read(name, text, cuts)
        assert (result[1], len(result[2]), result[3]) == (content, called, True)


def test_the_table_of_the_documentation_is_what_is_read():
    section = (Path(__file__).parents[3] / "docs" / "models.md").read_text().partition("## Tool calls")[2]
    # In a table of Markdown a bar ends a cell.
    rows = [
        re.split(r" (?<!\\)\| ", line[2:-2]) for line in re.findall(r"^\| .*\|$", section.partition("## ")[0], re.M)[1:]
    ]
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}]
    table: list[tuple[str, tuple[str, ...]]] = []
    for name, _, *cells in rows:
        (call,), signs = (re.findall("`(.*?)`", cell.replace("\\|", "|")) for cell in cells)
        reader = family_of("".join(signs)).reader(tools)
        assert [*reader.feed(call), *reader.close()] == []
        assert [(called.name, json.loads(called.arguments)) for called in reader.calls] == [("f", {"a": 1})]
        table.append((name, tuple(signs)))
    assert table == [(family.name, signs) for signs, family in FAMILIES if family.calls]
