"""One chat call, from its request to its reply: sampled, watched for a client that hangs up, and recorded."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from synth.errors import SynthError
from synth.inference.api_errors import error_body
from synth.inference.chat import ChatFormat, Conversation
from synth.inference.engines.protocol import Delta, Engine, SamplingParams
from synth.inference.recorder import Call
from synth.inference.replies import CALL_END, ChunkWriter, Reply, Shape, completion_body, read_reply
from synth.inference.requests import ChatRequest, JobSampling, conversation_of, sampling_of, without_effect
from synth.trajectories import CompletionRecord

# The status that proxies log for a client that went away; nobody reads it.
_CLIENT_GONE = 499


@dataclass(frozen=True, slots=True)
class PolicyBinding:
    """What one call runs on. model: the name that the reply gives. sampling: the job's, for a rollout's call."""

    engine: Engine
    chat: ChatFormat
    model: str
    sampling: JobSampling | None = None


class Completion:
    """A chat call that is ready to be sampled. call: its place in the recorder, for a rollout's call."""

    def __init__(self, request: ChatRequest, binding: PolicyBinding, call: Call | None, *, timeout: float) -> None:
        """Raises `UserError` for messages that cannot be rendered."""
        self._engine = binding.engine
        self._chat = binding.chat
        self._call = call
        self._timeout = timeout
        self._stream = bool(request.stream)
        self._conversation: Conversation = conversation_of(request)
        self._params: SamplingParams = sampling_of(request, binding.sampling)
        self._prompt_ids = binding.chat.prompt_ids(self._conversation, call.thread if call else None)
        self._shape = Shape(
            id=f"chatcmpl-{secrets.token_hex(12)}",
            model=binding.model,
            tools=bool(self._conversation.tools),
            logprobs=bool(request.logprobs),
            token_ids=bool(request.return_token_ids),
            include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
            warnings=without_effect(request),
        )
        if call is not None:
            call.ends_with(self._abort)

    async def answer(self, receive: Receive) -> Response:
        """Sample to the end, record, and reply in one JSON body. Raises what the engine raises."""
        watch = asyncio.create_task(self._abort_on_hang_up(receive))
        try:
            async with aclosing(self._deltas()) as deltas:
                whole = await anext(deltas)
        finally:
            watch.cancel()
        reply = self._settle(whole)
        if whole.finish_reason == "abort":
            return Response(status_code=_CLIENT_GONE)
        body = completion_body(reply, whole, self._shape, self._chat.tokenizer, self._prompt_ids)
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def stream(self, receive: Receive, send: Send) -> None:
        """Sample and reply as server-sent events; an error after the first byte is the stream's last event."""
        watch = asyncio.create_task(self._abort_on_hang_up(receive))
        writer = ChunkWriter(self._shape, self._chat.tokenizer, self._params.stop)
        whole = Delta([], [], [], "abort")
        try:
            await send(_part(writer.opening()))
            async with aclosing(self._deltas()) as deltas:
                async for delta in deltas:
                    whole = _joined(whole, delta)
                    for chunk in writer.more(delta):
                        await send(_part(chunk))
            reply = self._settle(whole)
            for chunk in writer.closing(reply, len(self._prompt_ids)):
                await send(_part(chunk))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        except SynthError as error:
            await send(_part(error_body(error), last=True))
        except OSError:
            pass  # the server's word for a client that hung up
        finally:
            watch.cancel()
            if whole.token_ids:
                self._settle(_as_aborted(whole))
            elif self._call is not None:
                self._call.fail()

    def _deltas(self) -> AsyncGenerator[Delta]:
        deltas = self._engine.generate(
            self._prompt_ids,
            self._params,
            request_id=self._shape.id,
            timeout=self._timeout,
            stream=self._stream,
        )
        return cast(AsyncGenerator[Delta], deltas)

    def _settle(self, whole: Delta) -> Reply:
        """Read the reply, and record a rollout's call (once)."""
        reply = read_reply(whole, self._chat.tokenizer, tools=self._shape.tools)
        call = self._call
        if call is not None and not call.settled:
            call.finish(_record(self._prompt_ids, whole))
            # A stop string is cut from the text that the app holds, so its turn cannot be continued token-exactly.
            if whole.finish_reason != "abort" and whole.stop_text in (None, CALL_END):
                self._chat.remember(call.thread, self._conversation, reply.message, self._prompt_ids, whole.token_ids)
        return reply

    async def _abort_on_hang_up(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abort()

    def _abort(self) -> None:
        self._engine.abort(self._shape.id)


class EventStream(Response):
    """The response that streams a completion. lease: what holds its model in place, ended with the stream."""

    def __init__(self, completion: Completion, lease: AsyncExitStack) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._completion = completion
        self._lease = lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lease:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._completion.stream(receive, send)


def _part(chunk: dict[str, Any], *, last: bool = False) -> dict[str, Any]:
    body = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
    return {"type": "http.response.body", "body": body, "more_body": not last}


def _joined(whole: Delta, delta: Delta) -> Delta:
    whole.token_ids.extend(delta.token_ids)
    whole.logprobs.extend(delta.logprobs)
    whole.versions.extend(delta.versions)
    return Delta(whole.token_ids, whole.logprobs, whole.versions, delta.finish_reason, delta.stop_text)


def _as_aborted(whole: Delta) -> Delta:
    return Delta(whole.token_ids, whole.logprobs, whole.versions, "abort")


def _record(prompt_ids: list[int], whole: Delta) -> CompletionRecord:
    return CompletionRecord(
        prompt_ids=np.asarray(prompt_ids, np.int32),
        sampled_ids=np.asarray(whole.token_ids, np.int32),
        logprobs=np.asarray(whole.logprobs, np.float32),
        versions=np.asarray(whole.versions, np.int32),
        sampled=np.ones(len(whole.token_ids), np.bool_),
        finish_reason=whole.finish_reason or "abort",
    )
