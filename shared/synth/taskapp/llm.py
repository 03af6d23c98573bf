"""Calls of the model, from inside a task app: OpenAI chat completions at the URL that each rollout is given."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import httpx

from synth.outbound.aiohttp_transport import AiohttpTransport, post

_BUSY = {429, 500, 502, 503, 504}
_LONGEST_PAUSE = 10.0
_HEADERS = {"content-type": "application/json"}


class PolicyFailure(Exception):
    """The policy failed: it made no tool call, its reply was cut off, or its arguments are not JSON.

    Raised by the environment's author or by this module; it is reported as the policy's, never retried.
    """

    def __init__(self, message: str, *, code: str = "policy_failure") -> None:
        super().__init__(message)
        self.code = code


class InferenceUnavailable(Exception):
    """The model could not be reached within the budget, or refused the call for no fault of the policy."""


@dataclass(frozen=True)
class ToolCall:
    """A function that the model calls; `arguments` are parsed."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One reply of the model. finish_reason: "stop", "length", "tool_calls". body: the whole completion."""

    content: str
    finish_reason: str
    body: dict[str, Any]

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message, to append to the conversation unchanged."""
        return self.body["choices"][0]["message"]

    def tool_calls(self) -> list[ToolCall]:
        """Return the calls in order. Raises PolicyFailure when arguments are not a JSON object."""
        calls: list[ToolCall] = []
        for call in cast(list[dict[str, Any]], self.message.get("tool_calls") or []):
            function = call["function"]
            try:
                arguments = json.loads(function.get("arguments") or "{}")
            except ValueError:
                arguments = None
            if not isinstance(arguments, dict):
                raise PolicyFailure(f"{function['name']}: arguments are no JSON object", code="bad_arguments")
            calls.append(ToolCall(str(call.get("id", "")), str(function["name"]), cast(dict[str, Any], arguments)))
        return calls

    def require_tool_call(self) -> ToolCall:
        """Return the first call. Raises PolicyFailure when the model made none."""
        calls = self.tool_calls()
        if not calls:
            raise PolicyFailure("the model made no tool call", code="no_tool_call")
        return calls[0]


def completions_url(inference_url: str) -> str:
    """Return the address to post to: its path completed to `…/v1/chat/completions`, with the query (the cid).

    Raises ValueError when it is not an HTTP address.
    """
    parts = urlsplit(inference_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"inference_url {inference_url[:80]!r} is not an http address")
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path += "/chat/completions" if path.endswith("/v1") else "/v1/chat/completions"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


class ChatClients:
    """HTTP connections to the model, shared by all rollouts."""

    def __init__(
        self,
        *,
        max_in_flight: int = 512,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make the connections. max_in_flight: concurrent calls; further ones wait."""
        self._free = asyncio.Semaphore(max_in_flight)
        self._transport = transport or AiohttpTransport()

    async def chat(
        self, url: str, body: dict[str, Any], *, within: float, headers: dict[str, str] | None = None
    ) -> Reply:
        """Return one completion; try again while the model is busy (429, 5xx, overloaded, a lost connection).

        within: seconds for all tries, such as the rest of the rollout's time, as only the job limits how long a reply
        takes. Raises InferenceUnavailable when they have passed or the call is refused, PolicyFailure when the
        conversation has outgrown the model.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        pause = 0.1
        while True:
            try:
                response = await self._post(url, body, headers, deadline - loop.time())
            except (httpx.TransportError, TimeoutError) as error:
                reason, wait = f"{type(error).__name__} {error}".strip(), 0.0
            else:
                if response.status_code == 200:
                    return _reply(response)
                reason, wait = _busy(response)
            delay = max(wait, pause * random.uniform(0.5, 1.5))
            if loop.time() + delay >= deadline:
                raise InferenceUnavailable(f"no reply within {within:.0f} s; last: {reason}")
            await asyncio.sleep(delay)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    async def _post(
        self, url: str, body: dict[str, Any], headers: dict[str, str] | None, left: float
    ) -> httpx.Response:
        async with asyncio.timeout(left), self._free:
            content = json.dumps(body).encode()
            return await post(self._transport, url, content, headers=_HEADERS | (headers or {}), timeout=left)


def _reply(response: httpx.Response) -> Reply:
    try:
        body = response.json()
        choice = body["choices"][0]
        content, reason = choice["message"].get("content") or "", str(choice.get("finish_reason") or "stop")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InferenceUnavailable(f"not a chat completion: {response.text[:200]!r}") from error
    return Reply(content=content, finish_reason=reason, body=body)


def _busy(response: httpx.Response) -> tuple[str, float]:
    """Return the reason to try again, and the least pause in seconds. Raises if another try cannot help."""
    try:
        body: Any = response.json()
    except ValueError:
        body = None
    fields = cast(dict[str, Any], body) if isinstance(body, dict) else {}
    reason = f"HTTP {response.status_code} {response.text[:200]}"
    reported = fields.get("error")
    if isinstance(reported, dict) and cast(dict[str, Any], reported).get("code") == "call_budget_spent":
        raise PolicyFailure("the rollout has made all of its calls of the model", code="call_budget")
    if response.status_code in _BUSY:
        return reason, _seconds(response.headers.get("retry-after"))
    if response.status_code == 400 and fields.get("status") == "overloaded":
        return reason, _seconds(fields.get("retry_after"))
    if response.status_code == 400 and any(w in response.text for w in ("token_budget_exceeded", "context_length")):
        raise PolicyFailure("the conversation has outgrown the model", code="context_length")
    raise InferenceUnavailable(reason)


def _seconds(value: Any) -> float:
    try:
        return min(max(float(value), 0.0), _LONGEST_PAUSE)
    except (TypeError, ValueError):
        return 0.0
