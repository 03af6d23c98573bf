"""The published openai SDK against a real server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn

from synth.inference.api.requests import JobSampling
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from synth.trajectories import records_from_bytes
from tests.unit.inference.memorised_replies import BUDGET, REASONING, TOOLS
from tests.unit.inference.one_model_service import KEY, credential, serve

ASK: Any = [{"role": "user", "content": "What is 12 + 34?"}]
TOOL_RESULT: Any = {"role": "tool", "tool_call_id": "call_1", "content": "46"}


@pytest.fixture
async def server(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[tuple[str, Any]]:
    async with listening(engine, model_dir) as served:
        yield served


@pytest.fixture
async def memorised_client(memorised_dir: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a model that says what it has learned by heart."""
    engine = await TransformersEngine.load(memorised_dir, settings=EngineSettings(device="cpu", seed=0))
    async with (
        listening(engine, memorised_dir) as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, _strict_response_validation=True) as client,
    ):
        yield client
    await engine.close()


@asynccontextmanager
async def listening(
    engine: TransformersEngine, model_dir: Path, sampling: JobSampling | None = None
) -> AsyncIterator[tuple[str, Any]]:
    """Serve a model on loopback; yields its address and the recorder. sampling: of rollouts."""
    app, recorder, router = serve(engine, ChatFormat(load_tokenizer(model_dir)))
    router.sampling = sampling or router.sampling
    ready = asyncio.Event()

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready.set()

    host = Announcing(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    task = asyncio.create_task(host.serve())
    await asyncio.wait_for(ready.wait(), 10)
    port = host.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", recorder
    host.should_exit = True
    await asyncio.wait_for(task, 10)


async def test_the_sdk_chats_streams_and_lists(server: tuple[str, Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key=KEY) as client:
        whole = await client.chat.completions.create(model="tiny", messages=ASK, max_tokens=9, seed=1, logprobs=True)
        assert whole.choices[0].finish_reason in ("stop", "length")
        assert whole.usage is not None
        assert whole.choices[0].logprobs is not None
        text = ""
        stream = await client.chat.completions.create(model="tiny", messages=ASK, max_tokens=9, seed=1, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert text == whole.choices[0].message.content
        assert [m.id async for m in client.models.list()] == ["tiny"]


async def test_the_sdk_reads_reasoning_and_a_forced_call_whole_and_streamed(
    memorised_client: openai.AsyncOpenAI,
) -> None:
    asked: Any = {"model": "tiny", "messages": ASK, "temperature": 0, "max_tokens": 60, "tools": TOOLS}
    asked |= {"tool_choice": TOOLS[0], "extra_body": {"thinking_mode": "think", "thinking_budget": BUDGET}}
    whole = await memorised_client.chat.completions.create(**asked)
    message: Any = whole.choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 12}')
    assert REASONING.startswith(message.reasoning_content)
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens == BUDGET
    # The SDK's own joining of chunks.
    async with memorised_client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    joined: Any = final.choices[0].message
    assert joined.tool_calls[0].function.arguments == call.function.arguments
    deltas = [e.chunk.choices[0].delta for e in events if e.type == "chunk" and e.chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == message.reasoning_content
    assert final.usage == whole.usage
    # A message of the SDK goes back as it is.
    again = await memorised_client.chat.completions.create(**asked | {"messages": [*ASK, message, TOOL_RESULT]})
    assert again.choices


async def test_the_sdk_reads_several_choices(server: tuple[str, Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key=KEY, _strict_response_validation=True) as client:
        asked: Any = {"model": "tiny", "messages": ASK, "max_tokens": 9, "seed": 1, "n": 2}
        whole = await client.chat.completions.create(**asked)
        texts = ["", ""]
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == [choice.message.content for choice in whole.choices]
        assert texts[0] != texts[1]


async def test_the_sdk_reads_our_errors(server: tuple[str, Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key=KEY) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt", messages=ASK)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError, match="temperature is 9"):
            await client.chat.completions.create(model="tiny", messages=ASK, temperature=9)
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="tiny", messages=ASK)


async def test_what_the_sdk_commonly_asks_for_is_served(server: tuple[str, Any]) -> None:
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    common: Any = {"model": "tiny", "messages": ASK, "max_completion_tokens": 12, "seed": 3}
    url = f"{server[0]}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, _strict_response_validation=True) as client:
        chat = client.chat.completions
        plain = await chat.create(**common)
        assert (
            await chat.create(**common, top_p=1, presence_penalty=0, user="me", store=False)
        ).choices == plain.choices
        text = plain.choices[0].message.content or ""
        stopped = await chat.create(**common, stop=[text[3:5]], logprobs=True)
        assert stopped.choices[0].finish_reason == "stop"
        assert stopped.choices[0].message.content == text[: text.find(text[3:5])]
        assert stopped.choices[0].logprobs is not None
        await chat.create(**common, tools=[tool], tool_choice="auto", parallel_tool_calls=True)
        stream = await chat.create(
            **common, stream=True, stream_options={"include_usage": True}, tools=[tool], logprobs=True
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 12
        system = await chat.create(**common | {"messages": [{"role": "system", "content": "Be brief."}, *ASK]})
        developer = await chat.create(**common | {"messages": [{"role": "developer", "content": "Be brief."}, *ASK]})
        assert developer.choices == system.choices
        thinking = await chat.create(**common, reasoning_effort="high")
        assert thinking.usage is not None
        assert plain.usage is not None
        assert thinking.usage.prompt_tokens != plain.usage.prompt_tokens


async def test_the_sdk_reads_the_likeliest_tokens_whole_and_streamed(server: tuple[str, Any]) -> None:
    asked: Any = {"model": "tiny", "messages": ASK, "max_tokens": 9, "seed": 1, "logprobs": True, "top_logprobs": 3}
    url = f"{server[0]}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, _strict_response_validation=True) as client:
        whole = (await client.chat.completions.create(**asked)).choices[0].logprobs
        assert whole is not None
        assert whole.content
        for entry in whole.content:
            assert len(entry.top_logprobs) == 3
            logprobs = [other.logprob for other in entry.top_logprobs]
            assert logprobs == sorted(logprobs, reverse=True)
            known = {tuple(other.bytes or ()): other.logprob for other in entry.top_logprobs}
            assert known.get(tuple(entry.bytes or ()), entry.logprob) == entry.logprob
        streamed: list[Any] = []
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            if (listed := chunk.choices[0].logprobs) is not None:
                streamed += listed.content or []
        assert streamed == whole.content
        alone = await client.chat.completions.create(**asked | {"top_logprobs": 0})
        assert alone.choices[0].logprobs is not None
        plain = [entry.model_copy(update={"top_logprobs": []}) for entry in whole.content]
        assert alone.choices[0].logprobs.content == plain


async def test_a_bias_and_penalties_of_the_sdk_change_the_reply(server: tuple[str, Any], model_dir: Path) -> None:
    encode = load_tokenizer(model_dir).encode
    [four], [seven] = encode("4"), encode("7")
    common: Any = {"model": "tiny", "messages": ASK, "max_tokens": 6, "temperature": 0}
    url = f"{server[0]}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, _strict_response_validation=True) as client:

        async def said(**more: Any) -> str | None:
            return (await client.chat.completions.create(**common | more)).choices[0].message.content

        assert await said(logit_bias={four: 100}) == "444444"
        # The model's own logits are closer together than half a point.
        both: Any = {four: 90.5, seven: 90}
        assert await said(logit_bias=both, frequency_penalty=2) == "474747"
        assert await said(logit_bias=both, presence_penalty=2) == "474444"
        stream = await client.chat.completions.create(**common, stream=True, logit_bias=both, presence_penalty=2)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "474444"
        forbidden = await said(logit_bias={four: 100, seven: -100}, seed=2)
        assert forbidden == "444444"


OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; expected 0 to 20"),
    ({"top_logprobs": 3}, 'top_logprobs is 3; expected "logprobs": true beside it'),
    ({"frequency_penalty": 2.1}, "frequency_penalty is 2.1; expected -2 to 2"),
    ({"presence_penalty": -3}, "presence_penalty is -3.0; expected -2 to 2"),
    ({"logit_bias": {"5": 101}}, "the bias of the token 5 is 101.0; expected -100 to 100"),
    (
        {"logit_bias": {"50256": -100}},
        "there is no token '50256'; expected an id of 0 to 319; take the ids from this",
    ),
    ({"logit_bias": {" the": 1}}, "there is no token ' the'; expected an id of 0 to 319"),
    ({"logit_bias": {"05": 1}}, "there is no token '05'"),
]


@pytest.mark.parametrize(("asked", "message"), OUT_OF_RANGE)
async def test_a_value_out_of_range_is_one_400_that_names_it(
    server: tuple[str, Any], asked: dict[str, Any], message: str
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key=KEY) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="tiny", messages=ASK, stream=stream, **asked)
            assert message in refused.value.message
            assert refused.value.param == list(asked)[-1]


async def test_a_rollout_is_sampled_as_without_them_and_its_likeliest_tokens_are_listed(
    server: tuple[str, Any],
) -> None:
    url, recorder = server
    cid = credential(calls=2)
    query: Any = {"cid": cid}
    asked: Any = {"frequency_penalty": 2, "presence_penalty": 0, "logit_bias": {"5": 100}}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", default_query=query) as client:
        reply: Any = await client.chat.completions.create(
            model="any", messages=ASK, logprobs=True, top_logprobs=2, **asked
        )
    reason = "has no effect: a rollout has none"
    assert reply.warnings == [f"frequency_penalty 2.0 {reason}", f"logit_bias {reason}"]
    content = reply.choices[0].logprobs.content
    assert {len(entry.top_logprobs) for entry in content} == {2}
    [record] = records_from_bytes(recorder.close(cid))
    assert record.logprobs.tolist() == [entry.logprob for entry in content]
    assert set(record.sampled_ids.tolist()) != {5}


UNSERVED: dict[str, Any] = {
    "n": 129,
    "modalities": ["text", "audio"],
    "web_search_options": {},
    "verbosity": "low",
    "store": True,
}


@pytest.mark.parametrize("name", UNSERVED)
async def test_what_is_not_served_is_one_400_that_names_it(server: tuple[str, Any], name: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key=KEY) as client:
        with pytest.raises(openai.BadRequestError, match=name) as refused:
            await client.chat.completions.create(model="tiny", messages=ASK, **{name: UNSERVED[name]})
        assert refused.value.param == name


async def test_a_role_that_no_template_knows_is_named(server: tuple[str, Any]) -> None:
    messages: Any = [*ASK, {"role": "critic", "name": "add", "content": "3"}]
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key=KEY) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=messages)
        assert refused.value.param == "messages[1].role"


async def test_a_task_app_may_send_along_what_it_likes(server: tuple[str, Any]) -> None:
    query: Any = {"cid": credential(calls=2)}
    async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key="none", default_query=query) as client:
        reply = await client.chat.completions.create(model="any", messages=ASK, frequency_penalty=0.5, verbosity="low")
        assert reply.choices


async def test_the_sdk_plays_a_rollout_and_hangs_up(server: tuple[str, Any]) -> None:
    url, recorder = server
    cid = credential(calls=2)
    query: Any = {"cid": cid}
    async with openai.AsyncOpenAI(base_url=f"{url}/api/inference/v1", api_key="none", default_query=query) as client:
        await client.chat.completions.create(model="any", messages=ASK)
        stream = await client.chat.completions.create(model="any", messages=ASK, stream=True)
        async for _ in stream:
            break
        await stream.close()
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="any", messages=ASK)
    assert 1 <= len(records_from_bytes(recorder.close(cid))) <= 2
