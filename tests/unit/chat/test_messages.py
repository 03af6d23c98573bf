"""What a chat template gets of the messages and tools that clients write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from synth.chat.messages import Message, images_in, template_messages, template_tools
from synth.errors import UserError

MOVE: dict[str, Any] = {"type": "function", "function": {"name": "move", "arguments": {"to": 1}}}


def shown(*, thinks: bool = False, **message: Any) -> dict[str, Any]:
    """The template's form of one message."""
    return template_messages([msgspec.convert(message, Message)], thinks=thinks)[0]


def test_tools_and_calls_are_what_the_openai_api_calls_them():
    flat = {"name": "move", "description": "d", "parameters": {"type": "object"}}
    nested = {"type": "function", "function": flat}
    assert template_tools([flat, nested, {"function": flat}, {"type": "function", **flat}]) == [nested] * 4
    assert template_tools([]) is None
    assert template_tools([{"type": "browser"}]) == [{"type": "browser"}]
    calls = [{**MOVE, "id": "c1"}, {"name": "move", "arguments": '{"to": 1}'}]
    assert shown(role="assistant", tool_calls=calls) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{**MOVE, "id": "c1"}, MOVE],
    }


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        *((none, {}) for none in (None, "", " \n", "null", " null ", "{}")),
        *((text, text) for text in ("[1]", "7", '{"a": 1', '{"a": NaN}', '{"a": "\\ud83d"}', '"{}"')),
    ],
)
def test_empty_arguments_are_an_object_and_others_that_are_none_stay(arguments: str | None, given: Any):
    call = {"function": {"name": "move", "arguments": arguments}}
    assert shown(role="assistant", tool_calls=[call])["tool_calls"][0]["function"]["arguments"] == given


def test_a_developer_speaks_where_the_system_does():
    assert shown(role="developer", content="be brief") == {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"reasoning": "so", "content": "a"}, "<think>\nso\n</think>\n\na"),
        ({"reasoning_content": "so", "reasoning": "no", "content": "a"}, "<think>\nso\n</think>\n\na"),
        ({"reasoning": "no", "content": "<think>\nso\n</think>\n\na"}, "<think>\nso\n</think>\n\na"),
        ({"reasoning": "no", "content": "a", "role": "user"}, "a"),
    ],
)
def test_reasoning_stands_once_before_an_assistants_text_where_the_family_thinks(message: dict[str, Any], text: str):
    assert shown(thinks=True, **{"role": "assistant", **message})["content"] == text
    apart = shown(**{"role": "assistant", **message})
    assert apart["content"] == message["content"]
    thought = "" if message.get("role") else message.get("reasoning_content") or message["reasoning"]
    assert apart.get("thinking", "") == thought


@pytest.mark.parametrize(
    ("message", "thinking", "content"),
    [
        ({"reasoning": "so", "content": "I look."}, "so\nI look.", ""),
        ({"reasoning": "so"}, "so", ""),
        ({"content": "I look."}, None, "I look."),
        ({}, None, ""),
    ],
)
def test_a_template_that_takes_one_text_beside_a_call_is_given_one(
    message: dict[str, Any], thinking: str | None, content: str
):
    called = msgspec.convert({"role": "assistant", "tool_calls": [MOVE], **message}, Message)
    (entry,) = template_messages([called], thinks=False, one_text=True)
    assert (entry.get("thinking"), entry["content"]) == (thinking, content)


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"content": ["a", {"type": "image_url"}]}, "messages[0].content[1].type"),
        ({"content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
        ({"content": [{"text": "a"}]}, "messages[0].content[0].type"),
        ({"content": {"type": "image", "image": "u"}}, "messages[0].content[0].type"),
        ({"content": {"type": "text", "text": 7}}, "messages[0].content"),
        ({"content": [{"tool_name": "move"}]}, "messages[0].content[0].type"),
        ({"tool_calls": [{"arguments": {}}]}, "messages[0].tool_calls[0]"),
    ],
)
def test_what_is_no_text_is_refused_at_its_place(message: dict[str, Any], where: str):
    with pytest.raises(UserError) as caught:
        shown(role="user", **message)
    assert caught.value.problems[0].where == where


def test_images_are_counted_in_every_form():
    contents: list[Any] = [{"type": "image", "image": "u"}, ["a", {"type": "image_url", "image_url": "u"}], "a", None]
    messages = [msgspec.convert({"role": "user", "content": content}, Message) for content in contents]
    assert images_in(messages) == 2
