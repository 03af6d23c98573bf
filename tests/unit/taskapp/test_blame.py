"""What an agent's own openai client raises is the policy's failure, the platform's, or the environment's error."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from synth.taskapp.blame import blame
from synth.taskapp.contract import RolloutResponse
from synth.taskapp.llm import PolicyFailure
from synth.taskapp.sdk import Episode
from tests.unit.taskapp.echo_app import CID, app_with, play
from tests.unit.taskapp.scripted_llm import ScriptedLlm


@asynccontextmanager
async def refusing(status: int, code: str) -> AsyncIterator[str]:
    """Where a model listens that refuses every call."""

    async def answer(_: Any) -> JSONResponse:
        told = {"message": f"{code}: no", "type": "invalid_request_error", "param": None, "code": code}
        return JSONResponse({"error": told}, status)

    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await asyncio.wait_for(serving, 10)


async def outcome(url: str, *, called: str | None = None) -> tuple[int, str]:
    """The status and our code when an agent whose rollout is at `url` calls the model, or `called`, and cannot."""
    app = app_with(ScriptedLlm())

    @app.episode
    def episode(ep: Episode) -> None:
        base_url = f"{called}/v1" if called else ep.base_url
        with openai.OpenAI(base_url=base_url, api_key=ep.api_key, max_retries=0) as client:
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi."}])

    reply = await play(app, config={"inference_url": f"{url}/v1/chat/completions?cid={CID}"})
    if reply.status_code == 200:
        failure = RolloutResponse.model_validate(reply.json()).policy_failure()
        assert failure is not None
        return 200, failure["code"]
    return reply.status_code, reply.json()["detail"]["error"]["code"]


@pytest.mark.parametrize(
    ("status", "code", "found"),
    [
        (400, "context_length_exceeded", (200, "context_length")),
        (429, "call_budget_spent", (200, "call_budget")),
        (400, "invalid_request", (500, "environment_error")),
        (401, "rollout_closed", (500, "environment_error")),
        (429, "rate_limited", (502, "inference_unavailable")),
        (503, "not_ready", (502, "inference_unavailable")),
    ],
)
async def test_a_refused_call_is_judged_by_its_code(status: int, code: str, found: tuple[int, str]) -> None:
    async with refusing(status, code) as url:
        assert await outcome(url) == found


async def test_a_model_that_cannot_be_reached_is_unavailable() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert await outcome(f"http://127.0.0.1:{nobody.getsockname()[1]}") == (502, "inference_unavailable")


async def test_a_refusal_by_another_model_such_as_a_judge_is_the_environments() -> None:
    async with refusing(400, "context_length_exceeded") as judge:
        assert await outcome("http://127.0.0.1:9", called=judge) == (500, "environment_error")


def raised_by(module: str, name: str) -> Exception:
    return type(name, (RuntimeError,), {"__module__": module})("went on and on")


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [
        ("agents.exceptions", "MaxTurnsExceeded", "max_turns"),
        ("pydantic_ai.exceptions", "UnexpectedModelBehavior", "bad_reply"),
        ("langgraph.errors", "GraphRecursionError", "max_turns"),
    ],
)
def test_a_framework_that_gives_up_on_the_model_blames_the_policy(module: str, name: str, code: str) -> None:
    for error in (raised_by(module, name), ExceptionGroup("tasks", [raised_by(module, name)])):
        found = blame(error, url="http://llm/v1")
        assert isinstance(found, PolicyFailure)
        assert found.code == code
    wrapped = ValueError("the agent failed")
    wrapped.__cause__ = raised_by(module, name)
    assert isinstance(blame(wrapped, url="http://llm/v1"), PolicyFailure)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the board is broken"),
        raised_by("my_agents", "MaxTurnsExceeded"),
        ExceptionGroup("two", [raised_by("agents", "MaxTurnsExceeded"), ValueError("and the board")]),
    ],
)
def test_what_is_not_known_is_the_environments(error: Exception) -> None:
    assert blame(error, url="http://llm/v1") is None
