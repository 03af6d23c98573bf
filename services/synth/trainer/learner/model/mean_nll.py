"""The negative log-likelihood of a set of sequences under a policy: the mean, and the value of each sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from synth.trainer.learner.data.packing import SequenceSource, collate, plan_micro_batches, windows
from synth.trainer.learner.losses.base import segment_sum
from synth.trainer.learner.model.policy import Policy


def mean_nll(
    policy: Policy,
    sequences: SequenceSource,
    *,
    temperature: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Compute the mean of `measure_nll` alone."""
    return measure_nll(policy, sequences, temperature=temperature, progress=progress)[0]


@torch.no_grad()
def measure_nll(
    policy: Policy,
    sequences: SequenceSource,
    *,
    temperature: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[float, Tensor]:
    """Compute the negative log-likelihood of the trained tokens, in nats, without dropout.

    Every rank calls this, and gets the figures of all ranks. Only the sequences of one forward are in memory.
    progress: called after each forward with how many sequences are done, about, and how many there are.
    Returns the weighted mean over all tokens, and float64 [S, 2] on the CPU: of each sequence the weighted sum, and the
    sum of its weights.
    """
    job, process_group = policy.job, policy.process_group
    # The mean is added up forward by forward: a resumed job must get the bits that its checkpoint has.
    total = weight = 0.0
    rows_S2 = torch.zeros((len(sequences), 2), dtype=torch.float64)
    policy.model.eval()
    try:
        for window in windows(len(sequences)):
            plan = plan_micro_batches(
                sequences.lengths(window),
                budget=job.micro_batch_tokens,
                packing=policy.layout,
                num_ranks=process_group.size,
            )
            micro_batches = process_group.shard_micro_batches(plan)
            for done, (indices, dummy) in enumerate(micro_batches, start=1):
                part = sequences.select(indices)
                micro = collate(
                    part,
                    list(range(len(indices))),
                    packing=policy.layout,
                    device=policy.device,
                    images=policy.images,
                    dummy=dummy,
                )
                logp_N, _ = policy.logprobs(micro, temperature=temperature)
                if not micro.dummy:
                    weight_N = micro.gather(part.weights)
                    nll_N, token_weight_N = (-logp_N * weight_N).double(), weight_N.double()
                    total += float(nll_N.sum())
                    weight += float(token_weight_N.sum())
                    parts = [segment_sum(values_N, micro.cu_seqlens) for values_N in (nll_N, token_weight_N)]
                    rows_S2[indices] = torch.stack(parts, dim=1).cpu()
                if progress is not None:
                    progress(window[0] + len(window) * done // len(micro_batches), len(sequences))
    finally:
        policy.model.train()
    # Each sequence was computed by one rank, and is 0 on the others.
    process_group.all_reduce_([rows_S2])
    sums = process_group.reduce_metrics({"total": total, "weight": weight})
    return sums["total"] / sums["weight"], rows_S2
