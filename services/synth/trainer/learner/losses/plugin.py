"""A loss that the operator has installed: it is tried before the model is loaded, and every result is checked.

Invariant. Any fault of such a loss is one `TrainingFailed` (plugin_failed) that names it, and no part of the step in
which it occurs is published or saved.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from synth.errors import Permanent
from synth.plugins import load_plugin
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.losses.base import Clip, LossInputs, LossOutput


class Loss(Protocol):
    """A policy-gradient loss, ours or another."""

    def __call__(self, inputs: LossInputs, *, clip: Clip) -> LossOutput: ...


@dataclass(frozen=True)
class PluginLoss:
    """The loss of a plugin. name: as the job writes it."""

    name: str
    function: Any

    def __call__(self, inputs: LossInputs, *, clip: Clip) -> LossOutput:
        """Call the plugin. Raises `TrainingFailed` (plugin_failed) if it raises, or returns an invalid result."""
        try:
            out = self.function(inputs, clip=clip)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            traceback.print_exc()
            frames = traceback.extract_tb(error.__traceback__)
            at = f" at {frames[-1].name}, line {frames[-1].lineno}" if len(frames) > 1 else ""
            raise self._failed(f"it raises {type(error).__name__}: {error}{at}", "a LossOutput") from error
        if not isinstance(out, LossOutput):
            what = f"it returns a {type(out).__name__}"
            raise self._failed(what, "a LossOutput of synth.trainer.learner.losses.base")
        self._check_loss(out.loss)
        sizes = {len(inputs.advantage_S), len(inputs.logp_N)}
        for field, tensor in (("clipped_U", out.clipped_U), ("advantage_U", out.advantage_U)):
            if not isinstance(tensor, Tensor) or tensor.ndim != 1 or len(tensor) not in sizes:
                shown = _shape(tensor)
                s, n = len(inputs.advantage_S), len(inputs.logp_N)
                raise self._failed(f"its {field} is {shown}", f"[S] = [{s}], or [N] = [{n}]")
        if out.clipped_U.dtype != torch.bool or out.clipped_U.shape != out.advantage_U.shape:
            what = f"its clipped_U is {_shape(out.clipped_U)} and its advantage_U {_shape(out.advantage_U)}"
            raise self._failed(what, "clipped_U of bool, and both of one shape")
        return out

    def _check_loss(self, loss: Any) -> None:
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            raise self._failed(f"its loss is {_shape(loss)}", "a scalar tensor, summed over the tokens")
        if loss.dtype not in (torch.float32, torch.float64):
            raise self._failed(f"its loss is of {loss.dtype}", "float32, as the log-probabilities are")
        if not loss.requires_grad:
            raise self._failed("its loss has no gradient", "one that is differentiable in logp_N")
        if not torch.isfinite(loss):
            raise self._failed(f"its loss is {loss.item()}", "a finite number")

    def _failed(self, what: str, expected: str) -> TrainingFailed:
        return TrainingFailed("plugin_failed", f"the loss {self.name!r} is at fault: {what}; expected {expected}")


def load_loss(name: str) -> PluginLoss:
    """Return the loss of a plugin, tried on a small example in float32. Raises `TrainingFailed` (plugin_failed)."""
    try:
        loss = PluginLoss(name, load_plugin(name, None))
    except Permanent as error:
        raise TrainingFailed("plugin_failed", str(error)) from error
    for by_token in (False, True):
        inputs = _example(by_token=by_token)
        out = loss(inputs, clip=Clip(0.2, 0.28))
        try:
            (gradient,) = torch.autograd.grad(out.loss, inputs.logp_N)
        except RuntimeError as error:
            raise loss._failed(f"its loss cannot be differentiated in logp_N: {error}", "a gradient") from error
        if not torch.isfinite(gradient).all():
            raise loss._failed(f"its gradient is {gradient.tolist()}", "finite numbers")
    return loss


def _example(*, by_token: bool) -> LossInputs:
    """Return sequences of 3, 2 and 1 tokens: one that did well, one that did badly, and one that was rejected.

    For one token π has moved far, up or down, so that any clip acts. by_token: tokens have advantages of their own.
    """
    old_logp_N = torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0, -1.5])
    moved_N = torch.tensor([0.0, 0.5, -0.5, 0.0, 1.0, 0.0])
    return LossInputs(
        logp_N=(old_logp_N + moved_N).clamp(max=-0.01).requires_grad_(),
        old_logp_N=old_logp_N,
        behaviour_logp_N=old_logp_N - 0.01,
        weight_N=torch.full((6,), 0.99),
        keep_S=torch.tensor([True, True, False]),
        advantage_S=torch.tensor([1.0, -1.0, 0.5]),
        cu_seqlens=torch.tensor([0, 3, 5, 6]),
        token_weight_S=torch.tensor([1 / 9, 1 / 6, 1 / 3]),
        token_advantage_N=torch.tensor([1.0, 0.5, -0.5, 0.0, -1.0, 0.5]) if by_token else None,
    )


def _shape(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
