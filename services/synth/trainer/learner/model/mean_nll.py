"""The mean negative log-likelihood of a set of sequences under a policy."""

from __future__ import annotations

from collections.abc import Callable

import torch

from synth.trainer.learner.data.packing import Sequences, collate, plan_micro_batches
from synth.trainer.learner.model.policy import Policy


@torch.no_grad()
def mean_nll(
    policy: Policy,
    sequences: Sequences,
    *,
    temperature: float = 1.0,
    on_micro_batch: Callable[[int, int], None] | None = None,
) -> float:
    """The weighted mean negative log-likelihood of the trained tokens, in nats, without dropout.

    Every rank calls this, and gets the mean over all of them.
    on_micro_batch: called with (done, of) after each forward.
    """
    config, process_group = policy.config, policy.process_group
    micro_batches = process_group.shard_micro_batches(
        plan_micro_batches(
            sequences.lengths(list(range(len(sequences)))),
            budget=config.micro_batch_tokens,
            packing=config.packing,
            num_ranks=process_group.size,
        )
    )
    total = weight = 0.0
    policy.model.eval()
    try:
        for done, (indices, dummy) in enumerate(micro_batches, start=1):
            micro = collate(
                sequences, indices, packing=config.packing, device=policy.device, images=policy.images, dummy=dummy
            )
            logp_N, _ = policy.logprobs(micro, temperature=temperature)
            if not micro.dummy:
                weight_N = micro.gather(sequences.weights)
                total -= float((logp_N * weight_N).double().sum())
                weight += float(weight_N.double().sum())
            if on_micro_batch is not None:
                on_micro_batch(done, len(micro_batches))
    finally:
        policy.model.train()
    sums = process_group.reduce_metrics({"total": total, "weight": weight})
    return sums["total"] / sums["weight"]
