"""A task app that follows the published contract and is written without our SDK: it shows images as data URLs.

`python -m tests.clients.plain_vision_app PORT NAME`. Each of its turns is one user message with as many images as
`max_images_per_step` says, and a tool call that is forced; it pays by the length of what the model writes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from task_apps.colours.pictures import picture

TOOL = {
    "type": "function",
    "function": {
        "name": "interact",
        "parameters": {"type": "object", "properties": {"actions": {"type": "array", "items": {"type": "string"}}}},
    },
}
TURNS = 2
NAME = sys.argv[2]


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"healthy": True})


async def task_info(request: Request) -> JSONResponse:
    task = {"id": NAME, "name": NAME.title(), "description": "Pictures.", "version": "1"}
    return JSONResponse({"task": task, "environment": NAME, "dataset": {}, "rubric": {}, "inference": {}})


async def rollout(request: Request) -> JSONResponse:
    if request.headers.get("x-api-key") != os.environ["ENVIRONMENT_API_KEY"]:
        return JSONResponse({"detail": {"error": {"code": "unauthorised"}}}, status_code=400)
    asked: dict[str, Any] = await request.json()
    policy, seed = asked["policy"]["config"], asked["env"]["seed"]
    shown = policy.get("max_images_per_step", 1) if policy.get("use_vision") else 0
    url = policy["inference_url"].replace("?", "/v1/chat/completions?", 1)
    messages: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    async with httpx.AsyncClient(timeout=60) as client:
        for turn in range(TURNS):
            parts: list[dict[str, Any]] = [
                {"type": "image_url", "image_url": {"url": picture(10 * seed + turn + k)}} for k in range(shown)
            ]
            if not policy.get("image_only_mode"):
                parts.append({"type": "text", "text": "What colour is the square?"})
            messages.append({"role": "user", "content": parts})
            body = {
                "model": policy["model"],
                "messages": messages,
                "max_tokens": policy["max_tokens"],
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "interact"}},
            }
            reply = await client.post(
                url if "/v1/" not in policy["inference_url"] else policy["inference_url"], json=body
            )
            if reply.status_code != 200:
                return JSONResponse(
                    {"detail": f"the model answered {reply.status_code}: {reply.text}"}, status_code=502
                )
            message = reply.json()["choices"][0]["message"]
            messages.append({k: v for k, v in message.items() if v is not None})
            written = message.get("content") or str(message.get("tool_calls"))
            paid = len(written) % 8 / 8
            # As the published apps say it, for jobs that reward each decision.
            info = {"stepwise": {"decision_index": turn, "reward": paid, "indicator": 0}}
            steps.append({"obs": {}, "tool_calls": [], "reward": paid, "done": turn + 1 == TURNS, "info": info})
    total = sum(step["reward"] for step in steps)
    trajectory = {
        "env_id": NAME,
        "policy_id": asked["policy"].get("policy_name") or "policy",
        "steps": steps,
        "length": len(steps),
        "inference_url": policy["inference_url"],
    }
    metrics = {"episode_returns": [total], "mean_return": total, "num_steps": len(steps), "num_episodes": 1}
    return JSONResponse(
        {"run_id": asked["run_id"], "trajectories": [trajectory], "metrics": metrics, "ops_executed": 2 * len(steps)}
    )


app = Starlette(
    routes=[
        Route("/", lambda request: JSONResponse({"status": "ok"})),
        Route("/health", health),
        Route("/task_info", task_info),
        Route("/rollout", rollout, methods=["POST"]),
    ]
)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
