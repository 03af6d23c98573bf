"""An agent's own openai client on a rollout: whatever it does to the address, one conversation is one branch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from synth.inference.engines.transformers import TransformersEngine
from synth.trajectories import build_branches, records_from_bytes
from tests.unit.inference.api.test_openai_sdk import ASK, listening
from tests.unit.inference.one_model_service import CHAT_BODY, KEY, credential

NEXT: Any = {"role": "user", "content": "And with 1 more?"}
#: Where an agent puts the credential: the address and the key that its client is made with.
PLACES = {
    "the address as it was given": ("/v1/chat/completions?cid={}", "any"),
    "the address with another API's key": ("/v1/chat/completions?cid={}", KEY),
    "the base with the query": ("/v1?cid={}", "any"),
    "another name": ("/v1/chat/completions?trace_correlation_id={}", "any"),
    "below /api/inference": ("/api/inference/v1?cid={}", "any"),
    "in the path": ("/rollouts/{}/v1", "any"),
    "in the path, without a version": ("/rollouts/{}", "any"),
    "as the key": ("/v1", "{}"),
    "as the key, below /api/inference": ("/api/inference/v1", "{}"),
}


@pytest.fixture
async def server(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[tuple[str, Any]]:
    async with listening(engine, model_dir) as served:
        yield served


def place(url: str, where: str, cid: str, *, max_retries: int = 0) -> dict[str, Any]:
    base, key = PLACES[where]
    return {"base_url": url + base.format(cid), "api_key": key.format(cid), "max_retries": max_retries}


def count_requests(client: openai.AsyncOpenAI) -> list[object]:
    """Every request that the client sends from now on, tries included."""
    sent: list[object] = []

    async def note(request: object) -> None:
        sent.append(request)

    http: Any = client._client
    http.event_hooks = {"request": [note], "response": []}
    return sent


def one_branch(recorder: Any, cid: str, *, calls: int) -> bool:
    records = records_from_bytes(recorder.close(cid))
    return len(records) == calls and len(build_branches(records)) == 1 and recorder.branch_breaks == 0


@pytest.mark.parametrize("where", PLACES)
async def test_two_turns_of_the_sync_client_are_one_branch(server: tuple[str, Any], where: str) -> None:
    url, recorder = server
    cid = credential()

    def converse() -> None:
        with openai.OpenAI(**place(url, where, cid)) as client:
            first: Any = client.chat.completions.create(model="policy", messages=ASK)
            client.chat.completions.create(model="policy", messages=[*ASK, first.choices[0].message, NEXT])

    await asyncio.to_thread(converse)
    assert one_branch(recorder, cid, calls=2)


@pytest.mark.parametrize("where", ["the address as it was given", "in the path", "as the key"])
async def test_a_streamed_turn_of_the_async_client_and_its_next_are_one_branch(
    server: tuple[str, Any], where: str
) -> None:
    url, recorder = server
    cid = credential()
    async with openai.AsyncOpenAI(**place(url, where, cid)) as client:
        text = ""
        async for chunk in await client.chat.completions.create(model="policy", messages=ASK, stream=True):
            text += chunk.choices[0].delta.content or ""
        first: Any = {"role": "assistant", "content": text}
        await client.chat.completions.create(model="policy", messages=[*ASK, first, NEXT])
    assert one_branch(recorder, cid, calls=2)


async def test_the_two_environment_variables_are_enough(
    server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, recorder = server
    cid = credential()
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", cid)
    async with openai.AsyncOpenAI() as client:
        await client.chat.completions.create(model="policy", messages=ASK)
    assert one_branch(recorder, cid, calls=1)


@pytest.mark.parametrize("where", PLACES)
async def test_a_wrong_credential_is_a_401_that_says_what_to_do(server: tuple[str, Any], where: str) -> None:
    url, _ = server
    cid = credential()
    for wrong in (cid[:-1] + ("0" if cid[-1] != "0" else "1"), cid.replace("_50_", "_51_")):
        async with openai.AsyncOpenAI(**place(url, where, wrong)) as client:
            with pytest.raises(openai.AuthenticationError, match=r"as it was given.*ep\.base_url") as refused:
                await client.chat.completions.create(model="policy", messages=ASK)
        assert wrong not in str(refused.value)


@pytest.mark.parametrize("where", ["the address as it was given", "in the path", "as the key"])
async def test_a_rollout_that_is_over_says_so(server: tuple[str, Any], where: str) -> None:
    url, recorder = server
    closed, expired = credential(), credential(seconds=-5)
    recorder.close(closed)
    for cid, said in ((closed, "rollout is over.*in the next rollout"), (expired, "has expired.*in the next rollout")):
        async with openai.AsyncOpenAI(**place(url, where, cid, max_retries=5)) as client:
            sent = count_requests(client)
            for streamed in (False, True):
                with pytest.raises(openai.AuthenticationError, match=f"(?s){said}.*ep.base_url") as refused:
                    await client.chat.completions.create(model="policy", messages=ASK, stream=streamed)
                assert refused.value.code == "rollout_closed"
            assert len(sent) == 2  # the SDK does not try a 401 again
        assert recorder.open == 0


@pytest.mark.parametrize("where", PLACES)
async def test_the_credential_of_another_rollout_beside_it_is_refused_not_recorded(
    server: tuple[str, Any], where: str
) -> None:
    url, recorder = server
    mine, other = credential("job_1_t0_0"), credential("job_1_t0_1")
    given = place(url, where, mine)
    in_key = given["api_key"] == mine
    given |= {"base_url": f"{url}/rollouts/{other}/v1"} if in_key else {"api_key": other}
    async with openai.AsyncOpenAI(**given) as client:
        with pytest.raises(openai.AuthenticationError, match=r"credentials of two rollouts.*a client for each rollout"):
            await client.chat.completions.create(model="policy", messages=ASK)
    assert recorder.open == 0


async def test_a_slash_at_the_end_is_no_redirect_and_an_api_key_chats_as_before(server: tuple[str, Any]) -> None:
    url, _ = server
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}) as http:
        for path in ("/v1/chat/completions", "/v1/chat/completions/", "/v1/", "/chat/completions/"):
            reply = await http.post(path, json=CHAT_BODY | {"model": "tiny", "max_tokens": 2})
            assert (reply.status_code, path) == (200, path)
