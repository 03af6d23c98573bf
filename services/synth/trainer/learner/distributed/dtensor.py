"""Gathers and distributes tensors, sharded (DTensor) or not."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Return whether this rank holds a shard of the tensor. Importing the class DTensor would take a second."""
    return hasattr(tensor, "device_mesh")


def gather_full(tensor: Any) -> Tensor:
    """Return the full tensor. For a DTensor every rank calls this, for the same tensors in the same order."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def distribute_like(tensor: Tensor, parameter: Any) -> Tensor:
    """Put a full tensor, the same on every rank, on the device of a parameter, sharded as the parameter is."""
    tensor = tensor.to(parameter.device)
    if not is_dtensor(parameter):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
