"""The HTTP contract: what a task app, the openai SDK and the collector see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from synth.trajectories import build_branches, closed_from_bytes, records_from_bytes
from tests.unit.inference.engines.completions import complete, endless, prompt
from tests.unit.inference.one_model_service import API_KEY_HEADERS, CHAT_BODY, Served, credential
from tests.unit.inference.tiny_model import plain_logprobs


@pytest.fixture
async def served(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[Served]:
    one = Served(engine, ChatFormat(load_tokenizer(model_dir)))
    yield one
    await one.http.aclose()


async def test_calls_of_a_rollout_are_recorded_token_exact(served: Served, reference: Any) -> None:
    cid = credential()
    replies = [(await served.ask(cid, return_token_ids=True)).json() for _ in range(3)]
    records = await served.records(cid)

    assert len(records) == 3
    for reply, record in zip(replies, records, strict=True):
        choice = reply["choices"][0]
        assert choice["token_ids"] == record.sampled_ids.tolist()
        assert reply["prompt_token_ids"] == record.prompt_ids.tolist()
        assert reply["usage"]["completion_tokens"] == len(record.sampled_ids) <= 24
        assert choice["finish_reason"] == record.finish_reason
        assert record.sampled.all()
        assert record.versions.tolist() == [0] * len(record.sampled_ids)
        plain = plain_logprobs(reference, record.prompt_ids.tolist(), record.sampled_ids.tolist(), ban_end=False)
        assert np.abs(record.logprobs - plain.numpy()).max() <= 1e-5


async def test_a_conversation_of_a_rollout_is_one_branch(served: Served) -> None:
    cid = credential()
    messages: list[dict[str, Any]] = list(CHAT_BODY["messages"])  # type: ignore[arg-type]
    for turn in range(3):
        reply = (await served.ask(cid, messages=messages)).json()
        messages = [*messages, reply["choices"][0]["message"], {"role": "user", "content": f"and {turn}?"}]
    records = await served.records(cid)
    assert len(records) == 3
    assert len(build_branches(records)) == 1
    assert served.recorder.branch_breaks == 0


async def test_sampling_of_a_rollout_is_the_jobs(served: Served, reference: Any) -> None:
    cid = credential()
    served.router.sampling = type(served.router.sampling)(temperature=0.7, max_tokens=10, banned=(2,))
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.0, "top_p": 0.5, "top_k": 1, "max_tokens": 400, "seed": 1},
        {"max_tokens": 4},
    ]
    for wish in wishes:
        await served.ask(cid, **wish)
    long, short = await served.records(cid)
    assert (len(long.sampled_ids), len(short.sampled_ids)) == (10, 4)
    plain = plain_logprobs(reference, long.prompt_ids.tolist(), long.sampled_ids.tolist(), temperature=0.7)
    assert np.abs(long.logprobs - plain.numpy()).max() <= 1e-5


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/api/inference/v1/chat/completions", "/api/v1/chat/completions", "/chat/completions"],
)
async def test_a_cid_that_a_client_mangled_is_understood(served: Served, path: str) -> None:
    cid = credential()
    assert (await served.ask(f"{cid}/v1/chat/completions", path=path)).status_code == 200
    assert len(await served.records(cid)) == 1


async def test_a_streamed_call_joins_to_what_is_recorded(served: Served) -> None:
    cid = credential()
    got = await served.ask(
        cid, stream=True, stream_options={"include_usage": True}, logprobs=True, return_token_ids=True
    )
    assert got.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in got.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(e) for e in events[:-1]]
    (record,) = await served.records(cid)

    choices = [c["choices"][0] for c in chunks if c["choices"]]
    assert [i for c in choices for i in c.get("token_ids", [])] == record.sampled_ids.tolist()
    logged = [p["logprob"] for c in choices for p in (c.get("logprobs") or {"content": []})["content"]]
    assert np.allclose(logged, record.logprobs)
    assert choices[-1]["finish_reason"] == record.finish_reason
    assert chunks[-1]["usage"]["completion_tokens"] == len(record.sampled_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_its_row_and_is_recorded_as_aborted(served: Served, stream: bool) -> None:
    cid = credential()
    served.router.sampling = type(served.router.sampling)(max_tokens=480, banned=(2,))
    body = json.dumps({**CHAT_BODY, "stream": stream}).encode()
    gone, sent = asyncio.Event(), [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        while served.engine.stats().sampled_tokens < 5:
            await complete(served.engine, prompt(1, 2), endless(1))
        gone.set()
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None: ...

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": f"cid={cid}".encode(),
        "headers": [],
    }
    await asyncio.wait_for(served.app(scope, receive, send), 20)  # type: ignore[arg-type]

    assert gone.is_set()
    (record,) = await served.records(cid)
    assert record.finish_reason == "abort"
    assert 0 < len(record.sampled_ids) < 480
    assert served.engine.stats().running == 0


async def test_a_close_ends_the_calls_in_flight_and_is_idempotent(served: Served) -> None:
    cid = credential()
    await served.ask(cid)
    served.router.sampling = type(served.router.sampling)(max_tokens=480, banned=(2,))
    flying = asyncio.create_task(served.ask(cid))
    while served.engine.stats().running == 0:
        await complete(served.engine, prompt(1, 2), endless(1))
    first = await served.close(cid)
    ended = await asyncio.wait_for(flying, 20)
    assert (ended.status_code, ended.json()["error"]["code"]) == (401, "rollout_closed")
    [closed] = closed_from_bytes(first.content)
    assert len(records_from_bytes(closed.records)) == 1
    assert (await served.close(cid)).content == first.content
    assert (await served.close(cid, authorization="Bearer guess")).status_code == 401
    gone = await served.ask(cid)
    assert (gone.status_code, gone.json()["error"]["code"]) == (401, "rollout_closed")


async def test_a_stream_under_way_when_its_rollout_ends_breaks_off_with_the_reason(served: Served) -> None:
    cid = credential()
    served.router.sampling = type(served.router.sampling)(max_tokens=480, banned=(2,))
    flying = asyncio.create_task(served.ask(cid, stream=True))
    while served.engine.stats().running == 0:
        await complete(served.engine, prompt(1, 2), endless(1))
    [closed] = closed_from_bytes((await served.close(cid)).content)
    assert records_from_bytes(closed.records) == []
    events = (await asyncio.wait_for(flying, 20)).text.strip().split("\n\n")
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "rollout_closed")
    assert "in the next rollout, use the rollout's address" in error["message"]
    assert 'finish_reason":"' not in events[-2]
    assert served.recorder.late_records == 1


async def test_refusals_have_openais_shape_and_name_the_field(served: Served) -> None:
    async def refused(cid: str | None, **body: Any) -> tuple[int, str, str | None]:
        got = await served.ask(cid, **body)
        error = got.json()["error"]
        assert got.json()["detail"] == error["message"]
        assert (error["param"] is None) == (not error["problems"])
        assert error["message"]
        return got.status_code, error["code"], error["param"]

    assert await refused("trace_forged") == (401, "invalid_api_key", None)
    assert await refused(credential(seconds=-5)) == (401, "rollout_closed", None)
    assert await refused(None, model="gpt") == (404, "model_not_found", "model")
    bad = "invalid_request"
    assert await refused(None, messages="hello") == (400, bad, "messages")
    assert await refused(None, messages=[]) == (400, bad, "messages")
    assert await refused(None, messages=[{"role": 3}]) == (400, bad, "messages[0].role")
    assert await refused(None, model="tiny", temperature=9) == (400, bad, "temperature")
    assert await refused(None, model="tiny", max_tokens=0) == (400, bad, "max_tokens")
    assert await refused(None, model="tiny", n=129) == (400, bad, "n")
    assert await refused(None, model="tiny", n=0) == (400, bad, "n")
    assert await refused(None, model="tiny", tool_choice="required") == (400, bad, "tool_choice")
    unknown = {"tools": [{"type": "function", "function": {"name": "f"}}], "function_call": {"name": "g"}}
    assert await refused(None, model="tiny", **unknown) == (400, bad, "function_call")
    assert await refused(None, model="tiny", thinking_budget=-1) == (400, bad, "thinking_budget")
    beside = {"chat_template_kwargs": {"thinking_budget": -1}}
    field = "extra_body.chat_template_kwargs.thinking_budget"
    assert await refused(None, model="tiny", extra_body=beside) == (400, bad, field)
    assert await refused(None, model="tiny", thinking_mode="hard") == (400, bad, "thinking_mode")
    long = [{"role": "user", "content": "x y " * 600}]
    assert await refused(None, model="tiny", messages=long) == (400, "context_length_exceeded", "messages")
    assert await refused(credential(version=3)) == (503, "not_ready", None)
    plain = await served.http.post("/v1/chat/completions", json={**CHAT_BODY, "model": "tiny"})
    assert plain.status_code == 401
    assert (await served.http.post("/v1/chat/completions", content=b"{", headers=API_KEY_HEADERS)).status_code == 400


async def test_a_spent_budget_is_a_429_that_is_not_worth_retrying(served: Served) -> None:
    cid = credential(calls=1)
    assert (await served.ask(cid)).status_code == 200
    spent = await served.ask(cid)
    assert (spent.status_code, spent.json()["error"]["code"]) == (429, "call_budget_spent")
    assert spent.headers["x-should-retry"] == "false"


async def test_an_engine_that_is_gone_is_a_503_and_the_call_does_not_count(served: Served) -> None:
    cid = credential(calls=1)
    await served.engine.close()
    for _ in range(2):
        got = await served.ask(cid)
        assert (got.status_code, got.headers["retry-after"]) == (503, "1")


async def test_unknown_fields_and_vendor_extras_are_tolerated(served: Served) -> None:
    extras = {
        "thinking_mode": "think",
        "thinking_budget": 256,
        "stop_after_tool_calls": 1,
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False, "thinking_budget": 3}},
    }
    assert (await served.ask(credential(), **extras)).status_code == 200


async def test_a_rollouts_reply_says_that_a_tool_call_was_not_forced(served: Served) -> None:
    asked = {"tools": [{"type": "function", "function": {"name": "f"}}], "max_tokens": 2}
    for choice, told in (("required", 1), ("auto", 0)):
        cid = credential()
        whole = await served.ask(cid, **asked, tool_choice=choice)
        assert len(whole.json().get("warnings", [])) == told
        streamed = await served.ask(cid, **asked, tool_choice=choice, stream=True)
        first = json.loads(streamed.text.split("\n")[0].removeprefix("data: "))
        assert len(first.get("warnings", [])) == told
        assert all(record.sampled.all() for record in await served.records(cid))


async def test_served_sampling_is_the_requests(served: Served) -> None:
    wish = {"model": "tiny", "temperature": 0, "max_completion_tokens": 7}
    a, b = [(await served.ask(None, **wish, return_token_ids=True)).json() for _ in range(2)]
    assert a["choices"][0]["token_ids"] == b["choices"][0]["token_ids"]
    assert len(a["choices"][0]["token_ids"]) <= 7
    seeded = [(await served.ask(None, model="tiny", seed=3, max_tokens=9, return_token_ids=True)).json() for _ in "ab"]
    assert seeded[0]["choices"][0]["token_ids"] == seeded[1]["choices"][0]["token_ids"]
    assert (await served.http.get("/v1/models", headers=API_KEY_HEADERS)).json()["data"][0]["id"] == "tiny"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_bytes_of_a_logprob_are_those_of_its_token(served: Served, stream: bool) -> None:
    body = {"model": "tiny", "logprobs": True, "return_token_ids": True, "max_tokens": 40, "seed": 1, "temperature": 2}
    reply = await served.ask(None, **body, stream=stream)
    data = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: {")]
    choices = [c for chunk in data for c in json.loads(chunk)["choices"]] if stream else reply.json()["choices"]
    ids = [id for choice in choices for id in choice.get("token_ids") or []]
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {"content": []})["content"]]
    assert [b"\xef\xbf\xbd" in bytes(entry["bytes"]) for entry in entries] == [False] * len(ids)
    # The tokens of the tiny model are mostly single bytes.
    assert any(bytes(entry["bytes"]).decode(errors="ignore") == "" for entry in entries)
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    tokenizer = served.chat.tokenizer
    assert joined.decode(errors="replace") == tokenizer.full.backend_tokenizer.decode(ids, skip_special_tokens=False)


async def test_logprobs_are_given_when_asked_for(served: Served) -> None:
    body = (await served.ask(None, model="tiny", logprobs=True, max_tokens=5, return_token_ids=True)).json()
    choice = body["choices"][0]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert torch.tensor([p["logprob"] for p in choice["logprobs"]["content"]]).max() <= 0
