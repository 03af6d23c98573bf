"""Calls of the Responses API in the tests of this folder."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.inference.memorised_replies import BUDGET
from tests.unit.inference.one_model_service import KEY, Served

ASK = "What is 12 + 34?"
PATH = "/v1/responses"
TOOLS: list[dict[str, Any]] = [{"type": "function", "name": name} for name in ("add", "answer")]
THINK: dict[str, Any] = {"thinking_mode": "think", "thinking_budget": BUDGET}
FORCED: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "add"}}


async def respond(served: Served, cid: str | None = None, **body: Any) -> dict[str, Any]:
    """The response to a call, with the model's likeliest tokens."""
    request = {"input": ASK, "model": "tiny", "temperature": 0, **body}
    headers = {} if cid else {"Authorization": f"Bearer {KEY}"}
    got = await served.http.post(f"{PATH}{f'?cid={cid}' if cid else ''}", json=request, headers=headers)
    return got.json() | {"http": got.status_code}


async def events_of(served: Served, cid: str | None = None, **body: Any) -> list[dict[str, Any]]:
    request = {"input": ASK, "model": "tiny", "temperature": 0, "stream": True, **body}
    headers = {} if cid else {"Authorization": f"Bearer {KEY}"}
    got = await served.http.post(f"{PATH}{f'?cid={cid}' if cid else ''}", json=request, headers=headers)
    events: list[dict[str, Any]] = []
    for block in got.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events
