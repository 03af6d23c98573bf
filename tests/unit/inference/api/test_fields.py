"""What becomes of each field of OpenAI's chat completions: honoured, refused or ignored with a warning, as docs say."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_type_hints

import openai
import pytest
from openai.types.chat import completion_create_params as params

from synth.inference.api.keys import OPENAI_FIELDS
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.api.test_openai_sdk import ASK, listening
from tests.unit.inference.one_model_service import KEY, Served, credential

DOCUMENTED = {
    **get_type_hints(params.CompletionCreateParamsNonStreaming),
    **get_type_hints(params.CompletionCreateParamsStreaming),
}
PAGE = Path(__file__).parents[4] / "docs" / "api.md"
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
CUSTOM: dict[str, Any] = {"type": "custom", "custom": {"name": "shell"}}

#: A value of each field that asks for something.
ASKED: dict[str, Any] = {
    "messages": ASK,
    "model": "tiny",
    "stream": False,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "stop": ["x"],
    "seed": 3,
    "n": 2,
    "logprobs": True,
    "tools": [TOOL],
    "tool_choice": "none",
    "function_call": "none",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "high",
    "prompt_cache_key": "mine",
    "user": "me",
    "top_logprobs": 3,
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "logit_bias": {"5": -100},
    "functions": [{"name": "add"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "web_search_options": {},
    "moderation": {"model": "m"},
    "verbosity": "low",
    "store": True,
    "metadata": {"run": "7"},
    "prediction": {"type": "content", "content": "46"},
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "somebody",
    "service_tier": "priority",
}


@pytest.fixture
async def served(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[Served]:
    one = Served(engine, ChatFormat(load_tokenizer(model_dir)))
    yield one
    await one.http.aclose()


def test_every_documented_field_has_its_place_in_the_table_and_on_the_page():
    assert set(DOCUMENTED) == set(OPENAI_FIELDS) == set(ASKED)
    rows = re.findall(r"^\| (`.*`) \| (honoured|refused|ignored)\b", PAGE.read_text(), re.MULTILINE)
    told = {name: word for names, word in rows for name in re.findall(r"`(\w+)`", names)}
    assert told == {name: field.treatment for name, field in OPENAI_FIELDS.items()}


@pytest.mark.parametrize("name", ASKED)
async def test_each_field_is_treated_as_the_table_says(served: Served, name: str):
    treatment = OPENAI_FIELDS[name].treatment
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 3, name: ASKED[name]}
    if name in ("tool_choice", "parallel_tool_calls"):
        asked["tools"] = [TOOL]
    needed = {"logprobs": True} if name == "top_logprobs" else {}
    asked |= needed
    answer = await served.ask(None, **asked)
    told = answer.json()
    if treatment == "refused":
        assert (answer.status_code, told["error"]["param"]) == (400, name)
        assert OPENAI_FIELDS[name].note in told["error"]["message"]
    else:
        assert answer.status_code == 200, told
        warnings = [f"{name} has no effect: {OPENAI_FIELDS[name].note}"] if treatment == "ignored" else []
        assert told.get("warnings", []) == warnings
    sent: dict[str, Any] = {**needed, name: ASKED[name]}
    rollout = (await served.ask(credential(), **sent)).json()
    if treatment != "honoured":
        assert any(warning.startswith(f"{name} has no effect") for warning in rollout["warnings"])


@pytest.mark.parametrize("name", [name for name, field in OPENAI_FIELDS.items() if field.neutral])
async def test_what_asks_for_nothing_is_taken_without_a_word(served: Served, name: str):
    for value in (None, *OPENAI_FIELDS[name].neutral):
        sent: dict[str, Any] = {"model": "tiny", "max_tokens": 1, name: value}
        told = (await served.ask(None, **sent)).json()
        assert "warnings" not in told, told


async def test_an_unknown_field_and_one_of_another_server_are_refused_and_named_in_a_rollout(served: Served):
    told = (await served.ask(credential(), colour="red", min_p=0)).json()
    assert told["warnings"] == ["colour has no effect: there is no such field"]
    chunks = await served.chunks(credential(), colour="red")
    assert chunks[0]["warnings"] == told["warnings"]
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"colour": "red"}, "colour"),
        ({"min_p": 0.1}, "min_p"),
        ({"guided_json": {}}, "guided_json"),
        ({"chat_template_kwargs": {"preserve": True}}, "chat_template_kwargs.preserve"),
        ({"extra_body": {"top_k": 3}}, "extra_body.top_k"),
    ]
    for asked, param in refusals:
        refused = await served.ask(None, model="tiny", max_tokens=1, **asked)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_custom_tool_is_refused_where_it_could_be_called_and_named_where_not(served: Served):
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 2, "tools": [TOOL, CUSTOM]}
    refused = await served.ask(None, **asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[1]")
    without = await served.ask(None, **asked | {"tool_choice": "none"})
    assert without.json()["warnings"] == ["tools[1] has no effect: tool_choice leaves no choice of it"]
    rollout = (await served.ask(credential(), tools=[TOOL, CUSTOM])).json()
    assert [w.partition(" ")[0] for w in rollout["warnings"]] == ["tools[1]"]


async def test_a_choice_among_allowed_tools_offers_those_alone(served: Served):
    other: dict[str, Any] = {"type": "function", "function": {"name": "sub"}}
    allowed: dict[str, Any] = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]}
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 2}
    one = await served.ask(None, **asked, tools=[TOOL])
    of_two = await served.ask(
        None, **asked, tools=[TOOL, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    assert of_two.json()["usage"]["prompt_tokens"] == one.json()["usage"]["prompt_tokens"]
    required: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}
    none = await served.ask(None, **asked, tools=[TOOL], tool_choice=required)
    assert (none.status_code, none.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_conversation_that_overflows_the_context_is_openais_error_whole_and_streamed(
    engine: TransformersEngine, model_dir: Path
):
    long: Any = [{"role": "user", "content": "1+3 " * 300}]
    async with (
        listening(engine, model_dir) as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client,
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as refused:
                await client.chat.completions.create(model="tiny", messages=long, max_tokens=9, stream=stream)
            assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
            assert "9 in the completion" in refused.value.message
