"""The Responses API, as its clients use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from synth.inference.engines.transformers import TransformersEngine
from tests.unit.inference.memorised_replies import ANSWER, BUDGET, REASONING
from tests.unit.inference.one_model_service import Served, credential
from tests.unit.inference.responses.calls import ASK, FORCED, THINK, events_of, respond


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


async def test_a_cut_call_is_incomplete(served: Served) -> None:
    cut = await respond(served, max_output_tokens=2, **FORCED)
    assert [item["status"] for item in cut["output"]] == ["incomplete"]


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_whose_text_was_held_back_have_their_log_probabilities(served: Served, stream: bool) -> None:
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "stop": ["r 47", "zzz"]}
    if stream:
        whole = (await events_of(served, **asked))[-1]["response"]
    else:
        whole = await respond(served, **asked)
    [part] = whole["output"][0]["content"]
    assert part["text"] == ANSWER
    assert "".join(entry["token"] for entry in part["logprobs"]) == ANSWER


async def test_the_credential_may_stand_wherever_that_of_a_chat_may(served: Served) -> None:
    cid = credential("job_1_t0_901")
    body = {"model": "policy", "input": ASK}
    for path, key in (
        (f"/v1/responses?cid={cid}", "any"),
        (f"/rollouts/{cid}/v1/responses", "any"),
        (f"/v1/?cid={cid}responses", "any"),
        (f"/v1/chat/completions/?cid={cid}responses", "any"),
        ("/v1/responses", cid),
    ):
        got = await served.http.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
        assert got.status_code == 200, (path, got.text)
        assert got.json()["object"] == "response"
    assert len(await served.records(cid)) == 5
