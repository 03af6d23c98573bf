"""Draws the next token of every row in one vectorised pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of the K rows that have any.

    row_K int64. frequency_K, presence_K float32. start_K int64: the position of the first token that counts.
    """

    row_K: Tensor
    frequency_K: Tensor
    presence_K: Tensor
    start_K: Tensor

    def apply(self, logits_NV: Tensor, token_NT: Tensor, length_N: Tensor) -> Tensor:
        """Return the logits less `count * frequency + (count > 0) * presence`, by OpenAI's formula.

        token_NT int64: the tokens so far, of which each row has length_N.
        """
        at_T = torch.arange(token_NT.shape[1], device=token_NT.device)
        counted_KT = (at_T >= self.start_K[:, None]) & (at_T < length_N[self.row_K, None])
        logits_KV = logits_NV[self.row_K]
        count_KV = torch.zeros_like(logits_KV).scatter_add_(1, token_NT[self.row_K], counted_KT.to(logits_KV.dtype))
        logits_KV -= self.frequency_K[:, None] * count_KV
        logits_KV -= self.presence_K[:, None] * (count_KV > 0)
        return logits_NV.index_put((self.row_K,), logits_KV)


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """The sampling settings of N rows.

    temperature_N float32 (0: greedy), top_p_N float32 (1: off), top_k_N int64 (0: off).
    banned: (row, token id) index pairs, each int64 [K], or None. allowed: the rows that have a grammar, int64 [K], and
    which tokens it allows in each, bool [K, V]; or None. bias: (row, token id) index pairs and the number added to the
    logit, float32 [K]; or None. penalties: None if no row has any. history: the tokens so far, int64 [N, T], and how
    many each row has, int64 [N]; read for penalties alone. listed: the rows whose likeliest tokens are listed, int64
    [K], and how many M at most; or None.
    greedy: whether any row is greedy. filtered: whether any has top-p or top-k. A pass that no row needs is skipped.
    """

    temperature_N: Tensor
    top_p_N: Tensor
    top_k_N: Tensor
    banned: tuple[Tensor, Tensor] | None
    greedy: bool
    filtered: bool
    allowed: tuple[Tensor, Tensor] | None = None
    bias: tuple[Tensor, Tensor, Tensor] | None = None
    penalties: Penalties | None = None
    history: tuple[Tensor, Tensor] | None = None
    listed: tuple[Tensor, int] | None = None


def sample_tokens(
    logits_NV: Tensor, sampling: SamplingTensors, uniform_N: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Sample one token for each row: int64 [N] token ids and float32 [N] logprobs (nats).

    Third, of the rows that are `listed`, the likeliest tokens, int64 [K, M], and their logprobs, float32 [K, M].
    logits_NV: [N, V], any float dtype. uniform_N: float64 in [0, 1), one draw a row.
    The logprobs are under the distribution that the token was drawn from (see `Delta`); for greedy rows, the softmax.

    Inverse-CDF sampling needs one uniform number a row for any vocabulary, which makes a seeded request cheap and
    independent of its neighbours. The CDF is float64, because float32 loses the tail of a 150k vocabulary.
    """
    logits_NV = logits_NV.float()
    if sampling.bias is not None:
        rows, tokens, bias_K = sampling.bias
        logits_NV = logits_NV.index_put((rows, tokens), bias_K, accumulate=True)
    if sampling.penalties is not None and sampling.history is not None:
        logits_NV = sampling.penalties.apply(logits_NV, *sampling.history)
    if sampling.banned is not None:
        logits_NV = logits_NV.index_put(sampling.banned, logits_NV.new_tensor(-torch.inf))
    if sampling.allowed is not None:
        rows, allowed = sampling.allowed
        logits_NV = logits_NV.index_put((rows,), logits_NV[rows].masked_fill(~allowed, -torch.inf))
    temperature_N = sampling.temperature_N
    if sampling.greedy:
        temperature_N = torch.where(temperature_N > 0, temperature_N, 1.0)
    logp_NV = torch.log_softmax(logits_NV / temperature_N[:, None], dim=-1)
    if sampling.filtered:
        logp_NV = _keep_top(logp_NV, sampling.top_p_N, sampling.top_k_N)
    cdf_NV = logp_NV.double().exp_().cumsum_(dim=-1)
    total_N1 = cdf_NV[:, -1:]
    # Strictly below the total, so that the first token whose CDF is above the point exists and has weight: never a
    # banned one.
    below_N1 = torch.nextafter(total_N1, torch.zeros_like(total_N1))
    point_N1 = torch.minimum(uniform_N[:, None] * total_N1, below_N1)
    # A NaN row points past the end; its logprob is then NaN too, which the caller reports as an error.
    token_N = torch.searchsorted(cdf_NV, point_N1, right=True).squeeze(1).clamp_(max=cdf_NV.shape[1] - 1)
    if sampling.greedy:
        token_N = torch.where(sampling.temperature_N > 0, token_N, logits_NV.argmax(dim=-1))
    likeliest = None
    if sampling.listed is not None:
        rows, most = sampling.listed
        logp_KM, token_KM = logp_NV[rows].topk(min(most, logp_NV.shape[1]), dim=-1)
        likeliest = token_KM, logp_KM
    return token_N, logp_NV.gather(1, token_N[:, None]).squeeze(1), likeliest


def _keep_top(logp_NV: Tensor, top_p_N: Tensor, top_k_N: Tensor) -> Tensor:
    """Keep each row's `top_k` likeliest tokens, then the fewest of them whose mass reaches `top_p`; renormalise."""
    vocabulary = logp_NV.shape[1]
    ranked_NV, order_NV = logp_NV.sort(dim=-1, descending=True, stable=True)
    k_N1 = torch.where(top_k_N > 0, top_k_N, vocabulary)[:, None]
    out_NV = torch.arange(vocabulary, device=logp_NV.device)[None] >= k_N1
    ranked_NV = torch.log_softmax(ranked_NV.masked_fill(out_NV, -torch.inf), dim=-1)
    p_NV = ranked_NV.exp()
    # Everything after the token that crosses the threshold goes, so that at least one token stays.
    beyond_NV = (p_NV.cumsum(dim=-1) - p_NV >= top_p_N[:, None]) & (top_p_N < 1)[:, None]
    beyond_NV[:, 0] = False
    ranked_NV = torch.log_softmax(ranked_NV.masked_fill(beyond_NV, -torch.inf), dim=-1)
    return torch.empty_like(logp_NV).scatter_(1, order_NV, ranked_NV)
