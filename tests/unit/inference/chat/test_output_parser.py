"""Reading replies of every family: reasoning, content and calls, the same in whatever pieces the tokens come."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from synth.chat.families import Family, family_of
from synth.inference.chat.generation import ReplyDelta
from synth.inference.chat.output_parser import ReplyParser
from synth.inference.chat.prompts import Message
from synth.inference.tokenizers import Tokenizer, load_tokenizer

TEMPLATES = {
    "qwen3": "… </think> … <tool_call> …",
    "qwen2.5": "… <tool_call> …",
    "qwen3-coder": "… <tool_call>\n<function=example_function_name> …",
    "qwen3.5": "… </think> … <tool_call>\n<function=example_function_name> …",
    "mistral": "… [TOOL_CALLS] … [ARGS] …",
    "mistral-v3": "… [TOOL_CALLS] …",
    "llama3": '… <|start_header_id|> … "parameters": … tool_calls …',
    "gpt-oss": "… <|channel|> … <|message|> … functions. …",
}
TYPES = {"n": "integer", "x": "number", "on": "boolean", "items": "array", "what": "string"}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "parameters": {"type": "object", "properties": {k: {"type": t} for k, t in TYPES.items()}},
        },
    }
]
JSON_CALL = '<tool_call>\n{"name": "move", "arguments": {"n": 1}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=move>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return load_tokenizer(model_dir)


def family(name: str) -> Family:
    found = family_of(TEMPLATES[name])
    assert found.name == name
    return found


def read(
    tokenizer: Tokenizer,
    text: str,
    name: str = "qwen3",
    *,
    cuts: tuple[int, ...] = (),
    stop: str | None = None,
    in_reasoning: bool = False,
    must_call: tuple[str, ...] = (),
) -> Message:
    """The reply in a text whose tokens come in pieces; what was given out on the way must be what it says."""
    parser = ReplyParser(
        tokenizer,
        family(name),
        opening="reasoning" if in_reasoning else "",
        tools=TOOLS,
        stop=(stop,) if stop else (),
        must_call=must_call,
    )
    ids = tokenizer.encode(text)
    bounds = sorted({0, *(c % (len(ids) + 1) for c in cuts), len(ids)})
    pieces = [ids[a:b] for a, b in itertools.pairwise(bounds)] or [[]]
    deltas = []
    for i, piece in enumerate(pieces):
        ended: dict[str, Any] = {"finish_reason": "stop", "stop_text": stop} if i == len(pieces) - 1 else {}
        deltas.append(parser.feed(ReplyDelta(piece, [-0.5] * len(piece), [0] * len(piece), **ended)))
    reply, rest = parser.close("stop")
    assert "".join(f.content for f in [*deltas, rest]) == (reply.message.content or "")
    assert "".join(f.reasoning for f in [*deltas, rest]) == reply.message.reasoning_text
    return reply.message


def calls(message: Message) -> list[tuple[str, Any]]:
    return [(c.called.name, json.loads(str(c.called.arguments))) for c in message.tool_calls or ()]


@pytest.mark.parametrize(
    ("text", "malformed"),
    [
        ("so", False),
        (JSON_CALL, False),
        (f"so\n{JSON_CALL}", False),
        ('<tool_call>\n{"name": "move", "arguments": {"n": 1}\n</tool_call>', True),
        ("<tool_call>\nmove left\n</tool_call>", True),
        ('<tool_call>\n{"name": "move", "arguments": {"n"', True),
        ('<tool_call>\n{"name": "move", "arguments": "n = 1"}\n</tool_call>', True),
        ('<tool_call>\n{"name": "move", "arguments": [1]}\n</tool_call>', True),
    ],
)
def test_a_call_that_cannot_be_read_is_marked_so(tokenizer: Tokenizer, text: str, malformed: bool) -> None:
    parser = ReplyParser(tokenizer, family("qwen3"), tools=TOOLS, stop=())
    parser.feed(ReplyDelta(tokenizer.encode(text), [], [], finish_reason="stop"))
    assert parser.close("stop")[0].malformed_call is malformed


def test_the_template_says_which_family_a_model_is_of() -> None:
    for name in TEMPLATES:
        assert family(name).thinks is (name in ("qwen3", "qwen3.5"))
    assert family_of("{{ messages }}").calls is None


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nwhy\n</think>\n\nso", "why", "so"),
        ("\n<think>why</think>so\n", "why", "so\n"),
        ("<think>\n\n</think>\n\nso", "", "so"),
        ("<think>\na\n\nb </thin c", "a\n\nb </thin c", ""),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("so <think>a</think>", "", "so <think>a</think>"),
        ("  so", "", "  so"),
        ("<thi", "", "<thi"),
        ("a</think>b", "", "a</think>b"),
    ],
)
def test_reasoning_stands_at_the_beginning(tokenizer: Tokenizer, text: str, reasoning: str, content: str) -> None:
    message = read(tokenizer, text, cuts=tuple(range(len(text))))
    assert (message.reasoning_text, message.content) == (reasoning, content)
    assert read(tokenizer, text, "qwen2.5").content == text


def test_a_reply_that_begins_in_reasoning_is_reasoning_until_it_ends(tokenizer: Tokenizer) -> None:
    message = read(tokenizer, "why\n</think>\n\nso", in_reasoning=True)
    assert (message.reasoning_text, message.content) == ("why", "so")
    message = read(tokenizer, f"why\n</think>\n\n{XML_CALL}", "qwen3.5", in_reasoning=True)
    assert (message.reasoning_text, message.content, calls(message)) == ("why", None, [("move", {"n": 1})])
    message = read(tokenizer, f"why {JSON_CALL}", in_reasoning=True)
    assert (message.reasoning_text, message.content, message.tool_calls) == (f"why {JSON_CALL}", "", None)


@pytest.mark.parametrize(("name", "call"), [("qwen3", JSON_CALL), ("qwen2.5", JSON_CALL), ("qwen3-coder", XML_CALL)])
def test_calls_are_read_after_what_is_said_before_them(tokenizer: Tokenizer, name: str, call: str) -> None:
    message = read(tokenizer, f"I move.\n\n{call}\n{call}", name)
    assert (message.content, calls(message)) == ("I move.", [("move", {"n": 1})] * 2)


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ("<parameter=n>\n3\n</parameter>\n<parameter=x>-1.5e3</parameter>", {"n": 3, "x": -1500.0}),
        ("<parameter=on>True</parameter><parameter=items>[1, {}]</parameter>", {"on": True, "items": [1, {}]}),
        ("<parameter=what>\n3\n</parameter>", {"what": "3"}),
        ("<parameter=what>\na\n\n<b>\n</parameter>", {"what": "a\n\n<b>"}),
        ("<parameter=other>3</parameter>", {"other": "3"}),
        ("<parameter=n>three</parameter>", {"n": "three"}),
        ("", {}),
    ],
)
def test_a_coders_arguments_are_what_the_schema_says_they_are(tokenizer: Tokenizer, inner: str, arguments: Any) -> None:
    for text in (
        f"<tool_call>\n<function=move>\n{inner}\n</function>\n</tool_call>",
        f"<function=move>{inner}</function>",
    ):
        assert calls(read(tokenizer, text, "qwen3-coder")) == [("move", arguments)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", '<tool_call>{"name": "move", "arguments": {"n": NaN}}</tool_call>'),
        ("qwen3", '<tool_call>{"name": "\\ud800"}</tool_call>'),
        ("qwen3", '<tool_call>{"name": "m", "arguments": "\\ud800"}</tool_call>'),
        ("qwen3", "<tool_call>" + '{"a":' * 3000 + "}" * 3000 + "</tool_call>"),
        ("qwen3", '<tool_call>{"name": 3}</tool_call>'),
        ("qwen3", XML_CALL),
        ("qwen3-coder", JSON_CALL),
        ("qwen3-coder", "<function=move>text</function>"),
        ("qwen3-coder", "<function=move><parameter=n>1</function>"),
        ("qwen3-coder", "<function=move><parameter=n>1</parameter>"),
    ],
)
def test_a_malformed_call_is_text(tokenizer: Tokenizer, name: str, text: str) -> None:
    message = read(tokenizer, f"I say {text} so", name)
    assert (message.content, message.tool_calls) == (f"I say {text} so", None)


HEAD = '<tool_call>\n{"name": "move", "arguments":'
XML_HEAD = "<tool_call>\n<function=move>\n"


@pytest.mark.parametrize(
    ("name", "text", "arguments", "content"),
    [
        ("qwen3", HEAD + ' {"n": 1}}\n</tool_call>', '{"n": 1}', None),
        ("qwen3", HEAD + ' {"n": {"deep": 1}', '{"n": {"deep": 1}', None),
        ("qwen3", HEAD + ' {"n": 1}}\n</tool_', '{"n": 1}', None),
        ("qwen3", HEAD + ' {"n": 1}', '{"n": 1}', None),
        ("qwen3", HEAD + ' {"n": 5}}\n</tool_call> and so on', '{"n": 5}', "and so on"),
        ("mistral-v3", '[TOOL_CALLS][{"name": "move", "arguments": {"n": "a', '{"n": "a', None),
        ("mistral", '[TOOL_CALLS]move[ARGS]{"n": "a', '{"n": "a', None),
        ("llama3", '{"name": "move", "parameters": {"n": "a', '{"n": "a', None),
        ("gpt-oss", '<|channel|>commentary to=functions.move <|constrain|>json<|message|>{"n": "a', '{"n": "a', None),
        ("qwen3-coder", XML_HEAD + "<parameter=n>\n1", "<parameter=n>\n1", None),
    ],
)
def test_a_forced_call_is_a_call_also_where_it_is_cut_off(
    tokenizer: Tokenizer, name: str, text: str, arguments: str, content: str | None
) -> None:
    for cuts in ((), (20, 60, 65)):
        message = read(tokenizer, text, name, cuts=cuts, must_call=("mo", "move"))
        assert [(c.called.name, c.called.arguments) for c in message.tool_calls or ()] == [("move", arguments)]
        assert message.content == content


_PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", ">"),
        *('{"name": "move"', ', "arguments": {', "}}", "}", "move", "\n", " ", "<", "n", "</parameter>", "é", "🙂"),
        *("[TOOL_CALLS]", "[", "]", "[ARGS]", "[CALL_ID]", ",", ";", '{"name": "move", "parameters": {}}'),
        *("<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|start|>", " to=functions.move"),
        *(JSON_CALL, XML_CALL, "<|im_end|>", "STOP", "ST", "\ufffd", "\x00"),
    ]
)


@given(
    pieces=st.lists(_PIECES | st.text(max_size=4), max_size=14),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    name=st.sampled_from(list(TEMPLATES)),
    in_reasoning=st.booleans(),
)
@example(
    pieces=["\n", "<think>", "\n", "\n", "</think>", "\n", "STOP"],
    cuts=[1, 2, 3, 4, 5, 6],
    name="qwen3",
    in_reasoning=False,
)
def test_whatever_is_said_is_read_and_the_pieces_it_came_in_do_not_matter(
    tokenizer: Tokenizer, pieces: list[str], cuts: list[int], name: str, in_reasoning: bool
) -> None:
    text = "".join(pieces)
    # As an engine has it: nothing comes after the first stop string.
    stop = "STOP" if "STOP" in text else None
    text = text[: text.find("STOP") + 4] if stop else text
    in_reasoning = in_reasoning and family(name).thinks
    whole = read(tokenizer, text, name, stop=stop, in_reasoning=in_reasoning)
    cut = read(tokenizer, text, name, stop=stop, in_reasoning=in_reasoning, cuts=tuple(cuts))
    for message in (whole, cut):
        for call in message.tool_calls or ():
            call.id = ""
    assert cut == whole
    assert stop is None or "STOP" not in f"{whole.content}{whole.reasoning_text}"
