"""The calls of an episode to its model: tried again, given up, and at most so many at one time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from synth.taskapp.contract import RolloutResponse
from synth.taskapp.llm import ChatClients
from synth.taskapp.sdk import Episode
from tests.unit.taskapp.echo_app import app_with, play
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion


@pytest.mark.parametrize(
    "busy",
    [
        Response(status_code=429, headers={"retry-after": "0"}),
        Response(status_code=500),
        Response(status_code=503),
        JSONResponse({"status": "overloaded", "retry_after": 0}, status_code=400),
    ],
)
async def test_a_busy_model_is_asked_again(busy: Response) -> None:
    llm = ScriptedLlm(busy, completion("at last"))
    app = app_with(llm)

    @app.episode
    async def episode(ep: Episode) -> None:
        ep.step(obs=(await ep.chat([])).content, reward=1.0, done=True)

    assert RolloutResponse.model_validate((await play(app)).json()).reward() == 1.0
    assert len(llm.bodies) == 2


#: Longer than the rollout of the test below has left, so that nobody waits for it.
IN_TEN_SECONDS = Response(status_code=503, headers={"retry-after": "10"})


@pytest.mark.parametrize(
    "answers",
    [
        [IN_TEN_SECONDS],
        [Response(status_code=503), IN_TEN_SECONDS],
        [Response("gone", status_code=410)],
        [Response("not json")],
    ],
)
async def test_a_model_that_cannot_be_had_in_the_rollouts_time_is_a_502(answers: list[Response]) -> None:
    llm = ScriptedLlm(*answers)
    app = app_with(llm)

    @app.episode
    async def episode(ep: Episode) -> None:
        await ep.chat([])

    reply = await play(app, safety={"max_ops": 10, "max_time_s": 9})
    assert (reply.status_code, reply.json()["detail"]["error"]["code"]) == (502, "inference_unavailable")
    assert len(llm.bodies) == len(answers)


async def test_a_reply_may_take_all_of_the_rollouts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_with(ScriptedLlm(completion("long")))
    seconds: list[float] = []

    @app.episode
    async def episode(ep: Episode) -> None:
        chat = ep.clients.chat

        async def timed(*args: Any, within: float, **more: Any) -> Any:
            seconds.append(within)
            return await chat(*args, within=within, **more)

        monkeypatch.setattr(ep.clients, "chat", timed)
        await ep.chat([])

    await play(app, safety={"max_ops": 10, "max_time_s": 7200})
    assert 7000 < seconds[0] <= 7200


async def test_more_calls_than_turns_are_refused() -> None:
    llm = ScriptedLlm(completion("x"))
    app = app_with(llm, max_turns=5)

    @app.episode
    async def episode(ep: Episode) -> None:
        while True:
            await ep.chat([])

    failure = RolloutResponse.model_validate((await play(app, config={"max_llm_calls": 2})).json()).policy_failure()
    assert failure is not None
    assert failure["code"] == "max_turns"
    assert len(llm.bodies) == 2


async def test_many_calls_run_at_once_and_never_more_than_allowed() -> None:
    llm = ScriptedLlm(lambda: completion("x"))
    llm.gate = asyncio.Event()
    clients = ChatClients(max_in_flight=20, transport=llm.transport())
    calls = [asyncio.create_task(clients.chat("http://llm/v1/chat/completions", {}, within=30)) for _ in range(30)]
    async with asyncio.timeout(10):
        for _ in range(20):
            await llm.waiting.acquire()
        llm.gate.set()
        assert len(await asyncio.gather(*calls)) == 30
    assert llm.most_in_flight == 20
    await clients.close()
