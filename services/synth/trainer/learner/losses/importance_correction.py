"""Corrects a batch's tokens for the policy that sampled them, with mismatch and staleness kept apart.

π_old is the trainer's own policy at the start of the iteration; μ is the policy as the engine recorded it. At lag 0
both have the same weights and differ in numerics only (mismatch); at lag ≥ 1 they are different policies (staleness).
So the tight gate looks at lag-0 tokens only (decision 28).

A mean over few tokens is far from 1 by chance: at a KL of 6e-4 nats a token, log π_old/μ of a token has a standard
deviation of √(2·6e-4) = 0.035, and the gate [0.99, 1.01] rejects 57 % of sequences of 4 tokens and 2 % of sequences of
64. The spread of a mean over T tokens falls as 1/√T, so for T < gate_tokens the gate is wider by √(gate_tokens/T), in
the logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synth.methods.rl import RlJob
from synth.trainer.learner.losses.base import segment_mean, segment_sum


@dataclass(frozen=True)
class ImportanceCorrection:
    """weight_N: float32, min(π_old/μ, token_truncation). keep_S: bool, False for a rejected sequence.

    sums: sums, counts and maxima (`…/max`) over tokens or sequences, under `lag0/` (lag 0), `lag1/` (lag 1 and above)
    and `all/`, for `correction_metrics`.
    """

    weight_N: Tensor
    keep_S: Tensor
    sums: dict[str, float]


def correct_importance(
    old_logp_N: Tensor, behaviour_logp_N: Tensor, lag_N: Tensor, cu_seqlens: Tensor, job: RlJob
) -> ImportanceCorrection:
    """Truncate token weights at `token_truncation`, and reject sequences by the geometric mean of their ratios, by lag.

        w_t = min(π_old/μ, token_truncation)
        reject a sequence unless  low^f ≤ exp(mean_t log π_old/μ) ≤ high^f,  f = max(1, √(gate_tokens/T))

    the mean over its T tokens of lag 0 by the gate `on_policy`, and over its tokens of lag ≥ 1 by `off_policy`.
    old_logp_N, behaviour_logp_N: float32, nats. lag_N: int, in policy versions, ≥ 0. cu_seqlens: [S+1] into N.
    """
    log_ratio_N = old_logp_N - behaviour_logp_N
    weight_N = log_ratio_N.exp().clamp(max=job.token_truncation)
    keep_S = torch.ones(len(cu_seqlens) - 1, dtype=torch.bool, device=log_ratio_N.device)
    sums: dict[str, float] = {}
    for name, has_lag_N, gate in (
        ("lag0", lag_N == 0, job.correction.on_policy),
        ("lag1", lag_N >= 1, job.correction.off_policy),
    ):
        # The mean over the tokens of this lag: the segment mean of the value, divided by the segment mean of the
        # indicator.
        share_S = segment_mean(has_lag_N.float(), cu_seqlens)
        mean_S = segment_mean(log_ratio_N * has_lag_N, cu_seqlens) / share_S.clamp(min=1e-9)
        tokens_S = segment_sum(has_lag_N.float(), cu_seqlens)
        # A gate that is wider by a factor is the same gate on a mean that is nearer to 1 by it.
        widened_S = (job.correction.gate_tokens / tokens_S.clamp(min=1)).sqrt().clamp(min=1)
        geometric_S = (mean_S / widened_S).exp()
        outside_S = (share_S > 0) & ((geometric_S < gate[0]) | (geometric_S > gate[1]))
        if not job.correction.gates:
            outside_S = torch.zeros_like(outside_S)
        keep_S &= ~outside_S
        log_ratio = log_ratio_N[has_lag_N].double()
        sums |= {
            f"{name}/tokens": float(has_lag_N.sum()),
            f"{name}/truncated": float((log_ratio.exp() > job.token_truncation).sum()),
            f"{name}/sequences": float((share_S > 0).sum()),
            f"{name}/rejected": float(outside_S.sum()),
            # Schulman's k3 estimate of KL(μ ‖ π_old): x = log π_old/μ, e^x − 1 − x, never negative.
            f"{name}/kl": float((log_ratio.expm1() - log_ratio).sum()),
            f"{name}/max": float(log_ratio.abs().max()) if len(log_ratio) else 0.0,
        }
    tokens_S = cu_seqlens.diff()
    sums["all/tokens"], sums["all/rejected_tokens"] = float(tokens_S.sum()), float((tokens_S * ~keep_S).sum())
    sums["all/rejected"] = float((~keep_S).sum())
    return ImportanceCorrection(weight_N=weight_N, keep_S=keep_S, sums=sums)


def correction_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Return the metrics of a step from the added-up `sums` of its micro-batches; a lag without tokens has none."""
    out: dict[str, float] = {}
    for name in ("lag0", "lag1"):
        tokens, sequences = sums.get(f"{name}/tokens", 0.0), sums.get(f"{name}/sequences", 0.0)
        if tokens:
            out[f"mismatch_kl_{name}"] = sums[f"{name}/kl"] / tokens
            out[f"mismatch_max_{name}"] = sums[f"{name}/max"]
            out[f"token_truncated_rate_{name}"] = sums[f"{name}/truncated"] / tokens
            out[f"rejected_rate_{name}"] = sums[f"{name}/rejected"] / sequences
    total = sum(sums.get(f"{name}/tokens", 0.0) for name in ("lag0", "lag1"))
    if total:
        out["rejected_sequences"] = sums["all/rejected"]
        out["rejected_token_rate"] = sums["all/rejected_tokens"] / sums["all/tokens"]
        out["mismatch_kl"] = sum(sums[f"{name}/kl"] for name in ("lag0", "lag1")) / total
    return out
