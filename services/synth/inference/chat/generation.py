"""Sampling one reply, with several requests to the engine if some of its tokens are forced.

An engine takes tokens and gives tokens. What a reply must contain (the end of reasoning that has reached its
budget, the beginning of a tool call) is appended to the prompt, and sampling goes on after it: the forced tokens are
known exactly, and every other one was drawn from the policy. A prefix cache makes going on cheap.

Invariants: `max_tokens` bounds the sampled tokens of all requests together; forced tokens are followed by a sampled
one, or they are left out, unless they end a call whose arguments are complete; of tokens that were sampled and could
not stay, none is given out.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from synth.chat.families import Family
from synth.chat.marks import THINK, THINK_CLOSING, THINK_END
from synth.chat.replies.reader import Opening
from synth.chat.tools import Tools
from synth.inference.engines.limits import ContextOverflow, cut_off_delta
from synth.inference.engines.protocol import Delta, Engine, EngineImage, FinishReason, SamplingParams, TopLogprobs
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.tokenizers import StreamDecoder, Tokenizer

if TYPE_CHECKING:
    from synth.inference.grammar.tokens import Grammar


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """Tokens of a reply, as `Delta` has them. sampled: drawn from the policy; forced ones have logprob 0.

    finish_reason: set on the last delta alone. out_of_time: it was cut off because its time was over.
    grammar: what these tokens were drawn under; a reply has one at most, and its tokens follow each other from the
    grammar's first on.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    sampled: bool = True
    finish_reason: FinishReason | None = None
    stop_text: str | None = None
    grammar: Grammar | None = None
    out_of_time: bool = False
    top_logprobs: list[TopLogprobs] = field(default_factory=list[TopLogprobs])


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """How one reply is sampled. params: of the whole reply; its stop strings are the client's.

    thinks: whether it may begin with reasoning. opening: how the prompt makes it begin.
    thinking_budget: sampled tokens after which reasoning is closed; None leaves its end to the model.
    tools: the tools that it may call. one_call: whether it ends after its first tool call. must_call: the functions of
    which it has to call one.
    grammar: of its answer, after the reasoning. argument_grammars: of the arguments of the forced call, for some of the
    functions.
    """

    params: SamplingParams
    thinks: bool = False
    opening: Opening = ""
    thinking_budget: int | None = None
    tools: Tools = ()
    one_call: bool = False
    must_call: tuple[str, ...] = ()
    grammar: Grammar | None = None
    argument_grammars: Mapping[str, Grammar] = field(default_factory=dict[str, "Grammar"])

    @property
    def must_answer(self) -> bool:
        """Whether the reasoning must be followed by an answer or a call, independent of the model."""
        return bool(self.must_call) or self.grammar is not None

    @property
    def in_reasoning(self) -> bool:
        """Whether the prompt ends in open reasoning."""
        return self.opening == "reasoning"

    @property
    def stops_at_reasoning_end(self) -> bool:
        """Whether reasoning is sampled in requests of its own, because something changes at its end."""
        changes = self.thinking_budget is not None or self.must_answer
        return changes and (self.thinks or self.in_reasoning)


class Generation:
    """The sampling of one reply.

    images: the images that the prompt shows. request_id: of the engine's requests, which append their number. time: for
    all of them.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        family: Family,
        prompt_ids: Sequence[int],
        plan: GenerationPlan,
        *,
        request_id: str,
        time: SamplingTime,
        stream: bool,
        images: Sequence[EngineImage] = (),
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._family = family
        self._prompt_length = len(prompt_ids)
        self._ids = list(prompt_ids)
        self._images = images
        self._plan = plan
        self._request_id = request_id
        self._time = time
        self._stream = stream
        self._tokens_left = plan.params.max_tokens
        self._forced = ""  # to come before the next sampled token
        self._called: str | None = None
        self._version = 0
        self._requests = 0
        self._running_request: str | None = None
        self._aborted = False
        self._first_call: _FirstCall | None = None
        if plan.one_call and not plan.must_call and family.calls is not None and not family.calls.alone:
            self._first_call = _FirstCall(tokenizer, family, plan)

    def abort(self) -> None:
        """End the reply now; its last delta has finish_reason "abort"."""
        self._aborted = True
        if self._running_request is not None:
            self._engine.abort(self._running_request)

    async def deltas(self) -> AsyncGenerator[ReplyDelta]:
        """Yield the reply: small deltas at once if `stream`, else few and large. Raises the engine's errors."""
        for phase in (self._think, self._start_forced_call, self._forced_arguments, self._answer):
            async with aclosing(phase()) as deltas:
                async for delta in deltas:
                    yield delta
                    if delta.finish_reason is not None:
                        return

    async def _think(self) -> AsyncGenerator[ReplyDelta]:
        """Sample the reasoning, until the model or a forced token closes it."""
        plan = self._plan
        if not plan.stops_at_reasoning_end:
            return
        if plan.must_answer and not plan.in_reasoning:
            # Otherwise the reply might begin with any text, and the required answer would be forced after it.
            self._forced = f"{THINK}\n"
        budget = self._tokens_left if plan.thinking_budget is None else plan.thinking_budget
        while budget > 0 and self._tokens_left > 0:
            room, last = min(self._tokens_left, budget), _EMPTY
            async with aclosing(self._sample(room, (THINK_END,))) as deltas:
                async for last in deltas:
                    room -= len(last.token_ids)
                    budget -= len(last.token_ids)
                    if last.finish_reason is None:
                        for emitted in self._emit(last):
                            yield emitted
            ended_turn = last.finish_reason == "stop" and last.stop_text is None
            if ended_turn and plan.must_answer:
                last, budget = last.first(-1), 0
            elif self._is_over(last, room):
                for emitted in self._emit(last, finished=True):
                    yield emitted
                return
            for emitted in self._emit(last):
                yield emitted
            if last.stop_text == THINK_END:
                self._forced = "\n\n" if plan.must_answer else ""
                return
        if self._in_reasoning():
            reply_text = self._tokenizer.decode(self._ids[self._prompt_length :]) + self._forced
            self._forced += THINK_CLOSING.lstrip() if reply_text.endswith("\n") else THINK_CLOSING

    def _is_over(self, last: Delta, room: int) -> bool:
        """Return whether the reply has ended in its reasoning, or without any. room: tokens that could still come."""
        if last.finish_reason == "length":
            # With room left it was the context that was full: no token fits after it.
            return room > 0
        if last.finish_reason == "stop" and last.stop_text not in self._plan.params.stop:
            return last.stop_text != THINK_END
        return True

    def _in_reasoning(self, more: Sequence[int] = ()) -> bool:
        """Return whether the reply so far, with the tokens to be added, began with reasoning that is not closed yet."""
        reply_text = self._tokenizer.decode([*self._ids[self._prompt_length :], *more]) + self._forced
        return self._plan.in_reasoning or reply_text.lstrip().startswith(THINK)

    async def _start_forced_call(self) -> AsyncGenerator[ReplyDelta]:
        """Yield the beginning of a tool call, up to its arguments: the model chooses among several functions."""
        names, calls = self._plan.must_call, self._family.calls
        if not names or calls is None:
            return
        heads = [name + calls.after_name for name in names]
        self._forced += calls.before_name
        chosen, kept = "", _EMPTY
        if len(names) > 1 and self._tokens_left > 0:
            most = min(self._tokens_left, max(map(len, heads)))
            async with aclosing(self._sample(most, (calls.name_end,), whole=True)) as deltas:
                name = await anext(deltas)
            if name.finish_reason == "abort" or name.out_of_time:
                yield replace(_reply_delta(_EMPTY, name.finish_reason), out_of_time=name.out_of_time)
                return
            kept, chosen = self._matching_prefix(name, heads)
        for emitted in self._emit(kept):
            yield emitted
        head = next(head for head in heads if head.startswith(chosen))
        self._forced += head[len(chosen) :]
        self._called = names[heads.index(head)]

    async def _forced_arguments(self) -> AsyncGenerator[ReplyDelta]:
        """Yield the arguments of a forced call whose function has a grammar for them, and the call's end."""
        grammar, calls = self._plan.argument_grammars.get(self._called or ""), self._family.calls
        if grammar is None or calls is None or self._tokens_left <= 0:
            return
        self._forced += "" if calls.xml else " "
        last, room = _EMPTY, self._tokens_left
        async with aclosing(self._sample(room, (), grammar=grammar)) as deltas:
            async for last in deltas:
                room -= len(last.token_ids)
                if last.finish_reason is None:
                    for emitted in self._emit(last, grammar=grammar):
                        yield emitted
        if last.finish_reason != "stop" or last.stop_text is not None:
            for emitted in self._emit(last, finished=True, grammar=grammar):
                yield emitted
            return
        # The grammar ends with the end of the turn, which comes after the call.
        for emitted in self._emit(last.first(-1), grammar=grammar):
            yield emitted
        ends = self._plan.one_call or calls.alone
        self._forced += calls.after_arguments + (calls.closing if ends else "")
        if ends or self._tokens_left <= 0:
            for forced in self._emit_forced("stop" if ends else "length"):
                yield forced

    def _matching_prefix(self, name: Delta, heads: list[str]) -> tuple[Delta, str]:
        """Return the longest beginning of `name` with which one of `heads` begins too, and its text."""
        n, text = 0, ""
        for k in range(1, len(name.token_ids) + 1):
            grown = self._tokenizer.decode(name.token_ids[:k])
            # A token without text, such as the end of the turn, fits nowhere.
            if len(grown) == len(text) or not any(head.startswith(grown) for head in heads):
                break
            n, text = k, grown
        return name.first(n), text

    async def _answer(self) -> AsyncGenerator[ReplyDelta]:
        plan = self._plan
        if self._tokens_left <= 0:
            yield _reply_delta(_EMPTY, "length")
            return
        async with aclosing(self._sample(self._tokens_left, (), grammar=plan.grammar)) as deltas:
            async for delta in deltas:
                for emitted in self._emit(delta, finished=True, grammar=plan.grammar):
                    yield emitted

    async def _sample(
        self, limit: int, stops: tuple[str, ...], *, whole: bool = False, grammar: Grammar | None = None
    ) -> AsyncGenerator[Delta]:
        """Send one request for the text after the prompt, the reply so far and the forced text, and yield its deltas.

        stops: stop strings beside the client's own. whole: one delta, also of a reply that is streamed. grammar: what
        may be sampled.
        """
        params, number = self._plan.params, self._requests
        self._requests += 1
        if self._aborted:
            yield Delta([], [], [], "abort")
            return
        if number and self._time.seconds_left <= 0:
            yield cut_off_delta(_EMPTY)
            return
        name = f"{self._request_id}-{number}"
        ids = [*self._ids, *self._tokenizer.encode(self._forced)]
        deltas = self._engine.generate(
            ids,
            replace(
                params,
                max_tokens=limit,
                stop=(*params.stop, *(stop for stop in stops if stop not in params.stop)),
                seed=derive_seed(params.seed, number),
                grammar=grammar,
                reply_tokens=len(ids) - self._prompt_length,
            ),
            request_id=name,
            time=self._time,
            stream=(self._stream or self._first_call is not None) and not whole,
            images=self._images,
        )
        self._running_request = name
        try:
            async with aclosing(cast(AsyncGenerator[Delta], deltas)):
                async for delta in deltas:
                    yield delta
        except ContextOverflow:
            if number == 0:
                raise
            yield Delta([], [], [], "length")  # the context is full
        finally:
            self._running_request = None

    def _emit(self, delta: Delta, *, finished: bool = False, grammar: Grammar | None = None) -> Iterator[ReplyDelta]:
        """Yield the engine's delta, after the forced tokens before it. grammar: under which it was sampled."""
        if delta.token_ids and self._forced:
            self._version = delta.versions[0]
            yield from self._emit_forced(None)
        length = self._first_call.ends(delta.token_ids) if self._first_call is not None else None
        if length is not None:
            delta, finished = delta.first(length, "abort" if delta.finish_reason == "abort" else "stop"), True
        self._ids += delta.token_ids
        self._tokens_left -= len(delta.token_ids)
        if delta.token_ids:
            self._version = delta.versions[-1]
        closing = self._first_call.closing if self._first_call is not None and length is not None else ""
        if delta.token_ids or (finished and delta.finish_reason):
            emitted = _reply_delta(delta, delta.finish_reason if finished and not closing else None)
            yield emitted if grammar is None else replace(emitted, grammar=grammar)
        if closing:
            self._forced = closing
            yield from self._emit_forced(delta.finish_reason)

    def _emit_forced(self, finish_reason: FinishReason | None) -> Iterator[ReplyDelta]:
        """Yield the forced tokens, with the version of the token beside them."""
        forced = self._tokenizer.encode(self._forced)
        self._ids += forced
        self._forced = ""
        if self._first_call is not None:
            self._first_call.ends(forced)
        versions = [self._version] * len(forced)
        yield ReplyDelta(forced, [0.0] * len(forced), versions, sampled=False, finish_reason=finish_reason)


class _FirstCall:
    """Finds the token that completes a reply's first tool call.

    A stop string cannot: the text that ends a call may stand in a string of its arguments.
    """

    def __init__(self, tokenizer: Tokenizer, family: Family, plan: GenerationPlan) -> None:
        self._text = StreamDecoder(tokenizer)
        self._reader = family.reader(plan.tools, opening=plan.opening, json=plan.grammar is not None)

    @property
    def closing(self) -> str:
        """The part that the calls so far lack to be whole."""
        return self._reader.syntax.closing if self._reader.syntax is not None and self._reader.unclosed else ""

    def ends(self, token_ids: Sequence[int]) -> int | None:
        """Read the next tokens; returns how many of them complete the call, None if there is no whole call yet."""
        for length, token_id in enumerate(token_ids, start=1):
            self._reader.feed(self._text.feed([token_id]))
            if self._reader.calls:
                return length
        return None


_EMPTY = Delta([], [], [])


def derive_seed(seed: int | None, number: int) -> int | None:
    """Return the seed of draws that do not repeat the draws of `seed`; number 0 is `seed` itself."""
    if seed is None or number == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _reply_delta(delta: Delta, finish_reason: FinishReason | None) -> ReplyDelta:
    stop_text = delta.stop_text if finish_reason is not None else None
    out_of_time = delta.out_of_time and finish_reason is not None
    parts = delta.token_ids, delta.logprobs, delta.versions, True, finish_reason, stop_text
    return ReplyDelta(*parts, out_of_time=out_of_time, top_logprobs=delta.top_logprobs)
