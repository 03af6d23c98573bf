"""The canary: a few tokens whose log-probabilities the trainer publishes with new weights, for an engine to repeat.

Digests prove that the right tensors arrived; the canary proves that the engine computes with them. Its tokens stay the
same all through a job, so that its log-probabilities can be compared from version to version.
"""

from __future__ import annotations

import numpy as np
import torch

from synth.events import Canary
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.model.policy import Policy

#: Few tokens are enough: a wrong tensor changes every log-probability, and a forward over 64 tokens costs little beside
#: a step.
_TOKENS = 64


def canary_tokens(sequences: Sequences) -> list[int] | None:
    """The last tokens of the first sequence, which were sampled; None where there is no sequence of two tokens."""
    if not len(sequences):
        return None
    start, end = int(sequences.cu_seqlens[0]), int(sequences.cu_seqlens[1])
    tokens = sequences.tokens[max(start, end - _TOKENS) : end].tolist()
    return tokens if len(tokens) > 1 else None


@torch.no_grad()
def score_canary(policy: Policy, token_ids: list[int]) -> Canary:
    """The log-probabilities of these tokens (at least two) under the policy as it is now, at temperature 1."""
    tokens = np.asarray(token_ids, dtype=np.int32)
    sequences = Sequences(tokens, np.ones(len(tokens), np.float32), np.array([0, len(tokens)]))
    logp_N, _ = policy.logprobs(collate(sequences, [0], packing="padded", device=policy.device))
    return Canary(token_ids=token_ids, logprobs=logp_N.tolist(), dtype=policy.config.dtype)
