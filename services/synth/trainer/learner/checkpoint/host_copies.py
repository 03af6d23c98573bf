"""Copies of a policy's tensors in host memory, so that training may change them while a thread writes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from synth.trainer.learner.distributed.dtensor import gather_full
from synth.trainer.learner.distributed.process_group import ProcessGroup


class HostCopies:
    """The buffers that are copied to. They are kept: to allocate and to pin memory takes longer than to copy."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(
        self,
        tensors: Mapping[str, Tensor],
        rank_of: Mapping[str, int],
        process_group: ProcessGroup,
        *,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Full copies of those tensors that this rank writes; they change with the next call.

        rank_of: the rank that writes each tensor. dtype: of the copies; None: of the tensors. Every rank calls this:
        sharded tensors are gathered one at a time, so that no device holds the whole model.
        """
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = gather_full(tensor.detach())
            if rank_of[name] == process_group.rank:
                copies[name] = self._buffer(name, full, dtype or full.dtype).copy_(full, non_blocking=True)
        if any(buffer.is_pinned() for buffer in copies.values()):
            torch.cuda.synchronize()
        return copies

    def _buffer(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != dtype:
            buffer = torch.empty(tensor.shape, dtype=dtype, pin_memory=tensor.is_cuda)
            self._buffers[name] = buffer
        return buffer


def assign_to_ranks(tensors: Mapping[str, Tensor], ranks: int) -> dict[str, int]:
    """Which rank writes each tensor: the largest ones first, each to the rank that has the fewest bytes so far."""
    load = [0] * ranks
    rank_of: dict[str, int] = {}
    for name in sorted(tensors, key=lambda name: (-tensors[name].numel(), name)):
        rank_of[name] = load.index(min(load))
        load[rank_of[name]] += tensors[name].numel() * tensors[name].element_size()
    return rank_of
