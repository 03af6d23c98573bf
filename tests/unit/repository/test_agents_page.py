"""The agents of docs/agents.md play their rollouts against a real server."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from synth.taskapp.sdk import TaskApp
from tests.unit.repository.test_docs import ROOT, blocks
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion

PAGE = ROOT / "docs/agents.md"
CID = "trace_a"


def called(name: str, **arguments: str) -> Response:
    """A reply that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return completion(None, tool_calls=[{"id": "call_1", "type": "function", "function": function}])


def example(app: str) -> str:
    """The block of the page that makes this task app with the openai SDK."""
    [found] = [b for b in blocks(PAGE, "python") if f'TaskApp("{app}"' in b and "pydantic_ai" not in b]
    return found


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
    reply = await play(example("sums"), url)
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
    reply = await play(example("words"), url)
    assert reply.json()["metrics"]["outcome_score"] == 1.0, reply.text
    assert model.headers[0]["authorization"] == f"Bearer {CID}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_agent_that_is_a_program_has_the_address_and_the_key(
    llm: tuple[str, ScriptedLlm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, model = llm
    (tmp_path / "agent.sh").write_text(blocks(PAGE, "sh")[0])
    monkeypatch.chdir(tmp_path)
    reply = await play(example("shell"), url)
    assert reply.json()["metrics"]["outcome_score"] == 1.0, reply.text
    assert "hello" in reply.json()["trajectories"][0]["steps"][0]["obs"]
    assert model.headers[0]["authorization"] == f"Bearer {CID}"


async def test_the_tool_agent_finds_its_way_and_pays_for_each_fork(llm: tuple[str, ScriptedLlm]) -> None:
    url, model = llm
    assert example("maze") == (ROOT / "examples/maze.py").read_text()
    for ways, paid in ((("left", "down"), 1.0), (("right", "down"), 0.5), (("left", None), 0.5)):
        model.answers[:] = [called("go", to=way) if way else completion("out") for way in ways]
        reply = await play(example("maze"), url)
        assert reply.json()["metrics"]["outcome_score"] == paid, reply.text
    first, second = model.bodies[:2]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "tool"]


def test_each_agent_is_short() -> None:
    examples = blocks(PAGE, "python")
    assert len(examples) == 6
    assert all(len(example.splitlines()) <= 25 for example in examples)
