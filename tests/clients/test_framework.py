"""The agent of a framework (Pydantic AI) on the page, in an environment of its own, plays rollouts with its tool."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from synth.bus.server.embedded import free_port
from tests.clients.conftest import venv_of
from tests.e2e.cli.conftest import OURS, eventually
from tests.unit.repository.test_docs import ROOT, blocks

pytestmark = pytest.mark.timeout(1200)

CID = "trace_a"


class Model:
    """A model that says what it is told to, one answer a call, the last one for ever; keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[Response] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.keys.add(request.headers["authorization"])
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def said(content: str | None, *, arguments: str | None = None) -> Response:
    call = {"id": "call_1", "type": "function", "function": {"name": "go", "arguments": arguments}}
    message = {"role": "assistant", "content": content} | ({"tool_calls": [call]} if arguments else {})
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if arguments else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy"}
    return JSONResponse(head | {"choices": [choice], "usage": usage})


def refused(status: int, code: str) -> Response:
    return JSONResponse({"error": {"message": code, "type": "x", "param": None, "code": code}}, status)


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[str, Model]]:
    """Where the model listens, and the model."""
    made, port = Model(), free_port()
    app = Starlette(routes=[Route("/v1/chat/completions", made.answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    eventually(lambda: answers(url))
    yield url, made
    server.should_exit = True
    thread.join(10)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of the page's task app, a process of the framework's own Python."""
    [block] = [block for block in blocks(ROOT / "docs/agents.md", "python") if "pydantic_ai" in block]
    (folder / "agent.py").write_text(block)
    port = free_port()
    code = f"import agent; from synth.taskapp.sdk import serve; serve(agent.maze, port={port})"
    env = {k: v for k, v in os.environ.items() if k not in OURS}
    env |= {"PYTHONPATH": str(ROOT / "shared"), "ENVIRONMENT_API_KEY": "k"}
    process = subprocess.Popen([str(venv_of("agents") / "bin" / "python"), "-c", code], cwd=folder, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: answers(url), timeout=120)
        yield url
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("framework")) as url:
        yield url


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/").status_code in (200, 404)
    except httpx.TransportError:
        return False


def play(app: str, model_url: str) -> httpx.Response:
    config = {"inference_url": f"{model_url}/v1/chat/completions?cid={CID}"}
    body = {"run_id": "r", "env": {"env_name": "maze", "seed": 3}, "policy": {"config": config}}
    return httpx.post(f"{app}/rollout", json=body, headers={"X-API-Key": "k"}, timeout=60)


LEFT, RIGHT = said(None, arguments='{"to": "left"}'), said(None, arguments='{"to": "right"}')


def test_it_calls_the_tool_and_adds_to_one_conversation(app: str, model: tuple[str, Model]):
    url, made = model
    made.bodies.clear()
    for replies, reward in (([LEFT, RIGHT, said("Out.")], 1.0), ([RIGHT, said("Out.")], 0.0)):
        made.answers = list(replies)
        reply = play(app, url)
        assert (reply.status_code, reply.json()["metrics"]["outcome_score"]) == (200, reward), reply.text
    first, second, third = made.bodies[:3]
    for earlier, later in ((first, second), (second, third)):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert later["tools"] == earlier["tools"]
    assert made.keys == {f"Bearer {CID}"}


@pytest.mark.parametrize(
    ("replies", "code"),
    [
        ([LEFT], "max_turns"),
        ([said(None, arguments='{"to": ')], "bad_reply"),
        ([refused(400, "context_length_exceeded")], "context_length"),
        ([LEFT, refused(429, "call_budget_spent")], "call_budget"),
    ],
)
def test_what_the_policy_did_wrong_is_its_own_failure(
    app: str, model: tuple[str, Model], replies: list[Response], code: str
):
    url, made = model
    made.answers = list(replies)
    reply = play(app, url)
    assert reply.status_code == 200, reply.text
    assert reply.json()["metrics"]["details"]["policy_failure"]["code"] == code


def test_a_model_that_is_away_is_no_failure_of_the_policy(app: str, model: tuple[str, Model]):
    reply = play(app, f"http://127.0.0.1:{free_port()}")
    assert (reply.status_code, reply.json()["detail"]["error"]["code"]) == (502, "inference_unavailable")
