"""Runs one chat call from its request to its replies: samples, aborts if the client hangs up, and records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from synth.chat.marks import CALL_END
from synth.chat.messages import Conversation
from synth.errors import SynthError
from synth.inference.api.images import ChatImages, ShownImages
from synth.inference.api.limits import RequestLimits
from synth.inference.api.output_format import OutputGrammars, compile_output_grammars
from synth.inference.api.prompt import (
    ModelBinding,
    build_prompt,
    check_argument_texts,
    default_max_tokens,
    show_images,
)
from synth.inference.api.replies import FinishedChoice, MakeWriter, ReplyContext, Usage
from synth.inference.api.requests import ChatRequest, num_choices
from synth.inference.api.sampling_plan import (
    build_conversation,
    build_sampling_plan,
    find_ineffective,
    forced_functions,
)
from synth.inference.chat.generation import Generation, ReplyDelta, derive_seed
from synth.inference.chat.output_parser import ParsedReply, ReplyParser, TextDelta
from synth.inference.chat.prompts import Prompt
from synth.inference.engines.limits import clamp_max_tokens
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.recording.completion_record import make_record
from synth.inference.recording.recorder import ChoiceRecording, CidClosed
from synth.runtime.off_loop import OffLoop

# The status that proxies log for a client that has disconnected; no client reads it.
_CLIENT_CLOSED_REQUEST = 499
#: Bytes of a request whose prompt is made in place, in less than a millisecond.
_SHORT_REQUEST = 2 << 10


@dataclass(eq=False, slots=True)
class _Choice:
    """One of a call's replies under way. recording: None if the call belongs to no rollout."""

    index: int
    generation: Generation
    parser: ReplyParser
    recording: ChoiceRecording | None
    deltas: list[ReplyDelta] = field(default_factory=list[ReplyDelta])
    texts: list[TextDelta] = field(default_factory=list[TextDelta])

    @property
    def aborted(self) -> bool:
        return self.deltas[-1].finish_reason == "abort"

    def append(self, delta: ReplyDelta) -> TextDelta:
        """Keep the next delta; returns the text that it completes."""
        self.deltas.append(delta)
        self.texts.append(self.parser.feed(delta))
        return self.texts[-1]

    async def sample(self) -> None:
        """Sample to the end."""
        async with aclosing(self.generation.deltas()) as deltas:
            async for delta in deltas:
                self.append(delta)


class Completion:
    """A chat call that is ready to be sampled. recordings: one for each choice of a rollout's call, else none."""

    @classmethod
    async def prepare(
        cls,
        request: ChatRequest,
        binding: ModelBinding,
        recordings: Sequence[ChoiceRecording] = (),
        *,
        make_writer: MakeWriter,
        time: SamplingTime,
        images: ChatImages,
        limits: RequestLimits,
        off_loop: OffLoop,
        size: int,
    ) -> Completion:
        """Read the images that the request shows, compile its output format, and prepare the call.

        make_writer: of the reply's format. time: for all of it. off_loop: renders a large request.
        size: bytes of the request. Raises the constructor's errors, and `UserError` for messages that cannot be
        rendered and for an image that cannot be read.
        """
        shown = await show_images(request, binding, recordings, images, seconds=time.seconds_left)
        must_call = forced_functions(request, binding.sampling, binding.chat.family)
        request = msgspec.structs.replace(request, messages=shown.messages)
        conversation = build_conversation(request, binding.sampling)
        await check_argument_texts(request.messages, off_loop, limits=limits, org=binding.org)
        history = recordings[0].history if recordings else None
        build = partial(build_prompt, request, binding, conversation, history, shown, limits)
        # To render and to tokenise a long prompt takes seconds, in which others must be served.
        prompt = build() if size <= _SHORT_REQUEST else await off_loop.thread(build, org=binding.org, size=size)
        grammars = await compile_output_grammars(
            request,
            must_call,
            binding.chat,
            vocabulary=binding.engine.vocabulary,
            limits=limits.schema,
            org=binding.org,
        )
        return cls(
            request,
            binding,
            recordings,
            conversation=conversation,
            prompt=prompt,
            shown=shown,
            must_call=must_call,
            grammars=grammars,
            make_writer=make_writer,
            time=time,
            limits=limits,
        )

    def __init__(
        self,
        request: ChatRequest,
        binding: ModelBinding,
        recordings: Sequence[ChoiceRecording],
        *,
        conversation: Conversation,
        prompt: Prompt,
        shown: ShownImages,
        must_call: tuple[str, ...],
        grammars: OutputGrammars,
        make_writer: MakeWriter,
        time: SamplingTime,
        limits: RequestLimits,
    ) -> None:
        """Raises `UserError` for a prompt that leaves no room for a reply, and for a tool that cannot be called."""
        self._chat = chat = binding.chat
        self._conversation = conversation
        self._prompt = prompt
        self._prompt_ids = prompt.ids
        self._images_dropped = shown.dropped
        self._logprobs = bool(request.logprobs)
        warnings = (*find_ineffective(request, binding.sampling, chat.family), *grammars.warnings, *shown.warnings)
        self._writer = make_writer(ReplyContext(binding.model, chat.tokenizer, self._prompt_ids, warnings))
        plan = build_sampling_plan(
            request,
            binding.sampling,
            chat,
            self._prompt_ids,
            thinking=self._conversation.thinking,
            must_call=must_call,
            grammars=grammars,
            default_max_tokens=default_max_tokens(binding, limits),
            vocabulary=binding.engine.vocabulary,
        )
        # Before a stream begins, because the status of a stream that has begun is 200.
        clamp_max_tokens(
            plan.params,
            prompt=len(self._prompt_ids),
            context=binding.engine.max_context,
            image_tokens=self._prompt.image_tokens,
        )
        self._choices: list[_Choice] = []
        for i in range(num_choices(request)):
            seed = derive_seed(plan.params.seed, i)
            generation = Generation(
                binding.engine,
                chat.tokenizer,
                chat.family,
                self._prompt_ids,
                replace(plan, params=replace(plan.params, seed=seed, org=binding.org)),
                request_id=f"{self._writer.id}-{i}",
                time=time,
                stream=bool(request.stream) or self._writer.by_token,
                images=self._prompt.images,
            )
            parser = ReplyParser(
                chat.tokenizer,
                chat.family,
                opening=plan.opening,
                tools=self._conversation.tools,
                stop=plan.params.stop,
                must_call=plan.must_call,
                json=plan.grammar is not None,
            )
            choice = _Choice(i, generation, parser, recordings[i] if recordings else None)
            if choice.recording is not None:
                choice.recording.on_close(generation.abort)
            self._choices.append(choice)

    async def answer(self, receive: Receive) -> Response:
        """Sample to the end, record the choices, and reply with one JSON body.

        Raises the engine's errors, and `CidClosed` if the rollout ended in the meantime.
        """
        watch = asyncio.create_task(self._abort_on_disconnect(receive))
        try:
            await _gather_or_cancel([choice.sample() for choice in self._choices])
        finally:
            watch.cancel()
        finished = [await self._finish(choice) for choice in self._choices]
        self._refuse_if_closed()
        if any(choice.aborted for choice in self._choices):
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        # Thousands of tokens, each with the likeliest ones beside it, take a while.
        body = await asyncio.to_thread(self._body, finished) if self._logprobs else self._body(finished)
        self._writer.keep()
        return Response(body, media_type="application/json")

    def _body(self, finished: Sequence[tuple[ParsedReply, TextDelta]]) -> bytes:
        choices = [
            FinishedChoice(reply, choice.deltas, choice.texts, rest)
            for choice, (reply, rest) in zip(self._choices, finished, strict=True)
        ]
        return self._writer.body(choices, self._usage([reply for reply, _ in finished]))

    async def stream(self, receive: Receive, send: Send) -> None:
        """Sample and reply as server-sent events; an error after the first byte is the stream's last event."""
        watch = asyncio.create_task(self._abort_on_disconnect(receive))
        writer, replies = self._writer, list[ParsedReply]()

        async def send_all(events: Iterator[bytes]) -> None:
            for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})

        async def send_last(event: bytes) -> None:
            await send({"type": "http.response.body", "body": event})

        try:
            await send_all(writer.begin())
            async with aclosing(self._deltas()) as deltas:
                async for choice, delta in deltas:
                    await send_all(writer.delta(choice.index, delta, choice.append(delta)))
                    if delta.finish_reason is not None:
                        reply, rest = await self._finish(choice)
                        self._refuse_if_closed()
                        replies.append(reply)
                        await send_all(writer.finish(choice.index, reply, rest))
            writer.keep()
            await send_last(b"".join(writer.end(self._usage(replies))))
        except SynthError as error:
            await send_last(writer.failed(error))
        except OSError:
            pass  # the server raises this when the client has hung up
        except Exception:
            # Most clients take a stream that is cut off for a complete reply.
            await send_last(writer.failed(SynthError("a fault of the inference service ended this reply")))
            raise
        finally:
            watch.cancel()
            for choice in self._choices:
                await self._record_unfinished(choice)

    async def _deltas(self) -> AsyncGenerator[tuple[_Choice, ReplyDelta]]:
        """Yield the deltas of all choices, as they come."""
        if len(self._choices) == 1:
            async with aclosing(self._choices[0].generation.deltas()) as deltas:
                async for delta in deltas:
                    yield self._choices[0], delta
            return
        queue: asyncio.Queue[tuple[_Choice, ReplyDelta] | None] = asyncio.Queue()

        async def pump(choice: _Choice) -> None:
            async with aclosing(choice.generation.deltas()) as deltas:
                async for delta in deltas:
                    queue.put_nowait((choice, delta))

        async def pump_all() -> None:
            try:
                await _gather_or_cancel([pump(choice) for choice in self._choices])
            finally:
                queue.put_nowait(None)

        pumping = asyncio.create_task(pump_all())
        try:
            while (item := await queue.get()) is not None:
                yield item
            await pumping
        finally:
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)

    async def _finish(self, choice: _Choice) -> tuple[ParsedReply, TextDelta]:
        """Parse a reply that has ended, and record it once; returns the reply, and its text that was held back."""
        last = choice.deltas[-1]
        reply, rest = choice.parser.close(last.finish_reason or "abort")
        recording = choice.recording
        if recording is not None and not recording.settled:
            record = await make_record(self._prompt, choice.deltas, self._chat, malformed_call=reply.malformed_call)
            chat = recording.chat(self._conversation, reply.message)
            recording.finish(replace(record, chat=chat, images_dropped=self._images_dropped))
            # The app's text lacks the stop string, so the turn cannot be continued token by token as it was sampled.
            if last.finish_reason != "abort" and last.stop_text in (None, CALL_END):
                reply_ids = [token_id for delta in choice.deltas for token_id in delta.token_ids]
                self._chat.remember(recording.history, self._conversation, reply.message, self._prompt_ids, reply_ids)
        return reply, rest

    def _refuse_if_closed(self) -> None:
        """Raise `CidClosed` for a call whose rollout ended while it ran, since its reply is in no record."""
        if any(choice.recording is not None and choice.recording.closed for choice in self._choices):
            raise CidClosed.to_calls()

    async def _record_unfinished(self, choice: _Choice) -> None:
        """Record the tokens of a reply that has not ended; the stream is over."""
        if choice.recording is None or choice.recording.settled:
            return
        try:
            if any(delta.token_ids for delta in choice.deltas):
                record = await make_record(self._prompt, choice.deltas, self._chat)
                reply, _ = choice.parser.close("abort")
                chat = choice.recording.chat(self._conversation, reply.message)
                choice.recording.finish(replace(record, chat=chat, images_dropped=self._images_dropped))
                return
        except SynthError:
            pass  # what ended the stream too: its grammar cannot be followed
        choice.recording.fail()

    def _usage(self, replies: Sequence[ParsedReply]) -> Usage:
        usage = Usage(len(self._prompt_ids))
        for choice in self._choices:
            usage.add(choice.deltas)
        usage.reasoning = sum(reply.reasoning_tokens for reply in replies)
        return usage

    async def _abort_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for choice in self._choices:
            choice.generation.abort()


class EventStream(Response):
    """The response that streams a completion. lease: keeps its model loaded, and ends with the stream."""

    def __init__(self, completion: Completion, lease: AsyncExitStack) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._completion = completion
        self._lease = lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lease:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._completion.stream(receive, send)


async def _gather_or_cancel(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines to their end; the first error cancels the others."""
    if len(runs) == 1:
        await runs[0]
        return
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
