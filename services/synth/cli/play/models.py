"""Who answers as the model in a rollout that is played by hand: a model somewhere, or the person at the terminal.

Each is a function from the body of a chat request to a chat completion. One that cannot answer raises `CliError`.
"""

from __future__ import annotations

import json
import queue
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from synth.cli.api.hosted import HostedApi, model_endpoint
from synth.cli.confirmation import confirm
from synth.client import Client
from synth.client.connections.config import Config, ConfigValue
from synth.console.errors import CliError, UsageProblem

Body = dict[str, Any]
Answer = Callable[[Body], Body]

#: Seconds for one call in all, with the tries of a model that is being loaded or is busy.
_PATIENCE_S = 300.0
_CALL = "/call "


@dataclass(frozen=True)
class ModelChoice:
    """The model that plays. name: its id; None for a person who types. where: its server, for messages."""

    name: str | None
    where: str
    answer: Answer


def of_cluster(model: str, settings: Config) -> ModelChoice:
    """Return a model of the cluster's gateway. Raises `NotAuthorised` without a key, and `UnconfirmedOrigin`."""
    confirm(settings.require_api_key(), settings.backend)
    client = Client(settings)
    return ModelChoice(model, settings.backend.text, lambda body: client.chat(**{**body, "model": model}).completion)


def of_endpoint(model: str, address: ConfigValue, *, trusted: bool) -> ModelChoice:
    """Return a model behind another OpenAI-compatible address, with OPENAI_API_KEY. Raises `UnconfirmedOrigin`."""
    key = model_endpoint(address, trusted=trusted)
    api = HostedApi(address, key, name="the model's endpoint", patience_s=_PATIENCE_S, timeout_s=_PATIENCE_S)
    return ModelChoice(model, address.text, lambda body: _answer(api, {**body, "model": model}))


def _answer(api: HostedApi, body: Body) -> Body:
    answer, _ = api.post("/chat/completions", body)
    if not answer.get("choices"):
        raise CliError("the model's endpoint returns no chat completion", where=api.root)
    return answer


@dataclass
class Typist:
    """The person who answers. Calls arrive in threads, and are answered in the main one, which has the terminal."""

    asked: queue.SimpleQueue[tuple[Body, Future[Body]] | None] = field(default_factory=queue.SimpleQueue)

    def answer(self, body: Body) -> Body:
        """Wait for the reply that the user types."""
        reply: Future[Body] = Future()
        self.asked.put((body, reply))
        return reply.result()


def read_typed(prompt: str = "") -> Body:
    """Return the assistant's message that is typed: a line is the reply, `/call NAME {"key": …}` calls a tool.

    A line that ends with a backslash goes on in the next one. Raises `UsageProblem` at the end of the input.
    """
    line = _line(prompt)
    if not line.startswith(_CALL):
        return {"role": "assistant", "content": line}
    name, _, arguments = line.removeprefix(_CALL).strip().partition(" ")
    function = {"name": name, "arguments": arguments.strip() or "{}"}
    call = {"id": f"call_{uuid.uuid4().hex[:8]}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _line(prompt: str) -> str:
    import readline  # noqa: F401 - gives `input` its line editing

    lines: list[str] = []
    while True:
        try:
            line = input(prompt if sys.stdin.isatty() else "")
        except EOFError as error:
            what = "the app calls the model again, and there is no further line to answer with"
            raise UsageProblem(what, expected="a reply a line", where="standard input") from error
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line.removesuffix("\\"))


def completion_of(message: Body, *, model: str) -> Body:
    """Return a chat completion with this message."""
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }


def as_stream(completion: Body) -> list[str]:
    """Return the completion as a stream's events, in lines of text, for an agent that requested a stream."""
    head = {"id": completion.get("id"), "object": "chat.completion.chunk", "created": completion.get("created")}
    head["model"] = completion.get("model")
    chunks: list[Body] = []
    for choice in cast(list[Body], completion.get("choices") or []):
        message = cast(Body, choice.get("message") or {})
        calls = [{**call, "index": i} for i, call in enumerate(cast(list[Body], message.get("tool_calls") or []))]
        delta = {**message, **({"tool_calls": calls} if calls else {})}
        index = choice.get("index", 0)
        chunks.append({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        ended = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        chunks.append({**head, "choices": [ended]})
    if completion.get("usage"):
        chunks.append({**head, "choices": [], "usage": completion["usage"]})
    return [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]
