"""Converts our sampling parameters to vLLM's, and its outputs to ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from synth.errors import Transient, UserError
from synth.inference.engines.protocol import Delta, FinishReason, SamplingParams, TopLogprobs

if TYPE_CHECKING:
    from synth.inference.grammar.tokens import Grammar

# vLLM raises any temperature between 0 and this to this.
_MIN_TEMPERATURE = 0.01


def vllm_params(params: SamplingParams, *, stop_ids: list[int], stream: bool) -> Any:
    """Return vLLM's parameters: with the logprob of every sampled token, exact bans, and only our stop conditions.

    Raises `UserError` for a temperature that vLLM would change.
    """
    from vllm import SamplingParams as VllmParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    from synth.inference.engines.vllm.plugin.logits import BANNED, PENALTIES

    own: dict[str, Any] = {BANNED: list(params.banned)} if params.banned else {}
    if params.penalised:
        own[PENALTIES] = [params.frequency_penalty, params.presence_penalty, params.reply_tokens]
    if 0 < params.temperature < _MIN_TEMPERATURE:
        raise UserError(
            f"temperature is {params.temperature:g}",
            expected=f"0 (greedy), or at least {_MIN_TEMPERATURE:g}",
            where="temperature",
        )
    return VllmParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed,
        stop=list(params.stop) or None,
        detokenize=bool(params.stop),
        skip_special_tokens=False,  # some tokenizers hold marks of the chat format as special tokens
        stop_token_ids=stop_ids,
        ignore_eos=True,
        logprobs=params.top_logprobs,
        logit_bias=dict(params.logit_bias) or None,
        structured_outputs=_structured_outputs(params.grammar) if params.grammar is not None else None,
        extra_args=own or None,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )


def _structured_outputs(grammar: Grammar) -> Any:
    from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

    return StructuredOutputsParams(**{"json" if grammar.kind == "json" else "grammar": grammar.text})


def scoring_params() -> Any:
    """Return parameters that give the logprob of every prompt token, all of them recomputed."""
    from vllm import SamplingParams as VllmParams  # pyright: ignore[reportMissingImports]

    return VllmParams(max_tokens=1, prompt_logprobs=0, detokenize=False, skip_reading_prefix_cache=True)


def to_delta(completion: Any, versions: list[int], *, version: int, top: int) -> Delta:
    """Convert a completion of vLLM. versions: of each token. version: the live one, for the error's text.

    top: how many of the likeliest tokens were requested. Raises `Transient` when a logprob is not finite, or vLLM gave
    up the request.
    """
    ids = list(completion.token_ids)
    logprobs = [position[token].logprob for position, token in zip(completion.logprobs or [], ids, strict=True)]
    if not all(map(math.isfinite, logprobs)):
        raise Transient(f"policy version {version} gives logits that are not finite")
    reason = completion.finish_reason
    if reason not in (None, "stop", "length", "abort"):
        raise Transient(f"vLLM ended the request: {reason}")
    finish: FinishReason | None = reason
    stop_text = completion.stop_reason if isinstance(completion.stop_reason, str) else None
    listed = [_likeliest(position, top) for position in completion.logprobs or []] if top else []
    return Delta(ids, logprobs, versions, finish, stop_text, top_logprobs=listed)


def _likeliest(position: dict[int, Any], top: int) -> TopLogprobs:
    """Return the likeliest tokens of one position, with the sampled one at any rank."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)[:top]
    return [(token, entry.logprob) for token, entry in ranked if entry.logprob > -math.inf]


def version_per_token(starts: Sequence[tuple[str, int]], first: int, count: int) -> list[int]:
    """Return the versions of tokens `first` … `first + count - 1`. starts: each version, and its first token."""
    versions: list[int] = []
    for token in range(first, first + count):
        label = next(version for version, start in reversed(starts) if start <= token)
        versions.append(int(label))
    return versions


def prompt_logprobs(output: Any) -> list[float]:
    """Return the logprobs of the tokens of a scored prompt, except the first."""
    ids = output.prompt_token_ids
    return [position[token].logprob for position, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]
