"""A task app that says back what a scripted model says, and what the platform asks of it."""

from __future__ import annotations

from typing import Any

import httpx

from synth.taskapp.llm import ChatClients
from synth.taskapp.sdk import Episode, TaskApp
from tests.unit.taskapp.scripted_llm import ScriptedLlm

CID = "trace_r1_0_a_9_ff"
URL = f"http://llm/api/inference?cid={CID}"


def client(app: TaskApp, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app.asgi()),
        base_url="http://app",
        headers=[(name.encode(), value.encode()) for name, value in (headers or {"x-api-key": "right"}).items()],
    )


def app_with(llm: ScriptedLlm, *, max_turns: int = 1) -> TaskApp:
    clients = ChatClients(transport=llm.transport())
    app = TaskApp(
        "echo", name="Echo", description="Says it back.", max_turns=max_turns, keys=["right", "second"], clients=clients
    )

    @app.episode
    async def nothing(ep: Episode) -> None:
        """Most tests register their own."""

    return app


def rollout(**changes: Any) -> dict[str, Any]:
    policy = {"model": "m", "inference_url": URL, "temperature": 0.5, "max_tokens": 9, "trace_correlation_id": CID}
    body = {
        "run_id": "r1",
        "mode": "rl",
        "env": {"env_name": "echo", "config": {"size": 3}, "seed": 7},
        "policy": {"policy_name": "p", "config": policy | changes.pop("config", {})},
        "ops": ["agent", "env"],
        "record": {"return_trace": True, "trace_format": "structured"},
        "on_done": "terminate",
        "safety": {"max_ops": 10, "max_time_s": 30},
        "training_session_id": "job_1",
        "something_new": 1,
    }
    return body | changes


async def play(app: TaskApp, **changes: Any) -> httpx.Response:
    async with client(app) as http:
        return await http.post("/rollout", json=rollout(**changes))
