"""How much memory training takes."""

from __future__ import annotations

import resource

import torch


def peak_memory_bytes(device: torch.device) -> float:
    """Of the GPU's allocator, or this process's largest resident size."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
