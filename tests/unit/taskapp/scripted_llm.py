"""An OpenAI-compatible endpoint that answers as it is told: what the model does is the test's to say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def completion(content: str | None, *, finish_reason: str = "stop", tool_calls: list[Any] | None = None) -> Response:
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}], "usage": {}})


class ScriptedLlm:
    """Answers calls in turn from `answers`, the last one for ever; keeps what it was sent."""

    def __init__(self, *answers: Response | Callable[[], Response]) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.urls: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.gate: asyncio.Event | None = None
        self.waiting = asyncio.Semaphore(0)

    async def handle(self, request: Request) -> Response:
        self.urls.append(str(request.url))
        self.headers.append(dict(request.headers))
        self.bodies.append(json.loads(await request.body()))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.waiting.release()
        if self.gate is not None:
            await self.gate.wait()
        self.in_flight -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer() if callable(answer) and not isinstance(answer, Response) else answer

    def transport(self) -> httpx.ASGITransport:
        return httpx.ASGITransport(Starlette(routes=[Route("/{path:path}", self.handle, methods=["POST"])]))
