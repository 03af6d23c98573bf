"""Replies as clients read them: the interface of their formats, and the format of chat completions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from synth.api.sse import data_event
from synth.chat.messages import Message, MessageToolCall
from synth.errors import SynthError
from synth.inference.api.errors import error_body
from synth.inference.api.requests import ChatRequest, num_choices
from synth.inference.chat.generation import ReplyDelta
from synth.inference.chat.output_parser import ParsedReply, TextDelta
from synth.inference.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """The inputs of a call. prompt_ids: of its prompt. warnings: the fields of the request that have no effect."""

    model: str
    tokenizer: Tokenizer
    prompt_ids: list[int]
    warnings: tuple[str, ...] = ()


class FinishedChoice(NamedTuple):
    """One choice of a call, sampled to its end.

    texts: the text that became certain with each of the deltas. rest: the text that was held back until the end.
    """

    reply: ParsedReply
    deltas: Sequence[ReplyDelta]
    texts: Sequence[TextDelta]
    rest: TextDelta


class ReplyWriter(Protocol):
    """Writes the reply to one call in the format of one API: `body`, or the bytes of a stream of events.

    A stream is `begin`, then `delta` and at last `finish` for each choice, then `end`. `failed` is the last event of
    a stream that an error ends.
    """

    @property
    def id(self) -> str: ...
    @property
    def by_token(self) -> bool:
        """Whether a whole reply needs deltas as small as the deltas of a stream."""
        ...

    def body(self, choices: Sequence[FinishedChoice], usage: Usage) -> bytes: ...
    def begin(self) -> Iterator[bytes]: ...
    def delta(self, index: int, delta: ReplyDelta, text: TextDelta) -> Iterator[bytes]: ...
    def finish(self, index: int, reply: ParsedReply, rest: TextDelta) -> Iterator[bytes]: ...
    def end(self, usage: Usage) -> Iterator[bytes]: ...
    def failed(self, error: SynthError) -> bytes: ...
    def keep(self) -> None:
        """Keep what later calls of the rollout can name, once all choices are finished."""
        ...


MakeWriter = Callable[[ReplyContext], ReplyWriter]


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A decoded call of chat completions."""

    chat: ChatRequest

    def rename(self, text: str) -> str:
        """Return the text: its names are a chat's."""
        return text


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """The options of the reply that the client has set. warnings: the fields of its request that have no effect."""

    id: str
    model: str
    logprobs: bool
    token_ids: bool
    include_usage: bool = False
    warnings: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(slots=True)
class Usage:
    """The tokens of a call. sampled: in all its choices, reasoning included. forced: tokens that no policy sampled."""

    prompt: int
    sampled: int = 0
    reasoning: int = 0
    forced: int = 0

    def add(self, deltas: Sequence[ReplyDelta]) -> None:
        """Count the tokens of one choice."""
        self.sampled += sum(len(delta.token_ids) for delta in deltas if delta.sampled)
        self.forced += sum(len(delta.token_ids) for delta in deltas if not delta.sampled)

    def json(self) -> dict[str, Any]:
        """Return OpenAI's `usage`. `completion_tokens` counts the sampled tokens, so that `max_tokens` bounds it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.sampled,
            "total_tokens": self.prompt + self.sampled,
            "completion_tokens_details": {"reasoning_tokens": self.reasoning, "forced_tokens": self.forced},
        }


def choice_json(
    index: int, reply: ParsedReply, deltas: Sequence[ReplyDelta], options: ReplyOptions, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return one of a completion's `choices`."""
    choice: dict[str, Any] = {
        "index": index,
        "message": _message_json(reply.message),
        "logprobs": logprobs_json(deltas, tokenizer) if options.logprobs else None,
        "finish_reason": reply.finish_reason,
    }
    if options.token_ids:
        choice["token_ids"] = [token_id for delta in deltas for token_id in delta.token_ids]
    return choice


def completion_json(
    choices: Sequence[dict[str, Any]], usage: Usage, options: ReplyOptions, prompt_ids: list[int]
) -> dict[str, Any]:
    """Return the `chat.completion` object."""
    body: dict[str, Any] = {
        "id": options.id,
        "object": "chat.completion",
        "created": options.created,
        "model": options.model,
        "choices": choices,
        "usage": usage.json(),
    }
    if options.token_ids:
        body["prompt_token_ids"] = prompt_ids
    return body | _warnings(options)


class ChatReply:
    """Writes `chat.completion` objects, and streams of `chat.completion.chunk`."""

    by_token = False

    def __init__(self, call: ChatCall, context: ReplyContext, recording: object = None) -> None:
        request = call.chat
        self._options = ReplyOptions(
            id=f"chatcmpl-{random.getrandbits(96):024x}",
            model=context.model,
            logprobs=bool(request.logprobs),
            token_ids=bool(request.return_token_ids),
            include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
            warnings=context.warnings,
        )
        self._context = context
        tokenizer = context.tokenizer
        self._writers = [ChunkWriter(self._options, tokenizer, i) for i in range(num_choices(request))]

    @property
    def id(self) -> str:
        return self._options.id

    def body(self, choices: Sequence[FinishedChoice], usage: Usage) -> bytes:
        written = [
            choice_json(i, choice.reply, choice.deltas, self._options, self._context.tokenizer)
            for i, choice in enumerate(choices)
        ]
        return msgspec.json.encode(completion_json(written, usage, self._options, self._context.prompt_ids))

    def begin(self) -> Iterator[bytes]:
        yield from (data_event(writer.first_chunk()) for writer in self._writers)

    def delta(self, index: int, delta: ReplyDelta, text: TextDelta) -> Iterator[bytes]:
        yield from map(data_event, self._writers[index].chunks(delta, text))

    def finish(self, index: int, reply: ParsedReply, rest: TextDelta) -> Iterator[bytes]:
        yield from map(data_event, self._writers[index].last_chunks(reply, rest))

    def end(self, usage: Usage) -> Iterator[bytes]:
        if self._options.include_usage:
            yield data_event(usage_chunk(usage, self._options))
        yield b"data: [DONE]\n\n"

    def failed(self, error: SynthError) -> bytes:
        return data_event(error_body(error))

    def keep(self) -> None:
        """Keep nothing: no chat names another one."""


class ChunkWriter:
    """Makes the `chat.completion.chunk` objects of one choice of a stream."""

    def __init__(self, options: ReplyOptions, tokenizer: Tokenizer, index: int = 0) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._index = index

    def first_chunk(self) -> dict[str, Any]:
        """Return the first chunk: the role, and in the first choice's chunk the warnings."""
        chunk = self._chunk({"role": "assistant", "content": ""})
        return chunk if self._index else chunk | _warnings(self._options)

    def chunks(self, delta: ReplyDelta, text: TextDelta) -> Iterator[dict[str, Any]]:
        """Yield the chunks for new tokens, if any text became certain or logprobs were requested."""
        detailed = self._options.logprobs or self._options.token_ids
        if text.reasoning:
            # The token details go into the last of the chunks that these tokens make.
            yield self._chunk(_reasoning_json(text.reasoning), delta=delta if detailed and not text.content else None)
        if text.content or (detailed and not text.reasoning):
            yield self._chunk({"content": text.content}, delta=delta if detailed else None)

    def last_chunks(self, reply: ParsedReply, rest: TextDelta) -> Iterator[dict[str, Any]]:
        """Yield the last chunks: the text that was held back, tool calls, and the finish reason."""
        if rest.reasoning:
            yield self._chunk(_reasoning_json(rest.reasoning))
        if rest.content:
            yield self._chunk({"content": rest.content})
        if reply.message.tool_calls:
            calls = [{"index": i, **_call_json(c)} for i, c in enumerate(reply.message.tool_calls)]
            yield self._chunk({"tool_calls": calls})
        yield self._chunk({}, finish=reply.finish_reason)

    def _chunk(
        self, change: dict[str, Any], *, finish: str | None = None, delta: ReplyDelta | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": self._index, "delta": change, "finish_reason": finish}
        if delta is not None and self._options.logprobs:
            choice["logprobs"] = logprobs_json([delta], self._tokenizer)
        if delta is not None and self._options.token_ids:
            choice["token_ids"] = delta.token_ids
        return {**_chunk_base(self._options), "choices": [choice]}


def usage_chunk(usage: Usage, options: ReplyOptions) -> dict[str, Any]:
    """Return the last chunk of a stream whose usage was requested."""
    return {**_chunk_base(options), "choices": [], "usage": usage.json()}


def _chunk_base(options: ReplyOptions) -> dict[str, Any]:
    return {"id": options.id, "object": "chat.completion.chunk", "created": options.created, "model": options.model}


def _warnings(options: ReplyOptions) -> dict[str, Any]:
    return {"warnings": options.warnings} if options.warnings else {}


def _message_json(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning_text:
        body |= _reasoning_json(message.reasoning_text)
    if message.tool_calls:
        body["tool_calls"] = [_call_json(c) for c in message.tool_calls]
    return body


def _reasoning_json(reasoning: str) -> dict[str, str]:
    """Return the reasoning under both names that clients look for."""
    return {"reasoning_content": reasoning, "reasoning": reasoning}


def _call_json(call: MessageToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.called.name, "arguments": call.called.arguments},
    }


def logprobs_json(deltas: Sequence[ReplyDelta], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return one entry for each of `token_ids`; a forced token has logprob 0 and is marked as not sampled."""
    content: list[dict[str, Any]] = []
    known: dict[int, tuple[str, list[int]]] = {}

    def described(token_id: int, logprob: float) -> dict[str, Any]:
        if token_id not in known:
            known[token_id] = tokenizer.text_of(token_id), list(tokenizer.bytes_of(token_id))
        text, its_bytes = known[token_id]
        return {"token": text, "logprob": logprob, "bytes": its_bytes}

    for delta in deltas:
        # A forced token was drawn among none.
        likeliest = delta.top_logprobs or [[]] * len(delta.token_ids)
        for token_id, logprob, others in zip(delta.token_ids, delta.logprobs, likeliest, strict=True):
            entry = described(token_id, logprob)
            entry["top_logprobs"] = [described(*other) for other in others]
            content.append(entry if delta.sampled else entry | {"sampled": False})
    return {"content": content, "refusal": None}
