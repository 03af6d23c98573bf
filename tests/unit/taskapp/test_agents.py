"""An agent of one's own in an episode: the two texts that attach it, and episodes that block."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import pytest

from synth.keys import Cid, mint_cid
from synth.taskapp.contract import RolloutResponse
from synth.taskapp.llm import PolicyFailure
from synth.taskapp.sdk import Episode
from tests.keyrings import credentials
from tests.unit.taskapp.echo_app import CID, app_with, play
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion

SIGNED = mint_cid(
    Cid(rollout_id="job_1_t0_0", nonce=1, replica="r", version=None, calls=9, ends=2**40, expires=2**40), credentials()
)


@pytest.mark.parametrize(
    ("url", "base_url", "api_key"),
    [
        (f"http://llm/v1/chat/completions?cid={CID}", "http://llm/v1", CID),
        (f"http://llm:81/v1/chat/completions?a=b&cid={CID}&c=d", "http://llm:81/v1", CID),
        (f"https://llm/synth/v1/chat/completions?trace_correlation_id={SIGNED}", "https://llm/synth/v1", SIGNED),
        (f"http://llm/api/inference?cid={CID}", "http://llm/api/inference/v1", CID),
        (f"http://llm/rollouts/{SIGNED}/v1", f"http://llm/rollouts/{SIGNED}/v1", SIGNED),
        ("http://llm/v1?trace=mine", "http://llm/v1", "right"),
        ("http://llm", "http://llm/v1", "right"),
    ],
)
async def test_the_address_and_the_key_of_an_openai_client(url: str, base_url: str, api_key: str) -> None:
    llm = ScriptedLlm(completion("hello"))
    app = app_with(llm)

    @app.episode
    async def episode(ep: Episode) -> None:
        assert (ep.base_url, ep.api_key) == (base_url, api_key)
        await ep.chat([])
        ep.outcome(1.0)

    assert (await play(app, config={"inference_url": url})).status_code == 200
    # The environment key goes only where no credential does.
    assert llm.headers[0].get("x-api-key") == ("right" if api_key == "right" else None)


async def test_plain_functions_play_beside_each_other_and_beside_the_event_loop() -> None:
    app = app_with(ScriptedLlm())
    # More than a pool of the event loop has threads.
    together = threading.Barrier(40)

    @app.episode
    def episode(ep: Episode) -> None:
        assert threading.current_thread() is not threading.main_thread()
        together.wait(20)
        ep.step(reward=0.5)
        ep.step(reward=0.25, done=True)

    replies = await asyncio.gather(*(play(app) for _ in range(40)))
    assert [RolloutResponse.model_validate(reply.json()).reward() for reply in replies] == [0.75] * 40


async def test_a_function_that_returns_a_coroutine_is_awaited() -> None:
    llm = ScriptedLlm(completion("x"))
    app = app_with(llm)

    async def answer(reward: float, ep: Episode) -> None:
        await ep.chat([])
        ep.step(reward=reward)

    for function in (lambda ep: answer(0.5, ep), functools.partial(answer, 0.5)):
        app.episode(function)
        assert RolloutResponse.model_validate((await play(app)).json()).reward() == 0.5


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (ValueError("the board is broken"), 500, "ValueError: the board is broken"),
        (SystemExit(3), 500, "SystemExit(3)"),
        (StopIteration(), 500, "StopIteration"),
        (PolicyFailure("no move"), 200, "no move"),
    ],
)
async def test_what_a_plain_function_raises_is_reported_as_in_a_coroutine(
    raised: BaseException, status: int, said: str
) -> None:
    app = app_with(ScriptedLlm())

    @app.episode
    def episode(ep: Episode) -> None:
        raise raised

    reply = await asyncio.wait_for(play(app), 10)
    assert (reply.status_code, said in reply.text) == (status, True)


async def test_a_plain_function_past_the_deadline_is_a_504_and_goes_on_alone() -> None:
    app = app_with(ScriptedLlm())
    released, over = threading.Event(), threading.Event()

    @app.episode
    def episode(ep: Episode) -> None:
        released.wait(20)
        ep.step(reward=1.0)
        over.set()

    began = time.monotonic()
    safety: Any = {"max_ops": 10, "max_time_s": 0.2}
    reply = await play(app, safety=safety)
    assert (reply.status_code, reply.json()["detail"]["error"]["code"]) == (504, "rollout_timeout")
    assert time.monotonic() - began < 10
    assert not over.is_set()
    released.set()
    assert await asyncio.to_thread(over.wait, 10)
