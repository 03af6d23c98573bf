"""The interface of an inference engine: tokens in, tokens out, weights swapped between two steps.

An engine knows nothing of chats, HTTP, cids or jobs. For every sampled token it reports the logprob under the policy
that sampled it, and the version of that policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from synth.errors import UserError
from synth.images.format import ImageRefused
from synth.images.prompt_image import PromptImage

if TYPE_CHECKING:
    from synth.inference.engines.sampling_time import SamplingTime
    from synth.inference.grammar.tokens import Grammar

FinishReason = Literal["stop", "length", "abort"]
TopLogprobs = list[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one completion is sampled.

    temperature: 0 is greedy. top_p 1 and top_k 0 are off.
    banned: token ids that can never be sampled (their logit is -inf); a request to a model that sees bans its media
    tokens, which would stand for images that are not there. stop: strings that end the text.
    seed: makes the draws independent of the rest of the batch; None: the engine's own random stream.
    grammar: of the completion: every token is drawn among the tokens that it allows.
    logit_bias: pairs of a token id and the number added to its logit. frequency_penalty, presence_penalty: taken off a
    token's logit for each time that the reply has it, and once if the reply has it. All three come before temperature.
    reply_tokens: how many of the prompt's last tokens are the reply so far, which the penalties count too.
    top_logprobs: how many of the likeliest tokens each delta lists for each of its tokens.
    org: on whose behalf. Organisations take turns at an engine, and share no cached prompts.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    banned: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int | None = None
    grammar: Grammar | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    reply_tokens: int = 0
    top_logprobs: int = 0
    org: str = ""

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on the tokens of the reply so far."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0


class ImageDecoding(Protocol):
    """Decodes images in a process that has no key (`synth.images.decoder.ImageDecoder`)."""

    async def pixels(self, body: bytes) -> tuple[int, int, bytes | memoryview]:
        """Return the rows, the columns and the pixels in RGB of an image's file. Raises `ImageRefused`."""
        ...


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image that a prompt shows. shown: its place in the prompt. body: its file. decoder: decodes it."""

    shown: PromptImage
    body: bytes
    decoder: ImageDecoding

    async def pixels(self) -> npt.NDArray[np.uint8]:
        """Decode the image, uint8 [rows, columns, 3]. Raises `UserError` if it cannot be shown, and `Transient`."""
        try:
            rows, columns, pixels = await self.decoder.pixels(self.body)
        except ImageRefused as error:
            raise UserError(str(error), expected="an image", where="messages") from error
        return np.frombuffer(pixels, np.uint8).reshape(rows, columns, 3)


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly sampled tokens of one completion; the three lists are parallel.

    logprobs: nats, float32 values, under the distribution that the token was drawn from: after bias, penalties,
    temperature, bans, grammar, top-k and top-p, renormalised (greedy: without temperature, top-k and top-p). versions:
    the policy version of each token.
    finish_reason: set on the last delta only; "abort" when the request was aborted. out_of_time: it is "length" because
    the time for sampling was over.
    stop_text: the stop string that ended it; its tokens are among the token ids.
    top_logprobs: for each token, the likeliest tokens of the same distribution and their logprobs, likeliest first;
    tokens that could not have been drawn are left out. Empty if none were requested.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: FinishReason | None = None
    stop_text: str | None = None
    out_of_time: bool = False
    top_logprobs: list[TopLogprobs] = field(default_factory=list[TopLogprobs])

    def first(self, length: int, finish_reason: FinishReason | None = None) -> Delta:
        """Return the first tokens alone; with a negative length, all but the last ones."""
        parts = self.token_ids[:length], self.logprobs[:length], self.versions[:length]
        return Delta(*parts, finish_reason, top_logprobs=self.top_logprobs[:length])


@dataclass(frozen=True, slots=True)
class WeightProof:
    """The live weights after a swap: of the `tensors` in the file, `matched` have the announced digest.

    The transformers engine reads the live tensors back. vLLM fuses and repacks tensors as it loads them, so `matched`
    counts the tensors that its loader took, each from bytes of the announced digest.
    """

    version: int
    tensors: int
    matched: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The load of an engine at one moment. running, waiting: requests. kv_tokens_used, kv_tokens_budget: tokens.

    prefills: prompts that went through the model; prompts_shared: requests that reused another's prompt.
    cpu_seconds: of the engine's own thread since it began to serve; 0 if the engine is another process.
    """

    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_budget: int
    steps: int
    sampled_tokens: int
    prefills: int
    prompts_shared: int
    cpu_seconds: float = 0.0


@dataclass(slots=True)
class EngineCounters:
    """The counts of an engine since it was loaded, as in `EngineStats`."""

    sampled_tokens: int = 0
    prefills: int = 0
    prompts_shared: int = 0


class Engine(Protocol):
    """One loaded policy: a model in the transformers engine, or a policy on a vLLM host."""

    @property
    def version(self) -> int:
        """The version of the policy that samples the next token."""
        ...

    @property
    def healthy(self) -> bool:
        """False once the engine cannot answer any more: it is closed, or its thread has died."""
        ...

    @property
    def max_context(self) -> int:
        """Tokens that one request can have, prompt and completion together."""
        ...

    @property
    def vocabulary(self) -> int:
        """The number of tokens of the model: the length of its logits."""
        ...

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        time: SamplingTime,
        stream: bool = False,
        images: Sequence[EngineImage] = (),
    ) -> AsyncIterator[Delta]:
        """Sample one completion: deltas as they come if `stream`, else one delta with everything.

        images: the images that the prompt shows, in the order of their tokens, each as many image tokens as it has.
        Closing the iterator ends the request. When `time` is over, the request ends with the tokens sampled so far, as
        a reply that has reached its length. Raises `ContextOverflow` for a prompt that does not fit, and `Transient` if
        no token was sampled in that time or the engine dies.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request now: its iterator yields the tokens sampled so far, with finish_reason "abort"."""
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return logprobs (nats, float32 values) of token_ids[1:] under the live policy: T = 1, full softmax, no bans.

        Every token is recomputed, without a prefix cache. token_ids: at least two, and at most one fewer than the
        context holds. Raises `UserError` when they do not fit, `Transient` when the engine dies.
        """
        ...

    async def update_weights(self, file: Path, version: int) -> WeightProof:
        """Load a policy weights file between two steps.

        Running requests continue under the new weights, after their KV was recomputed (decision 30). An engine that
        holds several adapters at once finishes them on the adapter that they began with. In both cases every token has
        its version. Raises `Permanent` if the file does not fit the model, and then changes nothing; and if the engine
        does not serve the announced weights.
        """
        ...

    async def sleep(self) -> None:
        """Give the device's memory back: weights move to the CPU's, the KV cache is dropped.

        Running requests stand still, and their time with them; new ones queue up. No other method may be called on a
        sleeping engine. Does nothing if the engine sleeps already. Raises `Transient` when the engine dies.
        """
        ...

    async def wake(self) -> None:
        """Take the memory again, recompute the KV of running requests, and continue. Raises `Transient`, as `sleep`."""
        ...

    def stats(self) -> EngineStats: ...

    async def close(self) -> None:
        """Stop the engine. Requests that still run end with an error."""
        ...
