"""Tensors that may be spread over ranks, to whom it is all the same whether they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether the tensor is this rank's part of one (a DTensor, told without the second that importing it takes)."""
    return hasattr(tensor, "device_mesh")


def gather_full(tensor: Any) -> Tensor:
    """The tensor, gathered where it is a shard: then every rank calls this, for the same tensors in the same order."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def distribute_like(tensor: Tensor, parameter: Any) -> Tensor:
    """A tensor that every rank has whole, on the device of a parameter and sharded as that is."""
    tensor = tensor.to(parameter.device)
    if not is_dtensor(parameter):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
