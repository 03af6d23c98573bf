"""What an engine must report of its tokens, by a plain forward of the model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from synth.inference.engines.protocol import Delta, SamplingParams
from tests.unit.inference.tiny_model import plain_logprobs


def max_error(result: Delta, expected: Tensor) -> float:
    """The largest difference of a completion's logprobs from those expected, in nats."""
    return float((torch.tensor(result.logprobs) - expected).abs().max())


def drawn_from(model: Any, ids: list[int], sampled: list[int], params: SamplingParams) -> Tensor:
    """float32 [C]: logprobs of the sampled tokens under the distributions that `params` describe."""
    logp_CV = distributions(model, ids, sampled, params)
    return logp_CV.gather(1, torch.tensor(sampled)[:, None]).squeeze(1)


def distributions(model: Any, ids: list[int], sampled: list[int], params: SamplingParams) -> Tensor:
    """float32 [C, V]: bias, penalties, bans, temperature, top-k, top-p; greedy: without the last three."""
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *sampled]])).logits[0, len(ids) - 1 : -1].float()
    for token, bias in params.logit_bias:
        logits[:, token] += bias
    for i, row in enumerate(logits):
        for token, count in Counter([*ids[len(ids) - params.reply_tokens :], *sampled[:i]]).items():
            row[token] -= count * params.frequency_penalty + params.presence_penalty
    logits[:, list(params.banned)] = -torch.inf
    greedy = params.temperature == 0
    logp = torch.log_softmax(logits / (1 if greedy else params.temperature), dim=-1)
    if not greedy and (params.top_p < 1 or params.top_k):
        logp = _nucleus(logp, params.top_p, params.top_k)
    return logp


def scored(model: Any, ids: list[int]) -> Tensor:
    return plain_logprobs(model, ids[:1], ids[1:], ban_end=False)


def _nucleus(logp_CV: Tensor, top_p: float, top_k: int) -> Tensor:
    """The `top_k` best tokens, then the fewest of them that hold `top_p`, one row at a time."""
    rows: list[Tensor] = []
    for logp_V in logp_CV:
        order = logp_V.argsort(descending=True)[: top_k or None]
        p = torch.softmax(logp_V[order], dim=0)
        kept = order[: int((p.cumsum(0) - p < top_p).sum())]
        row = torch.full_like(logp_V, -torch.inf)
        row[kept] = torch.log_softmax(logp_V[kept], dim=0)
        rows.append(row)
    return torch.stack(rows)
