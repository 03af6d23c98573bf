"""AdamW over a policy's trained parameters, with clipped gradients, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from synth.trainer.config import TrainConfig
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.distributed.dtensor import distribute_like, gather_full, is_dtensor
from synth.trainer.learner.distributed.process_group import SINGLE_PROCESS, ProcessGroup


class Optimizer:
    """AdamW with the L2 norm of the whole gradient clipped. Weight decay acts on matrices, not on norms and biases.

    With several ranks, every rank calls every method. A gradient is the sum over the ranks: FSDP sums those of sharded
    parameters, and `step` those of parameters that every rank holds in full.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter], config: TrainConfig, *, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self._parameters = parameters
        self._process_group = process_group
        self._clip_norm = config.clip_norm
        matrices = [p for p in parameters.values() if p.ndim >= 2]
        others = [p for p in parameters.values() if p.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.lr,
            betas=config.betas,
            fused=True,
        )

    def step(self, lr: float, *, scale: float = 1.0) -> float:
        """Clip the gradient, update the parameters, clear the gradient. Returns its L2 norm before it was clipped.

        scale: what the gradient is multiplied by before.
        A gradient of exactly zero (everything clipped or rejected) changes nothing; Adam's momentum alone would.
        Raises `TrainingFailed` (nan_gradient) before any parameter has changed.
        """
        gradients = self._gradients()
        if scale != 1.0:
            for gradient in gradients:
                gradient.mul_(scale)
        self._process_group.all_reduce_(gradient for gradient in gradients if not is_dtensor(gradient))
        norm = float(gather_full(nn.utils.clip_grad_norm_(self._parameters.values(), self._clip_norm)))
        if not math.isfinite(norm):
            raise TrainingFailed("nan_gradient", f"the gradient's norm is {norm}; lower the learning rate")
        if norm > 0:
            for group in self._adamw.param_groups:
                group["lr"] = lr
            self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        return norm

    def _gradients(self) -> list[Tensor]:
        """The gradients of all parameters; none where nothing was put through the model."""
        if all(p.grad is None for p in self._parameters.values()):
            return []
        for parameter in self._parameters.values():
            if parameter.grad is None:
                # Nothing that this rank computed depends on it, such as a vision tower without images; on another rank
                # something may.
                parameter.grad = torch.zeros_like(parameter)
        return [p.grad for p in self._parameters.values() if p.grad is not None]

    def move(self, device: torch.device) -> None:
        """Move the state; the parameters are moved by their policy, before."""
        for state in self._adamw.state.values():
            for key, value in state.items():
                state[key] = value.to(device)

    def tensors(self) -> dict[str, Tensor]:
        """The state as it is in memory, named `<parameter>/<exp_avg | exp_avg_sq | step>`; empty before a step."""
        return {
            f"{name}/{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._adamw.state.get(parameter, {}).items()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned. tensors: whole, the same on every rank."""
        for key, value in tensors.items():
            name, kind = key.rsplit("/", 1)
            parameter = self._parameters[name]
            # Adam's step count is a scalar, which is not sharded.
            local = distribute_like(value, parameter) if value.ndim else value.to(parameter.device)
            self._adamw.state[parameter][kind] = local
