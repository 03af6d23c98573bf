"""A policy sharded over ranks by FSDP2: each rank holds a shard of every tensor, and gathers a block to compute it.

Invariants: a gradient is the sum over the ranks, not their mean, because the loss of a micro-batch is already divided
by a count over all ranks; outside a forward and its backward every parameter is a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from synth.methods.base import TrainingJob
from synth.trainer.machine import Machine


class ShardedModel(nn.Module):
    """A model with sharded parameters, and its one function that uses them: FSDP gathers the parameters it uses."""

    def __init__(
        self,
        model: nn.Module,
        compute_logprobs: Callable[..., tuple[Tensor, Tensor]],
        job: TrainingJob,
        machine: Machine,
    ) -> None:
        """Shard the model; every rank calls this.

        model: has the same weights on every rank; its shards move to the rank's device. compute_logprobs: uses the
        model's blocks and its head, and takes the arguments that `logprobs` is given.
        """
        super().__init__()
        self.model = model
        self._compute_logprobs = compute_logprobs
        mesh = init_device_mesh(machine.device, (machine.world_size,))
        reshard_after_forward = job.parallelism.sharding == "parameters"
        bf16 = machine.dtype == "bf16"
        # Master weights and sums of gradients stay float32. Autocast, not FSDP, casts the activations between blocks.
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
        # Embedding, last norm and head, without mixed precision: log-probabilities need the head in float32.
        fully_shard(self, mesh=mesh, reshard_after_forward=reshard_after_forward)
        for module in self._fsdp_modules():
            module.set_gradient_divide_factor(1.0)
            # Else FSDP multiplies before it sums, which gloo cannot.
            module.set_force_sum_reduction_for_comms(True)
            # The first gather fixes which tensors have gradients, so it is done now, while every adapter is on.
            module.unshard()
            module.reshard()

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        logp_N, entropy_N = self._compute_logprobs(*args, **kwargs)
        # FSDP's hook is on the output; it would be lost on a view that a caller writes into.
        return logp_N.clone(), entropy_N

    def logprobs(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Call `compute_logprobs` on gathered parameters; every rank calls this."""
        out = self(*args, **kwargs)
        if not torch.is_grad_enabled():
            # FSDP reshards in the backward, and there is none.
            for module in self._fsdp_modules():
                module.reshard()
        return out

    def _fsdp_modules(self) -> list[FSDPModule]:
        return [m for m in self.modules() if isinstance(m, FSDPModule)]
