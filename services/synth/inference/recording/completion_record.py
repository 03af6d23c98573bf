"""Build the record of one reply from its sampled tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from synth.inference.chat.generation import ReplyDelta
from synth.inference.chat.prompts import ChatFormat, Prompt
from synth.trajectories import CompletionRecord, TokenMasks, TokenSet


async def make_record(
    prompt: Prompt, deltas: Sequence[ReplyDelta], chat: ChatFormat, *, malformed_call: bool = False
) -> CompletionRecord:
    """Return the record of a reply. A token that a grammar allowed no other than is not sampled (decision 33)."""
    constrained = any(delta.grammar is not None for delta in deltas)
    # Thousands of masks take a second.
    allowed = await asyncio.to_thread(_allowed_tokens, deltas, chat.media) if constrained else []
    masks = TokenMasks.of(allowed)
    sampled = np.asarray([delta.sampled for delta in deltas for _ in delta.token_ids], np.bool_)
    logprobs = np.asarray([logprob for delta in deltas for logprob in delta.logprobs], np.float32)
    if masks is not None:
        sampled &= np.asarray([one is None or one.excluded or len(one.ids) > 1 for one in allowed])
        logprobs = np.where(sampled, logprobs, 0).astype(np.float32)
    return CompletionRecord(
        prompt_ids=np.asarray(prompt.ids, np.int32),
        sampled_ids=np.asarray([i for delta in deltas for i in delta.token_ids], np.int32),
        logprobs=logprobs,
        versions=np.asarray([version for delta in deltas for version in delta.versions], np.int32),
        sampled=sampled,
        finish_reason=deltas[-1].finish_reason or "abort",
        masks=masks,
        malformed_call=malformed_call,
        out_of_time=deltas[-1].out_of_time,
        images=tuple(image.shown for image in prompt.images),
        processor=chat.processor.fingerprint if chat.processor is not None else "",
    )


def _allowed_tokens(deltas: Sequence[ReplyDelta], never: Sequence[int]) -> list[TokenSet | None]:
    """Return, for each token of a reply, the tokens that could have come in its place; None if any could.

    never: tokens that no reply has, under any grammar.
    """
    allowed: list[TokenSet | None] = []
    grammar = next((delta.grammar for delta in deltas if delta.grammar is not None), None)
    ids = [token_id for delta in deltas if delta.grammar is not None for token_id in delta.token_ids]
    masks = iter(()) if grammar is None else grammar.masks(ids)
    for delta in deltas:
        for _ in delta.token_ids:
            mask = None if delta.grammar is None else next(masks)
            if mask is not None:
                mask[list(never)] = False
            allowed.append(None if mask is None else TokenSet.of(mask))
    return allowed
