"""AdamW's moments of one parameter, as this rank keeps them, and its update.

Invariant: a rank keeps the moments of its own shard, on the parameter's device or in the CPU's memory (`offload`), in
float32 or in 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from synth.trainer.learner.distributed.dtensor import distribute_like, gather_full, is_dtensor
from synth.trainer.learner.optim import quantized

#: Elements of a parameter that are updated at one time if its moments have to be decoded or copied to the device first.
#: 16 MiB of each moment in float32.
CHUNK_ELEMENTS = 1 << 22

_FIRST, _SECOND, _STEP, _SCALE = "exp_avg", "exp_avg_sq", "step", "_scale"
_EPSILON = 1e-8


@dataclass(frozen=True)
class UpdateRule:
    """One step of AdamW: learning rate, betas, weight decay."""

    lr: float
    betas: tuple[float, ...]
    weight_decay: float


class Moments:
    """The moments of one parameter; zero until the first update.

    stored: by `exp_avg`, `exp_avg_sq`, `step`, and in 8 bits also `exp_avg_scale` and `exp_avg_sq_scale`.
    """

    def __init__(self, parameter: nn.Parameter, *, in_8_bits: bool, offload: bool) -> None:
        self.parameter = parameter
        self.quantized = in_8_bits and quantized.is_quantized(tuple(parameter.shape))
        self.offload = offload
        self.stored: dict[str, Tensor] = {}

    @property
    def streamed(self) -> bool:
        """Whether an update needs them decoded, or brought to the device."""
        return self.quantized or self.offload

    def start(self) -> None:
        """Create the moments, all zeros, if they do not exist yet."""
        if self.stored:
            return
        local = _local(self.parameter)
        for name in (_FIRST, _SECOND):
            if self.quantized:
                scales = (local.shape[0], quantized.blocks_of_row(tuple(local.shape)))
                self._keep(name, torch.zeros(local.shape, dtype=torch.uint8, device=local.device))
                self._keep(name + _SCALE, torch.zeros(scales, device=local.device))
            else:
                self._keep(name, torch.zeros_like(local))
        self._keep(_STEP, torch.zeros((), device=local.device))

    def update_by_chunks(self, rule: UpdateRule) -> None:
        """Run one step of AdamW on this rank's shard of the parameter, in place, `CHUNK_ELEMENTS` at a time."""
        gradient = self.parameter.grad
        assert gradient is not None
        step = self.stored[_STEP]
        for rows in _chunks(_local(self.parameter)):
            first, second = self._rows(_FIRST, rows), self._rows(_SECOND, rows)
            weights, slopes = _as_rows(_local(self.parameter))[rows], _as_rows(_local(gradient).contiguous())[rows]
            _fused([weights], [slopes], [first], [second], [step.clone()], rule)
            self._put(_FIRST, rows, first)
            self._put(_SECOND, rows, second)
        step += 1

    def move(self, device: torch.device) -> None:
        """Move the moments, except the ones that stay in the CPU's memory."""
        for name, tensor in self.stored.items():
            if not self._in_memory(name):
                self.stored[name] = tensor.to(device)

    def gathered(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each full tensor with its name, on the parameter's device. Every rank goes through all of them."""
        for name, tensor in self.stored.items():
            if name == _STEP or not is_dtensor(self.parameter):
                yield name, tensor
            else:
                whole = (self.parameter.shape[0], *tensor.shape[1:])
                yield name, gather_full(_as_shard(tensor.to(self.parameter.device), whole, self.parameter))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each full tensor."""
        rows = self.parameter.shape[0] if self.parameter.ndim else 1
        return {
            name: tensor.element_size() * (tensor.shape[1:].numel() * rows if tensor.ndim else 1)
            for name, tensor in self.stored.items()
        }

    def load(self, name: str, full: Tensor) -> None:
        """Keep this rank's part of a full tensor that `gathered` gave."""
        if name == _STEP:
            self._keep(name, full.to(self.parameter.device))
        else:
            self._keep(name, _local(distribute_like(full, self.parameter)))

    def _in_memory(self, name: str) -> bool:
        # The count of steps is a scalar, and the kernel needs it on the parameter's device.
        return self.offload and name != _STEP

    def _keep(self, name: str, tensor: Tensor) -> None:
        if self._in_memory(name) and tensor.is_cuda:
            # Pinned memory is copied to and from the device without a second copy in between.
            tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
        self.stored[name] = tensor

    def _rows(self, name: str, rows: slice) -> Tensor:
        """Return some rows of a moment in float32, on the parameter's device."""
        device = self.parameter.device
        part = _as_rows(self.stored[name])[rows].to(device, non_blocking=True)
        if not self.quantized:
            return part
        scales = self.stored[name + _SCALE][rows].to(device, non_blocking=True)
        return quantized.decode(part, scales, signed=name == _FIRST)

    def _put(self, name: str, rows: slice, values: Tensor) -> None:
        target = _as_rows(self.stored[name])[rows]
        if self.quantized:
            values, scales = quantized.encode(values, signed=name == _FIRST)
            self.stored[name + _SCALE][rows].copy_(scales, non_blocking=True)
        if target.data_ptr() != values.data_ptr():
            target.copy_(values, non_blocking=True)


def update_at_once(moments: list[Moments], rule: UpdateRule) -> None:
    """Run one step of AdamW on parameters whose moments are in float32, in as few kernels as possible."""
    first, second, steps = ([m.stored[name] for m in moments] for name in (_FIRST, _SECOND, _STEP))
    _fused(
        [_local(m.parameter) for m in moments], [_local(m.parameter.grad) for m in moments], first, second, steps, rule
    )


def _fused(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    rule: UpdateRule,
) -> None:
    adamw(
        weights,
        gradients,
        first,
        second,
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=rule.betas[0],
        beta2=rule.betas[1],
        lr=rule.lr,
        weight_decay=rule.weight_decay,
        eps=_EPSILON,
        maximize=False,
    )


def _local(tensor: Any) -> Tensor:
    """Return this rank's shard of a tensor, without a gradient; it shares the memory."""
    return (tensor.to_local() if is_dtensor(tensor) else tensor).detach()


def _as_rows(tensor: Tensor) -> Tensor:
    """Return [R, ...] as [R, C]; a scalar is one row."""
    return tensor.view(tensor.shape[0], -1) if tensor.ndim else tensor.view(1, 1)


def _chunks(tensor: Tensor) -> Iterator[slice]:
    """Yield rows of a tensor [R, ...], as many at a time as have `CHUNK_ELEMENTS`, at least one."""
    if not tensor.numel():
        return
    rows = tensor.shape[0] if tensor.ndim else 1
    each = max(1, CHUNK_ELEMENTS * rows // tensor.numel())
    for start in range(0, rows, each):
        yield slice(start, start + each)


def _as_shard(tensor: Tensor, shape: tuple[int, ...], parameter: Any) -> Tensor:
    """Return a tensor as the shard of a DTensor of this shape, which lies on the ranks as the parameter does."""
    from torch.distributed.tensor import DTensor

    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        tensor, parameter.device_mesh, parameter.placements, run_check=False, shape=torch.Size(shape), stride=strides
    )
