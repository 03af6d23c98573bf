"""Copies of a policy's tensors in host memory, so that training may change them while a thread writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)


class HostCopies:
    """The buffers that are copied to. They are kept: to allocate and to pin memory takes longer than to copy."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        rank_of: Mapping[str, int],
        rank: int,
        *,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Copy the tensors that this rank writes. The copies are overwritten by the next call.

        tensors: full, gathered one at a time as every rank reads the next, so that no device holds the whole model.
        rank_of: the rank that writes each tensor. dtype: of the copies; None: of the tensors.
        """
        copies: dict[str, Tensor] = {}
        on_gpu = False
        for name, full in tensors:
            if rank_of[name] == rank:
                copies[name] = self._buffer(name, full, dtype or full.dtype).copy_(full, non_blocking=True)
                on_gpu |= full.is_cuda
        if on_gpu:
            torch.cuda.synchronize()
        return copies

    def _buffer(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != dtype:
            buffer = self._buffers[name] = torch.empty(tensor.shape, dtype=dtype)
            if tensor.is_cuda:
                _pin(buffer)
        return buffer


def _pin(tensor: Tensor) -> None:
    """Pin memory as it is: torch's own allocator of pinned memory would round it up to a power of two.

    What cannot be pinned is copied to more slowly, and is right all the same.
    """
    runtime: Any = torch.cuda.cudart()
    failed = int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)) if tensor.nbytes else 0
    if failed:
        log.warning("%.1f MB of main memory cannot be pinned (CUDA error %d)", tensor.nbytes / 1e6, failed)


def assign_to_ranks(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Return the rank that writes each tensor: largest tensors first, each to the rank with the fewest bytes so far."""
    load = [0] * ranks
    rank_of: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank_of[name] = load.index(min(load))
        load[rank_of[name]] += sizes[name]
    return rank_of
