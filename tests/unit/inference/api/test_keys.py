"""No key of a chat is dropped silently: it is read, refused with its place, or in the table of annotations."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from openai.types import chat as sdk
from openai.types.chat.chat_completion_content_part_image_param import ImageURL
from openai.types.shared_params import FunctionDefinition

from synth.chat.messages import ContentPart, FunctionCall, ImageUrl, MessageToolCall, Tool, ToolFunction
from synth.errors import UserError
from synth.inference.api.fields import ignored_fields, refuse_unserved
from synth.inference.api.keys import ANNOTATIONS, ChatMessage
from synth.inference.api.requests import ChatRequest, decode_request
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.one_model_service import Served, credential

PAGE = Path(__file__).parents[4] / "docs" / "api.md"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TALK: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}, IMAGE]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                {"id": "b", "type": "function", "name": "add", "arguments": "{}"},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": "{}"}},
        {"role": "function", "name": "add", "content": "3"},
        {"role": "assistant", "content": [{"tool_name": "add", "arguments": {}}]},
        {"role": "user", "content": {"type": "text", "text": "and?"}},
    ],
    "tools": [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
        {"type": "function", "name": "sub"},
    ],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "add"}]}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}
#: Every object of the conversation above, but those that are the client's own: schemas and arguments.
OBJECTS = [
    "",
    *(f"messages[{i}]" for i in range(8)),
    "messages[1].content[0]",
    "messages[1].content[1]",
    "messages[1].content[1].image_url",
    "messages[2].tool_calls[0]",
    "messages[2].tool_calls[0].function",
    "messages[2].tool_calls[1]",
    "messages[4].function_call",
    "messages[6].content[0]",
    "messages[7].content",
    "tools[0]",
    "tools[0].function",
    "tools[1]",
    "tool_choice",
    "tool_choice.allowed_tools",
    "tool_choice.allowed_tools.tools[0]",
    "response_format",
    "response_format.json_schema",
    "stream_options",
    "chat_template_kwargs",
    "extra_body",
    "extra_body.chat_template_kwargs",
]
#: An object of each kind that has annotations.
PLACES = {
    ChatMessage: ("messages[2]", "messages[0]"),
    MessageToolCall: ("messages[2].tool_calls[0]", "messages[2].tool_calls[1]"),
    FunctionCall: ("messages[2].tool_calls[0].function", "messages[4].function_call"),
    ContentPart: ("messages[1].content[0]", "messages[1].content[1]"),
    ImageUrl: ("messages[1].content[1].image_url",),
    Tool: ("tools[0]",),
    ToolFunction: ("tools[0].function", "tools[1]"),
}


def with_key(place: str, name: str, value: Any) -> dict[str, Any]:
    """The conversation with one key more in the object at a place."""
    body = json.loads(json.dumps(TALK))
    value_at: Any = body
    for key in re.findall(r"\w+", place):
        value_at = value_at[int(key) if key.isdigit() else key]
    value_at[name] = value
    return body


def decode(body: dict[str, Any]) -> ChatRequest:
    return decode_request(json.dumps(body).encode(), max_choices=8)


def refusals(body: dict[str, Any]) -> list[str]:
    try:
        refuse_unserved(decode(body))
    except UserError as error:
        return [problem.where for problem in error.problems]
    return []


def warnings(body: dict[str, Any]) -> list[str]:
    found = ignored_fields(decode(body), in_rollout=True)
    return [warning for warning in found if not warning.startswith("strict of")]


def joined(place: str, name: str) -> str:
    return f"{place}.{name}".lstrip(".")


def test_the_conversation_itself_is_read_whole():
    assert (refusals(TALK), warnings(TALK)) == ([], [])


@pytest.mark.parametrize("place", OBJECTS)
def test_an_unknown_key_is_refused_with_its_place_and_named_in_a_rollout(place: str):
    for name, value in (("foo", 1), ("Content", "x"), ("x" * 50, False), ("(unread)", {"a": [0]})):
        body = with_key(place, name, value)
        assert refusals(body) == [joined(place, name)]
        assert [w.partition(" has no effect: there is no such field")[0] for w in warnings(body)] == [
            joined(place, name)
        ]
    for nothing in (None, "", [], {}):
        assert refusals(with_key(place, "foo", nothing)) == []


@pytest.mark.parametrize(
    ("place", "name", "meant"),
    [("", "temprature", "temperature"), ("messages[3]", "tool_call_ids", "tool_call_id"), ("tools[1]", "Name", "name")],
)
def test_a_misspelled_key_has_a_hint(place: str, name: str, meant: str):
    with pytest.raises(UserError, match=f"did you mean `{meant}`"):
        refuse_unserved(decode(with_key(place, name, 1)))


ANNOTATED = [
    (place, name, field)
    for kind, places in PLACES.items()
    for name, field in ANNOTATIONS[kind].items()
    for place in places
]


@pytest.mark.parametrize(("place", "name", "field"), ANNOTATED, ids=[f"{p} {n}" for p, n, _ in ANNOTATED])
def test_an_annotation_is_treated_as_the_table_says(place: str, name: str, field: Any):
    body = with_key(place, name, "other")
    assert refusals(body) == ([joined(place, name)] if field.treatment == "refused" else [])
    effect = [f"{joined(place, name)} has no effect: {field.note}"]
    assert warnings(body) == (effect if field.treatment in ("refused", "ignored") else [])
    for value in (None, *field.neutral):
        assert warnings(with_key(place, name, value)) == refusals(with_key(place, name, value)) == []


def test_the_page_shows_the_table():
    kinds = {
        "message": ChatMessage,
        "tool call": MessageToolCall,
        "function of a tool call": FunctionCall,
        "content part": ContentPart,
        "object of `image_url`": ImageUrl,
        "tool": Tool,
        "function of a tool": ToolFunction,
    }
    rows = re.findall(r"^\| (.+) \| (`.+`) \| (honoured|refused|ignored|taken)\b", PAGE.read_text(), re.MULTILINE)
    shown = {(kinds[place], n): word for place, names, word in rows for n in re.findall(r"`(\w+)`", names)}
    assert shown == {(kind, n): f.treatment for kind, fields in ANNOTATIONS.items() for n, f in fields.items()}


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        *((ChatMessage, getattr(sdk, f"ChatCompletion{role}MessageParam")) for role in ("System", "User", "Developer")),
        *((ChatMessage, getattr(sdk, f"ChatCompletion{role}MessageParam")) for role in ("Tool", "Function")),
        (ChatMessage, sdk.ChatCompletionAssistantMessageParam),
        (ChatMessage, sdk.ChatCompletionMessage),
        (ChatMessage, sdk.ParsedChatCompletionMessage),
        (ContentPart, sdk.ChatCompletionContentPartTextParam),
        (ContentPart, sdk.ChatCompletionContentPartImageParam),
        (ImageUrl, ImageURL),
        (MessageToolCall, sdk.ChatCompletionMessageFunctionToolCallParam),
        (FunctionCall, sdk.ParsedFunction),
        (Tool, sdk.ChatCompletionFunctionToolParam),
        (ToolFunction, FunctionDefinition),
    ],
)
def test_every_key_of_the_sdk_is_read_or_in_the_table(kind: type[msgspec.Struct], typed: Any):
    fields: dict[str, Any] = getattr(typed, "model_fields", None) or get_type_hints(typed)
    assert set(fields) <= {*kind.__struct_fields__, *ANNOTATIONS[kind]}


COPIED: dict[str, dict[str, Any]] = {
    "openai": {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None},
    "openai, parsed": {"parsed": {"a": 1}, "refusal": None},
    "litellm": {"provider_specific_fields": {"refusal": None}, "function_call": None},
    "ours": {"refusal": None, "reasoning_content": "so", "reasoning": "so"},
    "vercel": {"id": "msg_1"},
    "langchain": {"name": None},
    "a row": {"weight": 1, "raw_content": "<think>so</think>3"},
}


@pytest.mark.parametrize("more", COPIED.values(), ids=COPIED)
def test_a_reply_that_is_copied_into_the_history_is_taken(more: dict[str, Any]):
    calls = [{"id": "a", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    for message in ({"content": "3"}, {"content": None, "tool_calls": calls}):
        body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", **more, **message}]}
        assert (refusals(body), warnings(body)) == ([], [])


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "user", "content": "x", "reasoning_content": "so"}, "reasoning_content"),
        ({"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}, "tool_calls"),
        ({"role": "tool", "content": "x", "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "content": "x", "reasoning_content": "a", "reasoning": "b"}, "reasoning"),
        ({"role": "assistant", "content": "x", "raw_content": "y"}, "raw_content"),
        (
            {"role": "assistant", "tool_calls": [{"name": "f"}], "function_call": {"name": "g"}},
            "function_call",
        ),
        ({"role": "user", "content": [{"type": "text", "text": "x", "image_url": "y"}]}, "content[0].image_url"),
        ({"role": "user", "content": [IMAGE | {"image": "y"}]}, "content[0].image"),
        ({"role": "user", "content": [IMAGE | {"text": "y"}]}, "content[0].text"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "function": {"name": "g"}}]}, "tool_calls[0].name"),
    ],
)
def test_a_key_that_another_key_overrules_is_refused(message: dict[str, Any], where: str):
    body = {"messages": [message]}
    assert refusals(body) == [f"messages[0].{where}"]
    assert warnings(body)[0].startswith(f"messages[0].{where} has no effect")


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"functions": [{"name": "f"}]}, {"tools": [TOOL]}, None),
        ({"max_tokens": 3}, {"max_completion_tokens": 4}, {"max_completion_tokens": 3}),
        ({"function_call": "none"}, {"tool_choice": "auto"}, {"tool_choice": "none"}),
        ({"function_call": {"name": "f"}}, {"tool_choice": {"function": {"name": "g"}}}, {"tool_choice": TOOL}),
        (
            {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": True}},
        ),
    ],
)
def test_a_field_in_whose_place_another_counts_is_refused_if_they_differ(one: Any, other: Any, equal: Any):
    [name] = one
    talk = {"messages": [{"role": "user", "content": "x"}]}
    assert [where.partition(".")[0] for where in refusals(talk | one | other)] == [name]
    assert "has no effect: `" in warnings(talk | one | other)[0]
    for more in ({}, equal or {}):
        assert refusals(talk | one | more) == warnings(talk | one | more) == []


def test_many_unknown_keys_make_a_short_answer():
    body = {"messages": [{"role": "user", "content": "x", "foo": 1}] * 500} | {f"k{i}": 1 for i in range(5000)}
    assert len(refusals(body)) == 21
    assert warnings(body)[-1] == "4981 more keys have no effect"


@pytest.fixture
async def served(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[Served]:
    one = Served(engine, ChatFormat(load_tokenizer(model_dir)))
    yield one
    await one.http.aclose()


async def test_older_names_of_tools_and_calls_make_the_same_prompt(served: Served):
    call = {"name": "ping", "arguments": '{"host": "a"}'}
    old: Any = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "One moment.", "function_call": call},
        {"role": "function", "name": "ping", "content": "up"},
    ]
    new: Any = [
        old[0],
        {"role": "assistant", "content": "One moment.", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "name": "ping", "content": "up"},
    ]
    function = {"name": "ping", "parameters": {"type": "object", "properties": {}}}
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    older = (await served.ask(None, **asked, messages=old, functions=[function])).json()
    newer = (await served.ask(None, **asked, messages=new, tools=[{"type": "function", "function": function}])).json()
    assert older["prompt_token_ids"] == newer["prompt_token_ids"]
    assert "warnings" not in older
    unplain = await served.ask(None, **asked, functions=[{"name": "a b"}], function_call={"name": "a b"})
    assert (unplain.status_code, unplain.json()["error"]["param"]) == (400, "functions")
    both: dict[str, Any] = {"functions": [function], "tools": [{"type": "function", "function": function}]}
    refused = await served.ask(None, **asked, **both)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "functions")
    rollout = (await served.ask(credential(), **both)).json()
    assert rollout["warnings"] == ["functions has no effect: `tools` counts"]


@pytest.mark.parametrize("call", ["f", {"arguments": "{}"}, {"name": 3}, {"name": "f", "arguments": 3}, [1]])
def test_a_function_call_that_is_none_is_refused_at_its_own_place(call: Any):
    with pytest.raises(UserError) as refused:
        decode({"messages": [{"role": "assistant", "content": "x", "function_call": call}]})
    assert refused.value.problems[0].where.startswith("messages[0].function_call")


async def test_history_with_arguments_that_are_no_object_is_answered(served: Served):
    served.change_template(
        lambda template: (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
            "{% for c in m.tool_calls or [] %}<tool_call><function={{ c.function.name }}>"
            "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}"
            "</function></tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1'}}
    history: Any = [{"role": "user", "content": "t"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    for cid in (None, credential()):
        reply = await served.ask(cid, model="tiny", max_tokens=1, messages=history)
        assert reply.status_code == 200, reply.text
        assert reply.json()["warnings"] == [
            "messages[1].tool_calls[0].function.arguments is not a JSON object: the model is shown the text as it is"
        ]
