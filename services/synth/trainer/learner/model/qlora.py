"""QLoRA's base: linear layers whose weights are stored in 4 bits and dequantized when they are used.

bitsandbytes' own layer is not used. In `eval`, on a CPU with bfloat16 instructions, it repacks its weights for good for
a kernel that computes in bfloat16 and has no backward: after a validation the layers below would get no gradient.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from synth.trainer.errors import TrainingFailed
from synth.weights import nf4
from synth.weights.policy_file import WeightsError


class Nf4Linear(nn.Linear):
    """A frozen linear layer in NF4. It computes in its input's dtype, or autocast's, on dequantized weights.

    weight: uint8 [out·in / 2, 1], a buffer, so that nothing casts, shards or trains it as a parameter.
    """

    def __init__(self, layer: nn.Linear, parts: dict[str, Tensor]) -> None:
        """layer: gives the shape and the bias. parts: from `nf4.encode`."""
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        del self.weight
        self.register_buffer("weight", parts[""], persistent=False)
        self.bias = layer.bias
        self._state = nf4.quant_state(parts)

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = _MatMul.apply(input, self)  # pyright: ignore[reportAssignmentType]
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [out, in], rounded as it is served, in this dtype."""
        if self._state.absmax.device != self.weight.device:
            self._state.to(self.weight.device)
        return nf4.decode(self.weight, self._state).to(dtype)


class _MatMul(torch.autograd.Function):
    """x Wᵀ; W is dequantized for the forward and again for the backward, and saved for neither."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Nf4Linear) -> Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        ctx.layer, ctx.dtype = layer, x.dtype
        return x.to(dtype) @ layer.dequantized(dtype).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        return (grads[0] @ ctx.layer.dequantized(grads[0].dtype)).to(ctx.dtype), None


def replace_with_nf4(model: Any, model_dir: Path) -> None:
    """Replace linear layers by `Nf4Linear` with the codes of a rounded folder. Raises `TrainingFailed` (bad_model)."""
    try:
        codes = nf4.read_codes(model_dir)
    except WeightsError as error:
        raise TrainingFailed("bad_model", str(error)) from error
    for name, parts in codes.items():
        path = name.removesuffix(".weight")
        model.set_submodule(path, Nf4Linear(model.get_submodule(path), parts))
