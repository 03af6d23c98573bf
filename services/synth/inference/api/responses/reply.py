"""The reply to a call of the Responses API: a `response` object, whole or as a stream of events.

A reply is up to three kinds of items, in this order: its reasoning, its message, its calls. The id of a call's item is
its `call_id`, because some clients send one back for the other.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from synth.api.sse import data_of
from synth.chat.messages import Message, MessageToolCall
from synth.errors import SynthError
from synth.inference.api.errors import error_body
from synth.inference.api.replies import FinishedChoice, ReplyContext, Usage, logprobs_json
from synth.inference.api.responses.call import ResponsesCall
from synth.inference.api.responses.fields import LOGPROBS
from synth.inference.api.responses.items import seal_reasoning
from synth.inference.chat.generation import ReplyDelta
from synth.inference.chat.output_parser import ParsedReply, TextDelta
from synth.inference.recording.recorder import ChoiceRecording

Json = dict[str, Any]


class ResponsesReply:
    """Writes the reply to one call. recording: of a rollout's call, for later calls that name this response."""

    def __init__(self, call: ResponsesCall, context: ReplyContext, recording: ChoiceRecording | None) -> None:
        self.id = _new_id("resp")
        request = call.given
        self.by_token = bool(call.chat.logprobs)
        self._call = call
        self._context = context
        self._recording = recording
        self._warnings = [*call.warnings, *map(call.rename, context.warnings)]
        self._with_logprobs = LOGPROBS in (request.include or ()) or bool(request.top_logprobs)
        self._summarised = request.reasoning is not None and bool(
            request.reasoning.summary or request.reasoning.generate_summary
        )
        self._created = int(time.time())
        self._events = 0
        self._items: list[Json] = []
        self._open: Json | None = None
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        self._held: list[ReplyDelta] = []
        self._finish_reason = ""
        self._reply: Message | None = None

    def body(self, choices: Sequence[FinishedChoice], usage: Usage) -> bytes:
        # The same items as in a stream, whose events are left out.
        [choice] = choices
        for delta, text in zip(choice.deltas, choice.texts, strict=True):
            for _ in self.delta(0, delta, text):
                pass
        for _ in self.finish(0, choice.reply, choice.rest):
            pass
        return msgspec.json.encode(self._response(self._status, usage))

    def begin(self) -> Iterator[bytes]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._response("in_progress"))

    def delta(self, index: int, delta: ReplyDelta, text: TextDelta) -> Iterator[bytes]:
        if text.reasoning:
            yield from self._add_reasoning(text.reasoning)
            self._held.clear()
        if self._with_logprobs and not text.reasoning:
            # Tokens whose text is certain only with later ones: of a character, a stop string, or a call that is none.
            self._held.append(delta)
        if text.content:
            yield from self._add_content(text.content)

    def finish(self, index: int, reply: ParsedReply, rest: TextDelta) -> Iterator[bytes]:
        self._finish_reason = reply.finish_reason
        if rest.reasoning:
            yield from self._add_reasoning(rest.reasoning)
        if rest.content or not (reply.message.content or reply.message.tool_calls or self._items or self._open):
            yield from self._add_content(rest.content)
        calls = reply.message.tool_calls or []
        yield from self._close("completed" if calls else self._status)
        for i, call in enumerate(calls, start=1):
            yield from self._add_call(call, self._status if i == len(calls) else "completed")
        self._reply = reply.message

    def keep(self) -> None:
        if self._recording is not None and self._reply is not None:
            given, messages = self._call.given, self._call.chat.messages
            self._recording.keep_items(self.id, self._items)
            if given.store is not False:
                instructed = bool(given.instructions)
                self._recording.keep_response(self.id, messages, self._reply, instructed=instructed)

    def end(self, usage: Usage) -> Iterator[bytes]:
        yield self._event(f"response.{self._status}", response=self._response(self._status, usage))

    def failed(self, error: SynthError) -> bytes:
        # The openai SDK raises the nested error; other clients read the fields beside it.
        nested = error_body(error, self._call.rename)["error"]
        fields = {name: nested[name] for name in ("code", "message", "param")}
        return self._event("error", **fields, error=nested)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish_reason == "length" else "completed"

    def _add_reasoning(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "reasoning":
            yield from self._begin({"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": []})
            yield from self._part("content_part.added", {"type": "reasoning_text", "text": ""}, content_index=0)
            if self._summarised:
                yield from self._part(
                    "reasoning_summary_part.added", {"type": "summary_text", "text": ""}, summary_index=0
                )
        self._text.append(text)
        yield self._on_item("reasoning_text.delta", content_index=0, delta=text)
        if self._summarised:
            yield self._on_item("reasoning_summary_text.delta", summary_index=0, delta=text)

    def _add_content(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "message":
            yield from self._begin({"id": _new_id("msg"), "type": "message", "role": "assistant", "content": []})
            yield from self._part("content_part.added", _output_text("", []), content_index=0)
        if not text:
            return
        logprobs = self._logprobs_of(text)
        self._text.append(text)
        self._logprobs += logprobs
        yield self._on_item("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _logprobs_of(self, text: str) -> list[Any]:
        """Return the entries of the last tokens that were held, as many as it takes to write the text."""
        held, self._held = self._held, []
        missing, first = len(text.encode()), len(held)
        while first and missing > 0:
            first -= 1
            missing -= sum(len(self._context.tokenizer.bytes_of(token)) for token in held[first].token_ids)
        return logprobs_json(held[first:], self._context.tokenizer)["content"]

    def _add_call(self, call: MessageToolCall, status: str) -> Iterator[bytes]:
        called, id = call.called, self._call_id(call)
        item: Json = {"id": id, "type": "function_call", "call_id": id}
        namespace = self._call.namespaces.get(called.name)
        item |= {"name": called.name, "arguments": "", **({"namespace": namespace} if namespace else {})}
        yield from self._begin(item)
        arguments = str(called.arguments)
        yield self._on_item("function_call_arguments.delta", delta=arguments)
        yield self._on_item("function_call_arguments.done", name=called.name, arguments=arguments)
        yield from self._done({"arguments": arguments, "status": status})

    def _call_id(self, call: MessageToolCall) -> str:
        """Return the call's id; a new one if the model wrote an id that an earlier item has."""
        known = {item["id"] for item in self._items}
        if call.id not in known and (self._recording is None or call.id not in self._recording.responses.items):
            return call.id
        # Templates of Mistral accept ids of nine letters and digits only.
        return secrets.token_hex(5)[:9] if len(call.id) == 9 else _new_id("call")

    def _begin(self, item: Json) -> Iterator[bytes]:
        yield from self._close("completed")
        self._open = item | {"status": "in_progress"}
        yield self._event("response.output_item.added", output_index=len(self._items), item=self._open)

    def _close(self, status: str) -> Iterator[bytes]:
        """End the item of text that is open."""
        if self._open is None:
            return
        text, logprobs = "".join(self._text), self._logprobs
        self._text, self._logprobs = [], []
        if self._open["type"] == "message":
            part = _output_text(text, logprobs)
            yield self._on_item("output_text.done", content_index=0, text=text, logprobs=logprobs)
            yield from self._part("content_part.done", part, content_index=0)
            yield from self._done({"content": [part], "status": status})
            return
        part, summary = {"type": "reasoning_text", "text": text}, {"type": "summary_text", "text": text}
        yield self._on_item("reasoning_text.done", content_index=0, text=text)
        yield from self._part("content_part.done", part, content_index=0)
        if self._summarised:
            yield self._on_item("reasoning_summary_text.done", summary_index=0, text=text)
            yield from self._part("reasoning_summary_part.done", summary, summary_index=0)
        summaries = [summary] if self._summarised else []
        sealed = seal_reasoning(text)
        yield from self._done({"summary": summaries, "content": [part], "encrypted_content": sealed, "status": status})

    def _done(self, fields: Json) -> Iterator[bytes]:
        assert self._open is not None
        item, self._open = self._open | fields, None
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)

    def _part(self, type: str, part: Json, **index: int) -> Iterator[bytes]:
        yield self._on_item(type, part=part, **index)

    def _on_item(self, type: str, /, **fields: Any) -> bytes:
        assert self._open is not None
        return self._event(f"response.{type}", item_id=self._open["id"], output_index=len(self._items), **fields)

    def _event(self, type: str, /, **fields: Any) -> bytes:
        data = data_of({"type": type, "sequence_number": self._events, **fields})
        self._events += 1
        return b"event: %s\ndata: %s\n\n" % (type.encode(), data)

    def _response(self, status: str, usage: Usage | None = None) -> Json:
        given, chat = self._call.given, self._call.chat
        reasoning = given.reasoning
        body: Json = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": given.instructions,
            "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata or {},
            "model": self._context.model,
            "output": self._items,
            "parallel_tool_calls": given.parallel_tool_calls is not False,
            "previous_response_id": given.previous_response_id,
            "reasoning": {"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
            "service_tier": "default",
            "store": bool(given.store),
            "temperature": 1.0 if chat.temperature is None else chat.temperature,
            "text": {"format": (given.text and given.text.format) or {"type": "text"}},
            "tool_choice": given.tool_choice or "auto",
            "tools": given.tools or [],
            "top_logprobs": given.top_logprobs or 0,
            "top_p": 1.0 if chat.top_p is None else chat.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage_json(usage),
        }
        if usage is not None:
            body["completed_at"] = int(time.time())
        return body | ({"warnings": self._warnings} if self._warnings else {})


def _usage_json(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.sampled,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.sampled,
    }


def _output_text(text: str, logprobs: list[Any]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
