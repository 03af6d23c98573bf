"""How much memory the training process takes, and whether its device has as much."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from synth.jobs.fit import cannot_fit
from synth.jobs.plan import TrainerDevice
from synth.methods.base import TrainingJob
from synth.models.config_shape import read_shape
from synth.trainer.errors import DOES_NOT_FIT, TrainingFailed
from synth.trainer.machine import Machine
from synth.trainer.protocol import Start


def peak_memory_bytes(device: torch.device) -> float:
    """Return the peak of the GPU's allocator, or on a CPU the largest resident size of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def check_device_memory(start: Start, job: TrainingJob, machine: Machine) -> None:
    """Check whether the GPU that this process computes on can hold the job, before its model is loaded.

    A CPU is not checked, because its limit is not known. Raises `TrainingFailed` (does_not_fit) with the numbers and a
    fix.
    """
    if not start.check_memory or machine.device != "cuda":
        return
    _, memory = torch.cuda.mem_get_info()
    fault = memory_fault(start, job, machine, memory)
    if fault is not None:
        raise TrainingFailed(DOES_NOT_FIT, fault)


def memory_fault(start: Start, job: TrainingJob, machine: Machine, memory: int) -> str | None:
    """Return why devices of this size cannot hold a job; None if they can, or if the model is not known."""
    shape = read_shape(Path(start.model_dir))
    if shape is None:
        return None
    device = TrainerDevice(device=machine.device, dtype=machine.dtype, ranks=machine.world_size, memory=memory)
    problem = cannot_fit(job, shape, device, where=start.where)
    return None if problem is None else problem.text()
