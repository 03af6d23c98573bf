"""AdamW over a policy's trained parameters, with clipped gradients, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from synth.methods.base import TrainingJob
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.distributed.dtensor import gather_full, is_dtensor
from synth.trainer.learner.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from synth.trainer.learner.optim.moments import Moments, UpdateRule, update_at_once


class Optimizer:
    """AdamW with the L2 norm of the whole gradient clipped. Weight decay acts on matrices, not on norms and biases.

    Its moments are float32 on the parameters' device, in 8 bits, or in the CPU's memory, depending on the job.

    With several ranks, every rank calls every method. A gradient is the sum over the ranks: FSDP sums the gradients of
    sharded parameters, and `step` those of parameters that every rank holds in full.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter], job: TrainingJob, *, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self._parameters = parameters
        self._process_group = process_group
        self._clip_norm = job.clip_norm
        self._betas = job.betas
        self._weight_decay = job.weight_decay
        in_8_bits = job.optimizer == "adamw_8bit"
        self._moments = {
            name: Moments(parameter, in_8_bits=in_8_bits, offload=job.optimizer_offload)
            for name, parameter in parameters.items()
        }

    def step(self, lr: float, *, scale: float = 1.0) -> float:
        """Clip the gradient, update the parameters, clear the gradient. Returns its L2 norm before it was clipped.

        scale: a factor on the gradient, applied first.
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
            self._update(lr)
        for parameter in self._parameters.values():
            parameter.grad = None
        return norm

    @torch.no_grad()
    def _update(self, lr: float) -> None:
        by_rule: dict[UpdateRule, list[Moments]] = {}
        for moments in self._moments.values():
            moments.start()
            decay = self._weight_decay if moments.parameter.ndim >= 2 else 0.0
            rule = UpdateRule(lr=lr, betas=self._betas, weight_decay=decay)
            if moments.streamed:
                moments.update_by_chunks(rule)
            else:
                by_rule.setdefault(rule, []).append(moments)
        for rule, together in by_rule.items():
            update_at_once(together, rule)
        if any(moments.offload and moments.parameter.is_cuda for moments in self._moments.values()):
            # Copies to pinned memory are asynchronous; they are read after this.
            torch.cuda.synchronize()

    def _gradients(self) -> list[Tensor]:
        """Return the gradients of all parameters; empty if no forward and backward has run."""
        if all(p.grad is None for p in self._parameters.values()):
            return []
        for parameter in self._parameters.values():
            if parameter.grad is None:
                # Nothing that this rank computed depends on it, such as a vision tower without images; on another rank
                # something may.
                parameter.grad = torch.zeros_like(parameter)
        return [p.grad for p in self._parameters.values() if p.grad is not None]

    def move(self, device: torch.device) -> None:
        """Move the state; the policy moves the parameters, before this. Offloaded moments stay in the CPU's memory."""
        for moments in self._moments.values():
            moments.move(device)

    def gathered(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each full tensor of the state, named `<parameter>/<exp_avg | exp_avg_sq | step>`; none before a step.

        Moments in 8 bits are their codes, as they are, beside `exp_avg_scale` and `exp_avg_sq_scale`. Every rank goes
        through all of them, and one at a time is on the device.
        """
        for name, moments in self._moments.items():
            for key, full in moments.gathered():
                yield f"{name}/{key}", full

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each tensor that `gathered` gives."""
        return {f"{n}/{key}": size for n, moments in self._moments.items() for key, size in moments.sizes().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `gathered` returned. tensors: whole, the same on every rank."""
        for key, value in tensors.items():
            name, kind = key.rsplit("/", 1)
            self._moments[name].load(kind, value)
