"""How much memory the training process takes."""

from __future__ import annotations

import resource

import torch


def peak_memory_bytes(device: torch.device) -> float:
    """The peak of the GPU's allocator, or on a CPU the largest resident size of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
