"""The limits of an engine: context, adapter rank, and time."""

from __future__ import annotations

from dataclasses import replace

from synth.errors import Permanent, Problem, UserError
from synth.inference.engines.protocol import Delta, SamplingParams

# vLLM allocates memory for adapters of one of these ranks.
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def vllm_lora_rank(rank: int) -> int:
    """Return the rank to allocate in vLLM for adapters of `rank`. Raises `Permanent` if vLLM's are all smaller."""
    supported = next((r for r in _LORA_RANKS if r >= rank), None)
    if supported is None:
        raise Permanent(f"an adapter of rank {rank} cannot be served by vLLM; expected at most {_LORA_RANKS[-1]}")
    return supported


class ContextOverflow(UserError):
    """The prompt leaves no room for a reply. Its text is the one that OpenAI's clients match."""

    def __init__(
        self, *, prompt: int, completion: int, context: int, image_tokens: int = 0, exact: bool = True
    ) -> None:
        """prompt: tokens of the messages; image_tokens: how many of them are of images. completion: the most of the
        reply. context: of both together. exact: whether the prompt has so many tokens, not more.
        """
        least = "" if exact else "at least "
        images = f", {image_tokens} of them of its images" if image_tokens else ""
        self.message = (
            f"This model's maximum context length is {context} tokens. However, you requested {least}"
            f"{prompt + completion} tokens ({prompt} in the messages, {completion} in the completion). "
            f"Please reduce the length of the messages to {context - 1} tokens or fewer."
            + (f" The images take {image_tokens} tokens." if image_tokens else "")
        )
        super().__init__(
            Problem(
                what=f"the prompt has {least}{prompt} tokens"
                + (f", {image_tokens} of them of images" if image_tokens else ""),
                expected=f"at most {context - 1}, so that one token can follow within the context of {context}",
                fix="shorten the messages" + (", or show fewer or smaller images" if images else ""),
                where="messages",
            )
        )

    def __str__(self) -> str:
        return self.message


def cut_off_delta(delta: Delta) -> Delta:
    """Return the last delta of a request that was ended because its time was over: its policy's own, cut off."""
    return replace(delta, finish_reason="length", out_of_time=True)


def clamp_max_tokens(params: SamplingParams, *, prompt: int, context: int, image_tokens: int = 0) -> SamplingParams:
    """Return the params with `max_tokens` lowered to the room after `prompt` tokens, `image_tokens` of them of images.

    Raises `ContextOverflow` if no token fits, and `UserError` for a prompt without tokens.
    """
    if not prompt:
        raise UserError("the prompt has no tokens", expected="at least one", where="messages")
    if prompt >= context:
        raise ContextOverflow(prompt=prompt, completion=params.max_tokens, context=context, image_tokens=image_tokens)
    return replace(params, max_tokens=min(params.max_tokens, context - prompt))


def check_scorable(tokens: int, context: int) -> None:
    """Raise `UserError` for a text of `tokens` tokens that a context of `context` tokens cannot score."""
    if not 2 <= tokens < context:
        raise UserError(
            f"the text to score has {tokens} tokens",
            expected=f"2 to {context - 1}, within the context of {context}",
            fix="score another part of the text",
            where="token_ids",
        )
