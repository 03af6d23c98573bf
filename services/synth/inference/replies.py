"""From sampled ids to an OpenAI reply: text, tool calls, finish reason, logprobs; whole or as a stream of chunks."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from synth.inference.chat import FunctionCall, Message, ToolCall
from synth.inference.engines.protocol import Delta
from synth.inference.tokenizers import Tokenizer

# The hermes format, which Qwen3's template teaches: JSON between two tags.
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_OPEN = "<tool_call>"
#: Ends a tool call; as a stop string it ends a reply after the first one, and stays in the text.
CALL_END = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said. finish_reason: OpenAI's word. text: all of it, the tool calls' source included."""

    text: str
    message: Message
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What the client asked the reply to look like. warnings: what else it asked for, without effect."""

    id: str
    model: str
    tools: bool
    logprobs: bool
    token_ids: bool
    include_usage: bool = False
    warnings: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))


def read_reply(delta: Delta, tokenizer: Tokenizer, *, tools: bool) -> Reply:
    """The reply that a finished completion makes; tool calls are looked for only if the request had tools."""
    text = tokenizer.decode(delta.token_ids)
    if delta.stop_text is not None:
        kept = len(CALL_END) if tools and delta.stop_text == CALL_END else 0
        text = text[: text.find(delta.stop_text) + kept]
    finish = delta.finish_reason or "stop"
    if not tools:
        return Reply(text, Message(role="assistant", content=text), finish)
    content, calls = _split_calls(text)
    message = Message(role="assistant", content=content or None if calls else content, tool_calls=calls or None)
    return Reply(text, message, "tool_calls" if calls and finish == "stop" else finish)


def completion_body(
    reply: Reply, delta: Delta, shape: Shape, tokenizer: Tokenizer, prompt_ids: list[int]
) -> dict[str, Any]:
    """The `chat.completion` object."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": _message_json(reply.message),
        "logprobs": _logprobs(delta, tokenizer) if shape.logprobs else None,
        "finish_reason": reply.finish_reason,
    }
    if shape.token_ids:
        choice["token_ids"] = delta.token_ids
    body: dict[str, Any] = {
        "id": shape.id,
        "object": "chat.completion",
        "created": shape.created,
        "model": shape.model,
        "choices": [choice],
        "usage": usage(len(prompt_ids), len(delta.token_ids)),
    }
    if shape.token_ids:
        body["prompt_token_ids"] = prompt_ids
    return body | _warnings(shape)


def usage(prompt: int, sampled: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


class ChunkWriter:
    """Makes the `chat.completion.chunk` objects of one stream; text appears once no later token can change it."""

    def __init__(self, shape: Shape, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._shape = shape
        self._tokenizer = tokenizer
        # What begins like one of these may have to be taken back, so it waits.
        self._held = [*stop, *([_OPEN] if shape.tools else [])]
        self._ids: list[int] = []
        self._shown = 0

    def opening(self) -> dict[str, Any]:
        """The first chunk: the role, and what the request asks for without effect."""
        return self._chunk({"role": "assistant", "content": ""}) | _warnings(self._shape)

    def more(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """The chunk for newly sampled tokens, if any text became certain or logprobs were asked for."""
        self._ids += delta.token_ids
        text = self._tokenizer.decode(self._ids)
        fresh = text[self._shown : max(self._shown, self._certain(text))]
        self._shown += len(fresh)
        if fresh or self._shape.logprobs or self._shape.token_ids:
            yield self._chunk({"content": fresh}, delta=delta)

    def closing(self, reply: Reply, prompt: int) -> Iterator[dict[str, Any]]:
        """What was held back, tool calls, the finish reason, and the usage if asked for."""
        rest = (reply.text if not reply.message.tool_calls else reply.message.text("") or "")[self._shown :]
        if rest:
            yield self._chunk({"content": rest})
        if reply.message.tool_calls:
            calls = [{"index": i, **_call_json(c)} for i, c in enumerate(reply.message.tool_calls)]
            yield self._chunk({"tool_calls": calls})
        yield self._chunk({}, finish=reply.finish_reason)
        if self._shape.include_usage:
            yield {**self._base(), "choices": [], "usage": usage(prompt, len(self._ids))}

    def _certain(self, text: str) -> int:
        """How many characters of `text` can be shown already."""
        end = len(text)
        while end and text[end - 1] == "\ufffd":
            end -= 1  # perhaps the first bytes of a character that is not whole yet
        for held in self._held:
            at = text.find(held)
            if at >= 0:
                end = min(end, at)
            else:
                tail = next((n for n in range(min(len(held) - 1, end), 0, -1) if text[:end].endswith(held[:n])), 0)
                end -= tail
        # White space before a tool call is not content.
        return len(text[:end].rstrip()) if self._shape.tools else end

    def _base(self) -> dict[str, Any]:
        return {
            "id": self._shape.id,
            "object": "chat.completion.chunk",
            "created": self._shape.created,
            "model": self._shape.model,
        }

    def _chunk(
        self, change: dict[str, Any], *, finish: str | None = None, delta: Delta | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": change, "finish_reason": finish}
        if delta is not None and self._shape.logprobs:
            choice["logprobs"] = _logprobs(delta, self._tokenizer)
        if delta is not None and self._shape.token_ids:
            choice["token_ids"] = delta.token_ids
        return {**self._base(), "choices": [choice]}


def _warnings(shape: Shape) -> dict[str, Any]:
    return {"warnings": shape.warnings} if shape.warnings else {}


def _split_calls(text: str) -> tuple[str, list[ToolCall]]:
    """The text before the first call, and the calls. A block that is not a call in JSON stays text."""
    calls: list[ToolCall] = []
    for found in _CALL.finditer(text):
        try:
            call = json.loads(found[1])
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            return text, []
        if not isinstance(name, str):
            return text, []
        spelled = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(ToolCall(id=f"call_{secrets.token_hex(12)}", function=FunctionCall(name=name, arguments=spelled)))
    return (text[: text.find(_OPEN)].strip(), calls) if calls else (text, [])


def _message_json(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    if message.tool_calls:
        body["tool_calls"] = [_call_json(c) for c in message.tool_calls]
    return body


def _call_json(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": call.function.arguments},
    }


def _logprobs(delta: Delta, tokenizer: Tokenizer) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for token_id, logprob in zip(delta.token_ids, delta.logprobs, strict=True):
        text = tokenizer.text_of(token_id)
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content, "refusal": None}
