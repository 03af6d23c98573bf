"""The Responses API, as its clients use it: by the published SDK, and in the turns of a rollout."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.api.test_openai_sdk import listening
from tests.unit.inference.memorised_replies import ANSWER, BUDGET, REASONING
from tests.unit.inference.one_model_service import KEY, Served, credential

ASK = "What is 12 + 34?"
PATH = "/v1/responses"
TOOLS: list[dict[str, Any]] = [{"type": "function", "name": name} for name in ("add", "answer")]
THINK: dict[str, Any] = {"thinking_mode": "think", "thinking_budget": BUDGET}
FORCED: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "add"}}


@pytest.fixture(scope="module")
async def taught(memorised_dir: Path) -> AsyncIterator[tuple[TransformersEngine, Path]]:
    engine = await TransformersEngine.load(memorised_dir, settings=EngineSettings(device="cpu", seed=0))
    yield engine, memorised_dir
    await engine.close()


@pytest.fixture
def served(taught: tuple[TransformersEngine, Path]) -> Served:
    engine, path = taught
    return Served(engine, ChatFormat(load_tokenizer(path)))


@pytest.fixture
async def client(taught: tuple[TransformersEngine, Path]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(*taught) as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, _strict_response_validation=True) as made,
    ):
        yield made


async def respond(served: Served, cid: str | None = None, **body: Any) -> dict[str, Any]:
    """The response to a call, with the model's likeliest tokens."""
    request = {"input": ASK, "model": "tiny", "temperature": 0, **body}
    headers = {} if cid else {"Authorization": f"Bearer {KEY}"}
    got = await served.http.post(f"{PATH}{f'?cid={cid}' if cid else ''}", json=request, headers=headers)
    return got.json() | {"http": got.status_code}


async def events_of(served: Served, cid: str | None = None, **body: Any) -> list[dict[str, Any]]:
    request = {"input": ASK, "model": "tiny", "temperature": 0, "stream": True, **body}
    headers = {} if cid else {"Authorization": f"Bearer {KEY}"}
    got = await served.http.post(f"{PATH}{f'?cid={cid}' if cid else ''}", json=request, headers=headers)
    events: list[dict[str, Any]] = []
    for block in got.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_the_sdk_reads_a_response_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "tiny", "input": ASK, "temperature": 0, "max_output_tokens": 40}
    whole = await client.responses.create(**asked)
    assert (whole.status, whole.output_text) == ("completed", ANSWER)
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    chat = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": ASK}], temperature=0, max_tokens=40
    )
    assert chat.choices[0].message.content == whole.output_text
    async with client.responses.stream(**asked) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == ANSWER
    assert len(deltas) > 1
    assert final.usage == whole.usage


async def test_the_sdk_reads_reasoning_and_a_call_and_sends_them_back(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "tiny", "input": ASK, "temperature": 0, "max_output_tokens": 60, **FORCED}
    asked |= {"extra_body": THINK, "reasoning": {"summary": "auto"}}
    whole = await client.responses.create(**asked)
    reasoning, call = whole.output
    assert reasoning.type == "reasoning"
    assert call.type == "function_call"
    assert reasoning.content is not None
    assert REASONING.startswith(reasoning.content[0].text)
    assert reasoning.summary[0].text == reasoning.content[0].text
    assert (call.name, call.arguments, call.call_id) == ("add", '{"a": 12}', call.id)
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == BUDGET
    async with client.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "function_call"]
    assert kinds.count("response.output_item.done") == 2
    assert "response.reasoning_summary_text.delta" in kinds
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "46"}
    again = await client.responses.create(
        **asked | {"input": [{"role": "user", "content": ASK}, *whole.output, result]}
    )
    assert again.status == "completed"


async def test_the_sdk_parses_structured_output(client: openai.AsyncOpenAI) -> None:
    class Sum(BaseModel):
        total: bool

    parsed = await client.responses.parse(model="tiny", input=ASK, text_format=Sum, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Sum)


async def test_the_sdk_raises_the_error_that_ends_a_stream(
    client: openai.AsyncOpenAI, taught: tuple[TransformersEngine, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = taught[0].generate

    async def breaks(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for delta in generate(*args, **kwargs):
            yield delta
            raise RuntimeError("the device is gone")

    monkeypatch.setattr(taught[0], "generate", breaks)
    stream = await client.responses.create(model="tiny", input=ASK, stream=True, temperature=0)
    with pytest.raises(openai.APIError, match="a fault of the inference service"):
        async for _ in stream:
            pass


async def test_a_cut_reply_is_incomplete(served: Served) -> None:
    cut = await respond(served, max_output_tokens=2)
    assert cut["status"] == "incomplete"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (await events_of(served, max_output_tokens=2))[-1]["type"] == "response.incomplete"


async def test_log_probabilities_are_those_of_the_messages_tokens(served: Served) -> None:
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, **THINK}
    whole = await respond(served, **asked)
    [_, message] = whole["output"]
    [part] = message["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]).startswith(ANSWER)
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    streamed = [e for e in await events_of(served, **asked) if e["type"] == "response.output_text.delta"]
    assert [entry for event in streamed for entry in event["logprobs"]] == part["logprobs"]


RESENT = {
    "as it was": lambda items: items,
    "references": lambda items: [{"type": "item_reference", "id": item["id"]} for item in items],
    "reasoning by its id alone": lambda items: [
        {"type": "reasoning", "id": items[0]["id"], "summary": [], "content": []},
        *items[1:],
    ],
    "reasoning changed": lambda items: [
        {
            "type": "reasoning",
            "id": items[0]["id"],
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "?"}],
        },
        *items[1:],
    ],
    "sealed reasoning alone": lambda items: [
        {"type": "reasoning", "summary": [], "encrypted_content": items[0]["encrypted_content"]},
        *items[1:],
    ],
    "without reasoning": lambda items: items[1:],
    "arguments without spaces": lambda items: [
        items[0],
        *(
            {"type": "function_call", "call_id": c["call_id"], "name": c["name"], "arguments": '{"a":12}'}
            for c in items[1:]
        ),
    ],
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("how", RESENT)
async def test_a_second_turn_continues_the_sampled_tokens(served: Served, how: str, streamed: bool) -> None:
    served.router.sampling = type(served.router.sampling)(temperature=0.0, max_tokens=60, constrain_tools=True)
    cid = credential(f"job_1_t0_{list(RESENT).index(how)}")
    asked: dict[str, Any] = {**FORCED, **THINK}
    if streamed:
        first = (await events_of(served, cid, **asked))[-1]["response"]
    else:
        first = await respond(served, cid, **asked)
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "46"}
    items = [{"role": "user", "content": ASK}, *RESENT[how](first["output"]), result]
    second = await respond(served, cid, **asked | {"input": items, "tool_choice": "auto"})
    assert second["http"] == 200, second
    await _second_continues_first(served, cid)


@pytest.mark.parametrize("instructions", [None, "Be brief."])
async def test_a_previous_response_is_continued_in_a_rollout(served: Served, instructions: str | None) -> None:
    served.router.sampling = type(served.router.sampling)(temperature=0.0, max_tokens=60, constrain_tools=True)
    cid = credential("job_1_t0_900")
    asked: dict[str, Any] = {**FORCED, **THINK, "instructions": instructions, "store": True}
    first = await respond(served, cid, **asked)
    assert "warnings" not in first
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "46"}
    second = await respond(
        served, cid, **asked | {"input": [result], "previous_response_id": first["id"], "tool_choice": "auto"}
    )
    assert second["previous_response_id"] == first["id"]
    third = await respond(
        served, cid, **asked | {"input": "And 1 more?", "previous_response_id": second["id"], "tool_choice": "auto"}
    )
    assert third["http"] == 200, third
    unknown = await respond(served, cid, previous_response_id="resp_0")
    assert (unknown["http"], unknown["error"]["param"]) == (400, "previous_response_id")
    await _second_continues_first(served, cid)


async def _second_continues_first(served: Served, cid: str) -> None:
    first, second, *_ = await served.records(cid)
    whole = [*first.prompt_ids.tolist(), *first.sampled_ids.tolist()]
    assert second.prompt_ids.tolist()[: len(whole)] == whole


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
    "include[0]": {"include": ["everything"]},
    "min_p": {"min_p": 0.5},
    "max_tokens": {"max_tokens": 5},
    "input[0].nam": {"input": [{"role": "user", "content": "hi", "nam": "x"}]},
    "text.format.schem": {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "schem": 1}}},
}
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


async def test_the_credential_may_stand_wherever_that_of_a_chat_may(served: Served) -> None:
    cid = credential("job_1_t0_901")
    body = {"model": "policy", "input": ASK}
    for path, key in (
        (f"/v1/responses?cid={cid}", "any"),
        (f"/rollouts/{cid}/v1/responses", "any"),
        (f"/v1/?cid={cid}responses", "any"),
        ("/v1/responses", cid),
    ):
        got = await served.http.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
        assert got.status_code == 200, (path, got.text)
        assert got.json()["object"] == "response"
    assert len(await served.records(cid)) == 4
