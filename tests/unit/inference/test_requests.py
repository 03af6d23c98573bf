"""What is read of a chat request: the extras that published task apps send, and a null wherever there may be one."""

from __future__ import annotations

import msgspec
import pytest

from synth.inference.openai_api import cid_of
from synth.inference.requests import JobSampling, conversation_of, decode_request, sampling_of, without_effect

TOOLS = [{"type": "function", "function": {"name": "move"}}]


def read(**body: object):
    return decode_request(msgspec.json.encode({"messages": [{"role": "user", "content": "go"}]} | body))


@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        ({"tools": TOOLS, "stop_after_tool_calls": 1}, True),
        ({"tools": TOOLS, "extra_body": {"stop_after_tool_calls": 1}}, True),
        ({"tools": TOOLS, "parallel_tool_calls": False}, True),
        ({"tools": TOOLS, "parallel_tool_calls": True}, False),
        ({"tools": TOOLS, "stop_after_tool_calls": 2}, False),
        ({"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False}, False),
        ({"stop_after_tool_calls": 1}, False),
    ],
)
@pytest.mark.parametrize("job", [None, JobSampling(max_tokens=9)])
def test_a_reply_that_may_have_one_call_ends_after_it(asked, ends, job):
    assert ("</tool_call>" in sampling_of(read(**asked), job).stop) is ends


def test_tools_are_switched_off_under_either_name():
    assert conversation_of(read(tools=TOOLS, tool_choice="none")).tools == ()
    assert conversation_of(read(tools=TOOLS, function_call="none")).tools == ()
    assert conversation_of(read(tools=TOOLS, function_call={"name": "move"}, tool_choice="auto")).tools == TOOLS


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, ["tool_choice required"]),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "move"}}}, ["tool_choice of one"]),
        ({"tools": TOOLS, "function_call": {"name": "move"}}, ["tool_choice of one"]),
        ({"thinking_mode": "think", "thinking_budget": 9}, ["thinking_budget"]),
        (
            {"tool_choice": "required", "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 9}},
            ["tool_choice required", "thinking_budget"],
        ),
        (
            {"extra_body": {"chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 9}}},
            ["thinking_budget"],
        ),
        ({"thinking_mode": "no_think", "thinking_budget": 9}, []),
        ({"tools": TOOLS, "tool_choice": "auto", "thinking_mode": "think"}, []),
        ({"tools": TOOLS, "tool_choice": "none"}, []),
    ],
)
def test_what_has_no_effect_is_told(asked, told):
    found = without_effect(read(**asked))
    assert len(found) == len(told)
    assert all(sentence.startswith(beginning) for sentence, beginning in zip(found, told, strict=True))


def test_what_a_published_task_app_sends_is_read():
    body = read(
        model="Qwen/Qwen3-0.6B",
        thinking_mode="think",
        thinking_budget=1028,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "move"}},
        function_call={"name": "move"},
        parallel_tool_calls=False,
        stop_after_tool_calls=1,
        extra_body={
            "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 1028},
            "stop_after_tool_calls": 1,
        },
    )
    assert conversation_of(body).thinking is True


def test_a_null_is_as_good_as_nothing():
    names = "stream stream_options temperature top_p max_tokens stop seed n logprobs tools tool_choice extra_body"
    more = "function_call parallel_tool_calls stop_after_tool_calls thinking_mode chat_template_kwargs return_token_ids"
    given = read(**dict.fromkeys(f"{names} {more}".split()))
    assert sampling_of(given, None) == sampling_of(read(), None)
    assert conversation_of(read(extra_body={"chat_template_kwargs": None})).thinking is False


@pytest.mark.parametrize("name", ["cid", "trace", "trace_correlation_id"])
def test_a_credential_is_found_under_each_of_its_names(name):
    assert cid_of(f"{name}=trace_x".encode()) == "trace_x"
    assert cid_of(f"a=b&{name}=trace_x/v1/chat/completions".encode()) == "trace_x"
    assert cid_of(b"") is None
