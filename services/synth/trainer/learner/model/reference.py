"""The frozen model that a policy is held near, and the KL term that holds it.

The reference is the job's source, whatever checkpoint training is resumed from.
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

from synth.trainer.config import RlRecipe
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import MicroBatch
from synth.trainer.learner.distributed.process_group import ALONE, Ranks
from synth.trainer.learner.losses.base import LOG_RATIO_CAP, LossInputs, over_sequences, ratio
from synth.trainer.learner.model.policy import Policy, load_policy

_ADAPTER = "reference"


class Reference(Protocol):
    """A frozen language model."""

    def logprobs(self, micro: MicroBatch, *, temperature: float) -> Tensor:
        """log π_ref of the micro-batch's trained tokens: float32 [N], nats, where the micro-batch is, no gradient."""
        ...


@dataclass(frozen=True)
class SourceOfAdapter:
    """The policy's own base: with its adapter off, or with the adapter that it began as. No memory to speak of."""

    policy: Policy
    continued: bool

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, *, temperature: float) -> Tensor:
        """As `Reference`."""
        with self._as_it_was():
            return self.policy.logprobs(micro, temperature=temperature)[0]

    @contextlib.contextmanager
    def _as_it_was(self) -> Iterator[None]:
        adapted = self.policy.adapted
        assert adapted is not None
        if not self.continued:
            with adapted.disable_adapter():
                yield
            return
        adapted.set_adapter(_ADAPTER, inference_mode=True)
        try:
            yield
        finally:
            adapted.set_adapter("default")


@dataclass(frozen=True)
class FrozenCopy:
    """A copy of the source as training loaded it, in the same precision: at step 0 the KL is exactly 0."""

    policy: Policy
    device: torch.device

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, *, temperature: float) -> Tensor:
        """As `Reference`."""
        logp_N, _ = self.policy.logprobs(_on(micro, self.device), temperature=temperature)
        return logp_N.to(micro.target_N.device)


def load_reference(
    policy: Policy, recipe: RlRecipe, *, adapter_dir: Path | None = None, ranks: Ranks = ALONE
) -> Reference | None:
    """The reference that the recipe asks for; None without a KL term.

    policy: as `load_policy` made it, of the same folder and `adapter_dir`, before it is spread over `ranks`. "shared"
    with an adapter uses the policy's own base; everything else is a frozen copy, as large as the policy's weights:
    "dedicated" on `recipe.reference_device`, or, sharded as the policy is, among the ranks.
    Raises `TrainingFailed`: bad_recipe where there is no such device, and what `load_policy` raises.
    """
    if recipe.reference == "none":
        return None
    if recipe.reference == "shared" and policy.adapted is not None:
        if adapter_dir is not None:
            policy.adapted.load_adapter(str(adapter_dir), _ADAPTER, is_trainable=False)
        return SourceOfAdapter(policy, continued=adapter_dir is not None)
    elsewhere = recipe.reference_device if recipe.reference == "dedicated" and not recipe.sharded else None
    device = _device(elsewhere or recipe.device)
    # From the CPU to where it stays: never twice on the policy's device.
    on_cpu = msgspec.structs.replace(recipe, device="cpu", activation_checkpointing=False)
    # A fresh adapter is drawn at random, and does nothing: but what is drawn after it must not change by it.
    with torch.random.fork_rng(devices=[]):
        copy = load_policy(policy.model_dir, on_cpu, adapter_dir=adapter_dir, dropout=False)
    copy.model.requires_grad_(False).eval()
    copy.recipe = msgspec.structs.replace(on_cpu, device=device.type)
    if device.type == recipe.device:
        # Another kernel than the policy's would be a KL of its own, and slower.
        copy.model.set_attn_implementation(policy.model.config._attn_implementation)
    if not recipe.sharded:
        copy.model.to(device)
    copy.spread(ranks)
    return FrozenCopy(copy, device)


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise TrainingFailed(
            "bad_recipe",
            f"the reference model has no device {name!r} ({str(error).splitlines()[0]}); set SYNTH_REFERENCE_DEVICE to "
            "one that the trainer has, or to none",
        ) from error


def _on(micro: MicroBatch, device: torch.device) -> MicroBatch:
    return replace(micro, **{n: v.to(device) for n, v in vars(micro).items() if isinstance(v, Tensor)})


@dataclass(frozen=True)
class KlOutput:
    """loss: a scalar to differentiate, normalised as the policy loss. kl_N: its tokens' values, nats, no gradient."""

    loss: Tensor
    kl_N: Tensor


def reference_kl(inputs: LossInputs, reference_logp_N: Tensor) -> KlOutput:
    """An unbiased estimate of KL(π ‖ π_ref), in value and in gradient.

        r_t  = exp(logp_t − old_logp_t),  x_t = reference_logp_t − logp_t
        kl_t = w_t · r_t · (e^x_t − 1 − x_t)                       Schulman's k3, joschu.net/blog/kl-approx.html
        loss = mean_S mean_t kl_t,  with the gradient  −w_t · r_t · x_t · ∇logp_t

    k3 has the right expectation under π alone, and differentiating it as it stands gives the gradient of the other
    KL, of π_ref from π. Weighting it by π/μ (w_t·r_t) and differentiating the weight too mends both (DeepSeek-V3.2,
    arXiv 2512.02556, "unbiased KL estimate"); the derivative is written out, as its two large terms cancel.
    A rejected sequence adds nothing. reference_logp_N: as `inputs.logp_N`, without gradient.
    """
    logp_N = inputs.logp_N
    r_N = ratio(inputs.logp_N - inputs.old_logp_N, logp_N).detach()
    # In float64: at 1e-4 the terms of k3 are below float32's resolution.
    x_N = (reference_logp_N - logp_N.detach()).double()
    held_N = x_N.clamp(max=LOG_RATIO_CAP)
    value_N = (r_N * (held_N.expm1() - held_N)).to(logp_N.dtype)
    slope_N = (-r_N * x_N).to(logp_N.dtype)
    loss_N = value_N + slope_N * (logp_N - logp_N.detach())
    return KlOutput(loss=over_sequences(inputs, loss_N), kl_N=inputs.weight_N * value_N)
