"""Several replies to one request: each its own draws, its own record, one usage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.engines.completions import complete, endless, prompt
from tests.unit.inference.one_model_service import CHAT_BODY, Served, credential

SEEDED: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "seed": 5, "return_token_ids": True}


@pytest.fixture
async def served(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[Served]:
    one = Served(engine, ChatFormat(load_tokenizer(model_dir)))
    yield one
    await one.http.aclose()


async def test_each_choice_is_drawn_anew_and_the_first_is_the_single_reply(served: Served) -> None:
    single = (await served.ask(None, **SEEDED)).json()
    several = (await served.ask(None, **SEEDED, n=4)).json()
    ids = [tuple(choice["token_ids"]) for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert list(ids[0]) == single["choices"][0]["token_ids"]
    assert len(set(ids)) == 4
    assert several["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    assert several["usage"]["completion_tokens"] == sum(map(len, ids))
    assert served.engine.stats().prompts_shared >= 3


async def test_streamed_choices_join_to_the_whole_ones(served: Served) -> None:
    whole = (await served.ask(None, **SEEDED, n=3, logprobs=True)).json()
    chunks = await served.chunks(None, **SEEDED, n=3, logprobs=True, stream_options={"include_usage": True})
    for said in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == said["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == said["message"]["content"]
        assert [i for c in mine for i in c.get("token_ids", ())] == said["token_ids"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [said["finish_reason"]]
        logged = [entry for c in mine for entry in (c.get("logprobs") or {"content": ()})["content"]]
        assert [e["token"] for e in logged] == [e["token"] for e in said["logprobs"]["content"]]
    assert [c["usage"] for c in chunks if not c["choices"]] == [whole["usage"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_of_a_rollout_is_a_record_and_a_call_of_its_budget(served: Served, stream: bool) -> None:
    cid = credential(calls=3)
    asked = {"n": 2, "stream": stream, "return_token_ids": True}
    got = await served.ask(cid, **asked)
    assert got.status_code == 200
    refused = await served.ask(cid, **asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "call_budget_spent")
    assert "1 of them left" in refused.json()["error"]["message"]
    assert (await served.ask(cid)).status_code == 200
    one, two, last = await served.records(cid)
    assert one.prompt_ids.tolist() == two.prompt_ids.tolist() == last.prompt_ids.tolist()
    if not stream:
        assert [c["token_ids"] for c in got.json()["choices"]] == [r.sampled_ids.tolist() for r in (one, two)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_ends_all_its_choices(served: Served, stream: bool) -> None:
    cid = credential()
    served.router.sampling = type(served.router.sampling)(max_tokens=480, banned=(2,))
    body = json.dumps({**CHAT_BODY, "n": 3, "stream": stream}).encode()
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        while served.engine.stats().running < 3:
            await complete(served.engine, prompt(1, 2), endless(1))
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None: ...

    query = f"cid={cid}".encode()
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": query, "headers": []}
    await asyncio.wait_for(served.app(scope, receive, send), 20)  # type: ignore[arg-type]
    records = await served.records(cid)
    assert [record.finish_reason for record in records] == ["abort"] * 3
    assert all(0 < len(record.sampled_ids) < 480 for record in records)
    assert served.engine.stats().running == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_stops_ends_all_choices_with_one_error(served: Served, stream: bool) -> None:
    cid = credential(calls=3)
    served.router.sampling = type(served.router.sampling)(max_tokens=480, banned=(2,))
    asking = asyncio.create_task(served.ask(cid, n=3, stream=stream))
    while served.engine.stats().running < 3:
        await complete(served.engine, prompt(1, 2), endless(1))
    await served.engine.close()
    got = await asyncio.wait_for(asking, 20)
    if stream:
        last = json.loads(got.text.strip().split("\n\n")[-1].removeprefix("data: "))
        assert last["error"]["code"] == "not_ready"
        assert [r.finish_reason for r in await served.records(cid)] == ["abort"] * 3
    else:
        assert (got.status_code, got.json()["error"]["code"]) == (503, "not_ready")
        assert await served.records(cid) == []
