"""The mean negative log-likelihood of a set of sequences under a policy."""

from __future__ import annotations

from collections.abc import Callable

import torch

from synth.trainer.learner.data.packing import SequenceSource, collate, plan_micro_batches, windows
from synth.trainer.learner.model.policy import Policy


@torch.no_grad()
def mean_nll(
    policy: Policy,
    sequences: SequenceSource,
    *,
    temperature: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """The weighted mean negative log-likelihood of the trained tokens, in nats, without dropout.

    Every rank calls this, and gets the mean over all of them. Of the sequences, those of one forward are in memory.
    progress: called with how many sequences are done, about, and how many there are, after each forward.
    """
    config, process_group = policy.config, policy.process_group
    total = weight = 0.0
    policy.model.eval()
    try:
        for window in windows(len(sequences)):
            plan = plan_micro_batches(
                sequences.lengths(window),
                budget=config.micro_batch_tokens,
                packing=config.packing,
                num_ranks=process_group.size,
            )
            micro_batches = process_group.shard_micro_batches(plan)
            for done, (indices, dummy) in enumerate(micro_batches, start=1):
                part = sequences.select(indices)
                micro = collate(
                    part,
                    list(range(len(indices))),
                    packing=config.packing,
                    device=policy.device,
                    images=policy.images,
                    dummy=dummy,
                )
                logp_N, _ = policy.logprobs(micro, temperature=temperature)
                if not micro.dummy:
                    weight_N = micro.gather(part.weights)
                    total -= float((logp_N * weight_N).double().sum())
                    weight += float(weight_N.double().sum())
                if progress is not None:
                    progress(window[0] + len(window) * done // len(micro_batches), len(sequences))
    finally:
        policy.model.train()
    sums = process_group.reduce_metrics({"total": total, "weight": weight})
    return sums["total"] / sums["weight"]
