"""The negative log-likelihood of a set of sequences under a policy: the mean, and the value of each sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from synth.trainer.learner.data.packing import SequenceSource, collate, windows
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
    process_group = policy.process_group

    def compute(part: tuple[list[int], bool]) -> tuple[list[int], Tensor, Tensor]:
        indices, dummy = part
        selected = sequences.select(indices)
        micro = collate(
            selected,
            list(range(len(indices))),
            packing=policy.layout,
            device=policy.device,
            images=policy.images,
            dummy=dummy,
        )
        logp_N, _ = policy.logprobs(micro, temperature=temperature)
        weight_N = micro.gather(selected.weights)
        terms_2N = torch.stack([-logp_N * weight_N, weight_N]).double()
        return ([] if dummy else indices), terms_2N, micro.cu_seqlens

    # The mean is added up forward by forward: a resumed job must get the bits that its checkpoint has.
    total = weight = 0.0
    rows_S2 = torch.zeros((len(sequences), 2), dtype=torch.float64)
    policy.model.eval()
    try:
        for window in windows(len(sequences)):
            micro_batches = policy.micro_batches(sequences.lengths(window))
            for done, (indices, terms_2N, cu_seqlens) in enumerate(policy.threads.map(compute, micro_batches), start=1):
                if indices:
                    total += float(terms_2N[0].sum())
                    weight += float(terms_2N[1].sum())
                    rows_S2[indices] = torch.stack([segment_sum(t_N, cu_seqlens) for t_N in terms_2N], dim=1).cpu()
                if progress is not None:
                    progress(window[0] + len(window) * done // len(micro_batches), len(sequences))
    finally:
        policy.model.train()
    # Each sequence was computed by one rank, and is 0 on the others.
    process_group.all_reduce_([rows_S2])
    sums = process_group.reduce_metrics({"total": total, "weight": weight})
    return sums["total"] / sums["weight"], rows_S2
