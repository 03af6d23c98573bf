"""The fingerprint of a machine and its settings, and the loss that a resumed run must reproduce under it."""

from __future__ import annotations

import platform

import msgspec
import torch

from synth.methods.base import CPU_FORWARDS, TrainingJob
from synth.trainer.errors import TrainingFailed
from synth.trainer.machine import Machine

_TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the settings that decide the bytes of a run, beside its job, data and seed (decision 29).

    threads: of one operation; since 2026-12 always 1. forwards: that share `micro_batch_tokens`; before, always 1.
    """

    torch: str
    instruction_set: str
    device: str
    threads: int
    world_size: int
    sharding: str
    dtype: str
    deterministic: bool
    forwards: int = 1


def fingerprint(job: TrainingJob, machine: Machine) -> Fingerprint:
    """Return the fingerprint of this process for a job."""
    on_gpu = machine.device == "cuda"
    return Fingerprint(
        torch=str(torch.__version__),
        instruction_set=f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}",
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        threads=torch.get_num_threads(),
        world_size=machine.world_size,
        sharding=job.parallelism.sharding if machine.world_size > 1 else "none",
        dtype=machine.dtype,
        deterministic=machine.deterministic,
        forwards=1 if on_gpu else CPU_FORWARDS,
    )


def check_same_loss(loss_then: float, loss_now: float, *, saved: Fingerprint, here: Fingerprint, step: int) -> None:
    """Check that a resumed policy is the one that was saved, by the loss of its probe then and now.

    The losses are equal on the same fingerprint if training is deterministic; else they may differ by 1e-3, or by 2e-2
    if one of the two is bf16. saved, here: the fingerprints of the two processes. step: of the checkpoint.
    Raises `TrainingFailed` (resume_mismatch) with both losses and the differences.
    """
    exact = saved == here and here.deterministic
    tolerance = 0.0 if exact else max(_TOLERANCE[saved.dtype], _TOLERANCE[here.dtype])
    if abs(loss_then - loss_now) <= tolerance:
        return
    differs = [
        f"{f}: {getattr(saved, f)} then, {getattr(here, f)} now"
        for f in Fingerprint.__struct_fields__
        if getattr(saved, f) != getattr(here, f)
    ]
    raise TrainingFailed(
        "resume_mismatch",
        f"the checkpoint of step {step} had loss {loss_then!r} and has {loss_now!r} here; expected a "
        f"difference of at most {tolerance:g} ({'; '.join(differs) or 'same machine type'}); resume on a machine "
        "like the one that saved it, or from an earlier checkpoint",
    )
