"""A policy spread over ranks by FSDP2: each holds a module of every tensor, and gathers a block while it computes.

Invariants: a gradient is the sum over the ranks, not their mean, as the loss of a micro-batch is already divided by a
count of all of them; outside a forward and its backward every parameter is a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from synth.trainer.config import TrainConfig


class ShardedModel(nn.Module):
    """A model whose parameters are shards, and the one function that may use it: what it touches is gathered first."""

    def __init__(
        self, model: nn.Module, compute_logprobs: Callable[..., tuple[Tensor, Tensor]], config: TrainConfig
    ) -> None:
        """model: with the same weights on every rank, which all call this; it moves to the rank's device.

        compute_logprobs: uses the model's blocks and its head; it is called as this module is.
        """
        super().__init__()
        self.model = model
        self._compute_logprobs = compute_logprobs
        mesh = init_device_mesh(config.device, (config.world_size,))
        reshard_after_forward = config.sharding == "parameters"
        bf16 = config.dtype == "bf16"
        # The masters stay float32, and so do sums of gradients. The stream between blocks is autocast's, not FSDP's.
        mixed_precision = (
            MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False) if bf16 else None
        )
        classes = set(cast(Any, model)._no_split_modules or ())
        for block in [m for m in model.modules() if type(m).__name__ in classes]:
            fully_shard(
                block,
                mesh=mesh,
                reshard_after_forward=reshard_after_forward,
                mp_policy=mixed_precision or MixedPrecisionPolicy(),
            )
        # Embedding, last norm and head: with the head in float32, as log-probabilities want it.
        fully_shard(self, mesh=mesh, reshard_after_forward=reshard_after_forward)
        for module in self._fsdp_modules():
            module.set_gradient_divide_factor(1.0)
            # Else FSDP multiplies before it sums, which gloo cannot.
            module.set_force_sum_reduction_for_comms(True)
            # What is gathered first is told whether it is trained, once and for all: now, while every adapter is on.
            module.unshard()
            module.reshard()

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        logp_N, entropy_N = self._compute_logprobs(*args, **kwargs)
        # A view would lose FSDP's hook to whoever writes into it.
        return logp_N.clone(), entropy_N

    def logprobs(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As the function that this was made with; every rank calls it."""
        out = self(*args, **kwargs)
        if not torch.is_grad_enabled():
            # No backward comes that would do it.
            for module in self._fsdp_modules():
                module.reshard()
        return out

    def _fsdp_modules(self) -> list[FSDPModule]:
        return [m for m in self.modules() if isinstance(m, FSDPModule)]
