"""What bounds a request: its rollout, or a setting that the refusal names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from synth.inference.api.limits import RequestLimits
from synth.inference.app import request_limits
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.settings import InferenceSettings
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.one_model_service import API_KEY_HEADERS, CHAT_BODY, Served, credential

LIMITS = RequestLimits(body=2000, choices=3, seconds=77.0, default_max_tokens=None)


@pytest.fixture
async def served(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[Served]:
    one = Served(engine, ChatFormat(load_tokenizer(model_dir)), LIMITS)
    yield one
    await one.http.aclose()


@pytest.fixture
def asked(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the engine is asked for: the seconds left and the tokens of each request."""
    requests: list[dict[str, Any]] = []
    generate = engine.generate

    def spied(prompt_ids: Any, params: Any, *, time: SamplingTime, **more: Any) -> Any:
        requests.append({"seconds": time.seconds_left, "tokens": params.max_tokens})
        return generate(prompt_ids, params, time=time, **more)

    monkeypatch.setattr(engine, "generate", spied)
    return requests


async def test_a_rollouts_reply_may_take_what_is_left_of_its_rollout(served: Served, asked: Any) -> None:
    await served.ask(credential(seconds=7200))
    await served.ask(credential("job_1_t0_1", seconds=60))
    await served.ask(None, model="tiny", max_tokens=1)
    assert [7000 < asked[0]["seconds"] <= 7200, 30 < asked[1]["seconds"] <= 60] == [True, True]
    assert 70 < asked[2]["seconds"] <= 77


async def test_a_reply_without_a_limit_may_fill_the_context(served: Served, asked: Any) -> None:
    await served.ask(None, model="tiny", stop=["a", "e", "i", "1"])
    assert asked[0]["tokens"] == served.engine.max_context


def test_the_embedded_engine_keeps_memory_for_a_whole_reply_so_its_default_is_short() -> None:
    assert request_limits(InferenceSettings()).default_max_tokens == 1024
    assert request_limits(InferenceSettings(engine="vllm")).default_max_tokens is None
    assert request_limits(InferenceSettings(engine="vllm", default_max_tokens=9)).default_max_tokens == 9


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_is_too_large_names_its_setting(served: Served, declared: bool) -> None:
    body = json.dumps({**CHAT_BODY, "user": "u" * 3000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    content = body if declared else pieces()
    got = await served.http.post("/v1/chat/completions", content=content, headers=API_KEY_HEADERS)
    error = got.json()["error"]
    assert (got.status_code, error["param"]) == (413, "body")
    assert "at most 2,000" in error["message"]
    assert "SYNTH_MAX_REQUEST_BYTES" in error["message"]


async def test_more_choices_than_may_be_asked_for_name_their_setting(served: Served) -> None:
    message = (await served.ask(None, model="tiny", n=4)).json()["error"]["message"]
    assert "1 to 3" in message
    assert "SYNTH_MAX_CHOICES" in message


@pytest.mark.parametrize(
    ("path", "bearer"),
    [("/v1/chat/completions", "nobody"), ("/internal/rollouts/close", "nobody"), ("/v1/chat/completions", "trace_x")],
)
async def test_nobodys_body_is_not_read(served: Served, path: str, bearer: str) -> None:
    read: list[bytes] = []

    async def watched() -> AsyncIterator[bytes]:
        read.append(b"x")
        yield b"x"

    headers = {"Authorization": f"Bearer {bearer}"}
    assert (await served.http.post(path, content=watched(), headers=headers)).status_code == 401
    assert not read


async def test_the_rollouts_of_all_jobs_of_an_organisation_share_its_memory_for_bodies(
    engine: TransformersEngine, model_dir: Path
) -> None:
    chat = ChatFormat(load_tokenizer(model_dir))
    served = Served(engine, chat, RequestLimits(body=2000, buffered=2000))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def halting() -> AsyncIterator[bytes]:
        yield b" " * 900
        begun.set()
        await go_on.wait()

    url = f"/v1/chat/completions?cid={credential('job_1_t0_0')}"
    first = asyncio.create_task(served.http.post(url, content=halting()))
    await begun.wait()
    refused = await served.ask(credential("job_2_t0_0"), user="u" * 200)
    assert refused.status_code == 503
    assert "SYNTH_HTTP_BUFFERED_BYTES" in refused.json()["error"]["message"]
    go_on.set()
    assert (await first).status_code == 400
    assert (await served.ask(credential("job_2_t0_1"), user="u" * 200)).status_code == 200
    await served.http.aclose()


async def test_the_recorder_says_whether_a_credential_may_make_a_call(served: Served) -> None:
    async def check(cid: str) -> int:
        return (await served.http.get("/internal/rollouts/credential", params={"cid": cid})).status_code

    closed = credential("job_1_t0_7")
    assert [await check(cid) for cid in (credential(), credential(seconds=-5), closed, "trace_x")] == [
        204,
        401,
        204,
        401,
    ]
    served.recorder.close(closed)
    assert await check(closed) == 401
