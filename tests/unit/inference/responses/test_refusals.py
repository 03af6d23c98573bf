"""Fields and items of the Responses API that are not served, or are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from synth.inference.api.responses.call import decode_responses
from tests.unit.inference.one_model_service import Served, credential
from tests.unit.inference.responses.calls import ASK, TOOLS, respond


async def test_thousands_of_wrong_fields_make_a_short_error(served: Served) -> None:
    wrong = await respond(served, include=["x"] * 20_000)
    assert wrong["http"] == 400
    assert len(json.dumps(wrong)) < 20_000
    assert "19980 more such fields" in wrong["error"]["message"]
    tools = [{"type": "function", "name": f"f{i}"} for i in range(20_000)]
    decode_responses(json.dumps({"input": "hi", "tools": tools}).encode(), None)


REFUSED: dict[str, dict[str, Any]] = {
    "store": {"store": True},
    "previous_response_id": {"previous_response_id": "resp_1"},
    "conversation": {"conversation": "conv_1"},
    "background": {"background": True},
    "truncation": {"truncation": "auto"},
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "text.verbosity": {"text": {"verbosity": "low"}},
    "tools[0]": {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
    "tools[1].stric": {"tools": [TOOLS[0], TOOLS[1] | {"stric": True}]},
    "tool_choice": {"tools": TOOLS, "tool_choice": {"type": "file_search"}},
    "tool_choice.foo": {"tools": TOOLS, "tool_choice": {"type": "function", "name": "add", "foo": 1}},
    "include[0]": {"include": ["everything"]},
    "min_p": {"min_p": 0.5},
    "max_tokens": {"max_tokens": 5},
    "input[0].nam": {"input": [{"role": "user", "content": "hi", "nam": "x"}]},
    "text.format.schem": {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "schem": 1}}},
}
IMAGE = {"type": "input_image", "image_url": "data:,"}
WRONG: dict[str, dict[str, Any]] = {
    "input": {"input": []},
    "max_output_tokens": {"max_output_tokens": 0},
    "input[1].role": {"input": [{"role": "user", "content": "hi"}, {"role": "robot", "content": "hi"}]},
    "input[0].type": {"input": [{"type": "web_search_call", "id": "ws_1"}]},
    "input[0].id": {"input": [{"type": "item_reference", "id": "rs_1"}]},
    "input[0].content[0].type": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
    "input[1]": {"input": [{"role": "user", "content": "hi"}, {"type": "function_call_output", "output": "x"}]},
    "tools[1].name": {"tools": [TOOLS[0], TOOLS[0]]},
    "text.format.type": {"text": {"format": {"type": "xml"}}},
    "text.format.schema": {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}},
    "input[1].output[0].type": {
        "input": [
            {"role": "user", "content": "hi"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_image", "image_url": "data:,"}],
            },
        ]
    },
    "tool_choice.tools[0]": {
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nobody"}]},
    },
    "temperature": {"temperature": 9},
    "tool_choice": {"tools": TOOLS, "tool_choice": {"type": "function", "name": "subtract"}},
}


@pytest.mark.parametrize("param", REFUSED)
async def test_what_would_change_the_reply_is_refused_by_name_and_has_no_effect_in_a_rollout(
    served: Served, param: str
) -> None:
    refused = await respond(served, **REFUSED[param])
    assert refused["http"] == 400, refused
    assert refused["error"]["param"] == param
    assert param in refused["error"]["message"]
    if param in ("store", "previous_response_id"):  # both work there
        return
    in_rollout = await respond(served, credential(), **REFUSED[param])
    assert in_rollout["http"] == 200, in_rollout
    assert any(warning.startswith(param) for warning in in_rollout["warnings"]), in_rollout["warnings"]


@pytest.mark.parametrize("param", WRONG)
async def test_a_wrong_field_is_named_as_the_call_spells_it(served: Served, param: str) -> None:
    wrong = await respond(served, **WRONG[param])
    assert (wrong["http"], wrong["error"]["param"]) == (400, param), wrong
    for name in ("messages[", "response_format", "max_tokens"):
        assert name not in wrong["error"]["message"]


async def test_fields_that_clients_send_unasked_are_accepted(served: Served) -> None:
    codex: Any = {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
        "metadata": {"run": "1"},
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "developer", "id": "m1", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASK}]},
        ],
        "tools": [
            {"type": "namespace", "name": "shell", "description": "d", "tools": [{**TOOLS[0], "strict": None}]},
            {"type": "web_search"},
        ],
    }
    accepted = await respond(served, **codex)
    assert accepted["http"] == 200, accepted
    assert accepted["metadata"] == {"run": "1"}
    [warning] = accepted["warnings"]
    assert warning.startswith("tools[1] has no effect")
    called = await respond(served, **codex | {"tool_choice": {"type": "function", "name": "add"}})
    assert [item["namespace"] for item in called["output"] if item["type"] == "function_call"] == ["shell"]
