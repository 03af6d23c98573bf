"""A logits processor of vLLM for token ids that a request must never sample. Imported in the engine process.

vLLM's own `logit_bias` goes down to -100 only, which is not never; its `bad_words` are text.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
    AdapterLogitsProcessor,
)

BANNED = "synth_banned"
PATH = f"{__name__}:BannedTokens"


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
