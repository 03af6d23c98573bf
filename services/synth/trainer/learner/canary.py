"""The canary: a few tokens whose log-probabilities the trainer publishes with new weights, for an engine to repeat.

Digests prove that the right tensors arrived; the canary proves that the engine computes with them. Its tokens stay the
same all through a job, so that its log-probabilities can be compared from version to version.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from synth.events import Canary
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.model.policy import Policy

#: Few tokens are enough: a wrong tensor changes every log-probability, and a forward over 64 tokens costs little beside
#: a step.
_TOKENS = 64


def canary_tokens(sequences: Sequences) -> list[int] | None:
    """Return the last tokens of a sequence, which were sampled; of the first sequence with at least two. None if none
    has.

    They begin after the sequence's last image, because the canary is a forward of text only.
    """
    for start, end in itertools.pairwise(sequences.cu_seqlens.tolist()):
        tokens = sequences.tokens[max(start, end - _TOKENS) : end]
        media = np.flatnonzero(np.isin(tokens, sequences.banned))
        tokens = tokens[media[-1] + 1 if len(media) else 0 :]
        if len(tokens) > 1:
            return tokens.tolist()
    return None


@torch.no_grad()
def score_canary(policy: Policy, token_ids: list[int]) -> Canary:
    """Return the log-probabilities of these tokens (at least two) under the policy as it is now, at temperature 1."""
    tokens = np.asarray(token_ids, dtype=np.int32)
    sequences = Sequences(tokens, np.ones(len(tokens), np.float32), np.array([0, len(tokens)]))
    logp_N, _ = policy.logprobs(collate(sequences, [0], packing="padded", device=policy.device))
    return Canary(token_ids=token_ids, logprobs=logp_N.tolist(), dtype=policy.machine.dtype)
