"""The frozen reference model, which the KL term of the loss holds a policy near to.

The reference is always the job's source model, also when training resumes from a checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from synth.methods.rl import RlJob
from synth.runtime.lines import split_lines
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.allowed_tokens import AllowedTokens
from synth.trainer.learner.data.packing import MicroBatch
from synth.trainer.learner.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from synth.trainer.learner.model.base_model import attention_of, set_attention
from synth.trainer.learner.model.policy import Policy, load_policy

_REFERENCE_ADAPTER = "reference"


class Reference(Protocol):
    """A frozen language model."""

    def move(self, device: torch.device) -> None:
        """Move the tensors that are its own alone."""
        ...

    def logprobs(self, micro_batches: list[MicroBatch], *, temperature: float) -> Iterator[Tensor]:
        """Yield log π_ref of each micro-batch's trained tokens: float32 [N], nats, on its device, without gradient.

        The policy computes nothing else before the last one.
        """
        ...


@dataclass(frozen=True)
class SharedBaseReference:
    """The policy's own base, with its adapter off, or with the adapter that the job started from.

    It takes almost no memory. has_source_adapter: whether the job started from an adapter.
    """

    policy: Policy
    has_source_adapter: bool

    def move(self, device: torch.device) -> None:
        """Do nothing: it has no tensors of its own."""

    def logprobs(self, micro_batches: list[MicroBatch], *, temperature: float) -> Iterator[Tensor]:
        """As `Reference`."""

        def compute(micro: MicroBatch) -> Tensor:
            return self.policy.logprobs(micro, temperature=temperature)[0]

        with self._reference_adapter():
            yield from self.policy.threads.map(compute, micro_batches)

    @contextlib.contextmanager
    def _reference_adapter(self) -> Iterator[None]:
        peft_model = self.policy.peft_model
        assert peft_model is not None
        if not self.has_source_adapter:
            with peft_model.disable_adapter():
                yield
            return
        peft_model.set_adapter(_REFERENCE_ADAPTER, inference_mode=True)
        try:
            yield
        finally:
            peft_model.set_adapter("default")


@dataclass(frozen=True)
class FrozenCopyReference:
    """A copy of the source model in the precision of training, so that the KL is exactly 0 at step 0."""

    policy: Policy
    device: torch.device

    def move(self, device: torch.device) -> None:
        """As `Reference`."""
        self.policy.move(device)

    def logprobs(self, micro_batches: list[MicroBatch], *, temperature: float) -> Iterator[Tensor]:
        """As `Reference`."""

        def compute(micro: MicroBatch) -> Tensor:
            logp_N, _ = self.policy.logprobs(_to_device(micro, self.device), temperature=temperature)
            return logp_N.to(micro.target_N.device)

        return self.policy.threads.map(compute, micro_batches)


def load_reference(
    policy: Policy,
    job: RlJob,
    *,
    adapter_dir: Path | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> Reference | None:
    """Load the reference of the job; None without a KL term.

    policy: from `load_policy`, of the same folder and `adapter_dir`, before it is sharded over `process_group`.
    "shared" with an adapter uses the policy's own base; everything else is a frozen copy, as large as the policy's
    weights: a "dedicated" one is on `machine.reference_device`, or sharded over the ranks if the policy is.
    Raises `TrainingFailed`: bad_recipe if that device does not exist, and the errors of `load_policy`.
    """
    machine = policy.machine
    if job.reference == "none":
        return None
    if job.reference == "shared" and policy.peft_model is not None:
        if adapter_dir is not None:
            policy.peft_model.load_adapter(str(adapter_dir), _REFERENCE_ADAPTER, is_trainable=False)
        return SharedBaseReference(policy, has_source_adapter=adapter_dir is not None)
    dedicated_device = machine.reference_device if job.reference == "dedicated" and not machine.shards(job) else None
    device = _device(dedicated_device or machine.device)
    # Loaded on the CPU and then moved, so that the policy's device never holds it twice.
    on_cpu = msgspec.structs.replace(machine, device="cpu")
    frozen = msgspec.structs.replace(job, activation_checkpointing=False)
    # A new adapter draws random numbers, though it does nothing here; what training draws must not depend on that.
    with torch.random.fork_rng(devices=[]):
        copy = load_policy(
            policy.model_dir, frozen, on_cpu, adapter_dir=adapter_dir, images=policy.images, dropout=False
        )
    copy.model.requires_grad_(False).eval()
    copy.machine = msgspec.structs.replace(machine, device=device.type)
    if device.type == machine.device:
        # Another attention kernel than the policy's would give a KL above 0, and be slower.
        set_attention(copy.model, attention_of(policy.model))
    if not machine.shards(job):
        copy.model.to(device)
    copy.shard(process_group)
    return FrozenCopyReference(copy, device)


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise TrainingFailed(
            "bad_recipe",
            f"the reference model has no device {name!r} ({split_lines(str(error))[0]}); set SYNTH_REFERENCE_DEVICE to "
            "one that the trainer has, or to none",
        ) from error


def _to_device(micro: MicroBatch, device: torch.device) -> MicroBatch:
    return replace(micro, **{n: v.to(device) for n, v in vars(micro).items() if isinstance(v, Tensor | AllowedTokens)})
