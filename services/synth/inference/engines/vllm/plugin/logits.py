"""Logits processors of vLLM: bans that are exact, and penalties of a reply. Imported in the engine process.

vLLM's own `logit_bias` goes down to -100 only, which is not never; its `bad_words` are text. Its own penalties count
the tokens of one request, and a reply may take several (`synth.inference.chat.generation`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
    AdapterLogitsProcessor,
)

BANNED, PENALTIES = "synth_banned", "synth_penalties"
PATHS = [f"{__name__}:BannedTokens", f"{__name__}:ReplyPenalties"]


class BannedTokens(AdapterLogitsProcessor):
    """Sets the logits of `SamplingParams.extra_args["synth_banned"]` to -inf, for greedy requests too."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        banned = (params.extra_args or {}).get(BANNED)
        if not banned:
            return None

        def ban(_: list[int], logits_V: Tensor) -> Tensor:
            logits_V[banned] = -float("inf")
            return logits_V

        return ban


class ReplyPenalties(AdapterLogitsProcessor):
    """Applies `SamplingParams.extra_args["synth_penalties"]`: frequency, presence, tokens of the prompt that count."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        penalties = (params.extra_args or {}).get(PENALTIES)
        if not penalties:
            return None
        frequency, presence, reply_tokens = penalties

        def penalise(prompt_ids: list[int], output_ids: list[int], logits_V: Tensor) -> Tensor:
            earlier = prompt_ids[len(prompt_ids) - reply_tokens :]
            ids_T = torch.tensor([*earlier, *output_ids], dtype=torch.int64)
            # vLLM marks a token that is not known yet by -1.
            ids_T = ids_T[ids_T >= 0].to(logits_V.device)
            count_V = torch.zeros_like(logits_V).scatter_add_(0, ids_T, torch.ones_like(ids_T, dtype=logits_V.dtype))
            logits_V -= frequency * count_V
            logits_V -= presence * (count_V > 0)
            return logits_V

        return penalise
