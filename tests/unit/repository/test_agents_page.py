"""The agents of docs/agents.md play their rollouts against a real server."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from synth.taskapp.sdk import TaskApp
from tests.unit.repository.test_docs import ROOT, blocks
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion

PAGE = ROOT / "docs/agents.md"
CID = "trace_a"


@pytest.fixture
async def llm() -> AsyncIterator[tuple[str, ScriptedLlm]]:
    """Where a scripted model listens, and the model."""
    model = ScriptedLlm(completion("hello"))
    app = Starlette(routes=[Route("/v1/chat/completions", model.handle, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", model
    server.should_exit = True
    await asyncio.wait_for(serving, 10)


async def play(shown: str, url: str, *, seed: int = 0) -> httpx.Response:
    """The answer of the one task app that a block of the page makes."""
    made: dict[str, object] = {"__name__": "agent"}
    exec(compile(shown, "agent.py", "exec"), made)
    [app] = [value for value in made.values() if isinstance(value, TaskApp)]
    config = {"inference_url": f"{url}/v1/chat/completions?cid={CID}"}
    body: Any = {"run_id": "r", "env": {"env_name": app.id, "seed": seed}, "policy": {"config": config}}
    transport = httpx.ASGITransport(app.asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://app", headers={"X-API-Key": "k"}) as client:
        return await client.post("/rollout", json=body)


@pytest.fixture(autouse=True)
def environment_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "k")


async def test_the_sdk_s_agent_adds_and_checks_in_one_conversation(llm: tuple[str, ScriptedLlm]) -> None:
    url, model = llm
    model.answers[:] = [completion("19"), completion("20")]
    reply = await play(blocks(PAGE, "python")[0], url)
    assert reply.json()["metrics"]["outcome_score"] == 1.0, reply.text
    first, second = model.bodies
    assert [m["content"] for m in second["messages"]] == [
        first["messages"][0]["content"],
        "19",
        "Check it, and answer again.",
    ]
    assert {headers["authorization"] for headers in model.headers} == {f"Bearer {CID}"}
    assert not any(CID in called for called in model.urls)


async def test_the_asynchronous_agent_says_a_word(llm: tuple[str, ScriptedLlm]) -> None:
    url, model = llm
    reply = await play(blocks(PAGE, "python")[1], url)
    assert reply.json()["metrics"]["outcome_score"] == 1.0, reply.text
    assert model.headers[0]["authorization"] == f"Bearer {CID}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_agent_that_is_a_program_has_the_address_and_the_key(
    llm: tuple[str, ScriptedLlm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, model = llm
    (tmp_path / "agent.sh").write_text(blocks(PAGE, "sh")[0])
    monkeypatch.chdir(tmp_path)
    reply = await play(blocks(PAGE, "python")[2], url)
    assert reply.json()["metrics"]["outcome_score"] == 1.0, reply.text
    assert "hello" in reply.json()["trajectories"][0]["steps"][0]["obs"]
    assert model.headers[0]["authorization"] == f"Bearer {CID}"


def test_each_agent_is_short() -> None:
    examples = blocks(PAGE, "python")
    assert len(examples) == 3
    assert all(len(example.splitlines()) <= 25 for example in examples)
